"""From plain values to checked dataclasses and back."""

from dataclasses import InitVar, dataclass, field
from typing import Any, ClassVar, Literal

import pytest

from opencil import BadInput
from opencil.validation import (
    Count,
    Fraction,
    NonNegative,
    Positive,
    Values,
    Whole,
    build,
    check_arguments,
    merge,
    plain,
    subtract,
)


@dataclass(frozen=True)
class Inner(Values):
    width: Count
    height: Whole = 0
    scale: Positive = 1.0


@dataclass(frozen=True)
class Outer(Values):
    inner: Inner = Inner(3)
    maybe: Inner | None = None
    names: tuple[str, ...] = ()
    mode: Literal["a", "b"] = "a"
    share: Fraction = 0.5
    limit: NonNegative = 0.0
    size: Count | str = 1
    parts: dict[str, Inner] = field(default_factory=dict)
    kind: ClassVar[str] = "not a value"
    made: int = field(default=0, init=False)
    stretch: InitVar[Positive] = field(default=1.0, kw_only=True)

    def __post_init__(self, stretch: float) -> None:
        object.__setattr__(self, "limit", self.limit * stretch)
        if "bad" in self.names:
            raise ValueError("names = bad are not allowed: good ones are")


def message(values: dict[str, Any], cls: type = Outer, where: str = "outer") -> str:
    with pytest.raises(BadInput) as raised:
        build(cls, values, where)
    return str(raised.value)


def test_build_makes_the_dataclass() -> None:
    built = build(Outer, {"inner": {"width": 2}, "names": ["x", "y"], "limit": 3, "stretch": 2.0}, "outer")
    assert built == Outer(inner=Inner(2), names=("x", "y"), limit=3.0, stretch=2.0)
    assert (built.inner.scale, built.limit) == (1.0, 6.0)
    assert build(Outer, {}, "outer") == Outer()


def test_plain_is_what_build_takes_back() -> None:
    outer = Outer(inner=Inner(7, 1, 0.5), maybe=Inner(1), names=("x",), mode="b", share=0.25, limit=2.0)
    values = plain(outer)
    assert values["inner"] == {"width": 7, "height": 1, "scale": 0.5}
    assert (values["names"], values["mode"], values["limit"]) == (["x"], "b", 2.0)
    del values["made"]
    assert build(Outer, values, "outer") == outer


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "outer.inner.width": ({"inner": {"width": 0}}, "greater than or equal to 1"),
    "outer.inner.height": ({"inner": {"width": 1, "height": -1}}, "greater than or equal to 0"),
    "outer.share": ({"share": 1.1}, "less than or equal to 1"),
    "outer.limit": ({"limit": float("nan")}, "finite"),
    "outer.inner.widht": ({"inner": {"width": 1, "widht": 2}}, "height, scale, width; did you mean 'width'?"),
    "outer.maybe.hight": ({"maybe": {"width": 1, "hight": 2}}, "did you mean 'height'?"),
    "outer.strech": (
        {"strech": 2},
        "inner, limit, maybe, mode, names, parts, share, size, stretch; did you mean",
    ),
    "outer.kind": ({"kind": "x"}, "unknown"),
    "outer.made": ({"made": 1}, "unknown"),
    "outer.width": ({"width": 1}, "did you mean outer.inner.width?"),
    "outer.stretch": ({"stretch": -1}, "greater than 0"),
    "outer.inner.width is missing": ({"inner": {}}, ""),
    "outer.names = bad": ({"names": ["bad"]}, "good ones are"),
    "outer.names[1]": ({"names": ["x", 3]}, "string"),
    "outer.mode": ({"mode": "c"}, "'a' or 'b'"),
    "outer.size": ({"size": []}, "a valid integer or a valid string"),
    "outer.parts.a.width": ({"parts": {"a": {"width": 0}}}, "greater than or equal to 1"),
}


@pytest.mark.parametrize("key", REFUSED)
def test_a_refused_value_is_named_with_what_is_allowed(key: str) -> None:
    values, allowed = REFUSED[key]
    said = message(values)
    assert said.startswith(key)
    assert allowed in said
    assert "\n" not in said


@pytest.mark.parametrize("value", ["5", 5.0, 5.5, True, None, [5], {"a": 5}, object()])
def test_integers_are_strict(value: Any) -> None:
    assert message({"width": value}, Inner, "inner").startswith("inner.width = ")


def test_several_errors_are_a_line_each() -> None:
    lines = message({"mode": "c", "share": 2, "shar": 1}).split("\n")
    assert sorted(line.split(" = ")[0] for line in lines) == ["outer.mode", "outer.shar", "outer.share"]
    assert len(message({"mode": "x" * 5000})) < 300


# --- mappings and sizes ----------------------------------------------------------------------------


def test_merge_by_example() -> None:
    base = {"a": {"x": 1, "y": [1, 2]}, "b": 1, "c": {"z": 1}}
    over = {"a": {"y": [3]}, "b": {"new": 1}, "c": 5, "d": None}
    assert merge(base, over) == {"a": {"x": 1, "y": [3]}, "b": {"new": 1}, "c": 5, "d": None}
    assert base == {"a": {"x": 1, "y": [1, 2]}, "b": 1, "c": {"z": 1}}, "neither is changed"
    assert over == {"a": {"y": [3]}, "b": {"new": 1}, "c": 5, "d": None}
    assert (merge({}, over), merge(base, {})) == (over, base)


def test_subtract_leaves_keys_that_the_other_lacks() -> None:
    values = {"a": {"x": 1, "y": 2}, "b": 3, "c": {"z": 4}}
    assert subtract(values, {"a": {"x": 9}, "b": 9}) == {"a": {"y": 2}, "c": {"z": 4}}
    assert subtract(values, {"c": 9}) == {"a": {"x": 1, "y": 2}, "b": 3}
    assert subtract(values, {}) == values


# --- arguments ------------------------------------------------------------------------------------


class Thing:
    """Not a dataclass."""

    def __init__(self, width: Count, names: tuple[str, ...] = ("a",), part: object = None, free=()) -> None:
        self.given = width, names, part, free


def any_more(width: int = 3, **more: Any) -> dict[str, Any]:
    return {"width": width, **more}


def test_arguments_are_checked_by_name_and_type() -> None:
    own = object()
    assert check_arguments({"width": 2}, "thing", Thing) == {"width": 2}
    assert check_arguments({"width": 2, "names": ["b", "c"]}, "thing", Thing)["names"] == ("b", "c")
    assert check_arguments({"width": 2, "free": own}, "thing", Thing)["free"] is own
    assert check_arguments({"depth": own}, "thing", any_more) == {"depth": own}
    for values, key in (({}, "width"), ({"width": 0}, "width"), ({"width": 1, "name": ["b"]}, "name")):
        with pytest.raises(BadInput, match=rf"^thing\.{key} "):
            check_arguments(values, "thing", Thing)
