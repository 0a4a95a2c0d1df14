"""All runs of a config: each goes on from where it is, some take turns, and each fails alone."""

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from opencil.atomic_files import write_json
from opencil.config import Config, PlaceConfig
from opencil.data.benchmark import BenchmarkData
from opencil.engine.device import resolve_device
from opencil.errors import BadInput
from opencil.runs.advance import advance
from opencil.runs.events import Event, Finished
from opencil.runs.failures import failed
from opencil.runs.loading import describe_data, load
from opencil.runs.outputs_cache import OutputsCache
from opencil.runs.plan import RunSpec, plan
from opencil.runs.provenance import environment
from opencil.runs.run import Run
from opencil.runs.store import RunFolder
from opencil.validation import parse_size


def execute(config: Config) -> Iterator[Event]:
    """Do all that a config asks for and is not done yet, yielding events as it happens.

    ``place.pack`` runs take turns, an iteration each; on a GPU each has a stream of its own.
    """
    device = resolve_device(config.place.device)
    root = config.place.data_root
    if root is not None and not Path(root).is_dir():
        raise BadInput(f"place.data_root = {root!r} is not allowed: there is no such folder")
    data = cache(lambda: load(config))  # loaded when the first run needs it
    if config.benchmark.transform.computes:  # or now, since the runs' records hold the computed numbers
        config = replace(config, benchmark=replace(config.benchmark, transform=data().transform))
    specs = [(spec, RunFolder(Path(config.place.runs) / spec.folder)) for spec in plan(config)]
    for spec, folder in specs:
        folder.check(spec)  # all of them, before anything runs

    @cache
    def prepared() -> tuple[BenchmarkData, dict[str, Any]]:
        loaded = data()
        for spec, folder in specs:  # a run whose turn comes in hours is known of now, to those who watch
            with suppress(OSError):  # it fails when its turn comes, and alone
                folder.announce(spec, environment(device))
        return loaded, describe_data(config, loaded)

    outputs = OutputsCache(config.place.outputs_folder, parse_size(config.place.outputs_limit))
    outputs.trim()
    waiting = iter(specs)
    lanes: list[_Lane] = []
    # Whoever leaves in the middle frees every run at once, not when Python gets round to it.
    with ExitStack() as leaving:
        while True:
            free = config.place.pack - len(lanes)
            for spec, folder in islice(waiting, free):
                lanes.append(_Lane(_advance(spec, folder, config.place, device, prepared, outputs), device))
                leaving.callback(lanes[-1].close)
            if not lanes:
                return
            for lane in list(lanes):
                event = lane.next()
                if event is None:
                    lanes.remove(lane)
                else:
                    yield event


def _advance(
    spec: RunSpec,
    folder: RunFolder,
    place: PlaceConfig,
    device: torch.device,
    prepared: Callable[[], tuple[BenchmarkData, dict[str, Any]]],
    outputs: OutputsCache,
) -> Generator[Event, None, None]:
    """One run from where it is to its end; ``prepared`` gives the data, and what to note about them."""
    try:
        if folder.finished(spec):
            yield Finished(spec, already=True)
            return
    except Exception as error:
        yield failed(spec, folder, error)
        return
    loaded, read = prepared()  # what is wrong with the data is wrong for every run: not caught here
    try:
        with folder.opened(spec):
            folder.note(environment(device))
            write_json(folder.path / "data.json", read)
            try:
                yield from advance(Run(spec, folder, loaded), outputs, place.checkpoint_seconds)
            finally:
                if device.type == "cuda":  # of the whole process: packed runs share it
                    with suppress(OSError, RuntimeError):  # what ended the run is to be told
                        peak = torch.cuda.max_memory_allocated(device)
                        folder.note(environment(device), round(peak / 2**20))
    except Exception as error:  # a full disk, a GPU's memory, a bug in a method: the other runs can go on
        yield failed(spec, folder, error)
    else:
        yield Finished(spec, already=False)


class _Lane:
    """A run that takes turns with others."""

    def __init__(self, events: Generator[Event, None, None], device: torch.device) -> None:
        self._events = events
        # A captured step must not run on the default stream, so a single run has a stream of its own too.
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._stream.wait_stream(torch.cuda.current_stream(device))

    def next(self) -> Event | None:
        """The run's next event; None at its end."""
        if self._stream is None:
            return next(self._events, None)
        with torch.cuda.stream(self._stream):
            return next(self._events, None)

    def close(self) -> None:
        """End the run where it stands; what it has stored stays. (Nothing is computed, on no stream.)"""
        self._events.close()
