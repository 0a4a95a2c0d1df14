"""What people write as a config: files, short forms and ``--set``, all written out as sections."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from opencil.config.keys import guess, guess_outside, key_of
from opencil.config.sections import SECTIONS
from opencil.config.yml import DEEPEST, load, read_text
from opencil.data.roles import ROLES, SHIFTED
from opencil.errors import BadInput, meant, one_line, shown, unknown
from opencil.plugins import is_file
from opencil.validation import merge

#: Sections with a flag of their name.
_FLAGS = ("benchmark", "cil", "detector", "metric", "seed")


def settings_written_out(settings: Iterable[str]) -> dict[str, Any]:
    """``["cil.icarl.epochs=5"]`` as nested mappings, short forms written out; values are YML."""
    top: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        path = key.strip().split(".")
        if not equals or not all(path) or len(path) < 2:
            if equals and path[0] and path[0] not in SECTIONS:
                raise unknown("config section", path[0], SECTIONS, guess_outside((path[0],)))
            if equals and path[0] in SECTIONS and len(path) == 1:
                flag = f"; did you mean --{path[0]} {one_line(text, 80)}?" if path[0] in _FLAGS else ""
                raise BadInput(
                    f"setting {shown(setting)} is of a whole section: allowed is one value of it, say "
                    f"cil.icarl.epochs=5{flag}"
                )
            raise BadInput(
                f"setting {shown(setting)} is not understood: allowed is key=value, say cil.icarl.epochs=5"
            )
        if len(path) > DEEPEST:
            raise BadInput(f"setting {shown(setting)} names a key of {len(path):,} parts: a few are allowed")
        value = load(text, f"setting {shown(setting)}")
        for part in reversed(path):
            value = {part: value}
        top = merge(top, written_out(value))
    return top


def written_out(content: Mapping[str, Any]) -> dict[str, Any]:
    """A config's content with its short forms written out: ``cil: icarl,wa``, ``benchmark: digits``."""
    normal: dict[str, Any] = {}
    for key, value in content.items():
        if key not in SECTIONS:
            raise unknown(
                "config section", str(key), SECTIONS, guess_outside(key_of(content={str(key): value}))
            )
        if value is None:
            continue
        if key == "metric":
            listed = value.replace(",", " ").split() if isinstance(value, str) else value
            if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
                raise BadInput(f"metric = {shown(value)} is not allowed: it should be a list of names")
            normal[key] = list(dict.fromkeys(listed))
            continue
        if key == "plugins":
            normal[key] = _plugins(value)
            continue
        if key in ("cil", "detector"):
            names = value.replace(",", " ").split() if isinstance(value, str) else value
            if isinstance(names, list) and all(isinstance(n, str) for n in names):
                names = dict.fromkeys(names)
            if isinstance(names, dict):
                value = {n: {} if v is None else v for n, v in names.items()}
                for n, v in value.items():
                    if not isinstance(n, str):
                        raise BadInput(f"{key} names {shown(n)}, which is no name: quote it if it is one")
                    if not isinstance(v, dict):
                        raise BadInput(
                            f"{key}.{n} = {shown(v)} is not allowed: it should be a mapping of names to "
                            f"values{meant(guess((key, n)))}"
                        )
        elif key == "benchmark":
            value = {"name": value} if isinstance(value, str) else _with_roles(value)
        elif key == "seed" and not isinstance(value, dict):
            value = {"runs": value}
        if key == "benchmark" and isinstance(value, dict) and "setup" in value:
            raise BadInput(
                "benchmark.setup is a value of each detector now: take it out and say detector.NAME.setup, "
                "or for all that are set up on images detector.*.setup, as --set "
                f"'detector.*.setup={value['setup']}'"
            )
        if not isinstance(value, dict):
            names_too = "a list of names, or " if key in ("cil", "detector") else ""
            raise BadInput(
                f"{key} = {shown(value)} is not allowed: it should be {names_too}a mapping of names to values"
            )
        if key == "benchmark" and isinstance(value.get("backbone"), str):
            value = {**value, "backbone": {"name": value["backbone"]}}
        for listed in {"benchmark": ("classes_per_step",), "seed": ("runs",)}.get(key, ()):
            if listed in value and not isinstance(value[listed], list):
                value = {**value, listed: [value[listed]]}
        normal[key] = value
    return normal


def _plugins(value: Any) -> list[str]:
    """Plugins that are named one or several at a time."""
    listed = [value] if isinstance(value, str | Path) else value
    if not isinstance(listed, list | tuple) or not all(isinstance(n, str | Path) and str(n) for n in listed):
        raise BadInput(
            f"plugins = {shown(value)} is not allowed: it should be a list of Python files or modules, say "
            "[my_method.py]"
        )
    return [str(name) for name in listed]


def left_below(values: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """What a layer leaves of those below it: a backbone or shifted sets that it names stand for theirs."""
    left = dict(values)
    network, shifted = over.get("backbone"), over.get(SHIFTED)
    if isinstance(network, dict) and "name" in network:  # one of its own, not values for that below
        left.pop("backbone", None)
    if isinstance(shifted, dict) and SHIFTED in left:  # as near and far do; a set's values are merged
        left[SHIFTED] = {name: kept for name, kept in left[SHIFTED].items() if name in shifted}
    return left


def _with_roles(benchmark: Any) -> Any:
    """A benchmark whose ``sets``, each with a role, stand under their roles."""
    if not isinstance(benchmark, dict):
        return benchmark
    normal = {key: value for key, value in benchmark.items() if key != "sets"}
    if "sets" not in benchmark:
        shifted = normal.get(SHIFTED)
        names = [shifted] if isinstance(shifted, str) else shifted
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            names = dict.fromkeys(names)
        if isinstance(names, dict):
            normal[SHIFTED] = {name: {} if values is None else values for name, values in names.items()}
        return normal
    if not isinstance(benchmark["sets"], list) or not normal.keys().isdisjoint(ROLES):
        raise BadInput(
            f"benchmark.sets = {shown(benchmark['sets'])} is not allowed: it should be a list of sets, each "
            f"with a name and a role, in place of {', '.join(ROLES)}"
        )
    sets: dict[str, dict[str, Any]] = {role: {} for role in ROLES}
    for entry in benchmark["sets"]:
        values = dict(entry) if isinstance(entry, dict) else {}
        name, role = values.pop("name", None), values.pop("role", None)
        if role not in ROLES or not isinstance(name, str) or (values and role != SHIFTED):
            raise BadInput(
                f"benchmark.sets has {shown(entry)}, which is not allowed: a name and a role are needed, one "
                f"of {', '.join(ROLES)}; only shifted sets have values of their own"
            )
        if any(name in named for named in sets.values()):
            raise BadInput(f"benchmark.sets names {shown(name)} twice: each set has one role and one name")
        sets[role][name] = values
    return normal | {role: named if role == SHIFTED else list(named) for role, named in sets.items()}


def read_yaml(path: Path) -> dict[str, Any]:
    """A YML file's mapping; a broken one is an error that names the place.

    The files among its plugins, which it names as they lie from where it lies, are named as from here.
    """
    content = parse_yaml(read_text(path), str(path))
    if isinstance(content.get("plugins"), str | list):  # a stored run has notes on them, by name
        content["plugins"] = [_from(path.parent, plugin) for plugin in _plugins(content["plugins"])]
    return content


def _from(folder: Path, plugin: str) -> str:
    return os.path.normpath(folder / Path(plugin).expanduser()) if is_file(plugin) else plugin


def parse_yaml(text: str, source: str) -> dict[str, Any]:
    """A YML text's mapping; ``source`` names it in errors."""
    content = load(text, source)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise BadInput(
            f"{source} holds {type(content).__name__}, not sections: allowed are {', '.join(SECTIONS)}"
        )
    return content
