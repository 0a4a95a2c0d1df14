"""Estimate the remaining work of a config's runs from the store and the times of similar runs."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean

from opencil.config import Config
from opencil.data.file_dataset import FileDataset
from opencil.engine.device import resolve_device
from opencil.errors import OpenCILError
from opencil.runs.launch import check_stored, launcher
from opencil.runs.loading import check_place, splits
from opencil.runs.provenance import device_name
from opencil.runs.reading import expected_steps
from opencil.runs.spec import RunSpec, plan
from opencil.runs.store import RunFolder


@dataclass(frozen=True)
class Prospect:
    """One run: its trained steps and its missing detectors."""

    spec: RunSpec
    steps: int | None  #: None if not known
    trained: int
    lacking: tuple[str, ...]  #: detectors without rows of some trained step
    done: bool
    seconds: float | None  #: of similar runs for the missing work; None without such runs


@dataclass(frozen=True)
class Outlook:
    """All runs of a config, before any of them continues."""

    device: str
    runs: list[Prospect]
    at_once: int  #: the most runs at a time

    @property
    def done(self) -> int:
        """Return the number of finished runs."""
        return sum(run.done for run in self.runs)

    @property
    def seconds(self) -> float | None:
        """Return the seconds for all runs, one after the other; None if not known."""
        known = [run.seconds for run in self.runs if run.seconds is not None]
        return sum(known) if self.at_once == 1 and len(known) == len(self.runs) else None


def outlook(config: Config, planned: Callable[[Config], list[RunSpec]] = plan) -> Outlook:
    """Return the progress of a config's runs, or refuse an unusable config; nothing is written."""
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
        prospects.append(_prospect(spec, check_stored(config.place, spec), here))
    missing = sum(not run.done for run in prospects)
    if config.place.data_root is None and missing:
        for asked in splits(config):
            if isinstance(asked.dataset, FileDataset):  # refuse a missing dataset before the first run begins
                asked.dataset.locate(asked.name, asked.split, None)
    device = ", ".join(f"{n} × {name}" if n > 1 else name for name, n in names.items())
    return Outlook(device, prospects, max(1, min(missing, len(places))))


def _prospect(spec: RunSpec, folder: RunFolder, device: str) -> Prospect:
    try:
        infos = {step.number: step.info() for step in folder.trained()}
        lacking = {number: folder.step(number).lacking(spec, info) for number, info in infos.items()}
        steps = next((info["steps"] for info in infos.values()), None) or expected_steps(spec.record())
    except OpenCILError:  # a damaged file: the run reports it, and the others continue
        return Prospect(spec, None, len(folder.trained()), (), done=False, seconds=None)
    names = tuple(name for name in spec.detectors if any(name in missing for missing in lacking.values()))
    todo = [t for t in range(1, (steps or 0) + 1) if lacking.get(t, ["all"])]
    taken = [_seconds(spec, folder, t, device, trained=t in infos) for t in todo]
    seconds = None if steps is None or None in taken else sum(filter(None, taken))
    return Prospect(spec, steps, len(infos), names, done=steps is not None and not todo, seconds=seconds)


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
