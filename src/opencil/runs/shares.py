"""What runs may cost, before their data are loaded; and a config's runs in shares of about equal cost."""

import heapq
import math
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import torch

from opencil.config import BenchmarkConfig, Config
from opencil.data.benchmark import BenchmarkData
from opencil.data.images import ImageSet
from opencil.errors import BadInput, shown
from opencil.registry import DATASETS
from opencil.runs.plan import RunSpec, plan
from opencil.runs.run import Run
from opencil.runs.store import RunFolder

#: Images of a class, where a dataset does not say how many it has: as CIFAR-100's.
_OF_A_CLASS = 500


def planned_share(only: str | None) -> Callable[[Config], list[RunSpec]]:
    """A function that plans a config's runs, or of ``only`` = ``2/3`` the second of three shares of them.

    Every run is in exactly one share. Which one follows from the config alone, not from what is stored or
    when it is asked: machines that share a grid need not know of each other.
    """
    if only is None:
        return plan
    number, of = _parsed(only)

    def planned(config: Config) -> list[RunSpec]:
        specs = plan(config)
        blank = stand_in(config.benchmark)
        costs = _whole_costs(specs, blank)
        loads = [(0.0, share) for share in range(1, of + 1)]  # a heap: the least loaded is first
        mine = set()
        # The longest first, each to who has least. Equal ones by method: each share has some of all methods.
        for spec in sorted(specs, key=lambda spec: (-costs[_kind(spec)], _kind(spec), spec.seeds.run)):
            load, share = heapq.heappop(loads)
            heapq.heappush(loads, (load + costs[_kind(spec)], share))
            if share == number:
                mine.add(spec.folder)
        return [spec for spec in specs if spec.folder in mine]

    return planned


def stand_in(benchmark: BenchmarkConfig) -> BenchmarkData | None:
    """Blank images, as many of as many classes as the training set has; None where that is not known."""
    made = None if benchmark.id in benchmark.datasets else DATASETS.entry(benchmark.id).make
    classes = getattr(made, "classes", None)
    if classes is None:
        return None
    count = getattr(made, "counts", {}).get("train", _OF_A_CLASS * classes)
    images = ImageSet(
        benchmark.id, torch.zeros(count, 3, 1, 1, dtype=torch.uint8), torch.arange(count) % classes
    )
    return BenchmarkData(images, images, {}, benchmark.transform)


def _whole_costs(specs: Iterable[RunSpec], blank: BenchmarkData | None) -> dict[tuple[str, str], float]:
    """The expected work of a whole run of each kind, done or not; 1 where it cannot be known of all."""
    kinds = {_kind(spec): spec for spec in specs}
    costs = dict.fromkeys(kinds, 1.0)
    with suppress(Exception):
        assert blank is not None
        nowhere = RunFolder(Path("no such folder"))
        costs = {kind: Run(spec, nowhere, blank).expected_work for kind, spec in kinds.items()}
    return costs if all(0 < cost < math.inf for cost in costs.values()) else dict.fromkeys(kinds, 1.0)


def _kind(spec: RunSpec) -> tuple[str, str]:
    """Runs that differ in their seeds alone cost the same."""
    return spec.cil, str(spec.classes_per_step)


def _parsed(only: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9]\d{0,5})/([1-9]\d{0,5})", str(only))
    number, of = map(int, match.groups()) if match else (1, 0)
    if number > of:
        raise BadInput(f"only = {shown(only)} is not allowed: a share of all is, as 1/3, 2/3 or 3/3")
    return number, of
