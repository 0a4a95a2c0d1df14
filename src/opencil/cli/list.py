"""``opencil list``: what there is."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from fnmatch import filter as matching
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from opencil.cli.completion import one_of
from opencil.cli.flags import names
from opencil.cli.guard import guarded
from opencil.errors import BadInput, nearest, unknown
from opencil.registry import BACKBONES, DATASETS, DETECTORS, LEARNERS, Entry, Registry

if TYPE_CHECKING:
    from opencil.cil.learner import Learner
    from opencil.detectors.detector import Detector

Line = dict[str, str]
_FAMILY = "family"


@dataclass(frozen=True)
class _Asked:
    """Which names are asked for, and whether in detail."""

    pattern: str
    detailed: bool
    needs: frozenset[str] | None  #: they need nothing but these
    years: range | None  #: they were published then

    def __call__(self, entry: Entry[Any]) -> bool:
        """Whether what is registered under a name that matches is asked for."""
        if self.years is not None and (entry.paper is None or entry.paper.year not in self.years):
            return False
        if self.needs is None:
            return True
        detector: Detector = entry.make()
        set_up = detector.reads_to_set_up if detector.needs_setup else frozenset()
        return detector.reads | set_up <= self.needs


def _benchmarks(asked: _Asked) -> Iterator[Line]:
    from opencil.config import list_benchmarks, resolve

    for name in matching(list_benchmarks(), asked.pattern):
        b = resolve(flags={"benchmark": name}).benchmark
        line = {"name": name, "ID data": b.id}
        line |= {"classes per step": ", ".join(map(str, b.classes_per_step)), "memory": str(b.memory)}
        sets = {"near OOD": b.near, "far OOD": b.far, "shifted ID": b.shifted}
        yield line | {role: ", ".join(names) for role, names in sets.items()}


def _registered(
    registry: Registry[Any], asked: _Asked, details: Callable[[Any], Line] | None = None
) -> Iterator[Line]:
    """What a registry has: names, what they are, and when they were published, if any of them was.

    In detail also where, the labels that they ship, and what ``details`` says. Where they are of families,
    these stand one after the other.
    """
    entries = [entry for entry in map(registry.entry, registry.names(asked.pattern)) if asked(entry)]
    published, labelled, plugged = (any(map(attrgetter(a), entries)) for a in ("paper", "named", "plugin"))
    of_families = any(map(_family, entries))
    for entry in sorted(entries, key=_place):
        paper, line = entry.paper, {"name": entry.name}
        if published and not asked.detailed:
            line["year"] = str(paper.year) if paper else ""
        line["what it is"] = entry.about
        if labelled and asked.detailed:
            line["labels"] = _labels(entry.named)
        if of_families:
            line[_FAMILY] = _family(entry) or "others"
        if details and asked.detailed:
            line |= details(registry.create(entry.name))
        if published and asked.detailed:
            line["paper"] = f"{paper.title}, {paper.year} {paper.link}".strip() if paper else ""
        if plugged:
            line["plugin"] = entry.plugin
        yield line


def _family(entry: Entry[Any]) -> str:
    return str(getattr(entry.make, _FAMILY, ""))


def _place(entry: Entry[Any]) -> tuple[bool, str, str]:
    """Post-hoc detectors, which cost least, come first."""
    return _family(entry) != "post-hoc", _family(entry), entry.name


def _labels(named: Mapping[str, Mapping[str, Any]]) -> str:
    """Labels that a method ships, and what they stand for."""
    from opencil.validation import flat

    told = (f"@{label}: {', '.join(f'{k} = {v}' for k, v in flat(v).items())}" for label, v in named.items())
    return "; ".join(told)


def _of_learner(learner: "Learner") -> Line:
    """The default values of a CIL method; of its schedules, what is not every schedule's."""
    from opencil.engine.schedule import Schedule
    from opencil.validation import flat, plain

    usual = plain(Schedule(epochs=1))
    told = [
        f"{key} = {value}"
        for key, value in flat(plain(learner)).items()
        if "." not in key or key.endswith((".epochs", ".lr")) or usual.get(key.rpartition(".")[2]) != value
    ]
    return {"values": ", ".join(told)}


def _of_detector(detector: "Detector") -> Line:
    """What a detector reads, to score and in its set-up, and the default values that are its own."""
    from opencil.validation import plain

    family = next(base for base in type(detector).__mro__[1:] if _FAMILY in vars(base))
    shared = {f.name for f in fields(family)}  # by the whole family: said once, in the docs
    values = ", ".join(f"{key} = {value}" for key, value in plain(detector).items() if key not in shared)
    set_up = ", ".join(sorted(detector.reads_to_set_up)) if detector.needs_setup else "–"
    reads = ", ".join(sorted(detector.reads))
    return {"reads": reads, "set-up reads": set_up, "values": values or "–"}


def _metrics(asked: _Asked) -> Iterator[Line]:
    from opencil.evaluation.metric import metrics

    known = metrics()
    for metric in (known[name] for name in matching(known, asked.pattern)):
        line = {"name": metric.name} | ({"column": metric.column} if asked.detailed else {})
        line["definition"] = metric.definition
        more = {"reads": ", ".join(metric.reads), "by default": "yes" * metric.standard}
        yield line | more if asked.detailed else line


#: What can be listed: lines of the names that are asked for.
KINDS: dict[str, Callable[[_Asked], Iterator[Line]]] = {
    "benchmarks": _benchmarks,
    "cil": partial(_registered, LEARNERS, details=_of_learner),
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
    pattern: Annotated[
        str,
        typer.Argument(
            help="Shell pattern for names, or a group: paper, post-hoc, expansion …; one name tells all.",
            metavar="PATTERN",
        ),
    ] = "*",
    needs: Annotated[
        str | None,
        typer.Option(help="Detectors that need nothing but these, as logits,features.", metavar="A,B"),
    ] = None,
    year: Annotated[
        str | None, typer.Option(help="Methods published then: 2022, 2020-2023 or 2023-.", metavar="YEAR")
    ] = None,
    markdown: Annotated[
        bool,
        typer.Option("--markdown", help="All there is of each, as Markdown: papers, labels, values."),
    ] = False,
) -> None:
    """List what there is; one name alone with its paper, labels and values."""
    if what not in KINDS:
        raise unknown("list", what, KINDS)
    asked = _Asked(pattern, markdown, _needs(what, needs), _years(what, year))
    lines = list(KINDS[what](asked))
    if not lines:
        filters = {"--needs": needs, "--year": year}
        also = "".join(f" with {flag} {text}" for flag, text in filters.items() if text)
        known = [line["name"] for line in KINDS[what](_Asked("*", False, None, None))]
        known += (
            {"cil": LEARNERS, "detectors": DETECTORS}[what].groups() if what in ("cil", "detectors") else []
        )
        name, label, _ = pattern.partition("@")
        hint = "" if name in known else nearest(name, known)
        if needs and not hint:
            hint = ": --needs says all that there is, such as logits,features,layers"
        if label and name in known:
            hint = (
                f": a label is the user's own name for values of {name}, or one that it ships; "
                f"'opencil list {what} {name}' tells of both"
            )
        raise BadInput(f"none of the {what} matches {pattern!r}{also}{hint}")
    if markdown:
        cells = [list(lines[0]), ["---"] * len(lines[0]), *(list(line.values()) for line in lines)]
        typer.echo(
            "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells)
        )
        return
    if [line["name"] for line in lines] == [pattern]:
        (told,) = KINDS[what](replace(asked, detailed=True))
        wide = max(map(len, told))
        # Not cut into lines: a terminal does that, and a link stays one.
        typer.echo("\n".join(f"{key:{wide}}  {value}" for key, value in told.items() if value))
        return
    Console().print(_drawn(lines))
    typer.echo(f"\nopencil list {what} NAME tells all there is of one, --markdown of each")


def _drawn(lines: list[Line]) -> Table:
    """Lines as a table for a terminal, family by family where they have one."""
    shown = [column for column in lines[0] if column != _FAMILY]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    for column in shown:  # a name is of no use without its end, nor in two parts
        table.add_column(column, overflow="fold", no_wrap=column in ("name", "year"))
    for family, members in groupby(lines, lambda line: line.get(_FAMILY)):
        if family:
            table.add_row(Text(family, style="bold italic"))
        for line in members:
            table.add_row(*(escape(line[column]) for column in shown))
        table.add_section()
    return table


def _needs(what: str, text: str | None) -> frozenset[str] | None:
    """What detectors may need, of a flag."""
    from opencil.detectors.detector import Reads

    if text is None:
        return None
    if what != "detectors":
        raise BadInput(f"--needs {text} is not allowed: it is of detectors, not of {what}")
    given = names("--needs", text) or []
    for name in given:
        if name not in get_args(Reads):
            raise unknown("need", name, get_args(Reads))
    return frozenset(given)


def _years(what: str, text: str | None) -> range | None:
    """The years of a flag: ``2022``, ``2020-2023``, ``2023-`` or ``-2019``."""
    if text is None:
        return None
    if what not in ("detectors", "cil"):
        raise BadInput(f"--year {text} is not allowed: {what} have no year, detectors and cil do")
    match = re.fullmatch(r"(\d{4})?(-)?(\d{4})?", text)
    if not match or not (match[1] or match[3]) or not (match[2] or match[1] == text):
        raise BadInput(f"--year {text!r} is not understood: allowed are 2022, 2020-2023, 2023- and -2019")
    first, last = match[1] or "0", match[3] or (match[1] if not match[2] else "9999")
    return range(int(first), int(last) + 1)
