"""The values of a study as the page holds them: whole numbers in dense blocks, and what they mean."""

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np
import pandas as pd

from opencil.data.roles import SHIFTED
from opencil.evaluation.metric import metric_of
from opencil.report.averages import of_datasets
from opencil.report.order import families, labelled, sort_cil, sort_datasets, sort_metrics, upper_bound
from opencil.report.results import Outcome
from opencil.study.rows import plain_k

SCALE = 1000  #: Stored numbers are thousandths of a percent


def metrics_of(rows: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """The metrics that rows have, ours first in their order, with what they mean.

    Those of OOD sets come first, since the page opens with the first; then those of ID images alone, at last
    those of shifted sets.
    """
    of_ood = sort_metrics(of_datasets(rows)["metric"])
    of_shifted = [name for name in sort_metrics(_shifted(rows)["metric"]) if name not in of_ood]
    names = dict.fromkeys([*of_ood, *sort_metrics(_clean(rows)["metric"]), *of_shifted])
    return {
        metric.name: {
            "label": metric.label,
            "definition": metric.definition,
            "lower": metric.lower_is_better,
            "shifted": metric.name in of_shifted,
        }
        for metric in map(metric_of, names)
    }


def group_of(rows: pd.DataFrame, counted: Outcome | None) -> dict[str, Any]:
    """The values of one benchmark and k; ``counted`` says what the tables make of them.

    ``values`` are by metric; shifted sets stand behind the OOD sets. ``accuracy`` has a list over steps for
    each CIL model × seed. ``planned`` is how many steps there will be, ``needed`` how many of them have a
    metric: some begin at step 2. Averages are over the sets that are ``shared``; a method that is a
    ``variant`` of another has no rank, nor has an upper ``bound``. What is ``kept`` at last is in megabytes.
    """
    detected = of_datasets(rows)
    models = rows[(rows["detector"] == "") & (rows["task"] == 0) & (rows["metric"] == "accuracy")]
    benchmark = str(rows["benchmark"].iloc[0])
    cils, seeds = sort_cil(rows["cil"].unique()), sorted(rows["seed"].unique().tolist())
    steps = sorted(rows["step"].unique().tolist())
    tried = rows.loc[rows["detector"] != "", ["cil", "seed", "detector"]].drop_duplicates()
    family = {name: group for group, names in families(tried["detector"]) for name in names}
    distances = detected[["ood", "distance"]].drop_duplicates().itertuples(index=False, name=None)
    oods = sort_datasets(benchmark, dict(distances))
    shifted = _shifted(rows)
    sets = oods | dict.fromkeys(sorted(shifted["ood"].unique()), SHIFTED)
    axes: dict[str, list[Any]] = {"cil": cils, "detector": list(family), "seed": seeds, "step": steps}
    # What is of clean ID images is shown with OOD sets, what is of the model alone with all its detectors.
    clean = _clean(rows) if oods else rows[:0]
    of_model, of_detector = shifted[shifted["detector"] == ""], shifted[shifted["detector"] != ""]
    of_model = of_model.drop(columns="detector").merge(tried, on=["cil", "seed"])
    detected = pd.concat([detected, clean, of_detector, of_model], ignore_index=True)
    values = {str(metric): _values(part, axes, sets) for metric, part in detected.groupby("metric")}
    planned = counted.steps if counted else int(rows["step"].max())
    first = detected.groupby("metric")["step"].min()
    partial = counted.partial if counted else {}
    kept = {name: sum(both) for name, both in counted.kept.items()} if counted else {}
    bounds = [name for name in cils if upper_bound(name)]
    notes = [f"Bounds of accuracy, which keep all images, have no rank: {', '.join(bounds)}."] * bool(bounds)
    return {
        "benchmark": benchmark,
        "k": plain_k(rows["k"].iloc[0]),
        "cils": [
            {"name": name, "variant": labelled(name), "bound": name in bounds, "kept": kept.get(name)}
            for name in cils
        ],
        "detectors": [
            {"name": name, "family": group, "variant": labelled(name)} for name, group in family.items()
        ],
        "seeds": seeds,
        "steps": steps,
        "planned": planned,
        "needed": {str(metric): planned - int(step) + 1 for metric, step in first.items()},
        "oods": [
            {"name": name, "distance": distance, "shared": name not in partial}
            for name, distance in sets.items()
        ],
        "notes": notes + ([*counted.uneven(), *counted.mixture()] if counted else []),
        "missing": counted.missing(averaged=True) if counted else [],
        "values": values,
        "accuracy": _blocks(models, {key: axes[key] for key in axes if key != "detector"}),
    }


def _clean(rows: pd.DataFrame) -> pd.DataFrame:
    """What detectors do on clean ID images alone."""
    return rows[(rows["detector"] != "") & (rows["ood"] == "") & (rows["task"] == 0)]


def _shifted(rows: pd.DataFrame) -> pd.DataFrame:
    """What models and detectors do on shifted sets."""
    return rows[(rows["distance"] == SHIFTED) & (rows["task"] == 0)]


def _values(rows: pd.DataFrame, axes: Mapping[str, Sequence[Any]], sets: Iterable[str]) -> dict[str, Any]:
    """A metric's ``blocks``, of its steps × its own sets, and which one each CIL model × detector × seed has.

    ``sets`` says where in them each of the group's sets is, if it is; what is of no set is the same on all.
    """
    own = [name for name in ("", *sets) if (rows["ood"] == name).any()]
    places, blocks = {name: i for i, name in enumerate(own)}, dict[Any, int]()
    return {
        "sets": [places.get(name, places.get("")) for name in sets],
        "at": numbered(_blocks(rows, {**axes, "ood": own}), blocks),
        "blocks": list(blocks),
    }


def numbered(things: Iterable[Any], known: dict[Any, int]) -> list[int]:
    """Things as their numbers among those ``known``, to which it adds: what is the same is written once."""
    return [known.setdefault(thing, len(known)) for thing in things]


def _blocks(rows: pd.DataFrame, axes: Mapping[str, Sequence[Any]]) -> list[tuple[int | None, ...]]:
    """Values as whole numbers: a block of the axes from ``step`` on for each place on the axes before."""
    table = np.full([len(axis) for axis in axes.values()], np.nan)
    places = tuple(pd.Index(axis).get_indexer(rows[name]) for name, axis in axes.items())
    table[places] = rows["value"].to_numpy() * 100 * SCALE
    width = int(np.prod([len(axis) for axis in list(axes.values())[list(axes).index("step") :]]))
    blocks = np.rint(table).reshape(-1, width).tolist()
    return [tuple(int(value) if isfinite(value) else None for value in block) for block in blocks]
