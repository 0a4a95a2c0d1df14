"""The stub by which editors complete what ``create_detector`` and ``create_learner`` take.

``python tests/test_creating.py`` writes it anew, after a method or a value has been added.
"""

import ast
import dataclasses
import inspect
import types
import typing
from pathlib import Path
from typing import Any

import pytest

import opencil
from opencil.registry import DETECTORS, LEARNERS, Registry
from opencil.validation import names_of

STUB = Path(__file__).parent.parent / "opencil" / "creating.pyi"
KINDS = {"create_detector": (DETECTORS, opencil.Detector), "create_learner": (LEARNERS, opencil.Learner)}


def ours(registry: Registry[Any]) -> list[str]:
    return [n for n in registry.names() if registry.entry(n).make.__module__.startswith("opencil.")]


def annotation(kind: Any) -> str:
    """A value's type as a user gives it: a section of values is a mapping, a tuple any sequence."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return annotation(inner[0])
    if origin is typing.Literal:
        return f"Literal[{', '.join(quoted(one) for one in inner)}]"
    if origin in (typing.Union, types.UnionType):
        return " | ".join(dict.fromkeys(map(annotation, inner)))
    if kind is type(None):
        return "None"
    if origin is tuple:
        return f"Sequence[{annotation(inner[0])}]"
    if origin is dict or dataclasses.is_dataclass(kind):
        return "Mapping[str, Any]"
    return kind.__name__ if kind in (int, float, str, bool) else "Any"


def quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def parameters(make: Any) -> list[str]:
    """Names, types and defaults of a method's values."""
    hints = typing.get_type_hints(make, include_extras=True)
    values = {f.name: f for f in dataclasses.fields(make) if f.init}
    found = []
    for name, parameter in inspect.signature(make).parameters.items():
        kind = values[name].type if name in values else hints[name]
        kind = kind.type if isinstance(kind, dataclasses.InitVar) else kind
        default = parameter.default
        plain = default is None or isinstance(default, (bool, int, float, str))
        found.append(f"{name}: {annotation(kind)} = {quoted(default) if plain else '...'}")
    return found


def overloads(function: str) -> list[str]:
    registry, base = KINDS[function]
    lines = []
    for name in ours(registry):
        make = registry.entry(name).make
        given = "".join(f"    {parameter},\n" for parameter in parameters(make))
        star = "    *,\n" if given else ""
        head = f'name: Literal["{name}"]'
        signature = f"(\n    {head},\n{star}{given})" if given else f"({head})"
        lines += ["@overload", f"def {function}{signature} -> {make.__name__}:"]
        lines += [f'    """{registry.entry(name).about}"""', ""]
    lines += ["@overload", f"def {function}(name: str, **values: Any) -> {base.__name__}:"]
    return [*lines, f'    """The {registry.kind} of that name, a plugin\'s or a labelled one too."""', ""]


def stub() -> str:
    makes = [registry.entry(name).make for registry, _ in KINDS.values() for name in ours(registry)]
    classes = [*makes, *(base for _, base in KINDS.values())]
    lines = ["# Made of the registry by tests/test_creating.py: run that to bring it up to date.", ""]
    lines += ["from collections.abc import Mapping", "from typing import Any, Literal, overload", ""]
    lines += sorted(f"from {make.__module__} import {make.__name__}" for make in classes)
    lines += ["", *overloads("create_detector"), *overloads("create_learner")]
    return "\n".join(lines).rstrip() + "\n"


def test_the_stub_is_what_the_registry_says() -> None:
    assert STUB.read_text(encoding="utf-8") == stub(), "python tests/test_creating.py writes it"


@pytest.mark.parametrize("function", KINDS)
def test_the_stub_has_every_value_of_every_method(function: str) -> None:
    registry, _ = KINDS[function]
    found = {}
    for node in ast.parse(STUB.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == function and node.args.kwarg is None:
            (name,) = [n.value for n in ast.walk(node.args.args[0]) if isinstance(n, ast.Constant)]
            found[name] = {argument.arg for argument in node.args.kwonlyargs}
    assert found == {name: names_of(registry.entry(name).make) for name in ours(registry)}


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
