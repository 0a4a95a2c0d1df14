"""Make a page for each built-in method from its class: equation, values, paper and differences."""

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import opencil
from docs.site.formulas import render_block
from opencil.data.roles import ALL
from opencil.engine.schedule import Schedule
from opencil.registry import DETECTORS, LEARNERS, Entry, Registry
from opencil.report.layout import Cell
from opencil.report.order import print_cil
from opencil.report.results import Outcome, count, results
from opencil.validation import flat, plain

ROOT = Path(__file__).parents[2]
#: The published rows that method pages show, and their k.
_STUDY, _K = ("results/study", "results/learners"), 10
#: Registry of each kind of method, and the command that tries one; the kind is the folder of the pages.
KINDS: dict[str, tuple[Registry[Any], str]] = {
    "cil": (LEARNERS, "opencil run --benchmark digits --cil {name} --detector msp,energy"),
    "detectors": (DETECTORS, "opencil run --benchmark digits --cil icarl --detector {name}"),
}


def list_entries(kind: str) -> dict[str, Entry[Any]]:
    """Return the built-in methods of a kind by name."""
    registry = KINDS[kind][0]
    entries = {name: registry.entry(name) for name in registry.names()}
    return {name: entry for name, entry in entries.items() if entry.make.__module__.startswith("opencil.")}


def pages() -> Iterator[tuple[tuple[str, str], str, str]]:
    """Yield kind and family, path and Markdown of each method's page."""
    for kind in KINDS:
        for name, entry in list_entries(kind).items():
            yield (kind, entry.make.family), f"methods/{kind}/{name}.md", render_page(kind, name)


def overview() -> str:
    """Return the page that lists all methods and explains the notation of their formulas."""
    rows = [
        f"| [`{name}`]({kind}/{name}.md) | {entry.about.replace('|', '&#124;')} | {_cite(entry)} |"
        for kind in KINDS
        for name, entry in list_entries(kind).items()
    ]
    notation = (Path(__file__).parent / "notation.md").read_text(encoding="utf-8")
    return "\n".join([notation, "| method | about | paper |", "|---|---|---|", *rows, ""])


def render_page(kind: str, name: str) -> str:
    """Return the page of a method."""
    registry, command = KINDS[kind]
    entry, method = registry.entry(name), registry.create(name)
    parts = [f"# {entry.title}", inspect.cleandoc(entry.make.__doc__ or "").replace("``", "`")]
    parts += [f"Paper: {_cite(entry)}."] * bool(entry.paper)
    parts += [render_block(vars(entry.make).get("equation", "")), "[Notation](../README.md#notation)"]
    if hasattr(entry.make, "reads"):
        set_up = ", ".join(sorted(method.reads_to_set_up)) if method.needs_setup else "nothing"
        parts += [f"To score it reads {', '.join(sorted(method.reads))}; to be set up, {set_up}."]
    parts += ["## Values", _tabulate_values(method)]
    if entry.named:
        rows = [f"| `{name}@{label}` | {_list_values(values)} |" for label, values in entry.named.items()]
        parts += ["## Presets", "\n".join(["| name | values |", "|---|---|", *rows])]
    parts += ["## Where the paper, its code and this differ"]
    measured = _measure_cil(name) if kind == "cil" else _measure_detector(name)
    if measured:
        parts[-1:-1] = ["## Measured", measured]
    notes = [vars(cls)["differs"] for cls in inspect.getmro(entry.make) if vars(cls).get("differs")]
    parts += ["\n".join(f"- {note}" for note in notes) or "No difference is known."]
    source = inspect.getsourcefile(entry.make) or ""
    parts += ["## Try it", f"```bash\n{command.format(name=name)}\n```", f"Source: {link_code(source, 2)}."]
    return "\n\n".join(parts) + "\n"


def link_code(path: str, depth: int = 1) -> str:
    """Return a link to a file of the package, for a page that lies ``depth`` folders deep."""
    file = Path(path).resolve().relative_to(ROOT).as_posix()
    return f"[`{file}`]({'../' * depth}{file})"


@cache
def _published() -> list[Outcome]:
    """Return the published results on CIFAR-100 that pages show."""
    found = (results(opencil.read_study(ROOT / folder)) for folder in _STUDY)
    return [outcome for part in found for outcome in part if outcome.k == _K]


def _measure_detector(name: str) -> str:
    """Return the AUC of a detector on each CIL model of the study; empty where it was not run."""
    outcome = _published()[0]
    values = {print_cil(cil): outcome.of(cil, name, "auc", ALL) for cil in outcome.cil}
    return _tabulate_strip("AUC on all OOD sets", values, outcome)


def _measure_cil(name: str) -> str:
    """Return a CIL method's accuracy, and the AUC of some detectors on it; empty where it was not run."""
    for outcome in _published():
        values = {"accuracy": outcome.of(name, "", "accuracy", "")}
        values |= {
            f"AUC of {DETECTORS.entry(detector).title}": outcome.of(name, detector, "auc", ALL)
            for detector in ("msp", "energy", "relation", "nnguide", "ber")
        }
        if values["accuracy"].value is not None:
            return _tabulate_strip("mean over steps", values, outcome)
    return ""


def _tabulate_strip(title: str, values: Mapping[str, Cell], outcome: Outcome) -> str:
    """Return a table of one line, and what it is over; empty where no cell has a value."""
    there = {name: cell for name, cell in values.items() if cell.value is not None}
    if not there:
        return ""
    table = [["measure", *there], ["---", *["---:"] * len(there)], [title, *(c.text for c in there.values())]]
    seeds = sorted({cell.seeds for cell in there.values()})
    counted = " to ".join(map(str, dict.fromkeys([seeds[0], seeds[-1]])))
    note = (
        f"Percent, CIFAR-100, {_K} classes a step, {outcome.steps} steps, {counted} of "
        f"{count(outcome.planned_seeds, 'seed')} (± standard deviation). "
        "[Results](../../results/README.md) has the protocol and all methods."
    )
    return "\n".join([*(f"| {' | '.join(row)} |" for row in table), "", note])


def _tabulate_values(method: Any) -> str:
    """Return a table of a method's fields with their defaults and, where there are any, their comments."""
    if not fields(method):
        return "It has none."
    comments, names = _find_comments(type(method)), [f.name for f in fields(method)]
    rows = [["value", "default", "meaning"], ["---"] * 3]
    rows += [[f"`{name}`", _show(getattr(method, name)), comments.get(name, "")] for name in names]
    width = 2 + any(name in comments for name in names)
    return "\n".join(f"| {' | '.join(row[:width])} |" for row in rows)


def _show(value: Any) -> str:
    """Return a value as a config writes it; of a schedule only values that differ from the defaults."""
    if isinstance(value, Schedule):
        usual = plain(Schedule(epochs=value.epochs))
        return _list_values({k: v for k, v in plain(value).items() if v != usual[k] or k in ("epochs", "lr")})
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _list_values(values: Mapping[str, Any]) -> str:
    return ", ".join(f"`{key} = {value}`" for key, value in flat(values).items())


def _find_comments(make: type) -> dict[str, str]:
    """Return the comments behind ``#:`` on the lines of fields, of a class and its bases."""
    found: dict[str, str] = {}
    for base in reversed(make.__mro__):
        if base.__module__.startswith("opencil."):
            found |= re.findall(r"^    (\w+): [^\n]*#: ([^\n]+)$", inspect.getsource(base), re.M)
    return found


def _cite(entry: Entry[Any]) -> str:
    return f"[{entry.paper.title}]({entry.paper.link}), {entry.paper.year}" if entry.paper else "–"
