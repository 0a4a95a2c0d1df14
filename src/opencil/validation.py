"""Turn plain values (YML, keyword arguments) into checked dataclasses, with errors in sentences.

Every config section and every method is a dataclass whose annotations say what is allowed. pydantic checks
them strictly: ``"5"`` and ``true`` are not integers. It is imported here and in no method's file.
"""

import dataclasses
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from opencil.errors import BadInput, nearest, one_line

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, TypeAdapter, ValidationError

T = TypeVar("T")


class Bound:
    """Limits of a number (gt, ge, lt, le), as an annotation: ``Annotated[float, Bound(gt=0)]``."""

    def __init__(self, **limits: float) -> None:
        self.limits = limits

    def __get_pydantic_core_schema__(self, source: Any, handler: "GetCoreSchemaHandler") -> Any:
        return {**handler(source), **self.limits}


Positive = Annotated[float, Bound(gt=0)]
NonNegative = Annotated[float, Bound(ge=0)]
Fraction = Annotated[float, Bound(ge=0, le=1)]
PositiveFraction = Annotated[float, Bound(gt=0, le=1)]
BelowOne = Annotated[float, Bound(ge=0, lt=1)]
ProperFraction = Annotated[float, Bound(gt=0, lt=1)]
Count = Annotated[int, Bound(ge=1, lt=2**63)]  # what a tensor can hold
Whole = Annotated[int, Bound(ge=0, lt=2**63)]


class Values:
    """Base of every dataclass built from a user's values: unknown keys are errors."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "allow_inf_nan": False}


#: The parts of a key: ``("cil", "icarl", "epochs")``.
Key = tuple[str, ...]


def build(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """Build a ``cls`` from plain values; ``where`` is its key in errors, such as ``cil.icarl``."""
    from pydantic import ValidationError

    # JSON mode is strict about scalars but takes a list where a tuple is annotated.
    text = json.dumps(values, default=str)
    try:
        validator: TypeAdapter[T] = _validator(cls)  # type: ignore[arg-type]  # mypy: no class is hashable
        return validator.validate_json(text, strict=True)
    except ValidationError as error:
        raise BadInput("\n".join(_sentences(cls, json.loads(text), error, where))) from None


@lru_cache(maxsize=256)  # creating one takes longer than most objects that it validates
def _validator(cls: Any) -> "TypeAdapter[Any]":
    from pydantic import TypeAdapter

    return TypeAdapter(cls)


def check_arguments(values: Mapping[str, Any], where: str, *makes: Callable[..., Any]) -> dict[str, Any]:
    """Check arguments of functions or classes by name and by annotation, and return them.

    ``values`` are arguments of all of ``makes`` together; only the last may take any more by name.
    """
    fields: dict[str, tuple[str, Any, Any]] = {}
    for make in makes:
        try:
            parameters = inspect.signature(make, eval_str=True).parameters.values()
        except NameError:  # an annotation that exists for type checkers only
            parameters = inspect.signature(make).parameters.values()
        for p in parameters:
            if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
                default = dataclasses.field() if p.default is p.empty else None
                fields[p.name] = p.name, _checkable(p.annotation), default
    takes_more = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(makes[-1]).parameters.values())
    own = {key: value for key, value in values.items() if key in fields or not takes_more}
    cls: Any = dataclasses.make_dataclass("Arguments", fields.values(), bases=(Values,), kw_only=True)
    built = build(cls, own, where)
    # A value without a checkable type, such as a module, is passed on unchanged.
    checked = [name for name in own if fields[name][1] is not Any]
    return dict(values) | {name: getattr(built, name) for name in checked}


def _checkable(annotation: Any) -> Any:
    """Return an annotation if pydantic can check values against it, or Any."""
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        TypeAdapter(annotation)
    except PydanticUserError:
        return Any
    return Any if isinstance(annotation, str) else annotation


def plain(value: Any) -> dict[str, Any]:
    """Return the values of a dataclass as dicts and lists, ready for YML; ``build`` takes them back."""
    values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(value), default=str))
    return values


def names_of(cls: Any) -> set[str]:
    """Return the names of a dataclass's values, init-only ones included."""
    return {name for name, _ in _fields(cls)}


def keys_below(cls: Any) -> Iterator[Key]:
    """Yield the keys of a dataclass's values, and of the dataclasses among them."""
    for name, kind in _fields(cls):
        yield (name,)
        yield from ((name, *below) for below in keys_below(kind))


def suggest(written: Sequence[str], keys: Iterable[Key]) -> str:
    """Return ``; did you mean icarl.first.lr?`` for a key in a wrong place, or nothing.

    Suggested is a key that ends alike and shares the most other parts, with ``*`` or short if possible.
    """
    ends = [key for key in keys if key[-1] == written[-1] and key != tuple(written)]
    best = max(ends, key=lambda key: (len({*key} & {*written}), "*" in key, -len(key)), default=None)
    return f"; did you mean {'.'.join(best)}?" if best else ""


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay ``over`` on ``base``: mappings key by key, other values are replaced; neither is changed."""
    merged = dict(base)
    for key, value in over.items():
        nested = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if nested else value
    return merged


def subtract(values: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values`` less the keys of ``other``, mappings key by key."""
    left: dict[str, Any] = {}
    for key, value in values.items():
        if key not in other:
            left[key] = value
        elif isinstance(value, Mapping) and isinstance(other[key], Mapping):
            left[key] = subtract(value, other[key])
    return left


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by keys with dots: ``{"a.b": 1}`` for ``{"a": {"b": 1}}``; empty mappings stay."""
    leaves: dict[str, Any] = {}
    for key, value in values.items():
        nested = isinstance(value, Mapping) and value
        leaves |= flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return leaves


def _sentences(cls: type, values: Any, error: "ValidationError", where: str) -> Iterator[str]:
    """Yield a sentence for each wrong value: its key, the value, and the allowed ones."""
    found: dict[tuple[Any, ...], Any] = {}
    for detail in error.errors():
        place = _place(values, detail["loc"], detail["type"].startswith("missing"))
        if place in found:  # no type of a union takes the value
            found[place]["msg"] += " or " + detail["msg"].removeprefix("Input should be ")
        else:
            found[place] = detail
    # Of the types of a union, the one that is checked deepest into the value says what is wrong.
    above = {place[:depth] for place in found for depth in range(len(place))}
    for place, detail in found.items():
        key, kind = _key(where, place), detail["type"]
        value = one_line(json.dumps(detail["input"], default=str), 80)
        if place in above:
            continue
        if kind.startswith("missing"):
            yield f"{key} is missing"
        elif kind in ("unexpected_keyword_argument", "extra_forbidden"):
            path, root = tuple(map(str, place)), tuple(where.split("."))
            known = sorted(_names_at(cls, path[:-1]))
            keys = ((*root, *below) for below in keys_below(cls))
            meant = suggest((*root, *path), keys) or nearest(path[-1], known)
            yield f"{key} = {value} is unknown: allowed here are {', '.join(known) or 'no values'}{meant}"
        elif kind == "value_error":  # of a __post_init__, whose sentence begins with the key
            yield f"{key}.{detail['ctx']['error']}"
        else:
            yield f"{key} = {value} is not allowed: {re.sub('^(Input|String)', 'it', detail['msg'])}"


def _place(values: Any, loc: Sequence[int | str], missing: bool) -> tuple[int | str, ...]:
    """Return an error's place without pydantic's names for the types of a union: these are no keys."""
    place: list[int | str] = []
    for part in loc:
        keys = values if isinstance(values, dict) else range(len(values) if isinstance(values, list) else 0)
        if part in keys:
            values = values[part]
            place.append(part)
    return (*place, loc[-1]) if missing else tuple(place)


def _key(where: str, place: Iterable[int | str]) -> str:
    """Return a place as people write it: ``benchmark.transform.mean[2]``."""
    return where + "".join(f"[{part}]" if isinstance(part, int) else f".{one_line(part)}" for part in place)


def _names_at(cls: Any, path: Sequence[str]) -> set[str]:
    """Return the names of the values at a path below a dataclass."""
    for part in path:
        # A dict has any key, and values of one type.
        cls = typing.get_args(cls)[1] if typing.get_origin(cls) is dict else dict(_fields(cls)).get(part)
    return names_of(cls)


def _fields(cls: Any) -> Iterator[tuple[str, Any]]:
    """Yield the (name, type) of a dataclass's values, init-only ones included; look into unions."""
    union = typing.get_origin(cls) in (typing.Union, types.UnionType)
    for part in typing.get_args(cls) if union else [cls]:
        if isinstance(part, type) and dataclasses.is_dataclass(part):
            for p in inspect.signature(part).parameters.values():
                kind = p.annotation
                yield p.name, kind.type if isinstance(kind, dataclasses.InitVar) else kind
