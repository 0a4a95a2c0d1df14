"""Expand files, short forms and ``--set`` to mappings by section."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from opencil.arrays import listed
from opencil.config.sections import METHODS, SECTIONS, suggest_key
from opencil.config.yml import load
from opencil.data.roles import ROLES, SHIFTED
from opencil.errors import BadInput, not_allowed, one_line, shown, unknown
from opencil.nets.create import preprocessing
from opencil.plugins import is_file
from opencil.validation import merge

#: What a section without a mapping is, and the value of a section that may be one instead of a list.
_SHORT, _LISTS = {"benchmark": "name", "seed": "runs"}, {"benchmark": "classes_per_step", "seed": "runs"}


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YML file's mapping; its plugins are relative to its folder."""
    try:
        if path.exists() and not path.is_file():
            raise BadInput(f"config file {path} is no file")
        content = parse_yaml(path.read_bytes(), str(path))
    except OSError as error:
        raise BadInput(f"config file {path} cannot be read: {error.strerror}") from None
    if isinstance(content.get("plugins"), str | list):  # the record of a stored run has notes by plugin
        content["plugins"] = [
            os.path.normpath(path.parent / Path(plugin).expanduser()) if is_file(plugin) else plugin
            for plugin in list_names("plugins", content["plugins"])
        ]
    return content


def parse_yaml(text: str | bytes, source: str) -> dict[str, Any]:
    """Return a YML text's mapping; ``source`` names the text in errors."""
    content = load(text, source) or {}
    if not isinstance(content, dict):
        raise BadInput(f"{source} has no sections: allowed are {', '.join(SECTIONS)}")
    return content


def expand_settings(settings: Iterable[str]) -> dict[str, Any]:
    """Return ``["cil.icarl.epochs=5"]`` as nested mappings, short forms expanded; values are YML."""
    top: dict[str, Any] = {}
    for setting in listed(settings, "settings"):
        if not isinstance(setting, str):
            raise not_allowed("settings", setting, "texts are, as cil.icarl.epochs=5")
        key, equals, text = setting.partition("=")
        path = key.strip().split(".")
        if not equals or not all(path) or key in SECTIONS:
            raise BadInput(f"setting {shown(setting)} is not key=value, as cil.icarl.epochs=5 is")
        top = merge(top, expand(nest(path, load(text, f"setting {shown(setting)}"))))
    return top


def nest(path: Iterable[str], value: Any) -> dict[str, Any]:
    """Return nested mappings with a value at a path."""
    for part in reversed(list(path)):
        value = {part: value}
    nested: dict[str, Any] = value
    return nested


def expand(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config's content with its short forms expanded: ``cil: icarl,wa``, ``benchmark: digits``."""
    if not isinstance(content, Mapping):
        raise BadInput(f"config is a {type(content).__name__}: a mapping of sections is expected")
    try:
        json.dumps(content, default=str)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"config cannot be written as YML: {one_line(error)}") from None
    expanded: dict[str, Any] = {}
    for key, value in content.items():
        if key not in SECTIONS:
            raise unknown("config section", str(key), SECTIONS, suggest_key([str(key)]))
        if value is None:
            continue
        if key == "preset":
            expanded[key] = str(value)
            continue
        if key in ("metric", "plugins"):
            expanded[key] = list_names(key, value)
            continue
        if key in METHODS:
            value = _by_name(value)
        elif key in _SHORT and not isinstance(value, dict):
            value = {_SHORT[key]: value}
        if not isinstance(value, dict):
            raise not_allowed(key, value, "it should be a mapping of names to values")
        for name, values in value.items() if key in METHODS else ():
            if not isinstance(values, dict):
                hint = suggest_key((key, name))
                raise not_allowed(f"{key}.{name}", values, f"it should be a mapping{hint}")
        if key == "benchmark":
            value = _expand_sets(value)
            if isinstance(value.get("backbone"), str):
                value["backbone"] = {"name": value["backbone"]}
        single = _LISTS.get(key)
        if single in value and not isinstance(value[single], list):
            value = value | {single: [value[single]]}
        expanded[key] = value
    return expanded


def below(values: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return the values of lower layers, less a backbone, shifted sets or memory replaced by ``over``."""
    left = dict(values)
    if "memory" in over:
        left.pop("memory_per_class", None)
    backbone, shifted = over.get("backbone"), over.get(SHIFTED)
    if isinstance(backbone, dict) and "name" in backbone:  # another one, not values for the one below
        left.pop("backbone", None)
        if preprocessing(backbone) is not None:  # a transform belongs to the weights of the one below
            left.pop("transform", None)
    if isinstance(shifted, dict) and SHIFTED in left:  # like near and far; values of one set are merged
        left[SHIFTED] = {name: values for name, values in left[SHIFTED].items() if name in shifted}
    return left


def list_names(key: str, value: Any) -> list[str]:
    """Return the names of a section: a list, or a text with commas or blanks between them."""
    text = isinstance(value, str | Path)
    names = _split(value) if isinstance(value, str) and key == "metric" else [value] if text else value
    if not isinstance(names, list | tuple) or not all(isinstance(n, str | Path) and str(n) for n in names):
        raise not_allowed(key, value, "it should be a list of names")
    return list(dict.fromkeys(map(str, names)))


def _split(text: str) -> list[str]:
    return text.replace(",", " ").split()


def _by_name(value: Any) -> Any:
    """Return a text or a list of names as a mapping of these names to no values; other values as they are."""
    names = _split(value) if isinstance(value, str) else value
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        names = dict.fromkeys(names)
    if isinstance(names, dict):
        return {str(name): {} if values is None else values for name, values in names.items()}
    return names


def _expand_sets(benchmark: dict[str, Any]) -> dict[str, Any]:
    """Return a benchmark whose ``sets``, each with a role, are listed by role."""
    others = dict(benchmark)
    if "sets" not in others:
        return others | {SHIFTED: _by_name(others[SHIFTED])} if SHIFTED in others else others
    entries = others.pop("sets")
    if not isinstance(entries, list) or not others.keys().isdisjoint(ROLES):
        raise not_allowed("benchmark.sets", entries, f"a list is, and no {', '.join(ROLES)}")
    sets: dict[str, dict[str, Any]] = {role: {} for role in ROLES}
    for entry in entries:
        values = dict(entry) if isinstance(entry, dict) else {}
        name, role = values.pop("name", None), values.pop("role", None)
        taken = any(name in names for names in sets.values())
        if role not in ROLES or not isinstance(name, str) or taken or (values and role != SHIFTED):
            allowed = f"a new name and a role, {', '.join(ROLES)}, are; only shifted sets have other values"
            raise not_allowed("benchmark.sets", entry, allowed)
        sets[role][name] = values
    return others | {role: named if role == SHIFTED else list(named) for role, named in sets.items()}
