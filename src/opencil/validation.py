"""From plain values (YML, keyword arguments) to checked dataclasses, with errors for people.

Every config section and every method is a dataclass whose annotations say what is allowed. pydantic does the
checking, strictly: ``"5"`` and ``true`` are not integers. It is imported here and in no method's file.
"""

import dataclasses
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from opencil.errors import BadInput, meant, nearest, one_line

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, TypeAdapter
    from pydantic_core import ErrorDetails

T = TypeVar("T")


@dataclass(frozen=True)
class Bound:
    """Limits on a number, as an annotation: ``Annotated[float, Bound(gt=0)]``."""

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
BelowOne = Annotated[float, Bound(ge=0, lt=1)]
ProperFraction = Annotated[float, Bound(gt=0, lt=1)]
Count = Annotated[int, Bound(ge=1, lt=2**63)]  # what a tensor can hold
Whole = Annotated[int, Bound(ge=0, lt=2**63)]


_UNITS = {"": 1, "B": 1} | {
    unit: base**power
    for power, letter in enumerate("KMGT", start=1)
    for unit, base in ((f"{letter}B", 1000), (f"{letter}IB", 1024))
}


#: Metadata of a dataclass's field whose value is written down only where it is not the default.
QUIET = {"quiet": True}


class Values:
    """Base of every dataclass that is built from a user's values: unknown keys are errors."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "allow_inf_nan": False}


#: Sentences about one section.
_MOST = 20
#: The parts of a key, and of all that somebody may have meant by it.
Key = tuple[str, ...]
Guess = Callable[[Key], Sequence[str]]


def build(cls: type[T], values: Mapping[str, Any], where: str, guess: Guess | None = None) -> T:
    """Make a ``cls`` of plain values; ``where`` is the place to name in errors, such as ``cil.icarl``.

    ``guess`` gives the keys that may be meant by one that is unknown: by default those below ``where``.
    """
    from pydantic import ValidationError

    # JSON mode is strict about scalars and yet takes a list where a tuple is asked for.
    try:
        text = json.dumps(values, default=str)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"{where} cannot be used: {error}") from None
    try:
        validator: TypeAdapter[T] = _validator(cls)  # type: ignore[arg-type]  # mypy: no class is hashable
        return validator.validate_json(text, strict=True)
    except ValidationError as error:
        wrong = _plain_errors(cls, error.errors())
        missing = [e for e in wrong if e["type"].startswith("missing")]
        sentences = [_sentence(cls, e, where, guess) for e in wrong if e not in missing]
        if missing:
            absent = ", ".join(_key(where, e["loc"]) for e in missing)
            sentences.append(f"{absent} {'is' if len(missing) == 1 else 'are'} missing")
        more = [f"and {len(sentences) - _MOST} more"] if len(sentences) > _MOST else []
        raise BadInput("\n".join([*sentences[:_MOST], *more])) from None


@lru_cache(maxsize=256)  # making one takes longer than most things that are made with it
def _validator(cls: Any) -> "TypeAdapter[Any]":
    from pydantic import TypeAdapter

    return TypeAdapter(cls)


def arguments(
    make: Callable[..., Any], values: Mapping[str, Any], where: str, beside: Collection[str] = ()
) -> dict[str, Any]:
    """Values that a function or class can be called with, checked by name and, where annotated, by type.

    ``beside`` are names that stand there too and are somebody else's: errors tell them as allowed.
    """
    parameters = inspect.signature(make).parameters.values()
    try:
        hints = typing.get_type_hints(make.__init__ if inspect.isclass(make) else make, include_extras=True)
    except NameError:  # an annotation that is not there when the code runs
        hints = {}
    kinds: dict[str, Any] = {}
    fields: list[tuple[str, Any, Any]] = []
    for p in parameters:
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            kinds[p.name] = _checkable(hints.get(p.name, Any))
            default: Any = dataclasses.MISSING if p.default is p.empty else partial(_same, p.default)
            fields.append((p.name, kinds[p.name], dataclasses.field(default_factory=default)))
    fields += [(name, Any, dataclasses.field(default=None)) for name in beside if name not in kinds]
    takes_more = any(p.kind is p.VAR_KEYWORD for p in parameters)
    more = {key: value for key, value in values.items() if takes_more and key not in kinds}
    cls: Any = dataclasses.make_dataclass("Arguments", fields, bases=(Values,), kw_only=True)
    built = build(cls, {key: value for key, value in values.items() if key not in more}, where)
    # What has no type to be checked by is passed on as it is: a module, say.
    own = {k: v if kinds[k] is Any else getattr(built, k) for k, v in values.items() if k not in more}
    return own | more


def _same(value: T) -> T:
    return value


def _checkable(annotation: Any) -> Any:
    """An annotation that plain values can be checked against, or Any."""
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        TypeAdapter(annotation)
    except PydanticUserError:
        return Any
    return annotation


def plain(value: Any) -> dict[str, Any]:
    """The values of a dataclass as dicts and lists, ready for YML; ``build`` takes them back.

    Those of ``QUIET`` fields are left out where they are the defaults.
    """
    listed: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(value), default=str))
    quiet = (f for f in dataclasses.fields(value) if f.metadata.get("quiet"))
    for name in [f.name for f in quiet if getattr(value, f.name) == f.default]:
        del listed[name]
    return listed


def names_of(cls: Any) -> set[str]:
    """Names of the values that a dataclass is made of, init-only ones included."""
    return _keys(cls, [])


def keys_below(cls: Any) -> Iterator[Key]:
    """The keys of all values that a dataclass is made of, and of those that they are made of."""
    for name, kind in _takes(cls):
        yield (name,)
        yield from ((name, *below) for below in keys_below(kind))


def misplaced(written: Sequence[str], keys: Iterable[Key], wrong: int = -1) -> list[Key]:
    """The keys that may be meant by one that stands in a wrong place: ``cil.icarl.first.lr`` by ``icarl.lr``.

    They end as it does and have its other parts in their order, or as many of the last of them as any key
    has, down to the part at ``wrong``, which is unknown where it stands; ``*`` stands for any part. Of those,
    the shortest.
    """
    ends = [key for key in keys if key[-1] == written[-1]]
    for start in range(wrong % len(written) + 1):
        if found := [key for key in ends if _in_order(written[start:], key)]:
            least = min(map(len, found))
            return list(dict.fromkeys(key for key in found if len(key) == least))
    return []


def _in_order(parts: Sequence[str], key: Key) -> bool:
    rest = iter(key)
    return all(part == "*" or part in rest for part in parts)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` laid on ``base``, mappings key by key, all else replaced; neither is changed."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = (
            merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
        )
    return merged


def without(values: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` less those that ``named`` has too, mappings key by key."""
    left: dict[str, Any] = {}
    for key, value in values.items():
        if key not in named:
            left[key] = value
        elif isinstance(value, Mapping) and isinstance(named[key], Mapping):
            left[key] = without(value, named[key])
    return left


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by keys with dots: ``{"a.b": 1}`` for ``{"a": {"b": 1}}``; an empty mapping stays."""
    leaves: dict[str, Any] = {}
    for key, value in values.items():
        nested = isinstance(value, Mapping) and value
        leaves |= flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return leaves


def parse_size(size: int | str) -> int:
    """Bytes of a size such as ``2GB``, ``500 MiB`` or a plain number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Z]*)", str(size).strip().upper())
    if not match or match[2] not in _UNITS:
        raise BadInput(f"size {size!r} is not understood: allowed are bytes, or say 500MB, 2GB or 1.5GiB")
    return int(float(match[1]) * _UNITS[match[2]])


def _plain_errors(cls: type, errors: "list[ErrorDetails]") -> "list[ErrorDetails]":
    """Errors without pydantic's names for the choices of a union, one for each place.

    A value that fits none of two types has an error for each: the one that reaches deepest into the value
    says what is wrong with it; where both reject it as a whole, both are told.
    """
    plain_errors: list[ErrorDetails] = []
    for error in errors:
        at = _union_at(cls, error["loc"])
        if at is None:
            plain_errors.append(error)
            continue
        error["loc"] = error["loc"][:at] + error["loc"][at + 1 :]
        other = next((e for e in plain_errors if e["loc"][:at] == error["loc"][:at]), None)
        if other is None or len(error["loc"]) > at:
            plain_errors = [e for e in plain_errors if e["loc"] != error["loc"][:at]] + [error]
        elif len(other["loc"]) == at:
            other["msg"] += " or " + error["msg"].removeprefix("Input should be ")
    return plain_errors


def _union_at(cls: Any, loc: tuple[int | str, ...]) -> int | None:
    """Position in an error's place at which pydantic names a choice of a union."""
    for i, part in enumerate(loc):
        if typing.get_origin(cls) is typing.Annotated:
            cls = typing.get_args(cls)[0]
        if typing.get_origin(cls) in (typing.Union, types.UnionType):
            choices = [c for c in typing.get_args(cls) if c is not type(None)]
            if len(choices) > 1:
                return i
            cls = choices[0]
        if typing.get_origin(cls) in (dict, tuple):
            cls = typing.get_args(cls)[typing.get_origin(cls) is dict]
        else:
            cls = next((kind for name, kind in _takes(cls) if name == part), None)
    return None


def _key(where: str, loc: tuple[int | str, ...]) -> str:
    """A place as people write it: ``benchmark.transform.mean[2]``."""
    return where + "".join(f"[{part}]" if isinstance(part, int) else f".{one_line(part)}" for part in loc)


def _sentence(cls: type, error: "ErrorDetails", where: str, guess: Guess | None) -> str:
    """One pydantic error as a sentence: key, value, what is allowed, nearest known name."""
    path = [str(part) for part in error["loc"]]
    key = _key(where, error["loc"])
    value = json.dumps(error["input"], default=str)
    value = value if len(value) <= 80 else value[:77] + "..."
    if error["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        known = sorted(_keys(cls, path[:-1]))
        above, allowed = where.split("."), ", ".join(known) or "no values"
        guess = guess or (lambda written: _meant(written, above, cls))
        hint = meant(guess((*above, *path))) or nearest(path[-1], known)
        return f"{key} = {value} is unknown: allowed here are {allowed}{hint}"
    if error["type"] == "value_error":  # raised by a __post_init__, worded so that it begins with the key
        return f"{key}.{error['ctx']['error']}"
    return f"{key} = {value} is not allowed: {error['msg'].replace('Input should', 'it should')}"


def _meant(written: Key, above: list[str], cls: type) -> list[str]:
    """The keys below a place that may be meant by one that is unknown there."""
    return [".".join(key) for key in misplaced(written, ((*above, *below) for below in keys_below(cls)))]


def _keys(cls: Any, path: list[str]) -> set[str]:
    """Names that a dataclass takes, at a path below it."""
    for part in path:
        if typing.get_origin(cls) is dict:  # any key, values of one type
            cls = typing.get_args(cls)[1]
            continue
        field = next((f for f in _takes(cls) if f[0] == part), None)
        if field is None:
            return set()
        cls = field[1]
    return {name for name, _ in _takes(cls)}


def _takes(cls: Any) -> Iterator[tuple[str, Any]]:
    """(name, type) of all that a dataclass is made of, init-only values included; unions are looked into."""
    if typing.get_origin(cls) in (typing.Union, types.UnionType):
        for part in typing.get_args(cls):
            yield from _takes(part)
    if not dataclasses.is_dataclass(cls):
        return
    for name, field in cls.__dataclass_fields__.items():
        if field.init and getattr(field, "_field_type", None) is not dataclasses._FIELD_CLASSVAR:  # type: ignore[attr-defined]
            kind = field.type
            yield name, kind.type if isinstance(kind, dataclasses.InitVar) else kind
