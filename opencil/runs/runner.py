"""All runs of a config: each goes on from where it is, some take turns, and each fails alone."""

import math
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from opencil.config import Config, PlaceConfig
from opencil.data.benchmark import BenchmarkData
from opencil.engine.determinism import only_deterministic
from opencil.engine.device import cpu_threads
from opencil.engine.ranks import several
from opencil.runs.advance import Advance
from opencil.runs.events import Event, Finished
from opencil.runs.failures import failed
from opencil.runs.following import on_ranks
from opencil.runs.lanes import FAR_LONGER, Lane, Lanes, Work
from opencil.runs.loading import describe_data, load, usable_place
from opencil.runs.outputs_cache import OutputsCache
from opencil.runs.plan import RunSpec, plan
from opencil.runs.provenance import environment
from opencil.runs.rehearsal import require_deterministic
from opencil.runs.run import Run
from opencil.runs.store import RunFolder
from opencil.validation import parse_size


@on_ranks
def execute(config: Config, planned: Callable[[Config], list[RunSpec]] = plan) -> Generator[Event]:
    """Do all that a config asks for and is not done yet, yielding events as it happens.

    ``place.pack`` runs take turns, the longest first; on a GPU a step is tuned and evaluated beside the
    training of the next. ``planned`` gives the runs of a config, if they are others than ``plan`` gives.
    """
    device = usable_place(config.place)
    data = cache(lambda: load(config))  # loaded when the first run needs it
    if config.benchmark.transform.computes:  # or now, since the runs' records hold the computed numbers
        config = replace(config, benchmark=replace(config.benchmark, transform=data().transform))
    specs = [(spec, RunFolder(Path(config.place.runs) / spec.folder)) for spec in planned(config)]
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
    lanes = Lanes(device, beside=goes_beside(device))
    works = _expected_works(specs, prepared) if config.place.pack > 1 else {}
    # The longest first, so that none is left alone at the end.
    waiting = iter(sorted(specs, key=lambda one: -works.get(one[0].folder, math.inf)))
    mean = sum(works.values()) / max(1, len(works))
    # Whoever leaves in the middle frees every run at once, not when Python gets round to it.
    strict = config.place.only_deterministic
    with cpu_threads(config.place.threads), only_deterministic(strict), closing(lanes):
        if strict and (unfinished := [spec for spec, folder in specs if not _is_finished(spec, folder)]):
            require_deterministic(unfinished, prepared()[0], device)
        while True:
            for spec, folder in islice(waiting, config.place.pack - len(lanes.running)):
                begin = partial(_advance, spec, folder, config.place, device, prepared, outputs, lanes.beside)
                longest = works.get(spec.folder, 0.0) > FAR_LONGER * mean
                lanes.running.append(Lane(begin, device, longest))
            if not lanes.running:
                return
            yield from lanes.round()


def goes_beside(device: torch.device) -> bool:
    """Whether a step is tuned and evaluated beside the next one's training.

    A CPU has no room beside one, and several ranks do one work at a time.
    """
    return device.type == "cuda" and several() is None


def _expected_works(
    specs: list[tuple[RunSpec, RunFolder]], prepared: Callable[[], tuple[BenchmarkData, dict[str, Any]]]
) -> dict[Path, float]:
    """The expected work of each run that has any left, by its folder."""
    works = {}
    for spec, folder in specs:
        if _is_finished(spec, folder):
            continue
        data, _ = prepared()
        with suppress(Exception):
            works[spec.folder] = Run(spec, folder, data).expected_work
    return works


def _is_finished(spec: RunSpec, folder: RunFolder) -> bool:
    """Whether nothing is left to do, or that cannot be known."""
    try:
        return folder.finished(spec)
    except Exception:  # it fails when its turn comes, and alone
        return True


def _advance(
    spec: RunSpec,
    folder: RunFolder,
    place: PlaceConfig,
    device: torch.device,
    prepared: Callable[[], tuple[BenchmarkData, dict[str, Any]]],
    outputs: OutputsCache,
    beside: bool,
    lane: Lane,
) -> Work:
    """One run from where it is to its end; ``prepared`` gives the data, and what to note about them."""
    try:
        already = folder.finished(spec)
        if already and spec.foreign is None:  # else the models are looked at: they may be others
            folder.tidy()  # its last writer may have been killed just after all of it was there
            yield Finished(spec, already)
            return
    except Exception as error:
        yield failed(spec, folder, error, held=False)
        return
    held = False
    loaded, read = prepared()  # what is wrong with the data is wrong for every run: not caught here
    try:
        with folder.opened(spec):
            held = True
            folder.note(environment(device))
            folder.note_data(read)
            try:
                run = Run(spec, folder, loaded)
                advance = Advance(run, outputs, place.checkpoint_seconds)
                # Copies of models are worth it only where there is a training to go beside.
                yield from _beside(advance, lane) if beside and run.expected_work else advance.in_order()
            finally:
                if device.type == "cuda":  # of the whole process: packed runs share it
                    with suppress(OSError, RuntimeError):  # what ended the run is to be told
                        peak = torch.cuda.max_memory_allocated(device)
                        folder.note(environment(device), round(peak / 2**20))
    except Exception as error:  # a full disk, a GPU's memory, a bug in a method: the other runs can go on
        yield failed(spec, folder, error, held)
    else:
        yield Finished(spec, already)


def _beside(advance: Advance, lane: Lane) -> Work:
    """A run's trainings, while what follows them takes turns with them; then the rest of it.

    When a training fails, the steps before it are evaluated all the same.
    """
    lane.follow(advance.follow_ups())
    failure: Exception | None = None
    try:
        yield from advance.trainings()
    except Exception as error:
        failure = error
    while not lane.followed:
        try:
            yield None
        except Exception as error:  # of what follows; the first is to be told
            failure = failure or error
    if failure is not None:
        raise failure
