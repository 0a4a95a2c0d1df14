"""All runs of a config: each goes on from where it is, some take turns, and each fails alone."""

import math
import time
from collections.abc import Callable, Generator, Iterator
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
from opencil.engine.device import cpu_threads, resolve_device
from opencil.engine.ranks import several
from opencil.errors import BadInput
from opencil.runs import local_workers, ray_workers
from opencil.runs.advance import Advance
from opencil.runs.crew import Assignment, Hire, spread
from opencil.runs.events import Event, Finished
from opencil.runs.failures import failed
from opencil.runs.following import let_others_load, on_ranks
from opencil.runs.inventory import is_held
from opencil.runs.lanes import FAR_LONGER, Lane, Lanes, Work
from opencil.runs.loading import describe_data, load, place_here, usable_places
from opencil.runs.outputs_cache import OutputsCache
from opencil.runs.plan import RunSpec, plan
from opencil.runs.provenance import environment
from opencil.runs.rehearsal import require_deterministic
from opencil.runs.run import Run
from opencil.runs.shares import stand_in
from opencil.runs.starting import let_go
from opencil.runs.store import RunFolder
from opencil.validation import parse_size

#: Seconds between two looks at a run that another process holds.
_LOOK = 0.5
_NAP = 0.001


@on_ranks
def execute(config: Config, planned: Callable[[Config], list[RunSpec]] = plan) -> Generator[Event]:
    """Do all that a config asks for and is not done yet, yielding events as it happens.

    ``place.pack`` runs take turns, the longest first; on a GPU a step is tuned and evaluated beside the
    training of the next. With several GPUs, ``place.jobs`` on a CPU or a Ray cluster, other processes take
    the runs from a queue. ``planned`` gives the runs of a config, if they are others than ``plan`` gives.
    """
    places = usable_places(config.place)
    spreads = len(places) > 1 or config.place.launcher == "ray"
    config = replace(config, place=place_here(places[0]))

    @cache
    def data() -> BenchmarkData:  # loaded when the first run needs it
        let_others_load()
        return load(config)

    if config.benchmark.transform.computes:  # or now, since the runs' records hold the computed numbers
        config = replace(config, benchmark=replace(config.benchmark, transform=data().transform))
    specs = [(spec, RunFolder(Path(config.place.runs) / spec.folder)) for spec in planned(config)]
    for spec, folder in specs:
        folder.check(spec)  # all of them, before anything runs
    device = resolve_device(config.place.device)
    answers = {spec.folder: _answered(spec, folder) for spec, folder in specs} if spreads else {}
    asked = [one for one in specs if answers.get(one[0].folder) is None]

    def announce() -> dict[Path, Event]:
        """Let runs whose turn comes in hours be known of now, to those who watch; what cannot be stored."""
        refused: dict[Path, Event] = {}
        for spec, folder in asked:
            try:
                folder.announce(spec, environment(device))
            except OSError as error:
                refused[spec.folder] = failed(spec, folder, error, held=False)
        return refused

    @cache
    def prepared() -> tuple[BenchmarkData, dict[str, Any]]:
        loaded = data()
        announce()
        return loaded, describe_data(config, loaded)

    yield from filter(None, answers.values())
    strict = config.place.only_deterministic
    with cpu_threads(config.place.threads), only_deterministic(strict):
        if strict and (unfinished := [spec for spec, folder in asked if not _is_finished(spec, folder)]):
            require_deterministic(unfinished, prepared()[0], device)
        together = spreads or config.place.pack > 1
        runs = _in_order(config, asked, data) if together else _as_planned(asked)
        places = places[: len(runs)]
        spreads = len(places) > 1 or config.place.launcher == "ray"
        let_go(but=len(places) if spreads and config.place.launcher == "local" else 0)
        if spreads:
            plugins = _needed_plugins(config, runs)
            refused = announce()
            yield from refused.values()
            runs = [run for run in runs if run.spec.folder not in refused]
            yield from spread(runs, places[: len(runs)], hire(config, plugins))
        else:
            yield from work(config, device, iter(runs), prepared)


def work(
    config: Config,
    device: torch.device,
    waiting: Iterator[Assignment],
    prepared: Callable[[], tuple[BenchmarkData, dict[str, Any]]],
) -> Generator[Event]:
    """What one process does: runs that it is given take turns, ``place.pack`` of them at a time.

    ``prepared`` gives the data, when the first run needs them, and what to note about them.
    """
    place = config.place
    outputs = OutputsCache(place.outputs_folder, parse_size(place.outputs_limit))
    outputs.trim()
    lanes = Lanes(device, beside=goes_beside(device))
    # Whoever leaves in the middle frees every run at once, not when Python gets round to it.
    with cpu_threads(place.threads), only_deterministic(place.only_deterministic), closing(lanes):
        while True:
            for run in islice(waiting, place.pack - len(lanes.running)):
                folder = RunFolder(Path(place.runs) / run.spec.folder)
                begin = partial(_advance, run, folder, place, device, prepared, outputs, lanes.beside)
                lanes.running.append(Lane(begin, device, run.longest))
            if not lanes.running:
                return
            yield from lanes.round()


def goes_beside(device: torch.device) -> bool:
    """Whether a step is tuned and evaluated beside the next one's training.

    A CPU has no room beside one, and several ranks do one work at a time.
    """
    return device.type == "cuda" and several() is None


def _as_planned(specs: list[tuple[RunSpec, RunFolder]]) -> list[Assignment]:
    return [Assignment(spec) for spec, _ in specs]


def _in_order(
    config: Config, specs: list[tuple[RunSpec, RunFolder]], data: Callable[[], BenchmarkData]
) -> list[Assignment]:
    """Runs, those that are done first and then the longest, so that none is left alone at the end."""
    works: dict[Path, float] = {}
    for spec, folder in specs:
        if not _is_finished(spec, folder):
            images = stand_in(config.benchmark) or data()
            with suppress(Exception):
                works[spec.folder] = Run(spec, folder, images).expected_work
    mean = sum(works.values()) / max(1, len(works))
    ordered = sorted(_as_planned(specs), key=lambda run: -works.get(run.spec.folder, math.inf))
    return [replace(run, longest=works.get(run.spec.folder, 0.0) > FAR_LONGER * mean) for run in ordered]


def hire(config: Config, plugins: list[str]) -> Hire:
    """A function that starts a worker, where the config says."""
    start = ray_workers.hire if config.place.launcher == "ray" else local_workers.hire
    return start(config, plugins)


def _needed_plugins(config: Config, runs: list[Assignment]) -> list[str]:
    """The plugins that other processes need; what is registered in this process alone is refused."""
    if any(run.spec.foreign is not None for run in runs):
        raise BadInput(
            "models from elsewhere are evaluated by this process: place.launcher = local is needed"
        )
    plugins = dict.fromkeys(config.plugins)
    for registry, name in dict.fromkeys(n for run in runs for n in run.spec.names(*run.spec.detectors)):
        if plugin := registry.plugin_of(name):
            plugins[plugin] = None
        elif not registry.entry(name).make.__module__.startswith("opencil."):
            raise BadInput(
                f"{registry.kind} {name!r} is registered in this process alone: for several processes put it "
                "into a file of its own and name that as a plugin (plugins: [my_method.py]), or ask for one "
                "process, with jobs = 1, one device and launcher = local"
            )
    return list(plugins)


def _is_finished(spec: RunSpec, folder: RunFolder) -> bool:
    """Whether nothing is left to do, or that cannot be known."""
    try:
        return folder.finished(spec)
    except Exception:  # it fails when its turn comes, and alone
        return True


def _answered(spec: RunSpec, folder: RunFolder) -> Event | None:
    """What is to be said of a run that nothing is to be done for: it is done, or cannot be looked into."""
    try:
        if spec.foreign is not None or not folder.finished(spec):
            return None  # models from elsewhere are looked at: they may be others
        folder.tidy()  # its last writer may have been killed just after all of it was there
        return Finished(spec, already=True)
    except Exception as error:
        return failed(spec, folder, error, held=False)


def _advance(
    asked: Assignment,
    folder: RunFolder,
    place: PlaceConfig,
    device: torch.device,
    prepared: Callable[[], tuple[BenchmarkData, dict[str, Any]]],
    outputs: OutputsCache,
    beside: bool,
    lane: Lane,
) -> Work:
    """One run from where it is to its end; ``prepared`` gives the data, and what to note about them."""
    spec = asked.spec
    yield from _until_free(folder, asked.patience)
    if (answer := _answered(spec, folder)) is not None:
        yield answer
        return
    held = already = False
    loaded, read = prepared()  # what is wrong with the data is wrong for every run: not caught here
    try:
        already = spec.foreign is not None and folder.finished(spec)
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


def _until_free(folder: RunFolder, seconds: float) -> Work:
    """Wait while another process holds a run, so long at most; runs that are packed with it go on."""
    now = look = time.monotonic()
    give_up = now + seconds
    while now < give_up:
        if now >= look:
            if not is_held(folder):
                return
            look = now + _LOOK
        time.sleep(_NAP)
        yield None
        now = time.monotonic()


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
