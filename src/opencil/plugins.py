"""A user's own files and modules: imported once, known by what they register and by their text.

``--plugin my_method.py``, ``plugins: [my_method.py]`` in a YML, and ``opencil.load_plugin`` end here. What a
stored run needs of them is noted with it: which plugin registered which name, and the sha256 of its text.
"""

import hashlib
import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from opencil.errors import BadInput, nearest, not_imported
from opencil.registry import REGISTRIES, Registry, file_of, registered_by

#: What a run's record says about plugins: by each as it was given, its ``sha256`` and what it ``registers``.
Notes = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Plugin:
    """One that has been imported: where it lies, and the sha256 of the text that was run."""

    path: Path | None
    sha256: str


_loaded: dict[str, Plugin] = {}


def load_plugin(plugin: str | Path) -> ModuleType:
    """Import a Python file, or a module by its name, and so know what it registers; the module.

    Once: a file is imported again only where its text has changed. It may import the files beside it.
    """
    if not str(plugin):
        raise _unknown("")
    given = _spelt(plugin)
    for registry in REGISTRIES:  # ours come first, so that what is registered from here on is the plugin's
        registry.names()
    return _load_file(given, Path(given).expanduser()) if is_file(str(plugin)) else _load_module(given)


def _spelt(plugin: str | Path) -> str:
    """A plugin as it is noted: ``./my_method.py`` is ``my_method.py``."""
    return str(Path(plugin))


def is_file(given: str) -> bool:
    """Whether a plugin is given as a file: it ends in .py, or has a folder, or a dot, in front."""
    return given.endswith(".py") or given.startswith(".") or "/" in given or "\\" in given


def loaded(given: str) -> Plugin:
    """What is known of a plugin that has been imported."""
    given = _spelt(given)
    if given not in _loaded:  # of an installed package
        _loaded[given] = _of_module(sys.modules.get(given))
    return _loaded[given]


def registered(given: str) -> Iterator[tuple[Registry[Any], str]]:
    """What an imported plugin registers, each name with its registry."""
    own = loaded(given)
    spellings = {other for other, plugin in _loaded.items() if plugin == own}
    for registry in REGISTRIES:
        for name in registry.names():
            if registry.plugin_of(name) in spellings:
                yield registry, name


def _load_file(given: str, path: Path) -> ModuleType:
    try:
        text = path.read_bytes()
    except (OSError, ValueError) as error:  # no file has a name with a 0 in it
        folder = path.parent
        others = [found.name for found in folder.glob("*.py")] if folder.is_dir() else []
        why = getattr(error, "strerror", None) or error
        raise BadInput(f"plugin {given!r} cannot be read: {why}{nearest(path.name, others)}") from None
    path, sha256 = path.resolve(), hashlib.sha256(text).hexdigest()
    # The name is the same whenever the file is imported.
    name = f"opencil_plugin_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if Plugin(path, sha256) in _loaded.values():
        _loaded[given] = Plugin(path, sha256)
        return sys.modules[name]
    # What an earlier text of it registered is gone, whether this one can be imported or not.
    earlier = [other for other, plugin in _loaded.items() if plugin.path == path]
    for other in earlier:
        del _loaded[other]
        _forget(other)
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(path)
    if (beside := str(path.parent)) not in sys.path:
        sys.path.append(beside)
    try:
        with registered_by(given):
            exec(compile(text, str(path), "exec", dont_inherit=True), vars(module))
    except BaseException as error:
        sys.modules.pop(name, None)
        _forget(given)
        if isinstance(error, KeyboardInterrupt):
            raise
        raise not_imported(given, path, error) from error
    _loaded.update(dict.fromkeys([*earlier, given], Plugin(path, sha256)))
    return module


def _forget(given: str) -> None:
    for registry in REGISTRIES:
        registry.forget(given)


def _load_module(name: str) -> ModuleType:
    try:
        with registered_by(name):
            module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise not_imported(name, file_of(name), error) from error
        beside = nearest(f"{name}.py", [found.name for found in Path().glob("*.py")])
        raise _unknown(name, beside) from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        _forget(name)
        raise not_imported(name, file_of(name), error) from error
    for registry in REGISTRIES:  # it may have been imported before
        registry.attribute(name, name)
    _loaded[name] = _of_module(module)
    return module


def _unknown(given: str, beside: str = "") -> BadInput:
    allowed = "allowed are a Python file, ending in .py, and a module that can be imported"
    return BadInput(f"plugin {given!r} is unknown: {allowed}{beside}")


def _of_module(module: ModuleType | None) -> Plugin:
    path = Path(file) if (file := getattr(module, "__file__", None)) else None
    text = path.read_bytes() if path is not None and path.is_file() else b""
    return Plugin(path, hashlib.sha256(text).hexdigest())


# --- what a stored run needs -------------------------------------------------------------------------


def notes_of(names: Iterable[tuple[Registry[Any], str]]) -> Notes:
    """The plugins that registered some names, for a run's record."""
    notes: Notes = {}
    for registry, name in dict.fromkeys(names):
        if plugin := registry.plugin_of(name):
            note = notes.setdefault(plugin, {"sha256": loaded(plugin).sha256, "registers": []})
            note["registers"].append(f"{registry.kind} {name.partition('@')[0]}")
    return notes


def joined(before: object, now: Notes) -> Notes:
    """Notes of two calls on one run: each name stands with the plugin that registered it last."""
    together: Notes = {}
    latest = {name for note in now.values() for name in note["registers"]}
    for plugin, name, sha256 in _noted(before):
        if name not in latest:
            together.setdefault(plugin, {"sha256": sha256, "registers": []})["registers"].append(name)
    for plugin, note in now.items():
        older = together.get(plugin, {"registers": []})["registers"]
        together[plugin] = {**note, "registers": [*older, *note["registers"]]}
    return together


def outdated(runs: Iterable[Mapping[str, Any]]) -> list[str]:
    """A sentence for each plugin imported here that had another text when rows of some runs were made.

    It is known by its file's name: the folder in front of it is as it was seen from where a call was made.
    """
    texts: dict[str, set[str]] = {}
    for given, plugin in _loaded.items():
        texts.setdefault(Path(given).name, set()).add(plugin.sha256)
    old: dict[str, set[str]] = {}
    for cil, made in [(run["cil"], made) for run in runs for made in run.get("made", ())]:
        for plugin, sha256 in made.get("plugins", {}).items():
            if sha256 not in texts.get(Path(plugin).name, {sha256}):
                old.setdefault(plugin, set()).update(name or cil for name in made["steps"])
    return [
        f"{plugin} has changed since rows of {', '.join(sorted(names))} were made, and they are kept: for "
        "new ones delete a detector's files in step*/detectors and step*/heads, or a model's run"
        for plugin, names in old.items()
    ]


def missing(notes: object, kinds: Iterable[str] = ()) -> dict[str, list[str]]:
    """What notes name and nobody has registered here, by the plugin that did; of some kinds, or of all."""
    wanted = set(kinds)
    registries = {r.kind: r for r in REGISTRIES if r.kind in wanted or not wanted}
    lacking: dict[str, list[str]] = {}
    for plugin, noted, _ in _noted(notes):
        kind, _, name = noted.rpartition(" ")
        if kind in registries and name not in registries[kind].names():
            lacking.setdefault(plugin, []).append(f"{kind} {name!r}")
    return lacking


def told(lacking: Mapping[str, list[str]]) -> str:
    """What is missing in words: ``detector 'margin' is registered by margin.py: give --plugin margin.py``."""
    each = ((", ".join(names), "is" if len(names) == 1 else "are", p) for p, names in lacking.items())
    return "; ".join(f"{names} {are} registered by {p}: give --plugin {p}" for names, are, p in each)


def require(notes: object, kinds: Iterable[str], what: str) -> None:
    """Refuse to go on with a stored run whose names are not known here, saying which plugin has them."""
    if lacking := missing(notes, kinds):
        loads = ", ".join(f"opencil.load_plugin({plugin!r})" for plugin in lacking)
        raise BadInput(f"{what}: {told(lacking)}, or in Python call {loads}")


def _noted(notes: object) -> Iterator[tuple[str, str, str]]:
    """(plugin, name that it registered, its sha256); what is not as we write it is passed over."""
    for plugin, note in notes.items() if isinstance(notes, dict) else ():
        if isinstance(note, dict) and isinstance(names := note.get("registers"), list):
            for name in names:
                yield str(plugin), str(name), str(note.get("sha256", ""))
