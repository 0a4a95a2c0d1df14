"""Estimate the remaining work of a config's runs: from the store, similar runs, and timed iterations."""

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import mean, median

import torch

from opencil.cil.learner import Setting
from opencil.config import Config
from opencil.data.file_dataset import FileDataset
from opencil.data.images import ImageSet
from opencil.data.stream import StepSizes, Stream
from opencil.engine.device import cpu_threads, resolve_device
from opencil.engine.seeding import generator
from opencil.errors import OpenCILError
from opencil.runs.launch import check_stored, find_outdated, folder_of, launcher
from opencil.runs.loading import check_place, splits
from opencil.runs.provenance import device_name
from opencil.runs.reading import expected_steps
from opencil.runs.spec import RunSpec, plan
from opencil.runs.store import RunFolder

#: Iterations that are timed at least, and the seconds after which no further ones are.
_FEWEST, _SECONDS = 4, 2.0


@dataclass(frozen=True)
class Prospect:
    """One run: its trained steps and its missing detectors."""

    spec: RunSpec
    steps: int | None  #: None if not known
    trained: int
    lacking: tuple[str, ...]  #: detectors without rows of some trained step
    done: bool
    seconds: float | None  #: of similar runs for the missing work; None without such runs
    again: bool = False  #: whether all of it, or rows of detectors, is to be made again


@dataclass(frozen=True)
class Outlook:
    """All runs of a config, before any of them continues."""

    device: str
    runs: list[Prospect]
    at_once: int  #: the most runs at a time
    training: float | None = None  #: seconds of all trainings, from timed iterations; None if not measured

    @property
    def done(self) -> int:
        """Return the number of finished runs."""
        return sum(run.done for run in self.runs)

    @property
    def seconds(self) -> float | None:
        """Return the seconds for all runs, one after the other; None if not known."""
        known = [run.seconds for run in self.runs if run.seconds is not None]
        return sum(known) if self.at_once == 1 and len(known) == len(self.runs) else None


def outlook(
    config: Config, planned: Callable[[Config], list[RunSpec]] = plan, overwrite: bool = False
) -> Outlook:
    """Return the progress of a config's runs, or refuse an unusable config; nothing is written.

    ``overwrite``: stored runs that have other values are to be made again, and are not refused.
    """
    check_place(config.place)
    places = launcher(config.place).find_places(config.place)
    if config.place.launcher == "ray":
        names = Counter({f"Ray, {len(places)} × {places[0].device}": 1})
        here = device_name(resolve_device("cpu" if places[0].device == "cpu" else "auto"))
    else:
        names = Counter(map(device_name, dict.fromkeys(resolve_device(p.device) for p in places)))
        here = next(iter(names))
    prospects = []
    for spec in planned(config):
        whole, detectors = find_outdated(config.place, spec) if overwrite else (False, set[str]())
        if whole:
            steps = expected_steps(spec.record())
            prospects.append(Prospect(spec, steps, 0, (), done=False, seconds=None, again=True))
        else:
            folder = folder_of(config.place, spec) if detectors else check_stored(config.place, spec)
            prospects.append(_prospect(spec, folder, here, detectors))
    missing = sum(not run.done for run in prospects)
    if config.place.data_root is None and missing:
        for asked in splits(config):
            if isinstance(asked.dataset, FileDataset):  # refuse a missing dataset before the first run begins
                asked.dataset.locate(asked.name, asked.split, None)
    device = ", ".join(f"{n} × {name}" if n > 1 else name for name, n in names.items())
    return Outlook(device, prospects, max(1, min(missing, len(places))))


def measure(config: Config, ahead: Outlook) -> Outlook:
    """Return an outlook with the time of the trainings ahead, from a few timed iterations of one of them.

    Its network trains on random images as at step 1, so no data are needed and nothing is written. The time
    of an image is extrapolated by each method's effort.
    """
    dataset, root = splits(config)[0].dataset, config.place.data_root
    found = None
    if isinstance(dataset, FileDataset) and dataset.classes is None:  # its files say how many there are
        found = dataset.find("train", Path(root) if root else None)
    known = (len(found.source), len(found.source.classes)) if found else ()
    todo = [(run.spec, run.spec.works(*known)[run.trained :]) for run in ahead.runs if not run.done]
    place, work = config.place, sum(sum(works) for _, works in todo)
    with cpu_threads(place.threads), suppress(Exception):  # such as a method's, which its run reports
        for spec in {spec.cil: spec for spec, works in todo if sum(works)}.values():
            if each := _time_image(spec, resolve_device(place.devices[0])):
                return replace(ahead, training=work * each / ahead.at_once)
    return ahead


def _time_image(spec: RunSpec, device: torch.device) -> float | None:
    """Return the seconds per image of iterations at step 1 on random images; None if there are none."""
    b, learner, begun = spec.benchmark, spec.learner(), time.monotonic()
    sizes = StepSizes.parse(spec.classes_per_step)
    side, classes = b.image_size, (*sizes.first, sizes.then or 0)[0]
    count = b.batch_size * max(_FEWEST, -(-classes // b.batch_size))
    pixels = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=generator("outlook"))
    images = ImageSet("random", pixels, torch.arange(count) % classes).to(device)
    stream = Stream.create(images, images, classes)
    transform = replace(b.transform, mean=(0.5,) * 3, std=(0.25,) * 3)
    setting = Setting(images, images, transform, b.backbone, b.batch_size, 0, 0, spec.training)
    task, ends = learner.begin(setting, stream[0], b.empty_memory, None), list[float]()
    for progress in learner.learn(task):
        float(progress.loss)  # waits for the device
        ends.append(time.monotonic())
        if len(ends) >= _FEWEST and ends[-1] > begun + _SECONDS:
            break
    taken = [end - start for start, end in pairwise(ends[2:])]  # the first ones prepare more
    return median(taken) / b.batch_size if taken else None


def _prospect(spec: RunSpec, folder: RunFolder, device: str, outdated: set[str]) -> Prospect:
    try:
        infos = {step.number: step.info() for step in folder.trained()}
        lacking = {n: {*folder.step(n).lacking(spec, info), *outdated} for n, info in infos.items()}
        steps = next((info["steps"] for info in infos.values()), None) or expected_steps(spec.record())
    except OpenCILError:  # a damaged file: the run reports it, and the others continue
        return Prospect(spec, None, len(folder.trained()), (), done=False, seconds=None)
    names = tuple(name for name in spec.detectors if any(name in missing for missing in lacking.values()))
    todo = [t for t in range(1, (steps or 0) + 1) if lacking.get(t, ["all"])]
    taken = [_seconds(spec, folder, t, device, trained=t in infos) for t in todo]
    seconds = None if steps is None or None in taken else sum(filter(None, taken))
    done = steps is not None and not todo
    return Prospect(spec, steps, len(infos), names, done=done, seconds=seconds, again=bool(outdated))


def _seconds(spec: RunSpec, folder: RunFolder, number: int, device: str, trained: bool) -> float | None:
    """Return the mean seconds of a step in runs with other seeds on such a device, with these detectors."""
    taken = []
    for path in sorted(set(folder.path.parent.glob("seed*")) - {folder.path}):
        try:
            info = RunFolder(path).step(number).info()
        except (OpenCILError, OSError):  # not there, or damaged
            continue
        rows = info["rows"]
        if rows[""]["made"][0]["device"] == device and set(spec.detectors) <= rows.keys():
            of: dict[str, float] = info["seconds"]
            taken.append(sum(of.values()) - (of.get("training", 0.0) if trained else 0.0))
    return mean(taken) if taken else None
