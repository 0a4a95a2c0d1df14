"""Do all runs of a config: here one after the other, or in several processes by a launcher.

A launcher is a module in ``opencil.runs.launchers`` with two functions:

- ``find_places(place)`` returns the place of each process for runs;
- ``launch(config, specs, places, plugins)`` does the runs there and yields their events.
"""

import pickle
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import cache, lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from opencil.config import Config, PlaceConfig
from opencil.data.benchmark import BenchmarkData
from opencil.engine import ranks
from opencil.engine.arithmetic import only_deterministic
from opencil.engine.device import SideStream, cpu_threads, resolve_device
from opencil.errors import BadInput, OpenCILError, no_exits
from opencil.files import Damaged
from opencil.plugins import load_plugin
from opencil.runs.events import Event, Failed, Finished, Preparing, Training, failed
from opencil.runs.loading import check_place, describe_data, load, with_share
from opencil.runs.provenance import environment
from opencil.runs.run import run
from opencil.runs.spec import RunSpec, plan
from opencil.runs.store import RunFolder

#: The least seconds between two messages about a training, from another process.
_EVERY = 0.5


def execute(config: Config, planned: Callable[[Config], list[RunSpec]] = plan) -> Generator[Event]:
    """Do all unfinished runs of a config, yielding events as they happen.

    ``planned`` returns the runs of a config, if they are others than those of ``plan``. On several ranks
    every rank executes this.
    """
    check_place(config.place)
    joined = ranks.join(config.place.device, config.place.rank_seconds)
    if joined is not None:
        place = replace(config.place, device=str(joined.device))
        config = replace(config, place=with_share(place, joined.on_machine))
    places = launcher(config.place).find_places(config.place)

    @cache
    def data() -> BenchmarkData:  # loaded when the first run needs it
        return load(replace(config, place=places[0]))

    if config.benchmark.transform.computes:  # the records of runs hold the computed numbers
        config = replace(config, benchmark=replace(config.benchmark, transform=data().transform))
    specs = planned(config)
    for spec in specs:
        check_stored(config.place, spec)  # all of them, before anything runs
    with ranks.using(joined):
        done = {spec.folder for spec in specs if is_done(config.place, spec)}
    missing = [spec for spec in specs if spec.folder not in done]
    yield from (Finished(spec, already=True) for spec in specs if spec.folder in done)
    if len(places) == 1 and config.place.launcher == "local":
        try:
            yield from work(replace(config, place=places[0]), missing, data, joined)
        except ranks.LostRank as lost:
            raise OpenCILError(str(lost)) from None
    elif missing:
        plugins = needed_plugins(config, missing)
        for spec in missing:
            folder_of(config.place, spec).announce(spec)
        longest_first = sorted(missing, key=lambda spec: -spec.expected_work)
        with closing(launcher(config.place).launch(config, longest_first, places, plugins)) as events:
            yield from events


def work(
    config: Config,
    specs: Iterable[RunSpec],
    data: Callable[[], BenchmarkData],
    joined: ranks.Ranks | None = None,
) -> Generator[Event]:
    """Do runs in this process, one after the other, or together with other ranks.

    An error ends its run alone.
    """
    place, device = config.place, resolve_device(config.place.device)
    sharing = partial(ranks.using, joined)
    with cpu_threads(place.threads), only_deterministic(place.only_deterministic):
        for spec in specs:
            loaded = data()  # an error in the data is an error of every run, and not caught
            folder, already = folder_of(place, spec), False
            error: Exception | None = None
            side = SideStream(device)  # a captured training step must not run on a GPU's default stream
            try:
                with sharing():
                    already = spec.foreign is not None and folder.finished(spec)
                    opened = folder.opened(spec, environment(device) | describe_data(config, loaded))
                if loaded.features is not None and not spec.learner().needs_images:
                    for progress in loaded.features():
                        yield Preparing(spec, progress)
                training = run(spec, loaded, folder, checkpoint_seconds=place.checkpoint_seconds)
                with opened, closing(training) as events:
                    while True:
                        with sharing(), side.active(), no_exits(ranks.LostRank):
                            event = next(events, None)
                        if event is None:
                            break
                        yield event
            except Exception as problem:  # a full disk, a GPU's memory, a bug in a method: other runs go on
                error = problem
            if joined is not None:
                joined.same_fate(error)
            yield Finished(spec, already) if error is None else failed(spec, folder, error)


def do_runs(
    config: Config,
    specs: Iterable[RunSpec],
    plugins: Iterable[str],
    send: Callable[[Event | OpenCILError], object],
) -> None:
    """Do runs in a process of a launcher, and send their events or an error of all runs.

    Trainings are sent now and then, and at the end of every epoch where curves are drawn.
    """
    sent, every_epoch = 0.0, bool(config.place.loggers)
    try:
        for plugin in plugins:
            load_plugin(plugin)
        with closing(work(config, specs, partial(_load, pickle.dumps(config)))) as events:
            for event in events:
                if isinstance(event, Failed):
                    event = replace(event, error=_plain(event.error))
                elif isinstance(event, Training):
                    p, now = event.progress, time.monotonic()
                    if now < sent + _EVERY and not (every_epoch and p.epoch_ends):
                        continue
                    sent = now
                    # The loss is read where an epoch ends: there the training has waited for the device.
                    loss, total = (torch.tensor(float(t) if p.epoch_ends else 0.0) for t in (p.loss, p.total))
                    event = replace(event, progress=replace(p, loss=loss, total=total, state=dict))
                send(event)
    except (OpenCILError, OSError) as error:
        send(_plain(error))


@lru_cache(maxsize=1)
def _load(config: bytes) -> BenchmarkData:
    """Load the data of a pickled config, once in a process."""
    return load(pickle.loads(config))


def _plain(error: Exception) -> OpenCILError:
    """Return an error that can be pickled."""
    return BadInput(str(error)) if isinstance(error, BadInput) else OpenCILError(str(error))


def launcher(place: PlaceConfig) -> Any:
    """Return the module of a place's launcher."""
    return import_module(f"opencil.runs.launchers.{place.launcher}")


def folder_of(place: PlaceConfig, spec: RunSpec) -> RunFolder:
    """Return the folder of a run, in which only the first rank writes."""
    return RunFolder(Path(place.runs) / spec.folder, writes=ranks.is_first_rank())


def check_stored(place: PlaceConfig, spec: RunSpec) -> RunFolder:
    """Return a run's folder, or refuse it: made with other values, or finished on other classes."""
    folder = folder_of(place, spec)
    if counts := _other_classes(place, spec, folder):
        text = f"run {spec} is finished on {counts[0]} classes, and {spec.benchmark.id!r} has {counts[1]} now"
        raise BadInput(f"{text}. The same command with --overwrite makes it again with these")
    folder.check(spec)
    return folder


def overwrite(config: Config, specs: Iterable[RunSpec]) -> list[RunSpec]:
    """Delete stored runs, or rows of detectors, that were made with other values or on other classes.

    Return the runs of which something is made again.
    """
    if ranks.world_size() > 1:
        raise BadInput("several ranks cannot overwrite runs: delete them, or overwrite without torchrun")
    folders = [(spec, folder_of(config.place, spec)) for spec in specs]
    return [s for s, folder in folders if folder.overwrite(s, bool(_other_classes(config.place, s, folder)))]


def find_outdated(place: PlaceConfig, spec: RunSpec) -> tuple[bool, set[str]]:
    """Return whether ``overwrite`` would delete a run, and else the detectors whose rows it would."""
    folder = folder_of(place, spec)
    other, detectors = folder.differs(spec)
    return other or bool(_other_classes(place, spec, folder)), detectors


def _other_classes(place: PlaceConfig, spec: RunSpec, folder: RunFolder) -> tuple[int, int] | None:
    """Return the numbers of classes of a finished run and of the user's folders now, if they differ."""
    own, trained = spec.benchmark.datasets.get(spec.benchmark.id), folder.trained()
    if own is None or not trained:
        return None
    now = own.count_classes(Path(place.data_root) if place.data_root else None)
    with suppress(Damaged):  # the run reports it
        info = trained[-1].info()
        if info["step"] == info["steps"] and now not in (None, info["classes"]):
            return info["classes"], now
    return None


def is_done(place: PlaceConfig, spec: RunSpec) -> bool:
    """Return whether nothing is left to do; models from elsewhere are always compared."""
    try:
        return spec.foreign is None and ranks.from_first(folder_of(place, spec).finished, spec)
    except Exception:  # the run itself reports it
        return False


def needed_plugins(config: Config, specs: Sequence[RunSpec]) -> list[str]:
    """Return the plugins for other processes, and refuse names of this process alone."""
    if any(spec.foreign is not None for spec in specs):
        raise BadInput(
            "models from elsewhere are evaluated by one process: jobs = 1, pack = 1, launcher = local"
        )
    plugins = dict.fromkeys(config.plugins)
    for registry, name in dict.fromkeys(n for spec in specs for n in spec.names(*spec.detectors)):
        if plugin := registry.plugin_of(name):
            plugins[plugin] = None
        elif not registry.entry(name).make.__module__.startswith("opencil."):
            raise BadInput(
                f"{registry.kind} {name!r} is registered in this process alone: for several processes put it "
                "into a plugin (plugins: [my_method.py])"
            )
    return list(plugins)
