"""A user's own files and modules: import them, and record with a run which of them it needs.

``--plugin my_method.py``, ``plugins: [my_method.py]`` in a YML, and ``opencil.load_plugin`` end here. A run's
record says which plugins registered its names, and the SHA-256 of their text.
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
from opencil.files import checksum, read_plain
from opencil.registry import REGISTRIES, Registry, registered_by

#: What a run's record says about plugins: the SHA-256 of the text of each.
Notes = dict[str, str]


@dataclass(frozen=True)
class Plugin:
    """An imported plugin: its name as given, its module, and the SHA-256 of the text that was run."""

    name: str
    module: ModuleType
    sha256: str


_imported: dict[str, Plugin] = {}


def load_plugin(plugin: str | Path) -> ModuleType:
    """Import a Python file, or a module by its name, so that its methods are registered; return the module.

    A file is imported again only where its text has changed. It may import the files beside it.
    """
    return import_plugin(plugin).module


def import_plugin(plugin: str | Path) -> Plugin:
    """Import a file or a module as ``load_plugin`` does, and return its record."""
    for registry in REGISTRIES:  # built-in methods are not to be attributed to the plugin
        registry.names()
    name = str(Path(plugin))  # as records have it: ./my_method.py is my_method.py
    if is_file(str(plugin)):
        return _import_file(name, Path(name).expanduser())
    with _importing(name):
        importlib.import_module(name)
    for registry in REGISTRIES:  # the module may have been imported before
        registry.attribute(name, name)
    return find_plugin(name)


def is_file(plugin: str) -> bool:
    """Return whether a plugin is named as a file: it ends in .py, begins with a dot, or names a folder."""
    return plugin.endswith(".py") or plugin.startswith(".") or "/" in plugin or "\\" in plugin


def find_plugin(name: str) -> Plugin:
    """Return the record of an imported plugin, or of an imported module of an installed package."""
    if name not in _imported:
        module = sys.modules[name]
        path = Path(module.__file__ or "")
        _imported[name] = Plugin(name, module, checksum(path.read_bytes() if path.is_file() else b""))
    return _imported[name]


def list_imported() -> list[Plugin]:
    """Return the records of all imported plugins."""
    return list(_imported.values())


def _import_file(plugin: str, path: Path) -> Plugin:
    """Import a file, unless this very text of it is imported already."""
    try:
        text = read_plain(path)
    except (OSError, ValueError) as error:  # a name with a NUL
        reason = getattr(error, "strerror", error)
        raise BadInput(f"plugin {plugin!r} cannot be read: {reason}{_similar(path)}") from None
    path, sha256 = path.resolve(), checksum(text)
    for known in [known for known in _imported.values() if known.module.__file__ == str(path)]:
        if known.sha256 == sha256:
            return known
        del _imported[known.name]  # an earlier text may have registered other names
        _forget(known.name)
    name = f"opencil_plugin_{path.stem}_{checksum(str(path).encode())[:8]}"
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(path)
    if (beside := str(path.parent)) not in sys.path:
        sys.path.append(beside)
    with _importing(plugin):
        exec(compile(text, str(path), "exec", dont_inherit=True), vars(module))
    return _imported.setdefault(plugin, Plugin(plugin, module, sha256))


@contextmanager
def _importing(plugin: str) -> Iterator[None]:
    """Attribute the names that are registered inside the block to a plugin, and forget them if it fails."""
    try:
        with registered_by(plugin):
            yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        _forget(plugin)
        if isinstance(error, ModuleNotFoundError) and f"{plugin}.".startswith(f"{error.name}."):
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


def notes_of(names: Iterable[tuple[Registry[Any], str]]) -> Notes:
    """Return the plugins that registered some names, for a run's record."""
    plugins = dict.fromkeys(registry.plugin_of(name) for registry, name in names)
    return {plugin: find_plugin(plugin).sha256 for plugin in plugins if plugin}


def describe_changed(runs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each imported plugin that had another text when rows of some runs were made.

    Plugins are compared by their file's name, since the folder depends on where a command was called.
    """
    texts = {Path(name).name: plugin.sha256 for name, plugin in _imported.items()}
    changed: dict[str, set[str]] = {}
    for cil, made in [(run["cil"], made) for run in runs for made in run.get("made", ())]:
        for name, sha256 in made.get("plugins", {}).items():
            if texts.get(Path(name).name, sha256) != sha256:
                changed.setdefault(name, set()).update(step or cil for step in made["steps"])
    return [
        f"{plugin} has changed since rows of {', '.join(sorted(names))} were made, and they are kept: for "
        "new ones delete a detector's files in step*/detectors and step*/heads, or a model's run"
        for plugin, names in changed.items()
    ]


def describe_missing(notes: Mapping[str, Any]) -> str:
    """Return which plugins in runs' notes are not imported here, and what to do; or ''."""
    here = {Path(name).name for name in _imported}
    missing = [name for name in notes if Path(name).name not in here and name not in sys.modules]
    flags, names = " ".join(f"--plugin {name}" for name in missing), ", ".join(missing)
    way = f"give {flags}, or in Python call opencil.load_plugin"
    return f"{names} registered names of stored runs: {way}" if missing else ""


def require(registry: Registry[Any], name: str, notes: Mapping[str, Any]) -> None:
    """Refuse a stored run's name that is not registered here, naming the run's plugins."""
    if name.partition("@")[0] not in registry.names():
        raise BadInput(f"{registry.refuse(name)}\n{describe_missing(notes)}".strip())
