"""One decorator registry for learners, detectors, datasets, backbones and metrics.

A method registers itself where it is defined; a registry imports its own package, and the plugins that are
installed beside us, when it is first asked. So a new method is one new file, ours or somebody else's; those
that are given by name (``--plugin``) are imported by ``opencil.plugins``.
"""

import fnmatch
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, is_dataclass, replace
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from opencil.errors import BadInput, OpenCILError, not_imported, unknown

T = TypeVar("T")
Target = TypeVar("Target", bound=Callable[..., Any])


_NAME = "[a-z0-9][a-z0-9_-]*"
#: Words for several names, which no single thing can have: all there are, and those of the OpenCIL paper.
_ALL, _PAPER = "all", "paper"
#: The entry points under which packages that are installed beside us offer modules.
GROUP = "opencil.plugins"
_importing: ContextVar[str] = ContextVar("importing", default="")


@dataclass(frozen=True)
class Paper:
    """Where a method was published."""

    title: str
    year: int
    arxiv: str | None = None
    url: str = ""

    @property
    def link(self) -> str:
        """Its address: ``url``, or arXiv's, or an empty string."""
        return self.url or (f"https://arxiv.org/abs/{self.arxiv}" if self.arxiv else "")


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A registered name: what it makes, and what there is to say about it."""

    name: str
    make: Callable[..., T]
    paper: Paper | None
    plugin: str = ""  #: whose import registered it, as the plugin was given; empty for ours

    @property
    def about(self) -> str:
        """First line of the docstring."""
        return (inspect.getdoc(self.make) or "").split("\n")[0]

    @property
    def title(self) -> str:
        """How its paper writes its name: its own ``title``, or its class's name where that says the same."""
        written = self.make.__name__
        same = written.lower() == re.sub("[-_]", "", self.name)
        return str(vars(self.make).get("title", written if same else self.name))

    @property
    def equation(self) -> str:
        """What it computes, in LaTeX: its own ``equation``, since a subclass computes something else."""
        return str(vars(self.make).get("equation", ""))

    @property
    def differs(self) -> list[str]:
        """What its class, and then its bases for their whole family, say in ``differs``."""
        classes = inspect.getmro(self.make) if inspect.isclass(self.make) else ()
        return [note for note in (vars(c).get("differs", "") for c in classes) if note]

    @property
    def named(self) -> Mapping[str, Mapping[str, Any]]:
        """Sets of values that it ships, by label: ``named`` of its class."""
        named: Mapping[str, Mapping[str, Any]] = getattr(self.make, "named", {})
        return named


class Registry(Generic[T]):
    """Names of one kind of thing.

    ``home`` is the package whose modules register ours; ``base`` names the class of ``opencil``
    that all must be of, if any; ``paper`` are the names that the OpenCIL paper has.
    """

    def __init__(self, kind: str, home: str, base: str = "", paper: Collection[str] = ()) -> None:
        self.kind = kind
        self.home = home
        self.base = base
        self.paper = frozenset(paper)
        self._entries: dict[str, Entry[T]] = {}

    def register(self, name: str, *, paper: Paper | None = None) -> Callable[[Target], Target]:
        """Class or function decorator that adds ``name``; a name can be taken once."""
        if not re.fullmatch(_NAME, name) or name in (_ALL, _PAPER):
            raise BadInput(
                f"{self.kind} name {name!r} is not usable: allowed are lower-case letters, digits, - and _; "
                f"{_ALL!r} and {_PAPER!r} have meanings of their own"
            )

        def add(make: Target) -> Target:
            self._refuse_incomplete(name, make)
            taken = self._entries.get(name)
            # The same definition again (a notebook cell run twice, a reload) replaces itself.
            if taken and (taken.make.__module__, taken.make.__qualname__) != (
                make.__module__,
                make.__qualname__,
            ):
                by = taken.plugin or taken.make.__module__
                raise BadInput(f"{self.kind} {name!r} is already registered by {by}")
            self._entries[name] = Entry(name, make, paper, _importing.get())
            if inspect.isclass(make):
                _leave_name(make, name)
            return make

        return add

    def _refuse_incomplete(self, name: str, make: Any) -> None:
        """What all code takes for granted is asked for here, and not in the midst of a run."""
        if not self.base:
            return
        what, base = f"{self.kind} {name!r}", getattr(importlib.import_module("opencil"), self.base)
        if not inspect.isclass(make) or not issubclass(make, base):
            called = getattr(make, "__name__", "Mine")
            raise BadInput(f"{what} is no opencil.{self.base}: write class {called}(opencil.{self.base})")
        if missing := sorted(getattr(make, "__abstractmethods__", ())):
            raise BadInput(f"{what} has no {', '.join(missing)}: every opencil.{self.base} defines that")

    def names(self, pattern: str = "*") -> list[str]:
        """Registered names that match a shell pattern (``*norm*``) or are of a group (``paper``), sorted."""
        self._load()
        return self.groups().get(pattern) or sorted(fnmatch.filter(self._entries, pattern))

    def groups(self) -> dict[str, list[str]]:
        """Words for several names: ``all``, ``paper`` for the OpenCIL paper's, and every family."""
        self._load()
        known = sorted(self._entries)
        members = {_ALL: known} | ({_PAPER: [n for n in known if n in self.paper]} if self.paper else {})
        families = {name: getattr(self._entries[name].make, "family", "") for name in known}
        for family in sorted({*families.values()} - {"", *members, *known}):
            members[family] = [name for name in known if families[name] == family]
        return members

    def chosen(self, names: Iterable[str]) -> list[str]:
        """Names with groups among them written out, each once."""
        groups = self.groups()
        return list(dict.fromkeys(n for name in names for n in groups.get(name, [name])))

    def entry(self, name: str) -> Entry[T]:
        """The entry of ``name``; an unknown name is an error that offers the nearest.

        A name may carry a label, ``ber@nter``: the same thing under values of its own, the user's or, where
        the method ships some under that label, those.
        """
        self._load()
        known, at, label = name.partition("@")
        if known not in self._entries:
            raise unknown(self.kind, known, self._entries)
        if at and not re.fullmatch(_NAME, label):
            raise BadInput(
                f"{self.kind} {name!r} has no usable label: lower-case letters, digits, - and _ come after "
                f"{known}@"
            )
        return self._entries[known]

    def plugin_of(self, name: str) -> str:
        """The plugin that registered ``name``; empty where we did, or nobody."""
        self._load()
        known = self._entries.get(name.partition("@")[0])
        return known.plugin if known else ""

    def forget(self, plugin: str) -> None:
        """Drop what a plugin registered, before it is imported again."""
        for name in [name for name, entry in self._entries.items() if entry.plugin == plugin]:
            del self._entries[name]

    def attribute(self, module: str, plugin: str) -> None:
        """Note a plugin as the one that registered what is defined in its module, imported before or now."""
        for name, entry in self._entries.items():
            if entry.make.__module__ == module:
                self._entries[name] = replace(entry, plugin=plugin)

    def named_values(self, name: str) -> Mapping[str, Any]:
        """What ``name``'s label stands for: values that the method ships under it, or none."""
        return self.entry(name).named.get(name.partition("@")[2], {})

    def defaults(self, name: str) -> dict[str, Any]:
        """All values of a method, plain: its defaults, and on them what its label stands for."""
        from opencil.validation import build, merge, plain  # pydantic: only when something is created

        make = cast(type, self.entry(name).make)
        values = plain(build(make, {}, where=name))
        named = self.named_values(name)
        return plain(build(make, merge(values, named), where=name)) if named else values

    def create(self, name: str, **values: Any) -> T:
        """Make the thing called ``name``; unknown or impossible values are refused with a sentence.

        It keeps the name, with its label, as ``registered_name``: seeds follow from that.
        """
        made = self._made(name, values)
        _leave_name(made, name)
        return made

    def _made(self, name: str, values: dict[str, Any]) -> T:
        make = self.entry(name).make
        if is_dataclass(make):
            from opencil.validation import build, merge

            if self.named_values(name):
                values = merge(self.defaults(name), values)
            return cast(T, build(make, values, where=name))
        return make(**self.check(name, values, where=name))

    def check(
        self, name: str, values: Mapping[str, Any], where: str, beside: Collection[str] = ()
    ) -> dict[str, Any]:
        """Values that a registered function, or a class that is no dataclass, can be called with.

        ``beside`` are names that stand beside them and are not its own.
        """
        from opencil.validation import arguments

        return arguments(self.entry(name).make, values, where, beside)

    def _load(self) -> None:
        import_modules(self.home)
        load_plugins()


def _leave_name(thing: Any, name: str) -> None:
    """Note on a class or an instance what it is registered as; what has no room for it stays as it is."""
    with suppress(AttributeError, TypeError):
        (type if inspect.isclass(thing) else object).__setattr__(thing, "registered_name", name)


@contextmanager
def registered_by(plugin: str) -> Iterator[None]:
    """Note a plugin with all that is registered inside the block."""
    token = _importing.set(plugin)
    try:
        yield
    finally:
        _importing.reset(token)


@cache
def import_modules(package: str) -> None:
    """Import every module of a package, so that what stands there registers itself."""
    module = importlib.import_module(package)
    for info in pkgutil.walk_packages(module.__path__, f"{package}."):
        importlib.import_module(info.name)


@cache
def load_plugins() -> None:
    """Import what other installed packages offer."""
    for point in entry_points(group=GROUP):
        for registry in REGISTRIES:  # ours come first: what they import of them is not theirs
            import_modules(registry.home)
        module = point.value.partition(":")[0].strip()
        try:
            with registered_by(module):
                point.load()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            for registry in REGISTRIES:
                registry.forget(module)
            why = not_imported(f"{point.name!r} ({point.value})", file_of(module), error)
            raise OpenCILError(str(why)) from error


def file_of(module: str) -> Path | None:
    """The file that a module would be imported from, where it has one; nothing is imported for it."""
    parts = module.split(".")
    file: Path | None = None
    folders: list[str] | None = None
    for depth in range(len(parts)):
        name = ".".join(parts[: depth + 1])
        spec = next(filter(None, (finder.find_spec(name, folders) for finder in sys.meta_path)), None)
        if spec is None:
            break
        file = Path(spec.origin) if spec.has_location and spec.origin else None
        folders = spec.submodule_search_locations
        if folders is None:
            break
    return file


LEARNERS: Registry[Any] = Registry(
    "CIL method", "opencil.cil", "Learner", paper=("bic", "foster", "icarl", "wa")
)
DETECTORS: Registry[Any] = Registry(
    "detector",
    "opencil.detectors",
    "Detector",
    paper=(
        *("energy", "gen", "klm", "maxlogit", "msp", "nnguide", "odin", "react", "relation"),
        *("augmix", "ber", "logitnorm", "npos", "regmix", "t2fnorm", "vos"),
    ),
)
DATASETS: Registry[Any] = Registry("dataset", "opencil.data", "Dataset")
BACKBONES: Registry[Any] = Registry("backbone", "opencil.nets")
METRICS: Registry[Any] = Registry("metric", "opencil.evaluation")
REGISTRIES = (LEARNERS, DETECTORS, DATASETS, BACKBONES, METRICS)

register_learner = LEARNERS.register
register_detector = DETECTORS.register
register_dataset = DATASETS.register
register_backbone = BACKBONES.register
