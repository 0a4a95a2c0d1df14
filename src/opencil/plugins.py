"""A user's own files and modules: import them, and record with a run which of them it needs.

``--plugin my_method.py``, ``plugins: [my_method.py]`` in a YML, and ``opencil.load_plugin`` end here. A run's
record says which plugin registered which name, and the SHA-256 of the plugin's text.
"""

import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from opencil.errors import BadInput, nearest, not_imported
from opencil.files import checksum
from opencil.registry import REGISTRIES, Registry, registered_by

#: What a run's record says about plugins: the ``sha256`` of each, and the names that it ``registers``.
Notes = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Plugin:
    """An imported plugin: its file, if it has one, and the SHA-256 of the text that was run."""

    path: Path | None
    sha256: str


_loaded: dict[str, Plugin] = {}


def load_plugin(plugin: str | Path) -> ModuleType:
    """Import a Python file, or a module by its name, so that its methods are registered; return the module.

    A file is imported again only where its text has changed. It may import the files beside it.
    """
    for registry in REGISTRIES:  # built-in methods are not to be attributed to the plugin
        registry.names()
    name = str(Path(plugin))  # as records have it: ./my_method.py is my_method.py
    return _load_file(name, Path(name).expanduser()) if is_file(str(plugin)) else _load_module(name)


def is_file(plugin: str) -> bool:
    """Return whether a plugin is named as a file: it ends in .py, begins with a dot, or names a folder."""
    return plugin.endswith(".py") or plugin.startswith(".") or "/" in plugin or "\\" in plugin


def loaded_plugin(plugin: str) -> Plugin:
    """Return the record of an imported plugin."""
    name = str(Path(plugin))
    if name not in _loaded:  # of an installed package
        _loaded[name] = _of_module(sys.modules.get(name))
    return _loaded[name]


def registered_names(plugin: str) -> Iterator[tuple[Registry[Any], str]]:
    """Yield the names that an imported plugin registers, each with its registry."""
    own = loaded_plugin(plugin)
    spellings = {name for name, other in _loaded.items() if other == own}
    for registry in REGISTRIES:
        yield from ((registry, name) for name in registry.names() if registry.plugin_of(name) in spellings)


def _load_file(plugin: str, path: Path) -> ModuleType:
    """Import a file, unless this very text of it is imported already."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise BadInput(f"plugin {plugin!r} cannot be read: {error.strerror}{_similar(path)}") from None
    path = path.resolve()
    loaded = Plugin(path, checksum(text))
    # A file has the same module name however it is spelt.
    name = f"opencil_plugin_{path.stem}_{checksum(str(path).encode())[:8]}"
    if loaded in _loaded.values():
        _loaded[plugin] = loaded
        return sys.modules[name]
    # An earlier text of the file may have registered other names.
    earlier = [other for other, known in _loaded.items() if known.path == path]
    for other in earlier:
        del _loaded[other]
        _forget(other)
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(path)
    if (beside := str(path.parent)) not in sys.path:
        sys.path.append(beside)
    with _importing(plugin):
        exec(compile(text, str(path), "exec", dont_inherit=True), vars(module))
    _loaded.update(dict.fromkeys([*earlier, plugin], loaded))
    return module


def _load_module(name: str) -> ModuleType:
    """Import a module, and attribute its names to it."""
    with _importing(name):
        module = importlib.import_module(name)
    for registry in REGISTRIES:  # the module may have been imported before
        registry.attribute(name, name)
    _loaded[name] = _of_module(module)
    return module


@contextmanager
def _importing(plugin: str) -> Iterator[None]:
    """Attribute the names that are registered inside the block to a plugin, and forget them if it fails."""
    try:
        with registered_by(plugin):
            yield
    except (Exception, SystemExit) as error:
        _forget(plugin)
        missing = f"{error.name}." if isinstance(error, ModuleNotFoundError) else "/"
        if f"{plugin}.".startswith(missing) and not is_file(plugin):
            allowed = "allowed are a Python file, ending in .py, and a module that can be imported"
            hint = _similar(Path(f"{plugin}.py"))
            raise BadInput(f"plugin {plugin!r} is unknown: {allowed}{hint}") from None
        raise BadInput(not_imported(plugin, error)) from error


def _similar(path: Path) -> str:
    """Return a hint to a Python file whose name is close to that of a missing one."""
    return nearest(path.name, [found.name for found in path.parent.glob("*.py")])


def _forget(plugin: str) -> None:
    for registry in REGISTRIES:
        registry.forget(plugin)


def _of_module(module: ModuleType | None) -> Plugin:
    path = Path(file) if (file := getattr(module, "__file__", None)) else None
    return Plugin(path, checksum(path.read_bytes() if path and path.is_file() else b""))


def notes_of(names: Iterable[tuple[Registry[Any], str]]) -> Notes:
    """Return the plugins that registered some names, for a run's record."""
    notes: Notes = {}
    for registry, name in dict.fromkeys(names):
        if plugin := registry.plugin_of(name):
            note = notes.setdefault(plugin, {"sha256": loaded_plugin(plugin).sha256, "registers": []})
            note["registers"].append(f"{registry.kind} {name.partition('@')[0]}")
    return notes


def merge_notes(before: Notes | None, now: Notes) -> Notes:
    """Merge the notes of two calls on one run: each name has the plugin that registered it last."""
    latest, merged = {name for note in now.values() for name in note["registers"]}, dict(before or {})
    for plugin, note in merged.items():
        merged[plugin] = {**note, "registers": [name for name in note["registers"] if name not in latest]}
    for plugin, note in now.items():
        earlier = merged.get(plugin, {"registers": []})["registers"]
        merged[plugin] = {**note, "registers": [*earlier, *note["registers"]]}
    return {plugin: note for plugin, note in merged.items() if note["registers"]}


def describe_changed(runs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each imported plugin that had another text when rows of some runs were made.

    Plugins are compared by their file's name, since the folder depends on where a command was called.
    """
    texts: dict[str, set[str]] = {}
    for name, plugin in _loaded.items():
        texts.setdefault(Path(name).name, set()).add(plugin.sha256)
    changed: dict[str, set[str]] = {}
    for cil, made in [(run["cil"], made) for run in runs for made in run.get("made", ())]:
        for name, sha256 in made.get("plugins", {}).items():
            if sha256 not in texts.get(Path(name).name, {sha256}):
                changed.setdefault(name, set()).update(step or cil for step in made["steps"])
    return [
        f"{plugin} has changed since rows of {', '.join(sorted(names))} were made, and they are kept: for "
        "new ones delete a detector's files in step*/detectors and step*/heads, or a model's run"
        for plugin, names in changed.items()
    ]


def missing_names(notes: Notes | None, kinds: Iterable[str] = ()) -> dict[str, list[str]]:
    """Return the names in notes that are not registered here, by plugin; of some kinds, or of all."""
    wanted = set(kinds)
    registries = {r.kind: r for r in REGISTRIES if r.kind in wanted or not wanted}
    missing: dict[str, list[str]] = {}
    for plugin, note in (notes or {}).items():
        for kind, _, name in (registered.rpartition(" ") for registered in note["registers"]):
            if kind in registries and name not in registries[kind].names():
                missing.setdefault(plugin, []).append(f"{kind} {name!r}")
    return missing


def describe_missing(missing: Mapping[str, list[str]]) -> str:
    """Return what to do: ``detector 'margin' is registered by margin.py: give --plugin margin.py``."""
    each = ((", ".join(names), "is" if len(names) == 1 else "are", p) for p, names in missing.items())
    return "; ".join(f"{names} {are} registered by {p}: give --plugin {p}" for names, are, p in each)


def require(notes: Notes | None, kinds: Iterable[str], what: str) -> None:
    """Refuse to resume a stored run whose names are not registered here, naming the plugin that has them."""
    if missing := missing_names(notes, kinds):
        loads = ", ".join(f"opencil.load_plugin({plugin!r})" for plugin in missing)
        raise BadInput(f"{what}: {describe_missing(missing)}, or in Python call {loads}")
