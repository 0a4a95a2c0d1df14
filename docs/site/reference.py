"""Make the reference of the library's public names, ``opencil.__all__``, from their docstrings."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import opencil
from docs.site.method_pages import link_code

#: The pages, with the parts of the package whose names they have; a part that is not here has its own page.
_PAGES = {
    "Run and read": ("front", "runs", "study", "config", "published", "submissions", "openood"),
    "Evaluate": ("evaluation",),
    "Detectors": ("detectors",),
    "CIL methods": ("cil", "engine"),
    "Data": ("data",),
    "Networks": ("nets",),
    "Names and errors": ("registry", "plugins", "errors"),
}
_ACCESSORS = (property, cached_property)


def pages() -> Iterator[tuple[str, str]]:
    """Yield the path and the Markdown of each page, and first of the list of all names."""
    groups: dict[str, list[str]] = {title: [] for title in _PAGES}
    titles = {part: title for title, parts in _PAGES.items() for part in parts}
    for name in sorted(set(opencil.__all__) - {"__version__"}, key=str.lower):
        part = inspect.getmodule(_unwrap(getattr(opencil, name))).__name__.split(".")[1]
        groups.setdefault(titles.get(part, part.capitalize()), []).append(name)
    paths = {
        title: f"reference/{title.lower().replace(' ', '-')}.md" for title, names in groups.items() if names
    }
    lines = ["# Reference", "The public names of `opencil`, from their docstrings."]
    for title, path in paths.items():
        page = path.partition("/")[2]
        table = [f"| [`{name}`]({page}#{name.lower()}) | {_about(name)} |" for name in groups[title]]
        lines.append("\n".join([f"## {title}\n", "| name | about |", "|---|---|", *table]))
    yield "reference/README.md", "\n\n".join(lines) + "\n"
    for title, path in paths.items():
        yield path, "\n\n".join([f"# {title}", *map(render_name, groups[title])]) + "\n"


def render_name(name: str) -> str:
    """Return the section of a public name: signature, docstring, methods and source."""
    thing = getattr(opencil, name)
    parts = [f"## {name} {{ #{name.lower()} }}", _sign(f"opencil.{name}", thing), _read_doc(thing)]
    if inspect.isclass(thing):
        parts += [_render_member(name, key, member) for key, member in _list_members(thing)]
    source = _unwrap(thing)
    path = inspect.getsourcefile(source)
    if path:
        line = inspect.getsourcelines(source)[1]
        parts.append(f"Source: {link_code(path)}, line {line}.")
    return "\n\n".join(filter(None, parts))


def _list_members(make: type) -> list[tuple[str, Any]]:
    """Return the public methods and properties that a class or its bases in the package define."""
    found: dict[str, Any] = {}
    for base in reversed(make.__mro__):
        if base.__module__.startswith("opencil."):
            found |= vars(base)
    kinds = (*_ACCESSORS, staticmethod, classmethod)
    return [
        (name, member)
        for name, member in found.items()
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, kinds))
    ]


def _render_member(owner: str, name: str, member: Any) -> str:
    head = f"### {owner}.{name} {{ #{owner.lower()}.{name} }}"
    if isinstance(member, _ACCESSORS):
        return "\n\n".join([head, "*A property.* " + _read_doc(member)])
    return "\n\n".join(filter(None, [head, _sign(name, _unwrap(member)), _read_doc(member)]))


def _unwrap(thing: Any) -> Any:
    """Return the function or class behind a bound, static or decorated one."""
    return inspect.unwrap(getattr(thing, "__func__", thing))


def _sign(name: str, thing: Callable[..., Any]) -> str:
    """Return a call with names, types as the source writes them, and defaults."""
    try:
        parameters = inspect.signature(thing).parameters
    except (TypeError, ValueError):
        return ""
    written, shown = _find_annotations(thing), []
    for key, one in parameters.items():
        if key in ("self", "cls"):
            continue
        stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        kind = f": {written[key]}" if key in written else ""
        default = re.sub(r"<.*>", "…", repr(one.default))
        shown.append(f"{stars}{key}{kind}" + (f" = {default}" if one.default is not one.empty else ""))
    text = f"{name}({', '.join(shown)})"
    if len(text) > 90:
        text = f"{name}(\n" + "".join(f"    {one},\n" for one in shown) + ")"
    returned = f" -> {written['return']}" if "return" in written else ""
    return f"```python\n{text}{returned}\n```"


def _find_annotations(thing: Any) -> dict[str, str]:
    """Return the types of parameters by name, as the source writes them; of a class, of its fields."""
    found: dict[str, str] = {}
    for part in reversed(thing.__mro__) if inspect.isclass(thing) else [_unwrap(thing)]:
        if (part.__module__ or "").startswith("opencil."):
            tree: Any = ast.parse(textwrap.dedent(inspect.getsource(part))).body[0]
            starts = [tree, *(one for one in tree.body if getattr(one, "name", "") == "__init__")]
            nodes = [arg for one in starts if isinstance(one, ast.FunctionDef) for arg in ast.walk(one.args)]
            if getattr(tree, "returns", None):
                found["return"] = ast.unparse(tree.returns)
            nodes += [one for one in tree.body if isinstance(one, ast.AnnAssign)] * inspect.isclass(thing)
            for node in nodes:
                if getattr(node, "annotation", None):
                    found[getattr(node, "arg", "") or node.target.id] = ast.unparse(node.annotation)
    return found


def _read_doc(thing: Any) -> str:
    """Return a docstring as Markdown: ``code`` in single ticks, literal blocks fenced."""
    text = inspect.cleandoc(getattr(thing, "__doc__", None) or "")
    blocks = re.split(r"::\n\n((?: {4}[^\n]*(?:\n|$)|\n)+)", text)  # text and literal blocks in turns
    for i, block in enumerate(blocks):
        literal = f":\n\n```python\n{textwrap.dedent(block).strip()}\n```\n\n"
        blocks[i] = literal if i % 2 else block.replace("``", "`")
    return "".join(blocks)


def _about(name: str) -> str:
    return _read_doc(getattr(opencil, name)).partition("\n")[0].replace("|", "&#124;")
