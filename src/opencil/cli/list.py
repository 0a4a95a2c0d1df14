"""``opencil list``: benchmarks, methods, datasets, backbones and metrics."""

from collections.abc import Callable, Iterator
from dataclasses import fields
from fnmatch import filter as matching
from itertools import groupby
from typing import Any, get_args

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from opencil.cli.flags import names
from opencil.cli.options import PLUGIN, Plugins, argument, completing, option, switch
from opencil.errors import BadInput, nearest, unknown
from opencil.registry import BACKBONES, DATASETS, DETECTORS, LEARNERS, Entry, Registry

Line = dict[str, str]
_METHODS: dict[str, Registry[Any]] = {"cil": LEARNERS, "detectors": DETECTORS}
_REGISTRIES = _METHODS | {"datasets": DATASETS, "backbones": BACKBONES}
#: What can be listed.
KINDS = ("benchmarks", *_REGISTRIES, "metrics")
#: Columns that tables go without: one name alone has them, and ``--markdown``.
_DETAILS = {"labels", "column", "reads", "set-up reads", "values", "paper", "by default"}


def list_names(
    what: str = argument("WHAT", ", ".join(KINDS), complete=completing(lambda: KINDS)),
    pattern: str = argument("PATTERN", "Shell pattern, group, as post-hoc, or one name.", "*"),
    needs: str | None = option("A,B", "Detectors that read only these: logits,features."),
    year: str | None = option("YEAR", "Methods published then: 2022, 2020-2023 or 2023-."),
    markdown: bool = switch("--markdown", "All there is of each, as Markdown: papers, labels, values."),
    _plugin: Plugins = PLUGIN,
) -> None:
    """List what there is; one name alone with its paper, labels and values."""
    if what not in KINDS:
        raise unknown("list", what, KINDS)
    if (needs and what != "detectors") or (year and what not in _METHODS):
        raise BadInput(f"--needs is for detectors, --year for {' and '.join(_METHODS)}, not for {what}")
    read, years = _needs(needs) if needs else None, _years(year) if year else None

    def matches(entry: Entry[Any]) -> bool:
        published = entry.paper.year if entry.paper else 0
        return (years is None or published in years) and (read is None or _reads(entry) <= read)

    lines = list(_lines(what, pattern, matches))
    if not lines:
        filters = f" with --needs {needs}" * bool(needs) + f" with --year {year}" * bool(year)
        groups = _METHODS[what].groups() if what in _METHODS else ()
        known = [*(line["name"] for line in _lines(what, "*")), *groups]
        hint = "" if pattern in known else nearest(pattern.partition("@")[0], known)
        raise BadInput(f"none of the {what} matches {pattern!r}{filters}{hint}")
    alone = not markdown and [line["name"] for line in lines] == [pattern]
    left_out = {"year"} if markdown or alone else _DETAILS
    lines = [{key: cell for key, cell in line.items() if key not in left_out} for line in lines]
    if markdown:
        for row in (list(lines[0]), ["---"] * len(lines[0]), *(line.values() for line in lines)):
            typer.echo("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
    elif alone:
        width = max(map(len, lines[0]))
        for key, value in lines[0].items():
            if value:  # on one line, so that a link stays in one piece
                typer.echo(f"{key:{width}}  {value}")
    else:
        Console().print(_table(lines))
        typer.echo(f"\nopencil list {what} NAME shows all there is of one, --markdown of each")


def _needs(text: str) -> set[str]:
    """Return the needs in the text of ``--needs``."""
    from opencil.detectors.detector import Reads

    needs = set(names("--needs", text) or [])
    for name in needs.difference(get_args(Reads)):
        raise unknown("need", name, get_args(Reads))
    return needs


def _years(text: str) -> range:
    """Return the years in the text of ``--year``: ``2022``, ``2020-2023``, ``2023-`` or ``-2019``."""
    first, dash, last = text.partition("-")
    try:
        return range(int(first or 0), int(last or (9999 if dash else first)) + 1)
    except ValueError:
        raise BadInput(f"--year {text!r} is not understood: 2022, 2020-2023, 2023- and -2019 are") from None


def _reads(entry: Entry[Any]) -> frozenset[str]:
    """Return everything a detector reads."""
    detector = entry.make()
    reads: frozenset[str] = detector.reads
    return reads | detector.reads_to_set_up if detector.needs_setup else reads


def _lines(what: str, pattern: str, matches: Callable[[Entry[Any]], bool] = lambda _: True) -> Iterator[Line]:
    """Yield a line for each name matching a pattern."""
    if what == "benchmarks":
        return _benchmarks(pattern)
    if what == "metrics":
        return _metrics(pattern)
    registry = _REGISTRIES[what]
    return _entries([entry for entry in map(registry.entry, registry.names(pattern)) if matches(entry)])


def _benchmarks(pattern: str) -> Iterator[Line]:
    from opencil.config import list_benchmarks, resolve

    for name in matching(list_benchmarks(), pattern):
        b = resolve(flags={"benchmark": name}).benchmark
        line = {"name": name, "ID data": b.id}
        line |= {"classes per step": ", ".join(map(str, b.classes_per_step)), "memory": str(b.memory)}
        sets = {"near OOD": b.near, "far OOD": b.far, "shifted ID": b.shifted}
        yield line | {role: ", ".join(names) for role, names in sets.items()}


def _metrics(pattern: str) -> Iterator[Line]:
    from opencil.evaluation.metric import metrics

    for metric in (metrics()[name] for name in matching(metrics(), pattern)):
        line = {"name": metric.name, "column": metric.column, "definition": metric.definition}
        yield line | {"reads": ", ".join(metric.reads), "by default": "yes" * metric.standard}


def _entries(entries: list[Entry[Any]]) -> Iterator[Line]:
    """Yield a line for each name of a registry, family by family; post-hoc detectors come first."""
    from opencil.validation import flat

    lines = []
    for entry in entries:
        paper, family = entry.paper, str(getattr(entry.make, "family", ""))
        line = {"name": entry.name, "year": str(paper.year) if paper else "", "what it is": entry.about}
        line["labels"] = "; ".join(f"@{label}: {_join(flat(v))}" for label, v in entry.named.items())
        line |= {"family": family} | _values(entry)
        line["paper"] = f"{paper.title}, {paper.year} {paper.link}".strip() if paper else ""
        lines.append(line | {"plugin": entry.plugin})
    used = {key for line in lines for key in line if line[key]}
    for line in sorted(lines, key=lambda line: (line["family"] != "post-hoc", line["family"], line["name"])):
        line["family"] = line["family"] or "others"
        yield {key: cell for key, cell in line.items() if key in used}


def _values(entry: Entry[Any]) -> Line:
    """Return a method's default values; for a detector its reads, and no values of its whole family."""
    from opencil.validation import flat, plain

    if not hasattr(entry.make, "family"):
        return {}
    method = entry.make()
    if not hasattr(method, "reads"):
        return {"values": _join(flat(plain(method)))}
    base = next(base for base in type(method).__mro__[1:] if "family" in vars(base))
    shared = {f.name for f in fields(base)}
    own = {key: value for key, value in plain(method).items() if key not in shared}
    return {
        "reads": ", ".join(sorted(method.reads)),
        "set-up reads": ", ".join(sorted(method.reads_to_set_up)) if method.needs_setup else "–",
        "values": _join(own) or "–",
    }


def _join(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in values.items())


def _table(lines: list[Line]) -> Table:
    """Return lines as a table for a terminal, family by family where there are families."""
    columns = [column for column in lines[0] if column != "family"]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    for column in columns:  # a name is shown in one piece
        table.add_column(column, overflow="fold", no_wrap=column in ("name", "year"))
    for family, members in groupby(lines, lambda line: line.get("family")):
        if family:
            table.add_row(Text(family, style="bold italic"))
        for line in members:
            table.add_row(*(Text(line[column]) for column in columns))
        table.add_section()
    return table
