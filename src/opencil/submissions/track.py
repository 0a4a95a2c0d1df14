"""Compare runs with their track: a shipped benchmark with its data, class order and seeds.

Backbone, transform, batch size and all values of methods are free; a submission records them.
"""

from collections.abc import Collection, Iterator
from functools import cache
from typing import Any

import pandas as pd

from opencil.config import list_benchmarks, resolve
from opencil.data.stream import StepSizes, class_order
from opencil.evaluation.metric import table_metrics
from opencil.registry import DATASETS
from opencil.report.averages import is_ood
from opencil.study.records import IDENTITY, RunRecord, identity, name_of
from opencil.study.study import Study
from opencil.validation import plain

#: The seeds of a track: a method has the first, the first two, or all.
SEEDS = (0, 1, 2)
#: The values of a benchmark that a track fixes.
_FIXED = ("id", "near", "far", "image_size", "memory", "memory_per_class", "ood_order", "datasets")


def find_departures(study: Study, other_data: Collection[str] = ()) -> list[str]:
    """Return how runs depart from what their track asks for, a sentence for each departure.

    Sets in ``other_data`` may have other numbers of images than the track's.
    """
    groups: dict[tuple[Any, ...], set[int]] = {}
    for run in study.runs:
        groups.setdefault(identity(run)[:3], set()).add(run["seed"])
    found = [
        f"{benchmark}/k{k}/{cil}: its seeds are {sorted(seeds)}, and the track asks for "
        f"{', '.join(map(str, SEEDS[: len(seeds)]))}"
        for (benchmark, k, cil), seeds in groups.items()
        if seeds != {*SEEDS[: len(seeds)]}
    ]
    parts = dict(iter(study.rows.groupby(list(IDENTITY), sort=False)))
    known = {identity(run) for run in study.runs}
    strange = [key for key in parts if key not in known]
    found += [f"{'/'.join(map(str, key))}: it has rows and no record" for key in strange]
    for run in study.runs:
        rows = parts.get(identity(run), study.rows.iloc[:0])
        reasons = [*_compare_config(run, other_data), *_find_missing(run, rows)]
        found += [f"{name_of(*identity(run))}: {reason}" for reason in dict.fromkeys(reasons)]
    return found


@cache
def _track(benchmark: str) -> tuple[dict[str, Any], dict[str, Any]]:
    config = resolve({"benchmark": benchmark})
    return plain(config.benchmark), plain(config.seed)


def count_classes(run: RunRecord) -> int | None:
    """Return the number of classes of a run's dataset, or None where only the data can say it."""
    name = run["config"]["benchmark"]["id"]
    classes: int | None = (
        getattr(DATASETS.entry(name).make, "classes", None) if name in DATASETS.names() else None
    )
    return classes


def _compare_config(run: RunRecord, other_data: Collection[str]) -> Iterator[str]:
    """Yield the values of a run's config and data that are not its track's, or contradict the record."""
    config, (benchmark, k, cil, seed) = run["config"], identity(run)
    ours = config["benchmark"]
    stated = {
        "benchmark": (benchmark, ours["name"]),
        "k": ([k], ours["classes_per_step"]),
        "cil": ([cil], [*config["cil"]]),
        "seed": (seed, config["seed"]["run"]),
        "detector": (sorted(run["detectors"]), sorted(config["detector"].keys() & run["detectors"].keys())),
    }
    for key, (recorded, configured) in stated.items():
        if recorded != configured:
            yield f"{key} is {recorded} in the record and {configured} in the config"
    if benchmark not in list_benchmarks():
        yield f"benchmark {benchmark!r} has no track: there are {', '.join(list_benchmarks())}"
        return
    fixed, seeds = _track(benchmark)
    for key in _FIXED:
        if (is_ := ours.get(key)) != fixed[key]:
            yield f"benchmark.{key} is {is_}, and the track's is {fixed[key]}"
    for key, value in seeds.items():
        if key != "runs" and config["seed"][key] != (expected := seed if value == "run" else value):
            yield f"seed.{key} is {config['seed'][key]}, and the track's is {expected}"
    classes = count_classes(run)
    if (order := next(iter(config["cil"].values())).get("class_order")) is not None and (
        order != class_order(len(order), seeds["class_order"])
    ):
        yield f"cil.{cil}.class_order is not the track's, of seed {seeds['class_order']}"
    if classes and (steps := len(StepSizes.parse(k).of(classes))) != run["steps"]:
        yield f"it has {run['steps']} steps, and k = {k} gives {steps}"
    images = {split["name"]: split for split in run["data"]}
    for name in (fixed["id"], *fixed["near"], *fixed["far"]):
        split = images.get(name)
        if split is None:
            yield f"there is no record of its data {name}"
        elif split["paper"] not in (None, split["images"]) and name not in other_data:
            yield f"{name} has {split['images']:,} images, and the track's {split['paper']:,}"


def _find_missing(run: RunRecord, rows: pd.DataFrame) -> Iterator[str]:
    """Yield the steps, sets and metrics that a run lacks, and those that it should not have."""
    benchmark, steps = run["config"]["benchmark"], range(1, (run["steps"] or 0) + 1)
    behind: dict[int, list[str]] = {}
    for name, done in {"training": run["trained"], **run["detectors"]}.items():
        behind.setdefault(done, []).append(name)
    for done in sorted(behind.keys() - {len(steps)}):
        yield f"unfinished, with {done} of {len(steps)} steps: {', '.join(behind[done])}"
    if (there := rows["step"].nunique()) < len(steps):  # also bounds what is compared below
        yield f"it has rows of {there} of {len(steps)} steps"
        return
    if behind.keys() != {len(steps)}:
        return
    roles = {name: role for role in ("near", "far") for name in benchmark[role]}
    accuracy = rows[(rows["detector"] == "") & (rows["metric"] == "accuracy") & (rows["ood"] == "")]
    wanted = {("", step, "", task, "accuracy") for step in steps for task in range(step + 1)}
    have = _cells(accuracy)
    ood = rows[is_ood(rows)]
    metrics = table_metrics("all", "near-far")
    wanted |= {(d, s, o, 0, m) for d in run["detectors"] for s in steps for o in roles for m in metrics}
    have |= _cells(ood[ood["metric"].isin(metrics)])
    for word, cells in (("no", wanted - have), ("unexpected", have - wanted)):
        by_place: dict[tuple[str, int], set[str]] = {}
        for detector, step, name, _, metric in cells:
            by_place.setdefault((detector, step), set()).add(f"{metric} on {name}" if name else metric)
        for (detector, step), names in sorted(by_place.items()):
            yield f"step {step} of {detector or 'the model'} has {word} rows of {', '.join(sorted(names))}"
    known = set(run["detectors"])
    for name in sorted(set(rows["detector"].unique()) - known - {""}):
        yield f"rows of {name} are there, and its record has no such detector"
    for name, role in ood[["ood", "distance"]].drop_duplicates().itertuples(index=False, name=None):
        if roles.get(name, role) != role:
            yield f"{name} is {role} in rows, and {roles[name]} in the config"
    made: dict[str, set[int]] = {}
    for maker in run.get("made", ()):
        for name, numbers in maker["steps"].items():
            made.setdefault(name, set()).update(numbers)
    for name in sorted({"", *known}):
        if made.get(name, set()) != {*steps}:
            yield f"its record does not say which source made all steps of {name or 'the model'}"


def _cells(rows: pd.DataFrame) -> set[tuple[str, int, str, int, str]]:
    names = ["detector", "step", "ood", "task", "metric"]
    return set(rows[names].itertuples(index=False, name=None))
