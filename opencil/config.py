"""The unified YML: every value that a command will use, checked before anything runs.

A config is made in layers, each laid on the one below: the methods' own defaults, the benchmark's shipped
file, the user's YML, the command line's flags, its ``--set``. Under ``cil`` and ``detector`` the name ``*``
stands for every method that has the value.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml

from opencil.data.images import Store
from opencil.data.memory import quota
from opencil.data.own_dataset import OwnDataset
from opencil.data.roles import OOD_ROLES, ROLES, SHIFTED, Role
from opencil.data.shifted import ShiftedSet
from opencil.data.stream import StepSizes
from opencil.data.transforms import Transform
from opencil.engine.arithmetic import Arithmetic
from opencil.errors import BadInput, meant, nearest, unknown
from opencil.nets.create import COMMON, Named, checked, pinned
from opencil.plugins import is_file, load_plugin
from opencil.registry import DATASETS, DETECTORS, LEARNERS, METRICS, Registry
from opencil.validation import (
    Bound,
    Count,
    Key,
    NonNegative,
    Values,
    Whole,
    build,
    keys_below,
    merge,
    misplaced,
    names_of,
    parse_size,
    plain,
    without,
)

T = TypeVar("T")
Seed = Annotated[int, Bound(ge=0, lt=2**32)]  # what numpy's generators take


@dataclass(frozen=True)
class BenchmarkConfig(Values):
    """A benchmark: ID data in steps, OOD data near and far, the network and what it reads."""

    name: str
    id: str
    near: tuple[str, ...]
    far: tuple[str, ...]
    image_size: Count
    transform: Transform
    backbone: Named
    memory: Count
    classes_per_step: tuple[Count | str, ...]  #: each a grid of its own: 10, 50+10 or 20-20-10
    batch_size: Count = 128
    ood_order: Literal["permutation", "list"] = "permutation"
    datasets: dict[str, OwnDataset] = field(default_factory=dict)  # the user's own, by name
    shifted: dict[str, ShiftedSet] = field(default_factory=dict)  # ID test images under a shift, by name

    def __post_init__(self) -> None:
        if not self.name or not all(c.isalnum() or c in "-_" for c in self.name):
            raise ValueError(f"name = {self.name!r} is not allowed: letters, digits, - and _ are")
        if not self.near + self.far:
            raise ValueError("near and far are both empty: at least one OOD dataset is needed")
        try:
            steps = tuple(StepSizes.parse(value).label for value in self.classes_per_step)
        except BadInput as error:
            raise ValueError(str(error)) from None
        if not steps or len(set(steps)) < len(steps):
            raise ValueError(
                f"classes_per_step = {list(steps)} is not allowed: numbers are needed, each once, for a grid "
                "each; the sizes of the steps of one grid are written as 20-20-10"
            )
        object.__setattr__(self, "classes_per_step", steps)
        twice = {name for name in self.near + self.far if (self.near + self.far).count(name) > 1}
        if twice:
            raise ValueError(
                f"near and far name {', '.join(sorted(twice))} twice: each OOD dataset goes in one of them"
            )
        side = self.transform.resize or self.image_size
        if self.transform.crop > side:
            raise ValueError(
                f"transform.crop = {self.transform.crop} is not allowed: it should be at most {side}, "
                f"the size of the images"
            )
        for name in self.datasets:
            if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name) or name in DATASETS.names():
                raise ValueError(
                    f"datasets: the name {name!r} is not allowed: lower-case letters, digits, - _ . are, and "
                    "the names of 'opencil list datasets' are taken"
                )
        for name in self.shifted:
            if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name) or name in (self.id, *self.ood):
                raise ValueError(
                    f"shifted: the name {name!r} is not allowed: lower-case letters, digits, - _ . are, and "
                    "the names of other sets are taken"
                )
        for key, names in (("id", (self.id,)), ("near", self.near), ("far", self.far)):
            for name in names:
                if name not in self.datasets:
                    _known(DATASETS, name, key, tuple(self.datasets))
        object.__setattr__(self, "backbone", checked(self.backbone))
        if self.id in self.datasets:
            if not self.datasets[self.id].has_train:
                raise ValueError(
                    f"id = {self.id!r} has no training images: datasets.{self.id}.train is missing"
                )
            return
        classes = getattr(DATASETS.entry(self.id).make, "classes", None)
        if classes is not None:
            self.check_classes(classes)

    @property
    def ood(self) -> dict[str, Role]:
        """The OOD sets with their roles."""
        return {name: role for role in OOD_ROLES for name in getattr(self, role)}

    def check_classes(self, classes: int) -> None:
        """Refuse values that do not fit the number of classes; called again when the data tell it."""
        for k in self.classes_per_step:
            if isinstance(k, int) and k > classes:
                raise BadInput(
                    f"classes_per_step = {k} is not allowed: 1 to {classes} are, the classes of {self.id!r}"
                )
            StepSizes.parse(k).of(classes)
        quota(self.memory, classes)


@dataclass(frozen=True)
class SeedConfig(Values):
    """The runs' seeds, and which seed each random choice takes: a number, or ``run`` for the run's own."""

    runs: tuple[Seed, ...] = (0,)
    class_order: Seed | Literal["run"] = 1993
    initialisation: Seed | Literal["run"] = "run"
    data_order: Seed | Literal["run"] = "run"
    ood_subset: Seed | Literal["run"] = "run"

    def __post_init__(self) -> None:
        if not self.runs or len(set(self.runs)) < len(self.runs):
            raise ValueError(f"runs = {list(self.runs)} is not allowed: seeds are needed, each of them once")


@dataclass(frozen=True)
class PlaceConfig(Values):
    """Where a command reads, writes and computes: nothing here changes a result's meaning."""

    data_root: str | None = None
    cache: str | None = None  #: of prepared images: $OPENCIL_CACHE, or .opencil-cache in the data root
    store: Store = "auto"  #: images on the device, or streamed from disk
    resident_mb: Count = 1024  #: auto streams what is larger
    workers: Count | None = None  #: threads that decode images
    threads: Count | None = None  #: that a CPU computes with: as many as torch takes
    runs: str = "runs"
    outputs: str | None = None  #: folder of models' outputs: .outputs in the folder of runs
    outputs_limit: Whole | str = "2GB"  #: the most that it may hold, in bytes or as 2GB; 0: keep none
    checkpoint_seconds: NonNegative = 60.0  #: the least time between two checkpoints of a step
    device: str = "auto"
    pack: Count = 1  #: runs that advance together on one GPU
    tensorboard: str | None = None  #: folder for training curves; needs the extra of that name

    def __post_init__(self) -> None:
        for name in ("data_root", "cache", "runs", "outputs", "tensorboard"):
            if (path := getattr(self, name)) is not None:  # a shell expands ~ outside quotes, a file never
                home = os.path.expanduser(path)  # noqa: PTH111 - pathlib fails on the home of nobody
                object.__setattr__(self, name, home)
        if not self.runs:
            raise ValueError("runs = '' is not allowed: it should name a folder")
        try:
            parse_size(self.outputs_limit)
        except BadInput as error:
            raise ValueError(f"outputs_limit: {error}") from None

    @property
    def outputs_folder(self) -> Path:
        """Where models' outputs are kept."""
        return Path(self.outputs) if self.outputs else Path(self.runs) / ".outputs"


@dataclass(frozen=True)
class Config:
    """A whole command, resolved. ``cil`` and ``detector`` hold every value of every method, by name."""

    benchmark: BenchmarkConfig
    cil: dict[str, dict[str, Any]]
    detector: dict[str, dict[str, Any]]
    training: Arithmetic = field(default_factory=Arithmetic)
    seed: SeedConfig = field(default_factory=SeedConfig)
    place: PlaceConfig = field(default_factory=PlaceConfig)
    metric: tuple[str, ...] = ()  #: measured beside the standard ones
    plugins: tuple[str, ...] = ()  #: files and modules that register names: imported before these are read

    def detectors_of(self, method: str) -> dict[str, dict[str, Any]]:
        """The detectors that a CIL method can have."""
        return self.detectors_for(LEARNERS.entry(method).make.revisits)  # type: ignore[attr-defined]

    def detectors_for(self, revisits: bool) -> dict[str, dict[str, Any]]:
        """Those of a method that sees old images again, or of one that does not: some draw on them."""
        return {
            name: values
            for name, values in self.detector.items()
            if revisits or not DETECTORS.entry(name).make.needs_old  # type: ignore[attr-defined]
        }

    def to_yaml(self) -> str:
        """The YML that gives this config again."""
        return dump_yaml(plain(self))


SECTIONS = tuple(f.name for f in fields(Config))
_FLAGS = ("benchmark", "cil", "detector", "metric", "seed")  # sections with a flag of their name
#: The sections that hold methods by name.
METHODS: dict[str, Registry[Any]] = {"cil": LEARNERS, "detector": DETECTORS}


def config_keys() -> Iterator[Key]:
    """Every key that a config can have, but for names of the user's own."""
    for section in fields(Config):
        yield (section.name,)
        yield from ((section.name, *key) for key in keys_below(section.type))
    yield from (("benchmark", "backbone", name) for name in COMMON)
    for kind, registry in METHODS.items():
        for name in registry.names():
            yield kind, name
            yield from ((kind, name, *key) for key in keys_below(registry.entry(name).make))


def _guess(written: Key, wrong: int = -1) -> list[str]:
    """The keys that somebody may have meant by one whose part at ``wrong`` is unknown there.

    What several methods have stands under ``*``.
    """
    known = [part.partition("@")[0] for part in written]
    # A labelled method is sought by its name, and told with its label.
    labels = dict(zip(known, written, strict=True))
    found = [key for key in misplaced(known, config_keys(), wrong) if key != tuple(known)]
    methods = [key for key in found if key[0] in METHODS and len(key) > 2 and key[1] not in known]
    others = {key: [k for k in methods if (k[0], *k[2:]) == (key[0], *key[2:])] for key in methods}
    told = [(key[0], "*", *key[2:]) if len(others.get(key, ())) > 1 else key for key in found]
    told.sort(key=lambda key: "*" not in key)
    return [".".join(labels.get(part, part) for part in key) for key in dict.fromkeys(told)]


def _guess_outside(written: Key) -> list[str]:
    """The same for a key in no section, which may be misspelt too; nothing where a section is."""
    found = _guess(written, wrong=0)
    if found or get_close_matches(written[0], SECTIONS, cutoff=0.7):
        return found
    ends = {key[-1]: key for key in config_keys()}
    close = get_close_matches(written[-1], ends, n=1, cutoff=0.8)
    if not close:
        return []
    return _guess((*written[:-1], *close), wrong=0) or [".".join(ends[name]) for name in close]


def list_benchmarks() -> list[str]:
    """Names of the benchmarks that come with the package."""
    return sorted(
        Path(f.name).stem for f in resources.files("opencil.configs").iterdir() if f.name.endswith(".yml")
    )


def resolve(
    user: Mapping[str, Any] | None = None,
    *,
    flags: Mapping[str, Any] | None = None,
    cil: Sequence[str] | None = None,
    detector: Sequence[str] | None = None,
    settings: Iterable[str] = (),
) -> Config:
    """A config from a YML's content, the flags laid on it, the methods chosen, and ``key=value`` settings.

    Where no method is chosen, those that the flags or else the YML name are used; where these name none, all.
    """
    written, top = _normal(user or {}), _overlay(settings)
    layers = [written, _normal(flags or {}), top]
    plugins = tuple(dict.fromkeys(plugin for layer in layers for plugin in layer.get("plugins", ())))
    for plugin in plugins:
        load_plugin(plugin)
    name = next((n for layer in reversed(layers) if (n := layer.get("benchmark", {}).get("name"))), "digits")
    written_name = written.get("benchmark", {}).get("name", name)
    if written_name != name and set(written["benchmark"]) > {"name"}:
        raise BadInput(f"benchmark {name!r} is asked for, and the YML describes {written_name!r}: choose one")
    if name in list_benchmarks():
        layers.insert(
            0, _normal(parse_yaml((resources.files("opencil.configs") / f"{name}.yml").read_text(), name))
        )
    elif not any(set(layer.get("benchmark", {})) - {"name"} for layer in layers):
        raise unknown("benchmark", str(name), list_benchmarks())

    def section(cls: type[T], key: str) -> T:
        values: dict[str, Any] = {}
        for layer in layers:
            over = layer.get(key, {})
            values = merge(_left_below(values, over), over)
        return build(cls, values, where=key, guess=_guess)

    def named(key: str) -> list[str]:
        by_flags = [name for name in layers[-2].get(key, {}) if name != "*"]  # which stands for those named
        return by_flags or list(written.get(key, {}))

    benchmark = section(BenchmarkConfig, "benchmark")
    config = Config(
        benchmark=replace(benchmark, backbone=pinned(benchmark.backbone)),
        cil=_methods(LEARNERS, "cil", layers, cil or named("cil"), top),
        detector=_methods(DETECTORS, "detector", layers, detector or named("detector"), top),
        training=section(Arithmetic, "training"),
        seed=section(SeedConfig, "seed"),
        place=section(PlaceConfig, "place"),
        metric=next((tuple(layer["metric"]) for layer in reversed(layers) if "metric" in layer), ()),
        plugins=plugins,
    )
    for name in config.metric:
        if name not in METRICS.names():
            raise unknown("metric", name, METRICS.names())
    if config.detector and not any(config.detectors_of(method) for method in config.cil):
        raise BadInput(
            f"{', '.join(config.cil)} sees no images of old classes again, and {', '.join(config.detector)} "
            "draw on them: choose post-hoc detectors, or a CIL method with a memory"
        )
    return config


def _methods(
    registry: Registry[Any],
    key: str,
    layers: list[dict[str, Any]],
    chosen: Sequence[str],
    top: dict[str, Any],
) -> dict[str, dict[str, Any]]:
    """All values of the chosen methods: each layer is laid on a method that the layers below have made."""
    sections: list[dict[str, Any]] = [layer.get(key, {}) for layer in layers]
    groups = registry.groups()
    somewhere = {value for name in registry.names() for value in names_of(registry.entry(name).make)}
    for value in [v for section in sections for v in section.get("*", {}) if v not in somewhere]:
        raise BadInput(
            f"{key}.*.{value} is unknown: no {registry.kind} has it"
            f"{meant(_guess((key, '*', str(value)))) or nearest(str(value), somewhere)}"
        )
    for section in (dict.fromkeys(chosen), *sections):
        for name in [n for n in section if n not in ("*", *groups)]:  # refused if unknown, chosen or not
            if (known := name.partition("@")[0]) not in registry.names():
                places = _guess(_path(key, content={known: section[name]}), wrong=1)
                raise unknown(registry.kind, known, registry.names(), places, groups)
            registry.entry(name)
    for group in groups:
        if any(section.get(group) for section in sections):
            raise BadInput(f"{key}.{group} takes no values: {key}.* stands for every method")
    made = {}
    for name in registry.chosen([name for name in chosen if name != "*"] or ["all"]):
        cls = registry.entry(name).make
        values, named = registry.defaults(name), registry.named_values(name)
        # A labelled method, ber@nter, begins with what is said of ber; what its label stands for stays.
        known = name.partition("@")[0]
        keys = dict.fromkeys(("*", known, name))
        for n, values_here in ((n, section.get(n, {})) for section in sections for n in keys):
            if n == "*":  # for the methods that have the value
                values_here = {v: values_here[v] for v in values_here if v in names_of(cls)}
            if values_here := without(values_here, named if n == known else {}):
                values = plain(build(cls, merge(values, values_here), f"{key}.{name}", _guess))  # type: ignore[arg-type]
        made[name] = values
    # A setting for a method that is not run, or for what a label fixes, would be lost without a word.
    for name, values in top.get(key, {}).items():
        labels = [n for n in made if n.partition("@")[0] == name]
        used = any(without(values, registry.named_values(n)) == values for n in labels)
        if name not in ("*", *made) and not used:
            fixed = f"; what is fixed by a label is set as {key}.{labels[0]}" if labels else ""
            raise BadInput(
                f"setting {key}.{name} has no use: the {registry.kind}s to run are {', '.join(made)}{fixed}"
            )
    return made


def _known(registry: Registry[Any], name: str, key: str, others: tuple[str, ...] = ()) -> None:
    if name not in registry.names():
        raise ValueError(f"{key}: {unknown(registry.kind, name, (*registry.names(), *others))}")


def _overlay(settings: Iterable[str]) -> dict[str, Any]:
    """``["cil.icarl.epochs=5"]`` as nested mappings, short forms written out; values are YML."""
    top: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        path = key.strip().split(".")
        if not equals or not all(path) or len(path) < 2:
            if equals and path[0] and path[0] not in SECTIONS:
                raise unknown("config section", path[0], SECTIONS, _guess_outside((path[0],)))
            if equals and path[0] in SECTIONS and len(path) == 1:
                flag = f"; did you mean --{path[0]} {text}?" if path[0] in _FLAGS else ""
                raise BadInput(
                    f"setting {setting!r} is of a whole section: allowed is one value of it, say "
                    f"cil.icarl.epochs=5{flag}"
                )
            raise BadInput(
                f"setting {setting!r} is not understood: allowed is key=value, say cil.icarl.epochs=5"
            )
        value = _parse(text, f"setting {setting!r}")
        for part in reversed(path):
            value = {part: value}
        top = merge(top, _normal(value))
    return top


def _path(*above: str, content: Mapping[str, Any]) -> Key:
    """The key of a content, as deep as it has but one value."""
    ((name, value),) = content.items()
    single = isinstance(value, dict) and len(value) == 1
    return _path(*above, name, content={str(n): v for n, v in value.items()}) if single else (*above, name)


def _normal(content: Mapping[str, Any]) -> dict[str, Any]:
    """A config's content with its short forms written out: ``cil: icarl,wa``, ``benchmark: digits``."""
    normal: dict[str, Any] = {}
    for key, value in content.items():
        if key not in SECTIONS:
            raise unknown(
                "config section", str(key), SECTIONS, _guess_outside(_path(content={str(key): value}))
            )
        if value is None:
            continue
        if key == "metric":
            listed = value.replace(",", " ").split() if isinstance(value, str) else value
            if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
                raise BadInput(f"metric = {value!r} is not allowed: it should be a list of names")
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
                        raise BadInput(f"{key} names {n!r}, which is no name: quote it if it is one")
                    if not isinstance(v, dict):
                        raise BadInput(
                            f"{key}.{n} = {v!r} is not allowed: it should be a mapping of names to values"
                            f"{meant(_guess((key, n)))}"
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
                f"{key} = {value!r} is not allowed: it should be {names_too}a mapping of names to values"
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
            f"plugins = {value!r} is not allowed: it should be a list of Python files or modules, say "
            "[my_method.py]"
        )
    return [str(name) for name in listed]


def _left_below(values: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
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
            f"benchmark.sets = {benchmark['sets']!r} is not allowed: it should be a list of sets, each with "
            f"a name and a role, in place of {', '.join(ROLES)}"
        )
    sets: dict[str, dict[str, Any]] = {role: {} for role in ROLES}
    for entry in benchmark["sets"]:
        values = dict(entry) if isinstance(entry, dict) else {}
        name, role = values.pop("name", None), values.pop("role", None)
        if role not in ROLES or not isinstance(name, str) or (values and role != SHIFTED):
            raise BadInput(
                f"benchmark.sets has {entry!r}, which is not allowed: a name and a role are needed, one of "
                f"{', '.join(ROLES)}; only shifted sets have values of their own"
            )
        if any(name in named for named in sets.values()):
            raise BadInput(f"benchmark.sets names {name!r} twice: each set has one role and one name")
        sets[role][name] = values
    return normal | {role: named if role == SHIFTED else list(named) for role, named in sets.items()}


def read_yaml(path: Path) -> dict[str, Any]:
    """A YML file's mapping; a broken one is an error that names the place.

    The files among its plugins, which it names as they lie from where it lies, are named as from here.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise BadInput(f"config file {path} cannot be read: {why}") from None
    content = parse_yaml(text, str(path))
    if isinstance(content.get("plugins"), str | list):  # a stored run has notes on them, by name
        content["plugins"] = [_from(path.parent, plugin) for plugin in _plugins(content["plugins"])]
    return content


def _from(folder: Path, plugin: str) -> str:
    return os.path.normpath(folder / Path(plugin).expanduser()) if is_file(plugin) else plugin


def parse_yaml(text: str, source: str) -> dict[str, Any]:
    """A YML text's mapping; ``source`` names it in errors."""
    content = _parse(text, source)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise BadInput(
            f"{source} holds {type(content).__name__}, not sections: allowed are {', '.join(SECTIONS)}"
        )
    return content


def dump_yaml(values: Mapping[str, Any]) -> str:
    """A mapping as YML, keys in their order, short lists on one line."""
    return yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def _parse(text: str, source: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        told = ": ".join(" ".join(part.split()) for part in (error.context, error.problem) if part)
        raise BadInput(f"{source} is not valid YML: {told}{place}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: an impossible date
        raise BadInput(f"{source} is not valid YML: {' '.join(str(error).split())}") from None


class _Loader(yaml.SafeLoader):
    """YML as people mean it: 2e-4 is a number, and a key given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping, unless a key stands in it twice."""
        explicit = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        keys = [self.construct_object(key, deep=True) for key in explicit]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} stands here twice", node.start_mark
                )
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


class _Dumper(yaml.SafeDumper):
    """Lists of plain values on one line."""


def _represent_list(dumper: yaml.SafeDumper, values: list[Any]) -> yaml.SequenceNode:
    flow = not any(isinstance(v, (list, dict)) for v in values)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=flow)


_Dumper.add_representer(list, _represent_list)
for _yaml in (_Loader, _Dumper):  # the dumper too: a text that reads as a number must be quoted
    _yaml.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
    )
