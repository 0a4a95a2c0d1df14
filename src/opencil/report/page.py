"""Write one HTML file to explore results: tables, curves, figures, runs. It needs no network and no server.

All averages are computed here, by metric, evaluation set and seed; the page's script selects among them. They
stand in the file as compressed JSON, with all other data. Names come from rows and configs, so from anyone:
they enter as JSON and are put on the page as text. A policy in the file forbids any other script.
"""

import base64
import gzip
import hashlib
import html
import json
import re
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import resources
from string import Template
from typing import Any

import pandas as pd
import torch

from opencil._version import __version__
from opencil.config import dump_yaml
from opencil.data.roles import ALL, FUTURE, OOD_ROLES, SHIFTED
from opencil.evaluation.metric import metric_of, shares, table_metrics
from opencil.evaluation.metrics import forgetting
from opencil.published import OOD
from opencil.registry import DETECTORS, LEARNERS, Registry
from opencil.report.averages import (
    RUN,
    average_datasets,
    average_seeds,
    dataset_place,
    is_ood,
    list_megabytes,
    select_longest,
)
from opencil.report.compare import data_notes
from opencil.report.figures.drawing import Figure
from opencil.report.layout import LATEX, Cell, Table
from opencil.report.order import group_families, is_labelled, is_upper_bound, method, sort_cil, sort_metrics
from opencil.report.results import Outcome, count, results
from opencil.report.statistics import find_answers
from opencil.study.records import RunRecord, identity
from opencil.study.rows import COLUMNS
from opencil.study.study import Study

#: The script's parts, in the order in which they need each other.
_SCRIPTS = (
    *("elements", "averages", "selection", "methods", "answer", "saving", "board", "chart", "matrix"),
    *("tables", "figures", "runs", "about", "page"),
)
#: Largest difference of two seeds of one model on CIFAR-100, in percent points: see results/README.md.
_NOISE = 3
_FORGETTING = "forgetting"
#: Metrics of the CIL models themselves, each with a leaderboard of its own.
_OF_MODELS = {
    "accuracy": {"label": "Accuracy", "definition": metric_of("accuracy").definition, "lower": False},
    _FORGETTING: {
        "label": "Forgetting",
        "definition": "best earlier accuracy on a task minus the last, mean over old tasks.",
        "lower": True,
    },
}
#: Where the defaults are the paper's words and not its released code's, or better than either.
_BY_DESIGN = (
    "Seeds: class order, initialisation, data order and OOD subset have seeds of their own, noted in each "
    "config; the paper's released code seeds the class order alone.",
    "OOD images of a step are the first of one seeded permutation (ood_order: list takes the files' order); "
    "the released code takes the first of lists sorted by class, so that early steps see few OOD classes.",
    "ID images are all test images of seen classes; the released code takes 90 % of them.",
    "Detectors are set up on what each config says: on the memory, or, under setup: train+, on the step's "
    "training images and memory, as the paper says; the released code takes memory and images of the test "
    "set.",
)
_POLICY = "default-src 'none'; img-src blob:; style-src 'unsafe-inline'; script-src 'sha256-{script}'"


def page(
    study: Study,
    *,
    figures: Iterable[Figure] = (),
    tables: Iterable[Table] = (),
    refresh: float | None = None,
    opened: tuple[str, int | str] | None = None,
) -> str:
    """Return the page as text; with ``refresh`` it reloads itself every so many seconds.

    ``opened`` is the benchmark and k that it shows first, with ``tables`` above all.
    """
    forgotten = _forgetting_by_step(study.rows)
    rows = shares(study.rows)
    rows = pd.concat([rows[rows["task"] == 0], forgotten], ignore_index=True)
    kept = {key[:4]: [*key[5:]] for key in list_megabytes(study.rows).itertuples(index=False, name=None)}
    data = {
        "noise": _NOISE,
        "groups": [_make_group(rows, outcome) for outcome in results(study)],
        "metrics": _describe_metrics(rows),
        "main": table_metrics("all", "near-far"),
        "methods": {
            "cil": _describe_methods(LEARNERS, rows["cil"].unique()),
            "detector": _describe_methods(DETECTORS, rows["detector"].unique()),
        },
        "tables": [_describe_table(table) for table in tables],
        "runs": [_describe_run(run) | {"kept": kept.get(identity(run))} for run in study.runs],
        "figures": [_describe_figure(figure) for figure in figures],
        "latex": LATEX,
        "problems": study.problems,
        "differences": _list_differences(study),
        "refresh": refresh,
        "opened": opened,
    }
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    script = "\n".join(_read_asset(f"{name}.js") for name in _SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Template(_read_asset("page.html")).substitute(
        policy=_POLICY.format(script=digest),
        style=_read_asset("page.css"),
        script=script,
        data=base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode(),
        made=html.escape(_describe_making(study)),
    )


def _read_asset(name: str) -> str:
    return (resources.files("opencil.report") / "assets" / name).read_text(encoding="utf-8")


def _list_differences(study: Study) -> list[str]:
    """Return how results differ from the paper's, by the data that the runs recorded and by design."""
    notes: dict[str, None] = {}
    for outcome in results(study):
        if outcome.benchmark in OOD:
            notes |= {f"{outcome.title}: {note}": None for note in data_notes(outcome)}
        else:
            where = f"The paper has no results on {outcome.benchmark}"
            notes[f"{where}: there is nothing to compare these with."] = None
    return [*notes, *_BY_DESIGN]


def _describe_metrics(rows: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Return the metrics of some rows: of OOD sets, then of ID images alone, then of shifted sets."""
    parts = (is_ood(rows), (rows["detector"] != "") & (rows["ood"] == ""), rows["distance"] == SHIFTED)
    of_ood, of_id, of_shifted = (sort_metrics(rows.loc[part, "metric"].unique()) for part in parts)
    return {
        metric.name: {
            "label": metric.label,
            "definition": metric.definition,
            "lower": metric.lower_is_better,
            "shifted": metric.name in of_shifted and metric.name not in of_ood,
        }
        for metric in map(metric_of, dict.fromkeys([*of_ood, *of_id, *of_shifted]))
    } | {name: about | {"model": True} for name, about in _OF_MODELS.items()}


def _forgetting_by_step(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows of what each run has forgotten after each step from the second on."""
    of_tasks = rows[(rows["detector"] == "") & (rows["task"] > 0) & (rows["metric"] == "accuracy")]
    lines = []
    for run, part in of_tasks.groupby(RUN):
        matrix = torch.tensor(part.pivot(index="step", columns="task", values="value").to_numpy())
        if matrix.shape[0] == matrix.shape[1]:  # else a step lacks tasks
            steps = range(2, len(matrix) + 1)
            lines += [(*run, t, "", "", "", 0, _FORGETTING, forgetting(matrix[:t, :t])) for t in steps]
    return pd.DataFrame(lines, columns=COLUMNS).astype({"value": float})


def _make_group(rows: pd.DataFrame, outcome: Outcome) -> dict[str, Any]:
    """Return the description of one benchmark and k, with its averages.

    Of ``planned`` steps a metric ``needed`` some: it may begin at step 2. ``baselines`` counts its pairs of
    CIL model and detector. A ``variant`` and an upper ``bound`` have no rank. ``kept`` are megabytes.
    """
    rows = rows[(rows["benchmark"] == outcome.benchmark) & (rows["k"] == outcome.k)]
    values = _values_by_place(rows, outcome)
    cils, oods = sort_cil(rows["cil"].unique()), outcome.datasets
    shifted = sorted(rows.loc[rows["distance"] == SHIFTED, "ood"].unique())
    of_detectors = values[values["detector"] != ""]
    baselines = of_detectors[["metric", "cil", "detector"]].drop_duplicates()["metric"].value_counts()
    of_models = {name: len(cils) for name in _OF_MODELS if (values["metric"] == name).any()}
    first = values.groupby("metric")["step"].min()
    bounds = {name for name in cils if is_upper_bound(name)}
    kept = {name: sum(sizes) for name, sizes in outcome.kept.items()}
    every = [(ALL, "all OOD sets")] if oods else []
    splits = [(role, f"all {role}") for role in OOD_ROLES if role in oods.values()]
    later = {FUTURE: FUTURE} if (values["place"] == FUTURE).any() else {}
    splits += [(role, "classes of later steps") for role in later]
    steps = sorted(rows["step"].unique().tolist())
    return {
        "benchmark": outcome.benchmark,
        "k": outcome.k,
        "cils": [
            {
                "name": name,
                "variant": is_labelled(name),
                "bound": name in bounds,
                "kept": kept.get(name),
            }
            for name in cils
        ],
        "detectors": [
            {"name": name, "family": family, "variant": is_labelled(name)}
            for family, names in group_families(name for name in rows["detector"].unique() if name)
            for name in names
        ],
        "seeds": sorted(rows["seed"].unique().tolist()),
        "steps": steps,
        "planned": outcome.steps,
        "needed": {metric: outcome.steps - int(step) + 1 for metric, step in first.items()},
        "baselines": baselines.to_dict() | of_models,
        "answers": find_answers(outcome, _NOISE),
        "sets": oods | dict.fromkeys(shifted, SHIFTED) | later,
        "places": [*every, *splits, *((dataset_place(name), name) for name in oods)],
        "shifted": [("", "all shifted sets"), *((dataset_place(name), name) for name in shifted)],
        "notes": [*outcome.uneven(), *outcome.differing()],
        "makers": outcome.makers(),
        "missing": outcome.missing(averaged=True),
        "averages": _average_values(values, steps),
    }


def _values_by_place(rows: pd.DataFrame, outcome: Outcome) -> pd.DataFrame:
    """Return values per seed, step, CIL model, detector, place and metric, as the page shows them.

    Metrics of the model on shifted sets are shown with each of its detectors, and metrics of clean ID images
    only beside OOD sets.
    """
    of_model, clean = rows["detector"] == "", rows["ood"] == ""
    tried = rows.loc[~of_model, ["cil", "seed", "detector"]].drop_duplicates()
    accuracy = of_model & clean & rows["metric"].isin(list(_OF_MODELS))
    of_detector = ~of_model & (~clean | bool(is_ood(rows).any()))
    on_shifted = rows[of_model & (rows["distance"] == SHIFTED)].drop(columns="detector")
    rows = pd.concat([rows[accuracy | of_detector], on_shifted.merge(tried, on=["cil", "seed"])])
    return average_datasets(rows, outcome.partial, each=True)


def _average_values(values: pd.DataFrame, steps: list[int]) -> dict[str, Any]:
    """Return all averages in percent, by metric, place, seed (empty: all), and CIL model with detector.

    They are lists: mean, deviation, numbers of steps and seeds, means of every step and, if any, deviations.
    The mean is over steps, but forgetting is that after the last step.
    """
    keys = ["metric", "place", "shown", "cil", "detector"]
    seeds = pd.CategoricalDtype(["", *sorted(values["seed"].astype(str).unique())])
    values = values.astype(dict.fromkeys(["metric", "place", "cil", "detector"], "category"))
    shown = ["", values["seed"].astype(str)] if values["seed"].nunique() > 1 else [""]
    values = pd.concat([values.assign(shown=pd.Series(of, values.index, dtype=seeds)) for of in shown])
    values = select_longest(values, keys).sort_values("step")
    per_run = values.groupby([*keys, "seed"], observed=True)
    runs = per_run["value"].agg(value="mean", last="last", steps="size").reset_index()
    runs["value"] = runs["value"].mask(runs["metric"] == _FORGETTING, runs["last"])
    whole = average_seeds(runs, keys).set_index(keys)
    spread = values.groupby([*keys, "step"], observed=True)["value"].agg(["mean", "std"])
    of_steps = [spread[of].unstack("step").reindex(whole.index, columns=steps) for of in ("mean", "std")]
    # Percents with the two digits that are shown; None where there is no value.
    percents = [(100 * part).round(2).astype(object) for part in (whole[["mean", "std"]], *of_steps)]
    lists = [part.where(part.notna(), None).to_numpy().tolist() for part in percents]
    found: dict[str, Any] = {}
    parts = zip(whole.index, whole[["steps", "seeds"]].to_numpy().tolist(), *lists, strict=True)
    for (metric, place, seed, cil, detector), numbers, both, means, deviations in parts:
        of_seed = found.setdefault(metric, {}).setdefault(place, {}).setdefault(seed, {})
        of_seed[f"{cil}\n{detector}"] = [*both, *numbers, means, *([deviations] if numbers[1] > 1 else [])]
    return found


def _describe_making(study: Study) -> str:
    """Return when the page was made, by which version, and of which rows."""
    today = datetime.now(UTC).date()
    of = f"{len(study.rows):,} rows of {count(len(study.runs), 'run')}"
    notes = [made for run in study.runs for made in run.get("made", [])]
    days = sorted({made[end][:10] for made in notes for end in ("first", "last")})
    when = f", made {' to '.join(dict.fromkeys([days[0], days[-1]]))}" if days else ""
    return f"{today.day} {today:%B %Y} · OpenCIL {__version__} · {of}{when}"


def _describe_run(run: RunRecord) -> dict[str, Any]:
    seconds = pd.DataFrame(run["seconds"]).sum().to_dict()  # by their kind
    described = {key: value for key, value in run.items() if key not in ("made", "data")}
    return {**described, "seconds": seconds, "config": dump_yaml(run["config"])}


def _describe_methods(registry: Registry[Any], names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return title, first line and paper of each method of some rows that is registered here."""
    known, found = set(registry.names()), dict[str, dict[str, Any]]()
    for name in dict.fromkeys(map(method, names)):
        if name in known:
            entry = registry.entry(name)
            found[name] = {"written": entry.title, "about": entry.about}
            if paper := entry.paper:
                link = paper.link if paper.link.startswith("https://") else ""  # others may be scripts
                found[name] |= {"title": paper.title, "year": paper.year, "link": link}
    return found


def _describe_table(table: Table) -> dict[str, Any]:
    """Return a table as the page draws and saves it; titles of blocks are lines of their own."""
    lines: list[list[Any]] = []
    for block in table.blocks:
        if block.title:
            lines.append([block.title, *[""] * (len(table.columns) - 1)])
        lines += [[_describe_cell(cell) for cell in line] for line in [*block.lines, *block.foot]]
    columns = [{"text": column.heading, "label": column.label} for column in table.columns]
    described = {"name": table.file, "title": table.title, "columns": columns, "lines": lines}
    return {**described, "notes": table.notes, "missing": table.missing}


def _describe_cell(cell: Cell) -> str | dict[str, Any]:
    if cell.value is None:
        return cell.text
    return {"mean": cell.value, "std": cell.std, "rank": cell.rank, "text": cell.text}


def _describe_figure(figure: Figure) -> dict[str, Any]:
    """Return texts, size and drawing; the SVG goes without head, metadata, remarks and indentation."""
    width, height = (round(96 * side) for side in figure.box.size)
    svg = re.sub(r"^.*?(?=<svg)|<metadata>.*?</metadata>|<!--.*?-->", "", figure.svg, flags=re.DOTALL)
    size = {"width": width, "height": height, "wide": width > 2 * height}
    return {**asdict(figure.about), **size, "svg": re.sub(r"\s+", " ", svg)}
