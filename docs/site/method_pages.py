"""A page for each of our methods, from what its class says: equation, values, paper, what differs."""

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from docs.site.formulas import display
from opencil.engine.schedule import Schedule
from opencil.registry import DETECTORS, LEARNERS, Entry, Registry
from opencil.validation import flat, plain

#: Whose methods they are: the folder of their pages, and the line that tries one.
KINDS: dict[str, tuple[Registry[Any], str]] = {
    "cil": (LEARNERS, "opencil run --benchmark digits --cil {name} --detector msp,energy"),
    "detectors": (DETECTORS, "opencil run --benchmark digits --cil icarl --detector {name}"),
}


def entries(kind: str) -> dict[str, Entry[Any]]:
    """Our own methods of a kind, by name; plugins that happen to be installed are not."""
    registry = KINDS[kind][0]
    known = {name: registry.entry(name) for name in registry.names()}
    return {name: entry for name, entry in known.items() if entry.make.__module__.startswith("opencil.")}


def pages() -> Iterator[tuple[tuple[str, str], str, str]]:
    """Kind and family, path and Markdown of each method's page."""
    for kind in KINDS:
        for name, entry in entries(kind).items():
            yield (kind, entry.make.family), f"methods/{kind}/{name}.md", page(kind, name)


def overview() -> str:
    """The page of all methods, with what their formulas are written in."""
    lines = [(Path(__file__).parent / "notation.md").read_text(encoding="utf-8")]
    lines += ["| | what it is | published |", "|---|---|---|"]
    for kind in KINDS:
        for name, entry in entries(kind).items():
            lines.append(f"| [`{name}`]({kind}/{name}.md) | {_cell(entry.about)} | {_published(entry)} |")
    return "\n".join([*lines, ""])


def page(kind: str, name: str) -> str:
    """One method's page."""
    registry, command = KINDS[kind]
    entry = registry.entry(name)
    lines = [
        f"# {entry.make.__name__}",
        "",
        inspect.cleandoc(entry.make.__doc__ or "").replace("``", "`"),
        "",
    ]
    if entry.paper:
        lines += [f"Paper: {_published(entry)}.", ""]
    lines += [display(entry.equation), "", "[What the letters mean](../README.md#notation)", ""]
    lines += _read(entry) + _values(registry.create(name))
    if entry.named:
        lines += ["## Values under a label", "", "| | |", "|---|---|"]
        lines += [f"| `{name}@{label}` | {_told(values)} |" for label, values in entry.named.items()] + [""]
    lines += ["## Where the paper, its code and this differ", ""]
    lines += [f"- {note}" for note in entry.differs] or ["Nothing is known to differ."]
    path = entry.make.__module__.replace(".", "/")
    lines += [
        "",
        "## Try it",
        "",
        "```bash",
        command.format(name=name),
        "```",
        "",
        f"Its code: `{path}.py`.",
        "",
    ]
    return "\n".join(lines)


def _read(entry: Entry[Any]) -> list[str]:
    """What a detector reads, to score and to be set up."""
    if not hasattr(entry.make, "reads"):
        return []
    detector = entry.make()
    set_up = ", ".join(sorted(detector.reads_to_set_up)) if detector.needs_setup else "nothing"
    return [f"To score it reads {', '.join(sorted(detector.reads))}; to be set up, {set_up}.", ""]


def _values(made: Any) -> list[str]:
    """Its fields, their defaults, and what the source says of them."""
    comments = _comments(type(made))
    told = any(f.name in comments for f in fields(made))
    cells = [["value", "default", "what it is"], ["---"] * 3]
    cells += [
        [f"`{f.name}`", _default(getattr(made, f.name)), comments.get(f.name, "")] for f in fields(made)
    ]
    lines = ["| " + " | ".join(row if told else row[:2]) + " |" for row in cells]
    return ["## Values", "", *(lines if len(cells) > 2 else ["It has none."]), ""]


def _default(value: Any) -> str:
    """A value as a config writes it; of a schedule what is not every schedule's."""
    if isinstance(value, Schedule):
        usual = plain(Schedule(epochs=value.epochs))
        values = {k: v for k, v in plain(value).items() if v != usual[k] or k in ("epochs", "lr")}
        return _told(values)
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _told(values: Mapping[str, Any]) -> str:
    return ", ".join(f"`{key} = {value}`" for key, value in flat(values).items())


def _comments(make: type) -> dict[str, str]:
    """What stands behind ``#:`` on the line of a field, of the class and its bases."""
    told: dict[str, str] = {}
    for base in make.__mro__:
        if base.__module__.startswith("opencil."):
            found = re.findall(r"^    (\w+): [^\n]*#: ([^\n]+)$", inspect.getsource(base), re.M)
            told = {**dict(found), **told}
    return told


def _published(entry: Entry[Any]) -> str:
    return f"[{entry.paper.title}]({entry.paper.link}), {entry.paper.year}" if entry.paper else "–"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
