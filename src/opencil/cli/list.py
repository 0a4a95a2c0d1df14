"""``opencil list``: benchmarks, methods, datasets, backbones and metrics."""

from collections.abc import Iterator
from dataclasses import fields
from fnmatch import filter as matching
from itertools import groupby
from typing import Any, get_args

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from opencil.cli.flags import PLUGIN, Plugins, argument, completing, names, option, switch
from opencil.errors import BadInput, check_known, nearest
from opencil.registry import BACKBONES, DATASETS, DETECTORS, LEARNERS, Entry

Line = dict[str, str]
_REGISTRIES = {"cil": LEARNERS, "detectors": DETECTORS, "datasets": DATASETS, "backbones": BACKBONES}
#: What can be listed.
KINDS = ("benchmarks", *_REGISTRIES, "metrics")
#: Columns that tables go without: one name alone has them, and ``--markdown``.
_DETAILS = {"labels", "column", "reads", "set-up reads", "values", "paper", "by default"}


def list_names(
    what: str = argument("WHAT", ", ".join(KINDS), "", complete=completing(lambda: KINDS)),
    pattern: str = argument("PATTERN", "Shell pattern, group, as post-hoc, or one name.", "*"),
    needs: str | None = option("A,B", "Detectors that read only these: logits,features."),
    year: str | None = option("YEAR", "Methods published then: 2022, 2020-2023 or 2023-."),
    markdown: bool = switch("--markdown", "All there is of each, as Markdown: papers, labels, values."),
    _plugin: Plugins = PLUGIN,
) -> None:
    """List what there is; one name alone with its paper, labels and values; without WHAT the choices."""
    if not what:
        for kind in KINDS:
            known = [line["name"] for line in _lines(kind, "*")]
            typer.echo(f"opencil list {kind:<10}  {len(known):>3}: {', '.join(known[:5])} …")
        return
    check_known("list", [what], KINDS)
    if (needs and what != "detectors") or (year and what not in ("cil", "detectors")):
        raise BadInput(f"--needs is for detectors, --year for cil and detectors, not for {what}")
    pattern = _REGISTRIES[what].translate(pattern) if what in _REGISTRIES else pattern
    lines, filters = list(_lines(what, pattern)), ""
    if needs:
        from opencil.detectors.detector import Reads

        given, filters = names("--needs", needs), f" with --needs {needs}"
        check_known("need", given, get_args(Reads))
        allowed = {"", "–", *given}
        reads = [f"{line['reads']}, {line['set-up reads']}".split(", ") for line in lines]
        lines = [line for line, read in zip(lines, reads, strict=True) if allowed.issuperset(read)]
    if year:
        years, filters = _years(year), f"{filters} with --year {year}"
        lines = [line for line in lines if int(line["year"] or 0) in years]
    if not lines:
        known = [line["name"] for line in _lines(what, "*")]
        known += _REGISTRIES[what].groups() if what in _REGISTRIES else ()
        hint = "" if filters else nearest(pattern.partition("@")[0], known)
        raise BadInput(f"none of the {what} matches {pattern!r}{filters}{hint}")
    alone = not markdown and [line["name"] for line in lines] == [pattern]
    left_out = {"year"} if markdown or alone else _DETAILS
    columns = [key for key in lines[0] if key not in left_out and any(line[key] for line in lines)]
    if markdown:
        for row in (columns, ["---"] * len(columns), *([line[key] for key in columns] for line in lines)):
            typer.echo("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
    elif alone:
        width = max(map(len, columns))
        for key in columns:  # a value on one line, so that a link stays in one piece
            typer.echo(f"{key:{width}}  {lines[0][key]}")
    else:
        Console().print(_table(columns, lines))
        typer.echo(f"\nopencil list {what} NAME shows all there is of one, --markdown of each")


def _years(text: str) -> range:
    """Return the years in the text of ``--year``: ``2022``, ``2020-2023``, ``2023-`` or ``-2019``."""
    first, dash, last = text.partition("-")
    try:
        return range(int(first or 0), int(last or (9999 if dash else first)) + 1)
    except ValueError:
        raise BadInput(f"--year {text!r} is not understood: 2022, 2020-2023, 2023- and -2019 are") from None


def _lines(what: str, pattern: str) -> Iterator[Line]:
    """Yield a line for each name that matches a pattern; methods family by family, post-hoc first."""
    if what == "benchmarks":
        yield from _benchmarks(pattern)
    elif what == "metrics":
        yield from _metrics(pattern)
    else:
        lines = [_method(_REGISTRIES[what].entry(name)) for name in _REGISTRIES[what].names(pattern)]
        yield from sorted(
            lines, key=lambda line: (line["family"] != "post-hoc", line["family"], line["name"])
        )


def _benchmarks(pattern: str) -> Iterator[Line]:
    from opencil.config.resolving import describe_benchmark, list_benchmarks

    for name in matching(list_benchmarks(), pattern):
        b = describe_benchmark(name)
        line = {"name": name, "ID data": b.id}
        line |= {"classes per step": ", ".join(map(str, b.classes_per_step)), "memory": str(b.memory)}
        sets = {"near OOD": b.near, "far OOD": b.far, "shifted ID": b.shifted}
        yield line | {role: ", ".join(names) for role, names in sets.items()}


def _metrics(pattern: str) -> Iterator[Line]:
    from opencil.evaluation.metric import metrics

    for metric in (metrics()[name] for name in matching(metrics(), pattern)):
        line = {"name": metric.name, "column": metric.column, "definition": metric.definition}
        yield line | {"reads": ", ".join(metric.reads), "by default": "yes" * metric.standard}


def _method(entry: Entry[Any]) -> Line:
    """Return the line of a method; for a detector with its reads, and without values of its whole family."""
    from opencil.validation import flat, plain

    paper, labels = entry.paper, {f"@{label}": flat(values) for label, values in entry.named.items()}
    line = {"name": entry.name, "year": str(paper.year) if paper else "", "what it is": entry.about}
    line["labels"] = "; ".join(f"{label}: {_join(values)}" for label, values in labels.items())
    line["family"] = str(getattr(entry.make, "family", ""))
    if hasattr(entry.make, "family"):
        method, shared = entry.make(), set[str]()
        if hasattr(method, "reads"):
            base = next(base for base in type(method).__mro__[1:] if "family" in vars(base))
            shared = {f.name for f in fields(base)}
            line["reads"] = ", ".join(sorted(method.reads))
            line["set-up reads"] = ", ".join(sorted(method.reads_to_set_up)) if method.needs_setup else "–"
        values = {key: value for key, value in plain(method).items() if key not in shared}
        line["values"] = _join(flat(values)) or "–"
    line["paper"] = f"{paper.title}, {paper.year} {paper.link}".strip() if paper else ""
    return line | {"plugin": entry.plugin}


def _join(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in values.items())


def _table(columns: list[str], lines: list[Line]) -> Table:
    """Return lines as a table for a terminal, family by family where there are families."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    shown = [column for column in columns if column != "family"]
    for column in shown:  # a name is shown in one piece
        table.add_column(column, overflow="fold", no_wrap=column in ("name", "year"))
    for family, members in groupby(lines, lambda line: line.get("family", "")):
        if "family" in columns:
            table.add_row(Text(family or "others", style="bold italic"))
        for line in members:
            table.add_row(*(Text(line[column]) for column in shown))
        table.add_section()
    return table
