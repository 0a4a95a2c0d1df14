"""Turn plain values (YML, keyword arguments) into checked dataclasses, with errors in sentences.

Every config section and every method is a dataclass whose annotations say what is allowed. pydantic checks
them strictly: ``"5"`` and ``true`` are not integers. It is imported here and in no method's file.
"""

import dataclasses
import inspect
import json
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from opencil.errors import BadInput, nearest, one_line, shorten

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, TypeAdapter, ValidationError

T = TypeVar("T")


@dataclass(frozen=True)
class Bound:
    """Limits of a number, as an annotation: ``Annotated[float, Bound(gt=0)]``."""

    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: "GetCoreSchemaHandler") -> Any:
        limits = {name: limit for name, limit in dataclasses.asdict(self).items() if limit is not None}
        return {**handler(source), **limits}


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


def build(
    cls: type[T], values: Mapping[str, Any], where: str, suggest_key: Callable[[Key], str] | None = None
) -> T:
    """Build a ``cls`` from plain values; ``where`` is its key in errors, such as ``cil.icarl``.

    ``suggest_key`` returns a hint for an unknown key; by default keys below ``where`` are suggested.
    """
    from pydantic import ValidationError

    # JSON mode is strict about scalars but takes a list where a tuple is annotated.
    try:
        text = json.dumps(values, default=str)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"{where} cannot be used: {error}") from None
    try:
        validator: TypeAdapter[T] = _validator(cls)  # type: ignore[arg-type]  # mypy: no class is hashable
        return validator.validate_json(text, strict=True)
    except ValidationError as error:
        raise BadInput("\n".join(_sentences(cls, json.loads(text), error, where, suggest_key))) from None


@lru_cache(maxsize=256)  # creating one takes longer than most objects that it validates
def _validator(cls: Any) -> "TypeAdapter[Any]":
    from pydantic import TypeAdapter

    return TypeAdapter(cls)


def check_arguments(
    make: Callable[..., Any], values: Mapping[str, Any], where: str, beside: Collection[str] = ()
) -> dict[str, Any]:
    """Check the arguments of a function or class by name and by annotation, and return them.

    ``beside`` are names of the caller: errors list them as allowed.
    """
    try:
        hints = typing.get_type_hints(make.__init__ if inspect.isclass(make) else make, include_extras=True)
    except NameError:  # an annotation that exists for type checkers only
        hints = {}
    fields: dict[str, tuple[Any, Any]] = {name: (Any, dataclasses.field(default=None)) for name in beside}
    parameters = inspect.signature(make).parameters.values()
    for p in parameters:
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            default: Any = dataclasses.field() if p.default is p.empty else dataclasses.field(default=None)
            fields[p.name] = _checkable(hints.get(p.name, Any)), default
    takes_more = any(p.kind is p.VAR_KEYWORD for p in parameters)
    more = {key: value for key, value in values.items() if takes_more and key not in fields}
    own = {key: value for key, value in values.items() if key not in more}
    annotated = [(name, *field) for name, field in fields.items()]
    cls: Any = dataclasses.make_dataclass("Arguments", annotated, bases=(Values,), kw_only=True)
    built = build(cls, own, where)
    # A value without a checkable type, such as a module, is passed on unchanged.
    return more | {k: v if fields[k][0] is Any else getattr(built, k) for k, v in own.items()}


def _checkable(annotation: Any) -> Any:
    """Return an annotation if pydantic can check values against it, or Any."""
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        TypeAdapter(annotation)
    except PydanticUserError:
        return Any
    return annotation


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

    Suggested are the keys that end alike and share the most other parts, of these the shortest, and of these
    the ones with ``*``.
    """
    ends = [key for key in dict.fromkeys(keys) if key[-1] == written[-1] and key != tuple(written)]
    ranks = {key: (len({*key} & {*written}), -len(key)) for key in ends}
    best = [".".join(key) for key in ends if ranks[key] == max(ranks.values())]
    best = [key for key in best if "*" in key] or best
    return f"; did you mean {' or '.join(best[:4])}?" if best else ""


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


def _sentences(
    cls: type,
    values: Any,
    error: "ValidationError",
    where: str,
    suggest_key: Callable[[Key], str] | None,
) -> Iterator[str]:
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
    deepest = {place: detail for place, detail in found.items() if place not in above}
    missing = [_key(where, place) for place, d in deepest.items() if d["type"].startswith("missing")]
    for place, detail in deepest.items():
        key = _key(where, place)
        value = shorten(json.dumps(detail["input"], default=str))
        if detail["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
            path = tuple(map(str, place))
            root, known = tuple(where.split(".")), sorted(_names_at(cls, path[:-1]))
            hint = suggest_key or partial(suggest, keys=((*root, *below) for below in keys_below(cls)))
            allowed = ", ".join(known) or "no values"
            meant = hint((*root, *path)) or nearest(path[-1], known)
            yield f"{key} = {value} is unknown: allowed here are {allowed}{meant}"
        elif detail["type"] == "value_error":  # of a __post_init__, whose sentence begins with the key
            yield f"{key}.{detail['ctx']['error']}"
        elif not detail["type"].startswith("missing"):
            yield f"{key} = {value} is not allowed: {detail['msg'].replace('Input should', 'it should')}"
    if missing:
        yield f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"


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
