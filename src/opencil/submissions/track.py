"""Compare runs with their track: a shipped benchmark with its data, class order and seeds.

Backbone, transform, batch size and all values of methods are free; a submission records them.
"""

from collections.abc import Collection, Iterator
from functools import cache
from typing import Any

import pandas as pd

from opencil.config import list_benchmarks, resolve
from opencil.data.benchmark import find_dataset
from opencil.data.file_dataset import FileDataset
from opencil.data.images import Split
from opencil.data.roles import FUTURE, SHIFTED
from opencil.data.stream import StepSizes, class_order
from opencil.evaluation.metric import KEPT, chosen_metrics, metrics
from opencil.registry import DATASETS
from opencil.study.records import IDENTITY, RunRecord, identity, name_of
from opencil.study.study import Study
from opencil.validation import plain

#: The seeds of a track: a method has the first, the first two, or all.
SEEDS = (0, 1, 2)
#: Most steps that are compared where the number of classes is unknown.
MOST_STEPS = 1000
#: The values of a benchmark that a track fixes.
_FIXED = ("id", "near", "far", "image_size", "memory", "memory_per_class", "ood_order", "datasets")
#: Detector, step, set, task and metric of a row.
_Cell = tuple[str, int, str, int, str]


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


@cache
def _count_images(benchmark: str, name: str, split: Split) -> tuple[int | None, str]:
    """Return the number of images of a track's split, and their digest where the package has them."""
    values, _ = _track(benchmark)
    dataset = find_dataset(name, resolve({"benchmark": benchmark}).benchmark.datasets)
    if isinstance(dataset, FileDataset):
        return dataset.counts.get(split), ""
    images = dataset.load(split, values["image_size"], None)
    return len(images), images.fingerprint


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
    for name in (cil, *run["detectors"]):
        if " (" in name:
            yield f"the name {name!r} has a parenthesis, where boards name the submitter"
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
    if (order := config["cil"].get(cil, {}).get("class_order")) is not None and (
        order != class_order(len(order), seeds["class_order"])
    ):
        yield f"cil.{cil}.class_order is not the track's, of seed {seeds['class_order']}"
    if classes and (steps := len(StepSizes.parse(k).of(classes))) != run["steps"]:
        yield f"it has {run['steps']} steps, and k = {k} gives {steps}"
    for name, shift in fixed["shifted"].items():
        if ours["shifted"].get(name) != shift:
            yield f"benchmark.shifted.{name} is not the track's"
    recorded_sets = {(split["name"], split["split"]): split for split in run["data"]}
    of_id: list[tuple[str, Split]] = [(fixed["id"], "train"), (fixed["id"], "test")]
    for name, part in [*of_id, *((name, "test") for name in (*fixed["near"], *fixed["far"]))]:
        split = recorded_sets.get((name, part))
        count, digest = _count_images(benchmark, name, part)
        if split is None:
            yield f"there is no record of its data {name} {part}"
        elif name not in other_data and count not in (None, split["images"]):
            yield f"{name} {part} has {split['images']:,} images, and the track's {count:,}"
        elif name not in other_data and digest and split.get("digest") not in (None, digest):
            yield f"{name} {part} has other images than the track's"


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
    if behind.keys() != {len(steps)} or len(steps) > (count_classes(run) or MOST_STEPS):
        return
    roles = {name: role for role in ("near", "far") for name in benchmark[role]}
    roles |= dict.fromkeys(benchmark["shifted"], SHIFTED) | {FUTURE: FUTURE}
    wanted, have = _expect(run, rows, [*roles]), _cells(rows)
    for word, cells in (("no", wanted - have), ("unexpected", _find_unexpected(have, roles))):
        by_place: dict[tuple[str, int], set[str]] = {}
        for detector, step, name, _, metric in cells:
            by_place.setdefault((detector, step), set()).add(f"{metric} on {name}" if name else metric)
        for (detector, step), names in sorted(by_place.items()):
            yield f"step {step} of {detector or 'the model'} has {word} rows of {', '.join(sorted(names))}"
    known = set(run["detectors"])
    for name in sorted(set(rows["detector"].unique()) - known - {""}):
        yield f"rows of {name} are there, and its record has no such detector"
    sets = rows.loc[rows["ood"] != "", ["ood", "distance"]].drop_duplicates()
    for name, role in sets.itertuples(index=False, name=None):
        if roles.get(name, role) != role:
            yield f"{name} is {role} in rows, and {roles[name]} in the config"
    made: dict[str, set[int]] = {}
    for maker in run.get("made", ()):
        for name, numbers in maker["steps"].items():
            made.setdefault(name, set()).update(numbers)
    for name in sorted({"", *known}):
        if made.get(name, set()) != {*steps}:
            yield f"its record does not say which source made all steps of {name or 'the model'}"


def find_unmeasured(study: Study) -> list[str]:
    """Return the standard metrics without a row in a study, and the set of later classes if it has none.

    Rows of an earlier version can lack them; where some rows are there, all are asked for.
    """
    rows, shifted = study.rows, any(run["config"]["benchmark"]["shifted"] for run in study.runs)
    names = [name for name in chosen_metrics() if shifted or not metrics()[name].reads_shifted]
    none = [name for name in names if not (rows["metric"] == name).any()]
    return none if (rows["ood"] == FUTURE).any() else [*none, f"the set {FUTURE}"]


def _expect(run: RunRecord, rows: pd.DataFrame, names: list[str]) -> set[_Cell]:
    """Return the cells that a run must have: of metrics in tables or of shifted sets, and of those it has."""
    steps, shifted = range(1, (run["steps"] or 0) + 1), run["config"]["benchmark"]["shifted"]
    known, tasks = metrics(), rows.groupby("metric")["task"].max()
    by_task = {name for name in tasks.index if tasks[name] and not name.startswith("accuracy")}
    later = (rows["ood"] == FUTURE).any()
    chosen = [
        metric
        for metric in map(known.__getitem__, chosen_metrics())
        if (shifted if metric.reads_shifted else metric.tables != "none" or metric.name in tasks.index)
    ]
    wanted = {("", step, "", task, "accuracy") for step in steps for task in range(step + 1)}
    for metric in chosen:
        old = "old" in metric.reads
        places = [name for name in names if name in shifted] if "shifted" in metric.subjects else [""]
        if "ood" in metric.subjects:
            places = [name for name in names if name not in shifted and (name != FUTURE or later)]
            places += [""] * ("id" in metric.subjects)
        for step in steps[1:] if old else steps:
            for name in places:
                if name == FUTURE and step == len(steps):
                    continue
                # the tasks of images without labels are those predicted, not all of them
                each = metric.name in by_task and ("id_tasks" in metric.reads or not name)
                numbers = range(1, step + 1) if each else () if metric.name in by_task else (0,)
                owners = [""] if metric.of_model else [*run["detectors"]]
                wanted |= {(d, step, name, task, metric.name) for d in owners for task in numbers}
    return wanted


def _find_unexpected(have: set[_Cell], names: Collection[str]) -> set[_Cell]:
    """Return the cells of sets that are not the benchmark's, and of metrics that nobody knows."""
    known = {*metrics(), *KEPT}
    return {
        cell
        for cell in have
        if cell[2] not in ("", *names) or not (cell[4] in known or cell[4].startswith("accuracy_"))
    }


def _cells(rows: pd.DataFrame) -> set[_Cell]:
    names = ["detector", "step", "ood", "task", "metric"]
    return set(rows[names].itertuples(index=False, name=None))
