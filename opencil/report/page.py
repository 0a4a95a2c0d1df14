"""One HTML file to explore results: tables, curves, figures, runs; it needs no network and no server.

Everything stands in the file: values as whole numbers in blocks (about 6 bytes each), pictures as SVG text.
Names come from rows and configs, so from anyone: they enter as JSON and are put on the page as text, and a
policy in the file lets no script run but the page's own, and nothing be loaded.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import resources
from string import Template
from typing import Any

import numpy as np
import pandas as pd

from opencil._version import __version__
from opencil.config import dump_yaml
from opencil.data.roles import SHIFTED
from opencil.evaluation.metric import metric_of
from opencil.published import OOD
from opencil.registry import DETECTORS, LEARNERS, Paper, Registry
from opencil.report.averages import of_datasets
from opencil.report.compare import data_notes
from opencil.report.figures.drawing import Figure
from opencil.report.figures.parts import DARK
from opencil.report.layout import LATEX, Cell, Table
from opencil.report.order import families, labelled, method, sort_cil, sort_datasets, sort_metrics
from opencil.report.results import Results, count, results
from opencil.study.records import RunRecord
from opencil.study.rows import plain_k
from opencil.study.study import Study

_SCALE = 1000  # stored numbers are thousandths of a percent
#: The script's parts, in the order in which they need each other.
_SCRIPTS = (
    *("elements", "averages", "selection", "methods", "saving", "board", "chart", "matrix", "tables"),
    *("figures", "runs", "about", "page"),
)
#: Percent points by which means of one seed moved when nothing but rounding changed: see results/README.md.
_NOISE = 1.5
#: Where the defaults are the paper's words and not its released code's, or better than either.
_BY_DESIGN = (
    "Seeds: class order, initialisation, data order and OOD subset have seeds of their own, noted in each "
    "config; the paper's released code seeds the class order alone.",
    "OOD images of a step are the first of one seeded permutation (ood_order: list takes the files' order); "
    "the released code takes the first of lists sorted by class, so that early steps see few OOD classes.",
    "ID images are all test images of seen classes; the released code takes 90 % of them.",
    "Detectors are set up on the step's training images and memory, as the paper says (setup: memory takes "
    "the memory alone); the released code takes memory and images of the test set.",
)
_POLICY = "default-src 'none'; img-src blob:; style-src 'unsafe-inline'; script-src 'sha256-{script}'"


def page(
    study: Study,
    *,
    figures: Iterable[Figure] = (),
    tables: Iterable[Table] = (),
    differences: Sequence[str] = (),
    refresh: float | None = None,
    title: str = "OpenCIL results",
) -> str:
    """The page as text.

    ``tables`` are shown as they are; ``differences`` are sentences on how these results differ from the
    paper's; with ``refresh`` the page loads itself anew every so many seconds.
    """
    rows, runs = study.rows, study.runs
    counted: dict[Any, Results] = {
        (outcome.benchmark, outcome.k): outcome for outcome in results(study, metrics=["auc"])
    }
    data = {
        "scale": _SCALE,
        "noise": _NOISE,
        "groups": [_group(part, counted.get(key)) for key, part in rows.groupby(["benchmark", "k"])],
        "metrics": _metrics(rows),
        "methods": {
            "cil": _methods(LEARNERS, rows["cil"].unique()),
            "detector": _methods(DETECTORS, rows["detector"].unique()),
        },
        "tables": [_sheet(table) for table in tables],
        "figures": [_figure(figure) for figure in figures],
        "dark": DARK,
        "latex": LATEX,
        "runs": [_record(run, i) for i, run in enumerate(runs)],
        "configs": [dump_yaml(run["config"]) for run in runs],
        "differences": list(differences),
        "refresh": refresh,
    }
    # In a block, what they define is theirs alone.
    script = "\n".join(['"use strict";', "{", *(_asset(f"{name}.js") for name in _SCRIPTS), "}"])
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Template(_asset("page.html")).substitute(
        policy=_POLICY.format(script=digest),
        title=html.escape(title),
        style=_asset("page.css"),
        script=script,
        data=_json(data),
        made=html.escape(_made(study)),
    )


def known_differences(study: Study) -> list[str]:
    """How results differ from the paper's: in their data, by what the runs noted; and by design."""
    notes: dict[str, None] = {}
    for outcome in results(study, metrics=["auc"]):
        if outcome.benchmark in OOD:
            notes |= {f"{outcome.title}: {note}": None for note in data_notes(outcome)}
        else:
            notes[
                f"The paper has no results on {outcome.benchmark}: there is nothing to compare these with."
            ] = None
    return [*notes, *_BY_DESIGN]


def _made(study: Study) -> str:
    """When the page was made, by which version, and of what."""
    today = datetime.now(UTC).date()
    of = f"{len(study.rows):,} rows of {count(len(study.runs), 'run')}"
    notes = [made for run in study.runs for made in run.get("made", [])]
    days = sorted({made[end][:10] for made in notes for end in ("first", "last")})
    when = f", made {' to '.join(dict.fromkeys([days[0], days[-1]]))}" if days else ""
    return f"{today.day} {today:%B %Y} · OpenCIL {__version__} · {of}{when}"


def _asset(name: str) -> str:
    return (resources.files("opencil.report") / "assets" / name).read_text(encoding="utf-8")


def _json(data: object) -> str:
    """JSON that is safe between script tags: nothing in it can end them, or begin a comment."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _record(run: RunRecord, config: int) -> dict[str, Any]:
    shown = ("benchmark", "k", "cil", "seed", "steps", "trained", "seconds", "detectors", "environment")
    return {key: value for key, value in run.items() if key in shown} | {"config": config}


def _methods(registry: Registry[Any], names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What there is to say about each method of some rows that is registered here."""
    known = set(registry.names())
    entries = {own: registry.entry(own) for own in dict.fromkeys(map(method, names)) if own in known}
    return {own: {"about": entry.about, **_paper(entry.paper)} for own, entry in entries.items()}


def _paper(paper: Paper | None) -> dict[str, Any]:
    """A paper's title and year, and its address, if that is one that a browser may be led to."""
    if paper is None:
        return {}
    link = paper.link if paper.link.startswith("https://") else ""
    return {"title": paper.title, "year": paper.year, "link": link}


def _sheet(table: Table) -> dict[str, Any]:
    """A table as the page draws and saves it; the blocks' titles are lines of their own."""
    rest = [""] * (len(table.columns) - 1)
    lines: list[list[Any]] = []
    for block in table.blocks:
        lines += [[block.title, *rest]] if block.title else []
        lines += [[_sheet_cell(cell) for cell in line] for line in [*block.lines, *block.foot]]
    return {
        "name": table.file,
        "title": table.title,
        "columns": [{"text": column.heading, "label": column.label} for column in table.columns],
        "lines": lines,
        "notes": table.notes,
    }


def _sheet_cell(cell: Cell) -> str | dict[str, Any]:
    if cell.value is None:
        return cell.text
    return {"mean": cell.value, "std": cell.std, "rank": cell.rank, "text": cell.text}


def _figure(figure: Figure) -> dict[str, Any]:
    width, height = (round(96 * side) for side in figure.picture.get_size_inches())
    return {
        **asdict(figure.about),
        "svg": _shorter(figure.svg),
        "width": width,
        "height": height,
        "wide": width > 2 * height,
    }


def _shorter(svg: str) -> str:
    """An SVG without its head, remarks and indentation."""
    svg = re.sub(r"^.*?(?=<svg)|<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    return re.sub(r"\s*\n\s*", "\n", svg)


def _metrics(rows: pd.DataFrame) -> dict[str, dict[str, Any]]:
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


def _group(rows: pd.DataFrame, counted: Results | None) -> dict[str, Any]:
    """The values of one benchmark and k; ``counted`` says what the tables make of them.

    ``values[metric]`` has a block for each CIL model × detector × seed, in that order: its steps × OOD sets,
    or None where it has none. Shifted sets stand behind the OOD sets, and only their own metrics have values
    there. ``accuracy`` has a list over steps for each CIL model × seed. ``planned`` is how many steps there
    will be, ``needed`` how many of them have a metric: some begin at step 2. Averages are over the sets that
    are ``shared``; a method that is a ``variant`` of another has no rank.
    """
    detected = of_datasets(rows)
    models = rows[(rows["detector"] == "") & (rows["task"] == 0) & (rows["metric"] == "accuracy")]
    benchmark = str(rows["benchmark"].iloc[0])
    cils, seeds = sort_cil(rows["cil"].unique()), sorted(rows["seed"].unique().tolist())
    steps = sorted(rows["step"].unique().tolist())
    family = {name: group for group, names in families(detected["detector"].unique()) for name in names}
    distances = detected[["ood", "distance"]].drop_duplicates().itertuples(index=False, name=None)
    oods = sort_datasets(benchmark, dict(distances))
    shifted = _shifted(rows)
    sets = oods | dict.fromkeys(sorted(shifted["ood"].unique()), SHIFTED)
    axes: dict[str, list[Any]] = {
        "cil": cils,
        "detector": list(family),
        "seed": seeds,
        "step": steps,
        "ood": list(sets),
    }
    # What is of clean ID images is the same whichever OOD set is looked at, and what is of the model alone
    # whichever detector.
    clean = _clean(rows).drop(columns="ood").merge(pd.DataFrame({"ood": list(oods)}), how="cross")
    of_model, of_detector = shifted[shifted["detector"] == ""], shifted[shifted["detector"] != ""]
    of_model = of_model.drop(columns="detector").merge(pd.DataFrame({"detector": list(family)}), how="cross")
    detected = pd.concat([detected, clean, of_detector, of_model], ignore_index=True)
    values = {str(metric): _blocks(part, axes) for metric, part in detected.groupby("metric")}
    planned = counted.steps if counted else int(rows["step"].max())
    first = detected.groupby("metric")["step"].min()
    partial = counted.partial if counted else {}
    return {
        "benchmark": benchmark,
        "k": plain_k(rows["k"].iloc[0]),
        "cils": [{"name": name, "variant": labelled(name)} for name in cils],
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
        "notes": [*counted.uneven(), *counted.mixture()] if counted else [],
        "values": values,
        "accuracy": _blocks(models, {key: axes[key] for key in ("cil", "seed", "step")}),
    }


def _clean(rows: pd.DataFrame) -> pd.DataFrame:
    """What detectors do on clean ID images alone."""
    return rows[(rows["detector"] != "") & (rows["ood"] == "") & (rows["task"] == 0)]


def _shifted(rows: pd.DataFrame) -> pd.DataFrame:
    """What models and detectors do on shifted sets."""
    return rows[(rows["distance"] == SHIFTED) & (rows["task"] == 0)]


def _blocks(rows: pd.DataFrame, axes: Mapping[str, Sequence[Any]]) -> list[list[int | None] | None]:
    """Values as whole numbers: a block of the axes from ``step`` on for each place on the axes before."""
    table = np.full([len(axis) for axis in axes.values()], np.nan)
    places = tuple(pd.Index(axis).get_indexer(rows[name]) for name, axis in axes.items())
    table[places] = rows["value"].to_numpy() * 100 * _SCALE
    width = int(np.prod([len(axis) for axis in list(axes.values())[list(axes).index("step") :]]))
    return [_whole(block) if np.isfinite(block).any() else None for block in table.reshape(-1, width)]


def _whole(values: np.ndarray[Any, np.dtype[np.float64]]) -> list[int | None]:
    return [int(value) if np.isfinite(value) else None for value in np.rint(values)]
