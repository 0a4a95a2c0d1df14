"""Make a page for each built-in method from its class: equation, values, paper and differences."""

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from docs.site.formulas import render_block
from opencil.engine.schedule import Schedule
from opencil.registry import DETECTORS, LEARNERS, Entry, Registry
from opencil.validation import flat, plain

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
    notes = [vars(cls)["differs"] for cls in inspect.getmro(entry.make) if vars(cls).get("differs")]
    parts += ["\n".join(f"- {note}" for note in notes) or "No difference is known."]
    path = entry.make.__module__.removeprefix("opencil.").replace(".", "/")
    parts += ["## Try it", f"```bash\n{command.format(name=name)}\n```", f"Code: `{path}.py` in the package."]
    return "\n\n".join(parts) + "\n"


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
