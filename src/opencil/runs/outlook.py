"""What of a config's runs is done, what is to come, and how long like runs took for that."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from opencil.config import Config
from opencil.data.file_dataset import FileDataset
from opencil.engine.device import resolve_device
from opencil.errors import OpenCILError
from opencil.runs.loading import place_here, splits, usable_places
from opencil.runs.plan import RunSpec, plan
from opencil.runs.provenance import device_name
from opencil.runs.reading import expected_steps
from opencil.runs.store import RunFolder

Stored = Callable[[Path], dict[str, Any]]  #: the config of the run in a folder; empty where there is none


@dataclass(frozen=True)
class Prospect:
    """One run: steps trained of all, where that is known, and what it lacks; ``seconds`` by like runs."""

    spec: RunSpec
    steps: int | None
    trained: int
    lacking: tuple[str, ...]  #: detectors that steps which are trained have not been measured with
    done: bool
    seconds: float | None  #: that what is missing may take; None where no run tells


@dataclass(frozen=True)
class Outlook:
    """All runs of a config, before any of them goes on."""

    device: str
    runs: list[Prospect]
    at_once: int  #: runs that are not done, at most

    @property
    def done(self) -> int:
        """Runs of which nothing is missing."""
        return sum(run.done for run in self.runs)

    @property
    def seconds(self) -> float | None:
        """What all may take, one after the other; None where that is not known of all."""
        known = [run.seconds for run in self.runs if run.seconds is not None]
        return sum(known) if self.at_once == 1 and len(known) == len(self.runs) else None


def outlook(config: Config, planned: Callable[[Config], list[RunSpec]] = plan) -> Outlook:
    """What a config's runs have before them; what cannot be run is refused here, and nothing is written."""
    places = usable_places(config.place)
    devices = [resolve_device(place_here(place).device) for place in places]
    runs = Path(config.place.runs)
    specs = [_with_stored_statistics(spec, RunFolder(runs / spec.folder)) for spec in planned(config)]
    for spec in specs:
        RunFolder(runs / spec.folder).check(spec)
    stored = cache(_stored)  # runs of several seeds look at each other: each config is read once
    prospects = [_prospect(spec, RunFolder(runs / spec.folder), devices[0], stored) for spec in specs]
    if config.place.data_root is None and not all(run.done for run in prospects):
        for asked in splits(config):
            if isinstance(asked.dataset, FileDataset):  # refused now, not when the first run is to begin
                asked.dataset.locate(asked.name, asked.split, None)
    names = Counter(map(device_name, set(devices)))
    told = ", ".join(f"{n} × {name}" if n > 1 else name for name, n in names.items())
    if config.place.launcher == "ray":
        told = f"Ray, {len(places)} × {places[0].device}"
    to_do = sum(not run.done for run in prospects)
    return Outlook(told, prospects, max(1, min(to_do, sum(place.pack for place in places))))


def _prospect(spec: RunSpec, folder: RunFolder, device: torch.device, stored: Stored) -> Prospect:
    trained = folder.trained()
    try:
        steps = trained[0].info()["steps"] if trained else expected_steps(spec.record())
        unmeasured = {step.number: step.unmeasured(spec) for step in trained}
        whole = {number for number, names in unmeasured.items() if not names}
        lacking = [name for name in spec.detectors if any(name in names for names in unmeasured.values())]
    except OpenCILError:  # a damaged file: the run will say so, and the others go on
        return Prospect(spec, None, len(trained), (), done=False, seconds=None)
    missing = None if steps is None else [t for t in range(1, steps + 1) if t not in whole]
    seconds = None
    if missing is not None:
        done = {step.number for step in trained}
        others = sorted(set(folder.path.parent.glob("seed*")) - {folder.path}) if missing else []
        like = [RunFolder(path) for path in others if _alike(stored(path), spec)]
        taken = [_seconds(spec, like, t, device, trained=t in done) for t in missing]
        seconds = None if None in taken else sum(filter(None, taken))
    return Prospect(spec, steps, len(trained), tuple(lacking), missing == [], seconds)


def _seconds(
    spec: RunSpec, like: list[RunFolder], step: int, device: torch.device, trained: bool
) -> float | None:
    """What a step took in like runs, on such a device, with these detectors."""
    taken = []
    for found in (folder.step(step) for folder in like):
        try:
            info = found.info()
        except OpenCILError:  # not there, or damaged: it tells nothing
            continue
        made_on = info.get("made", {}).get("", {}).get("device")
        if made_on == device_name(device) and all(found.detector_rows(n).exists() for n in spec.detectors):
            of = info.get("seconds", {})
            taken.append(sum(of.values()) - (of.get("training", 0.0) if trained else 0.0))
    return mean(taken) if taken else None


def _stored(path: Path) -> dict[str, Any]:
    try:
        return RunFolder(path).stored()
    except OpenCILError:  # damaged: it is like no other
        return {}


def _alike(stored: dict[str, Any], spec: RunSpec) -> bool:
    """Whether a run differs from another by its seeds alone."""
    record = spec.record()
    return all(stored.get(section) == record[section] for section in ("benchmark", "cil", "training"))


def _with_stored_statistics(spec: RunSpec, folder: RunFolder) -> RunSpec:
    """A run whose transform is yet to be computed from images, with what its stored config has of it."""
    transform = spec.benchmark.transform
    then = folder.stored().get("benchmark", {}).get("transform", {}) if transform.computes else {}
    known = {key: tuple(then[key]) for key in ("mean", "std") if isinstance(then.get(key), list)}
    computed = {key: value for key, value in known.items() if getattr(transform, key) == "compute"}
    return replace(spec, benchmark=replace(spec.benchmark, transform=replace(transform, **computed)))  # type: ignore[arg-type]
