"""From plain values to checked dataclasses and back."""

import copy
from dataclasses import InitVar, dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencil import BadInput
from opencil.validation import (
    Bound,
    Count,
    Fraction,
    NonNegative,
    Positive,
    Values,
    Whole,
    arguments,
    build,
    merge,
    plain,
    without,
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
    assert values == {
        "inner": {"width": 7, "height": 1, "scale": 0.5},
        "maybe": {"width": 1, "height": 0, "scale": 1.0},
        "names": ["x"],
        "mode": "b",
        "share": 0.25,
        "limit": 2.0,
        "made": 0,
    }
    del values["made"]
    assert build(Outer, values, "outer") == outer


@pytest.mark.parametrize(
    ("bound", "allowed", "refused"),
    [
        (Bound(gt=0), [1e-300, 5], [0, -1]),
        (Bound(ge=0), [0, 5], [-1e-300]),
        (Bound(lt=2), [1.999, -5], [2, 3]),
        (Bound(le=2), [2, -5], [2.0001]),
        (Bound(ge=0, le=1), [0, 0.5, 1], [-0.1, 1.1]),
        (Bound(), [-1e300, 0, 1e300], [float("inf"), float("nan")]),
    ],
    ids=str,
)
def test_bounds(bound: Bound, allowed: list[float], refused: list[float]) -> None:
    @dataclass
    class Bounded(Values):
        value: Annotated[float, bound]

    for value in allowed:
        assert build(Bounded, {"value": value}, "x").value == value
    for value in refused:
        assert message({"value": value}, Bounded, "x").startswith("x.value = ")


@given(st.integers(-5, 5))
def test_the_named_bounds(number: int) -> None:
    @dataclass
    class Named(Values):
        count: Count = 1
        whole: Whole = 0
        positive: Positive = 1.0
        share: Fraction = 0.0

    def taken(**values: Any) -> bool:
        try:
            build(Named, values, "x")
        except BadInput:
            return False
        return True

    assert taken(count=number) == (number >= 1)
    assert taken(whole=number) == (number >= 0)
    assert taken(positive=number) == (number > 0)
    assert taken(share=number) == (number in (0, 1))


@pytest.mark.parametrize("value", ["5", 5.0, 5.5, True, None, [5], {"a": 5}])
def test_what_is_not_an_integer(value: Any) -> None:
    assert message({"width": value}, Inner, "inner").startswith("inner.width = ")


@pytest.mark.parametrize("value", ["0.5", True, None, [0.5]])
def test_what_is_not_a_number(value: Any) -> None:
    assert message({"share": value}).startswith("outer.share = ")


def test_unknown_keys_name_the_full_path_and_what_is_known_there() -> None:
    assert message({"inner": {"width": 1, "widht": 2}}) == (
        "outer.inner.widht = 2 is unknown: allowed here are height, scale, width; did you mean 'width'?"
    )
    assert message({"maybe": {"width": 1, "hight": 2}}).startswith("outer.maybe.hight = 2 is unknown")
    assert "did you mean 'height'?" in message({"maybe": {"width": 1, "hight": 2}})


def test_init_only_values_are_known_and_constants_are_not() -> None:
    text = message({"strech": 2})
    assert "allowed here are inner, limit, maybe, mode, names, share, stretch;" in text
    assert "did you mean 'stretch'?" in text
    assert message({"kind": "x"}).startswith("outer.kind")
    assert message({"made": 1}).startswith("outer.made")


def test_init_only_values_are_checked() -> None:
    assert message({"stretch": -1}) == "outer.stretch = -1 is not allowed: it should be greater than 0"


def test_a_missing_value_and_an_own_check() -> None:
    assert message({"inner": {}}) == "outer.inner.width is missing"
    assert message({"names": ["bad"]}) == "outer.names = bad are not allowed: good ones are"


def test_places_in_lists_are_named() -> None:
    assert message({"names": ["x", 3]}).startswith("outer.names[1] = 3 is not allowed")


def test_a_choice_names_what_is_allowed() -> None:
    text = message({"mode": "c"})
    assert text.startswith('outer.mode = "c" is not allowed')
    assert "'a'" in text
    assert "'b'" in text


def test_every_error_is_a_line() -> None:
    lines = message({"mode": "c", "share": 2, "shar": 1}).split("\n")
    assert sorted(line.split(" = ")[0] for line in lines) == ["outer.mode", "outer.shar", "outer.share"]


def test_a_class_without_values() -> None:
    @dataclass
    class Nothing(Values):
        pass

    assert message({"any": 1}, Nothing, "it") == "it.any = 1 is unknown: allowed here are no values"


def test_an_object_that_json_does_not_know_is_refused_not_crashed_on() -> None:
    assert message({"share": object()}).startswith("outer.share = ")


def test_building_leaves_the_values_alone() -> None:
    values = {"inner": {"width": 2}, "names": ["x"]}
    build(Outer, values, "outer")
    assert values == {"inner": {"width": 2}, "names": ["x"]}


# --- merge -----------------------------------------------------------------------------------------

keys = st.sampled_from("abc")
mappings = st.recursive(
    st.dictionaries(keys, st.integers(0, 9)),
    lambda below: st.dictionaries(keys, st.one_of(st.integers(0, 9), st.lists(st.integers()), below)),
)


def leaves(values: dict[str, Any], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Values by their path; an empty mapping is a leaf."""
    found = {}
    for key, value in values.items():
        if isinstance(value, dict) and value:
            found |= leaves(value, (*path, key))
        else:
            found[(*path, key)] = value
    return found


@given(mappings, mappings)
def test_merge_lays_one_on_the_other_and_changes_neither(base: dict[str, Any], over: dict[str, Any]) -> None:
    base_before, over_before = copy.deepcopy(base), copy.deepcopy(over)
    merged = merge(base, over)
    assert (base, over) == (base_before, over_before)
    found, below, above = leaves(merged), leaves(base), leaves(over)

    def hidden(path: tuple[str, ...]) -> bool:
        """Something of ``over`` stands at, above or below the path, so that the base's leaf cannot."""
        return any(path[: len(p)] == p or p[: len(path)] == path for p in above)

    for path, value in above.items():
        if value != {}:  # an empty mapping laid on a mapping changes nothing
            assert found[path] == value
    for path, value in below.items():
        if not hidden(path):
            assert found[path] == value
    assert set(found) <= set(below) | set(above)


def test_merge_by_example() -> None:
    base = {"a": {"x": 1, "y": [1, 2]}, "b": 1, "c": {"z": 1}}
    over = {"a": {"y": [3]}, "b": {"new": 1}, "c": 5, "d": None}
    assert merge(base, over) == {"a": {"x": 1, "y": [3]}, "b": {"new": 1}, "c": 5, "d": None}
    assert merge({}, over) == over
    assert merge(base, {}) == base


def test_without_takes_away_what_the_other_has() -> None:
    values = {"a": {"x": 1, "y": 2}, "b": 3, "c": {"z": 4}}
    assert without(values, {"a": {"x": 9}, "b": 9}) == {"a": {"y": 2}, "c": {"z": 4}}
    assert without(values, {"c": 9}) == {"a": {"x": 1, "y": 2}, "b": 3}
    assert without(values, {}) == values


# --- arguments ------------------------------------------------------------------------------------


class Thing:
    """Not a dataclass."""

    def __init__(self, width: Count, names: tuple[str, ...] = ("a",), part: object = None, free=()) -> None:
        self.given = width, names, part, free


def any_more(width: int = 3, **more: Any) -> dict[str, Any]:
    return {"width": width, **more}


def test_arguments_are_checked_by_name_and_type() -> None:
    own = object()
    assert arguments(Thing, {"width": 2}, "thing") == {"width": 2}
    assert arguments(Thing, {"width": 2, "names": ["b", "c"]}, "thing")["names"] == ("b", "c")
    assert arguments(Thing, {"width": 2, "free": own}, "thing")["free"] is own
    assert arguments(any_more, {"depth": own}, "thing") == {"depth": own}


@pytest.mark.parametrize(
    ("make", "values", "sentence"),
    [
        (Thing, {}, r"^thing\.width is missing$"),
        (Thing, {"width": 0}, r"thing\.width = 0 is not allowed: .* greater than or equal to 1"),
        (Thing, {"width": "2"}, r"thing\.width = \"2\" is not allowed: it should be a valid integer"),
        (
            Thing,
            {"width": 1, "name": ["b"]},
            r"thing\.name .* unknown: allowed here are free, names, part, width; .*'names'",
        ),
        (any_more, {"width": True}, r"thing\.width = true is not allowed"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(make: Any, values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        arguments(make, values, "thing")
