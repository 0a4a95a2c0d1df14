"""``opencil list``: what there is."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from fnmatch import filter as matching
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from opencil.cli.completion import one_of
from opencil.cli.guard import guarded
from opencil.errors import BadInput, unknown
from opencil.registry import BACKBONES, DATASETS, DETECTORS, LEARNERS, Registry

if TYPE_CHECKING:
    from opencil.detectors.detector import Detector

Line = dict[str, str]


def _benchmarks(pattern: str, _: bool) -> Iterator[Line]:
    from opencil.config import list_benchmarks, resolve

    for name in matching(list_benchmarks(), pattern):
        b = resolve(flags={"benchmark": name}).benchmark
        line = {"name": name, "ID data": b.id}
        line |= {"classes per step": ", ".join(map(str, b.classes_per_step)), "memory": str(b.memory)}
        sets = {"near OOD": b.near, "far OOD": b.far, "shifted ID": b.shifted}
        yield line | {role: ", ".join(names) for role, names in sets.items()}


def _registered(
    registry: Registry[Any],
    pattern: str,
    detailed: bool,
    details: Callable[[Any], Line] | None = None,
) -> Iterator[Line]:
    """What a registry has: names, what they are, and where they were published, if any of them was."""
    entries = {name: registry.entry(name) for name in registry.names(pattern)}
    published, labelled, plugged = (
        any(map(attrgetter(a), entries.values())) for a in ("paper", "named", "plugin")
    )
    for name, entry in entries.items():
        line = {"name": name, "what it is": entry.about}
        if labelled:
            line["labels"] = _labels(entry.named)
        if detailed and details:
            line |= details(registry.create(name))
        if published:
            paper = entry.paper
            line["paper"] = f"{paper.title}, {paper.year} {paper.link}".strip() if paper else ""
        if plugged:
            line["plugin"] = entry.plugin
        yield line


def _labels(named: Mapping[str, Mapping[str, Any]]) -> str:
    """Labels that a method ships, and what they stand for."""
    from opencil.validation import flat

    told = (f"@{label}: {', '.join(f'{k} = {v}' for k, v in flat(v).items())}" for label, v in named.items())
    return "; ".join(told)


def _of_detector(detector: "Detector") -> Line:
    """What a detector reads, to score and in its set-up, and the default values that are its own."""
    from opencil.validation import plain

    family = next(base for base in type(detector).__mro__ if "family" in vars(base))
    shared = {f.name for f in fields(family)}  # by the whole family: said once, in the docs
    values = ", ".join(f"{key} = {value}" for key, value in plain(detector).items() if key not in shared)
    set_up = ", ".join(sorted(detector.reads_to_set_up)) if detector.needs_setup else "–"
    reads = ", ".join(sorted(detector.reads))
    return {"family": detector.family, "reads": reads, "set-up reads": set_up, "values": values or "–"}


def _metrics(pattern: str, _: bool) -> Iterator[Line]:
    from opencil.evaluation.metric import metrics

    known = metrics()
    for metric in (known[name] for name in matching(known, pattern)):
        line = {"name": metric.name, "column": metric.column, "definition": metric.definition}
        yield line | {"reads": ", ".join(metric.reads), "by default": "yes" * metric.standard}


#: What can be listed: lines of the names that match a pattern, in detail if that is asked for.
KINDS: dict[str, Callable[[str, bool], Iterator[Line]]] = {
    "benchmarks": _benchmarks,
    "cil": partial(_registered, LEARNERS),
    "detectors": partial(_registered, DETECTORS, details=_of_detector),
    "datasets": partial(_registered, DATASETS),
    "backbones": partial(_registered, BACKBONES),
    "metrics": _metrics,
}


@guarded
def list_names(
    what: Annotated[
        str, typer.Argument(metavar="WHAT", help=", ".join(KINDS), autocompletion=one_of(lambda: KINDS))
    ],
    pattern: Annotated[str, typer.Argument(help="Shell pattern for names.", metavar="PATTERN")] = "*",
    markdown: Annotated[
        bool,
        typer.Option("--markdown", help="As Markdown; of detectors also what they read, and their values."),
    ] = False,
) -> None:
    """List what there is, with where it was published."""
    if what not in KINDS:
        raise unknown("list", what, KINDS)
    lines = list(KINDS[what](pattern, markdown))
    if not lines:
        raise BadInput(f"none of the {what} matches {pattern!r}")
    if markdown:
        cells = [list(lines[0]), ["---"] * len(lines[0]), *(list(line.values()) for line in lines)]
        typer.echo(
            "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells)
        )
        return
    table = Table()
    for column in lines[0]:  # a name or a link is of no use without its end, nor a name in two parts
        table.add_column(column, overflow="fold", no_wrap=column == "name")
    for line in lines:
        table.add_row(*map(escape, line.values()))
    Console().print(table)
