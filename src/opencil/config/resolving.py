"""Lay the layers of a config on each other and check every value."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from typing import Any, TypeVar

from opencil.config.sections import BenchmarkConfig, Config, PlaceConfig, SeedConfig, suggest_key
from opencil.config.short_forms import below, expand, expand_settings, list_names, parse_yaml
from opencil.engine.arithmetic import Arithmetic
from opencil.errors import BadInput, nearest, not_allowed, unknown
from opencil.nets.create import pin_weights, preprocessing
from opencil.plugins import load_plugin
from opencil.registry import DETECTORS, LEARNERS, METRICS, Registry
from opencil.validation import build, merge, names_of, plain, subtract

T = TypeVar("T")
Layer = dict[str, Any]
#: Presets of a whole config: values of its benchmark, and the label under which methods have theirs.
_PRESETS: dict[str, tuple[Layer, str]] = {"": ({}, ""), "paper": ({"ood_order": "list"}, "released")}


def list_benchmarks() -> list[str]:
    """Return the names of the shipped benchmarks."""
    files = [file.name for file in resources.files("opencil.configs").iterdir()]
    return sorted(name.removesuffix(".yml") for name in files if name.endswith(".yml"))


def describe_benchmark(name: str) -> BenchmarkConfig:
    """Return a shipped benchmark; the weights of its backbone need not be installed."""
    values = expand(parse_yaml((resources.files("opencil.configs") / f"{name}.yml").read_text(), name))
    return build(BenchmarkConfig, add_preprocessing(values["benchmark"]), "benchmark")


def resolve(
    user: Mapping[str, Any] | None = None,
    *,
    flags: Mapping[str, Any] | None = None,
    cil: Sequence[str] | None = None,
    detector: Sequence[str] | None = None,
    settings: Iterable[str] = (),
) -> Config:
    """Return a config from a YML's content, flags laid on it, the chosen methods, and ``key=value`` settings.

    Where no method is chosen, the methods of the flags or else of the YML are used, and otherwise a default:
    iCaRL, with MSP and Energy. The name ``all`` stands for all.
    """
    layers = [
        expand({} if user is None else user),
        expand({} if flags is None else flags),
        expand_settings(settings),
    ]
    plugins = tuple(dict.fromkeys(plugin for layer in layers for plugin in layer.get("plugins", ())))
    for plugin in plugins:
        load_plugin(plugin)
    preset = next((layer["preset"] for layer in reversed(layers) if "preset" in layer), "")
    if preset not in _PRESETS:
        raise unknown("preset", str(preset), list(filter(None, _PRESETS)))
    of_benchmark, label = _PRESETS[preset]
    shipped = _shipped(layers)
    layers.insert(0, merge(shipped, {"benchmark": of_benchmark}))

    def section(cls: type[T], key: str) -> T:
        values: Layer = {}
        for layer in layers:
            over = layer.get(key, {})
            values = merge(below(values, over), over)
        return build(cls, add_preprocessing(values) if key == "benchmark" else values, key)

    benchmark = section(BenchmarkConfig, "benchmark")
    config = Config(
        benchmark=replace(benchmark, backbone=pin_weights(benchmark.backbone)),
        cil=_methods(LEARNERS, "cil", layers, list_names("cil", cil or []), label),
        detector=_methods(DETECTORS, "detector", layers, list_names("detector", detector or []), label),
        training=section(Arithmetic, "training"),
        seed=section(SeedConfig, "seed"),
        place=section(PlaceConfig, "place"),
        metric=next((tuple(layer["metric"]) for layer in reversed(layers) if "metric" in layer), ()),
        plugins=plugins,
        preset=preset,
    )
    for name in config.metric:
        METRICS.entry(name)  # refuses an unknown one
    remembers = {name: getattr(LEARNERS.entry(name).make, "remembers", True) for name in LEARNERS.names()}
    keeping = [name for name in config.cil if remembers[name.partition("@")[0]]]
    if keeping and not (config.benchmark.memory or config.benchmark.memory_per_class):
        others = [name for name in remembers if not remembers[name]]
        why = f"{', '.join(keeping)} keep images, in it or memory_per_class; {', '.join(others)} do not"
        raise not_allowed("benchmark.memory", 0, why)
    grids = [(method, k) for method in config.cil for k in config.benchmark.classes_per_step]
    if config.detector and not any(config.detectors_of(*grid) for grid in grids):
        reasons = dict.fromkeys(reason for grid in grids for reason in config.left_out(*grid))
        raise BadInput(
            f"{', '.join(config.cil)} cannot have {', '.join(config.detector)}: {'; '.join(reasons)}"
        )
    return config


def add_preprocessing(benchmark: Layer) -> Layer:
    """Return a benchmark's values laid on the preprocessing of its backbone's weights, if they have one."""
    given = benchmark.get("transform", {})
    if (own := preprocessing(benchmark.get("backbone"))) is None or not isinstance(given, dict):
        return benchmark
    side = given.get("resize", own["resize"])
    transform = merge(own | {"resize": side, "crop": side}, given)
    return {"image_size": side} | benchmark | {"transform": transform}


def _shipped(layers: list[Layer]) -> Layer:
    """Return the shipped values of the benchmark named by the layers, if there are any."""
    sections = [layer.get("benchmark", {}) for layer in layers]
    name = next((n for section in reversed(sections) if (n := section.get("name"))), "digits")
    written = sections[0]
    if written.get("name", name) != name and set(written) > {"name"}:
        raise BadInput(f"benchmark {name!r} is not that of the YML, {written['name']!r}: choose one")
    if name in list_benchmarks():
        return expand(parse_yaml((resources.files("opencil.configs") / f"{name}.yml").read_text(), name))
    if not any(set(section) - {"name"} for section in sections):
        raise unknown("benchmark", str(name), list_benchmarks())
    return {}


def _methods(
    registry: Registry[Any], key: str, layers: list[Layer], chosen: Sequence[str], label: str
) -> dict[str, dict[str, Any]]:
    """Return all values of the chosen methods, checked after each layer.

    A method without a label starts with its preset of ``label``, if it has one.
    """
    sections = [_translate(registry, layer.get(key, {})) for layer in layers]
    _, written, flags, settings = sections
    names = [*map(registry.translate, chosen)] or [name for name in flags if name != "*"] or written
    _check_names(registry, key, [{name: {} for name in names}, *sections])
    groups = registry.groups()
    names = [name for name in names if name != "*"] or list(registry.default)
    methods = {}
    for name in dict.fromkeys(member for each in names for member in groups.get(each, [each])):
        cls: Any = registry.entry(name).make
        # A labelled method, ber@nter, starts with the values of ber; its preset is not overridden by these.
        base = name.partition("@")[0]
        start = name if "@" in name or not label else f"{name}@{label}"
        values, preset = registry.defaults(start), registry.preset(name)
        for section in sections:
            for part in dict.fromkeys(("*", base, name)):
                over = section.get(part, {})
                if part == "*":  # for every method that has the value
                    over = {value: over[value] for value in over if value in names_of(cls)}
                if over := subtract(over, preset if part == base else {}):
                    values = plain(build(cls, merge(values, over), f"{key}.{name}"))
        methods[name] = values
    for name, over in settings.items():
        labels = [n for n in methods if n.partition("@")[0] == name]
        if name not in ("*", *methods) and all(subtract(over, registry.preset(n)) != over for n in labels):
            to_run = ", ".join(methods)
            raise BadInput(f"setting {key}.{name} has no use: the {registry.kind}s to run are {to_run}")
    return methods


def _translate(registry: Registry[Any], section: Layer) -> Layer:
    """Return the values of methods under our names."""
    named: Layer = {}
    for name, values in section.items():
        named = merge(named, {registry.translate(name): values})
    return named


def _check_names(registry: Registry[Any], key: str, sections: list[Layer]) -> None:
    """Refuse unknown methods, chosen or not, values of a group, and values of ``*`` without a method."""
    groups = registry.groups()
    known = {value for name in registry.names() for value in names_of(registry.entry(name).make)}
    for name, values in (item for section in sections for item in section.items()):
        base = name.partition("@")[0]
        if name == "*":
            for value in values.keys() - known:
                hint = suggest_key((key, "*", str(value))) or nearest(str(value), known)
                raise BadInput(f"{key}.*.{value} is unknown: no {registry.kind} has it{hint}")
        elif name in groups and values:
            raise BadInput(f"{key}.{name} takes no values: {key}.* stands for every method")
        elif name not in groups and base not in registry.names():
            raise registry.refuse(base, groups, suggest_key((key, base)))
        elif name not in groups:
            registry.entry(name)  # checks the label
