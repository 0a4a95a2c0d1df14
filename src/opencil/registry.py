"""One decorator registry each for learners, detectors, datasets, backbones and metrics.

A method registers itself where it is defined. A registry imports its own package, and installed plugins, when
it is first used: a new method is one new file. ``opencil.plugins`` imports files that are given by name.
"""

import fnmatch
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, is_dataclass, replace
from functools import cache
from importlib.metadata import entry_points
from operator import attrgetter
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from opencil.errors import BadInput, OpenCILError, nearest, not_imported, shown, unknown

T = TypeVar("T")
Target = TypeVar("Target", bound=Callable[..., Any])

_NAME = "[a-z0-9][a-z0-9_-]*"
#: Groups that every registry has: all names, and those of the OpenCIL paper.
_ALL, _PAPER = "all", "paper"
#: The entry points under which installed packages offer modules.
GROUP = "opencil.plugins"
_importing: ContextVar[str] = ContextVar("importing", default="")
_place = attrgetter("__module__", "__qualname__")


@dataclass(frozen=True)
class Paper:
    """Where a method was published."""

    title: str
    year: int
    arxiv: str | None = None
    url: str = ""

    @property
    def link(self) -> str:
        """Return ``url``, or arXiv's, or an empty string."""
        return self.url or (f"https://arxiv.org/abs/{self.arxiv}" if self.arxiv else "")


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A registered name with its class or function and its description."""

    name: str
    make: Callable[..., T]
    paper: Paper | None
    plugin: str = ""  #: plugin that registered it; '' if built in

    @property
    def about(self) -> str:
        """Return the first line of the docstring."""
        return (inspect.getdoc(self.make) or "").split("\n")[0]

    @property
    def title(self) -> str:
        """Return the name as its paper writes it: ``title`` of the class, or the class's name if alike."""
        written = self.make.__name__
        same = written.lower() == re.sub("[-_]", "", self.name)
        return str(vars(self.make).get("title", written if same else self.name))

    @property
    def named(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the presets of the class: values by label."""
        presets: Mapping[str, Mapping[str, Any]] = getattr(self.make, "named", {})
        return presets


class Registry(Generic[T]):
    """Names of one kind of object.

    ``home`` is the package whose modules register the built-in ones; ``base`` names the class of ``opencil``
    that all must subclass, if any; ``paper`` are the names that the OpenCIL paper has; ``aliases`` are names
    that other libraries use, in lower case, with ours; ``default`` are those of a config that chooses none.
    """

    def __init__(
        self,
        kind: str,
        home: str,
        base: str = "",
        paper: Collection[str] = (),
        aliases: Mapping[str, str] | None = None,
        default: Sequence[str] = (),
    ) -> None:
        self.kind, self.home, self.base, self.paper = kind, home, base, frozenset(paper)
        self.aliases, self.default = aliases or {}, default
        self._entries: dict[str, Entry[T]] = {}

    def register(self, name: str, *, paper: Paper | None = None) -> Callable[[Target], Target]:
        """Return a class or function decorator to add ``name``; a name can be taken once."""
        if not re.fullmatch(_NAME, name) or name in (_ALL, _PAPER):
            raise BadInput(f"{self.kind} name {name!r} is not usable: allowed are a-z, 0-9, - and _")

        def add(make: Target) -> Target:
            self._check_contract(name, make)
            taken = self._entries.get(name)
            # A notebook cell that is run twice replaces its own definition.
            if taken and _place(taken.make) != _place(make):
                by = taken.plugin or taken.make.__module__
                raise BadInput(f"{self.kind} {name!r} is already registered by {by}")
            self._entries[name] = Entry(name, make, paper, _importing.get())
            if inspect.isclass(make):
                make.registered_name = name  # type: ignore[attr-defined]
            return make

        return add

    def _check_contract(self, name: str, make: Any) -> None:
        """Refuse a class that lacks its base or an abstract method, before any run needs them."""
        base = getattr(importlib.import_module("opencil"), self.base) if self.base else object
        if self.base and not (inspect.isclass(make) and issubclass(make, base)):
            raise BadInput(f"{self.kind} {name!r} is no subclass of opencil.{self.base}")
        if not isinstance(family := getattr(make, "family", ""), str):
            raise BadInput(f"{self.kind} {name!r} has the family {family!r}: a text is needed")
        if missing := sorted(getattr(make, "__abstractmethods__", ())):
            raise BadInput(f"{self.kind} {name!r} has no {', '.join(missing)}: opencil.{self.base} needs it")

    def names(self, pattern: str = "*") -> list[str]:
        """Return the names that match a shell pattern (``*norm*``) or are of a group (``paper``), sorted."""
        return self.groups().get(pattern) or sorted(fnmatch.filter(self._entries, self.translate(pattern)))

    def translate(self, name: str) -> str:
        """Return our name for another library's, as ``energy@warm`` for ``ebo@warm``, or the name."""
        self._load()
        known, at, label = name.partition("@")
        return name if known in self._entries else self.aliases.get(known.lower(), known) + at + label

    def refuse(self, name: str, also: Iterable[str] = (), hint: str = "") -> BadInput:
        """Return the error for an unknown name; it names a file of this folder that registers the name.

        ``also`` are other names that are allowed there; ``hint`` is a better suggestion than a similar name.
        """
        files = (path for path in sorted(Path().glob("*.py")) if path.is_file())
        pattern = re.compile(rf"register_\w+\(\s*['\"]{re.escape(name)}['\"]".encode())
        if found := next((path for path in files if pattern.search(path.read_bytes())), None):
            hint = f"; {found} registers it: give --plugin {found}"
        hint = hint or nearest(name, [*also, *self._entries, *self.aliases])
        listed = {"CIL method": "cil"}.get(self.kind, f"{self.kind}s")
        return unknown(self.kind, name, [*also, *self._entries], hint, f"opencil list {listed}")

    def groups(self) -> dict[str, list[str]]:
        """Return the groups and their names: ``all``, ``paper`` for the OpenCIL paper's, and every family."""
        self._load()
        known = sorted(self._entries)
        members = {_ALL: known} | ({_PAPER: [n for n in known if n in self.paper]} if self.paper else {})
        families = {name: getattr(self._entries[name].make, "family", "") for name in known}
        for family in sorted({*families.values()} - {"", *members, *known}):
            members[family] = [name for name in known if families[name] == family]
        return members

    def entry(self, name: str) -> Entry[T]:
        """Return the entry of ``name``, which may have a label: ``ber@nter`` is ``ber`` with other values."""
        self._load()
        if not isinstance(name, str):
            raise BadInput(f"{self.kind} {shown(name)} is a {type(name).__name__}: a name is needed")
        known, at, label = self.translate(name).partition("@")
        if known not in self._entries:
            raise self.refuse(known)
        if at and not re.fullmatch(_NAME, label):
            raise BadInput(f"{self.kind} {name!r} has no usable label: allowed are a-z, 0-9, - and _")
        return self._entries[known]

    def plugin_of(self, name: str) -> str:
        """Return the plugin that registered ``name``; '' if built in or unknown."""
        self._load()
        known = self._entries.get(name.partition("@")[0])
        return known.plugin if known else ""

    def forget(self, plugin: str) -> None:
        """Drop the names that a plugin registered, before it is imported again."""
        for name in [name for name, entry in self._entries.items() if entry.plugin == plugin]:
            del self._entries[name]

    def attribute(self, module: str, plugin: str) -> None:
        """Set the plugin of all names that a module registered, whenever it was imported."""
        for name, entry in self._entries.items():
            if entry.make.__module__ == module:
                self._entries[name] = replace(entry, plugin=plugin)

    def preset(self, name: str) -> Mapping[str, Any]:
        """Return the values that the method ships under ``name``'s label, or none."""
        return self.entry(name).named.get(name.partition("@")[2], {})

    def defaults(self, name: str) -> dict[str, Any]:
        """Return all values of a method, plain: its defaults with its label's preset laid on them."""
        from opencil.validation import build, merge, plain  # pydantic: only when an object is created

        make = cast(type, self.entry(name).make)
        values = plain(build(make, {}, where=name))
        return plain(build(make, merge(values, self.preset(name)), where=name))

    def create(self, name: str, **values: Any) -> T:
        """Create the object of a name, which it keeps as ``registered_name``: seeds depend on it."""
        from opencil.validation import build, check_arguments, merge

        make, name = self.entry(name).make, self.translate(name)
        if is_dataclass(make):
            values = merge(self.defaults(name), values) if self.preset(name) else values
            created = cast(T, build(make, values, where=name))
            object.__setattr__(created, "registered_name", name)  # frozen or not
            return created
        return make(**check_arguments(values, name, make))

    def _load(self) -> None:
        import_modules(self.home)
        load_plugins()


@contextmanager
def registered_by(plugin: str) -> Iterator[None]:
    """Attribute all that is registered inside the block to a plugin."""
    token = _importing.set(plugin)
    try:
        yield
    finally:
        _importing.reset(token)


@cache
def import_modules(package: str) -> None:
    """Import every module of a package, so that its methods register themselves."""
    module = importlib.import_module(package)
    for info in pkgutil.walk_packages(module.__path__, f"{package}."):
        importlib.import_module(info.name)


@cache
def load_plugins() -> None:
    """Import the modules that other installed packages offer."""
    for point in entry_points(group=GROUP):
        for registry in REGISTRIES:  # built-in methods are not to be attributed to the plugin
            import_modules(registry.home)
        module = point.value.partition(":")[0].strip()
        try:
            with registered_by(module):
                point.load()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise OpenCILError(not_imported(f"{point.name!r} ({point.value})", error)) from error


_LEARNERS_OF_PAPER = "bic foster icarl wa"
_DETECTORS_OF_PAPER = (
    "energy gen klm maxlogit msp nnguide odin react relation augmix ber logitnorm npos regmix t2fnorm vos"
)
#: Names of OpenOOD, and of the classes of pytorch-ood, for detectors with another name here.
_ALIASES = {
    "ebo": "energy",
    "energybased": "energy",
    "maxsoftmax": "msp",
    "mls": "maxlogit",
    "mds": "mahalanobis",
    "rmds": "relative-mahalanobis",
    "rmd": "relative-mahalanobis",
    "klmatching": "klm",
    "temp_scaling": "tempscale",
    "temperaturescaling": "tempscale",
}
LEARNERS: Registry[Any] = Registry(
    "CIL method", "opencil.cil", "Learner", _LEARNERS_OF_PAPER.split(), default=["icarl"]
)
DETECTORS: Registry[Any] = Registry(
    "detector", "opencil.detectors", "Detector", _DETECTORS_OF_PAPER.split(), _ALIASES, ["msp", "energy"]
)
DATASETS: Registry[Any] = Registry("dataset", "opencil.data", "Dataset")
BACKBONES: Registry[Any] = Registry("backbone", "opencil.nets")
METRICS: Registry[Any] = Registry("metric", "opencil.evaluation")
REGISTRIES = (LEARNERS, DETECTORS, DATASETS, BACKBONES, METRICS)

register_learner = LEARNERS.register
register_detector = DETECTORS.register
register_dataset = DATASETS.register
register_backbone = BACKBONES.register
