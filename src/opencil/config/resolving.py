"""All layers of a config laid on each other, and every method's values checked."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from opencil.config.keys import guess, key_of
from opencil.config.sections import BenchmarkConfig, Config, PlaceConfig, SeedConfig
from opencil.config.written import left_below, parse_yaml, settings_written_out, written_out
from opencil.engine.arithmetic import Arithmetic
from opencil.errors import BadInput, meant, nearest, unknown
from opencil.nets.create import pinned
from opencil.plugins import load_plugin
from opencil.registry import DETECTORS, LEARNERS, METRICS, Registry
from opencil.validation import build, merge, names_of, plain, without

T = TypeVar("T")


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
    written, top = written_out(user or {}), settings_written_out(settings)
    layers = [written, written_out(flags or {}), top]
    plugins = tuple(dict.fromkeys(plugin for layer in layers for plugin in layer.get("plugins", ())))
    for plugin in plugins:
        load_plugin(plugin)
    name = next((n for layer in reversed(layers) if (n := layer.get("benchmark", {}).get("name"))), "digits")
    written_name = written.get("benchmark", {}).get("name", name)
    if written_name != name and set(written["benchmark"]) > {"name"}:
        raise BadInput(f"benchmark {name!r} is asked for, and the YML describes {written_name!r}: choose one")
    if name in list_benchmarks():
        layers.insert(
            0, written_out(parse_yaml((resources.files("opencil.configs") / f"{name}.yml").read_text(), name))
        )
    elif not any(set(layer.get("benchmark", {})) - {"name"} for layer in layers):
        raise unknown("benchmark", str(name), list_benchmarks())

    def section(cls: type[T], key: str) -> T:
        values: dict[str, Any] = {}
        for layer in layers:
            over = layer.get(key, {})
            values = merge(left_below(values, over), over)
        return build(cls, values, where=key, guess=guess)

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
    grids = [(method, k) for method in config.cil for k in config.benchmark.classes_per_step]
    if config.detector and not any(config.detectors_of(*grid) for grid in grids):
        reasons = dict.fromkeys(reason for grid in grids for reason in config.left_out(*grid))
        raise BadInput(
            f"{', '.join(config.cil)} cannot have {', '.join(config.detector)}: {'; '.join(reasons)}. Choose "
            "other detectors (post-hoc ones that read logits go with all), or another CIL method"
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
            f"{meant(guess((key, '*', str(value)))) or nearest(str(value), somewhere)}"
        )
    for section in (dict.fromkeys(chosen), *sections):
        for name in [n for n in section if n not in ("*", *groups)]:  # refused if unknown, chosen or not
            if (known := name.partition("@")[0]) not in registry.names():
                places = guess(key_of(key, content={known: section[name]}), wrong=1)
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
                values = plain(build(cls, merge(values, values_here), f"{key}.{name}", guess))  # type: ignore[arg-type]
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
