"""One HTML file to explore results: tables, curves, figures, runs; it needs no network and no server.

Everything stands in the file: values as whole numbers in blocks (about 6 bytes each), pictures as SVG text.
Pictures and configs share most of their lines, so each line stands there once.
Names come from rows and configs, so from anyone: they enter as JSON and are put on the page as text, and a
policy in the file lets no script run but the page's own, and nothing be loaded.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import resources
from string import Template
from typing import Any

import pandas as pd

from opencil._version import __version__
from opencil.config import dump_yaml
from opencil.evaluation.metric import shares
from opencil.published import OOD
from opencil.registry import DETECTORS, LEARNERS, Paper, Registry
from opencil.report.averages import megabytes
from opencil.report.compare import data_notes
from opencil.report.figures.drawing import Figure
from opencil.report.figures.parts import DARK
from opencil.report.layout import LATEX, Cell, Table
from opencil.report.order import method
from opencil.report.page_values import SCALE, group_of, metrics_of, numbered
from opencil.report.results import Outcome, count, results
from opencil.study.records import Identity, RunRecord, identity
from opencil.study.study import Study

#: The script's parts, in the order in which they need each other.
_SCRIPTS = (
    *("elements", "averages", "selection", "methods", "saving", "board", "chart", "matrix", "tables"),
    *("figures", "runs", "about", "page"),
)
#: Percent points that two seeds of one model were apart at most on CIFAR-100: see results/README.md.
_NOISE = 3
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
    differences: Sequence[str] = (),
    refresh: float | None = None,
    title: str = "OpenCIL results",
) -> str:
    """The page as text.

    ``tables`` are shown as they are; ``differences`` are sentences on how these results differ from the
    paper's; with ``refresh`` the page loads itself anew every so many seconds.
    """
    rows, kept = shares(study.rows), _latest(megabytes(study.rows))
    counted: dict[Any, Outcome] = {
        (outcome.benchmark, outcome.k): outcome for outcome in results(study, metrics=["auc"])
    }
    texts: dict[str, int] = {}  # lines of what is below
    data = {
        "scale": SCALE,
        "noise": _NOISE,
        "groups": [group_of(part, counted.get(key)) for key, part in rows.groupby(["benchmark", "k"])],
        "metrics": metrics_of(rows),
        "methods": {
            "cil": _methods(LEARNERS, rows["cil"].unique()),
            "detector": _methods(DETECTORS, rows["detector"].unique()),
        },
        "tables": [_sheet(table) for table in tables],
        "runs": [_record(run, texts) | kept.get(identity(run), {}) for run in study.runs],
        "figures": [_figure(figure, texts) for figure in figures],
        "dark": DARK,
        "latex": LATEX,
        "problems": study.problems,
        "differences": list(differences),
        "refresh": refresh,
        "texts": list(texts),
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
    """JSON that is safe between script tags: without a ``<`` nothing can end them, or begin a comment."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def _record(run: RunRecord, texts: dict[str, int]) -> dict[str, Any]:
    shown = {"benchmark", "k", "cil", "seed", "steps", "trained", "detectors", "environment"}
    shown |= {"failed", "left_out"}
    return {key: value for key, value in run.items() if key in shown} | {
        "seconds": pd.DataFrame(run["seconds"]).sum().to_dict(),  # by their kind
        "config": numbered(dump_yaml(run["config"]).split("\n"), texts),
    }


def _latest(kept: pd.DataFrame) -> dict[Identity, dict[str, list[float]]]:
    """Megabytes of model and memory after the latest step of each run that has them."""
    return {(b, k, c, s): {"kept": [*of]} for b, k, c, s, _, *of in kept.itertuples(index=False, name=None)}


def _methods(registry: Registry[Any], names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What there is to say about each method of some rows that is registered here."""
    known = set(registry.names())
    entries = {own: registry.entry(own) for own in dict.fromkeys(map(method, names)) if own in known}
    return {
        own: {"written": entry.title, "about": entry.about, **_paper(entry.paper)}
        for own, entry in entries.items()
    }


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
        "missing": table.missing,
    }


def _sheet_cell(cell: Cell) -> str | dict[str, Any]:
    if cell.value is None:
        return cell.text
    return {"mean": cell.value, "std": cell.std, "rank": cell.rank, "text": cell.text}


def _figure(figure: Figure, texts: dict[str, int]) -> dict[str, Any]:
    width, height = (round(96 * side) for side in figure.size)
    return {
        **asdict(figure.about),
        "svg": numbered(_elements(figure.svg), texts),
        "width": width,
        "height": height,
        "wide": width > 2 * height,
    }


def _elements(svg: str) -> list[str]:
    """An SVG without its head, remarks and indentation, an element a line."""
    svg = re.sub(r"^.*?(?=<svg)|<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    return re.sub(r"\s+", " ", svg).replace("> <", ">\n<").split("\n")
