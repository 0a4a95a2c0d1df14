"""Check the contract of benchmarks: their configs, without reading their data."""

from opencil.config import Config, parse_yaml, resolve
from opencil.data.stream import StepSizes
from opencil.registry import DATASETS
from opencil.testing.backbones import BACKBONE_CHECKS
from opencil.testing.contract import collect_checks, run_checks


def check_printed(config: Config) -> None:
    """The YML that ``opencil config`` prints gives the same config again."""
    again = resolve(parse_yaml(config.to_yaml(), "the printed YML"))
    assert again == config, "is another benchmark when its printed YML is read"


def check_backbone_fits(config: Config) -> None:
    """The backbone accepts images of the size that the transform gives."""
    side = config.benchmark.transform.crop
    try:
        BACKBONE_CHECKS["result"](config.benchmark.backbone, side)
    except (RuntimeError, ValueError, AssertionError) as error:
        raise AssertionError(f"has a backbone that fails on {side} × {side} pixels: {error}") from error


def check_steps(config: Config) -> None:
    """The steps use all classes, where their number is known, and are at least two."""
    benchmark = config.benchmark
    if benchmark.id in benchmark.datasets:
        return
    classes = getattr(DATASETS.entry(benchmark.id).make, "classes", None)
    for k in benchmark.classes_per_step:
        assert classes is None or len(StepSizes.parse(k).of(classes)) > 1, (
            f"has a single step with classes_per_step = {k}: {benchmark.id!r} has {classes} classes"
        )


#: Every check of a benchmark, by name.
BENCHMARK_CHECKS = collect_checks(vars())


def check_benchmark(config: Config) -> None:
    """Run every check on a resolved config; ``opencil data check`` checks its datasets."""
    run_checks(BENCHMARK_CHECKS, config.benchmark.name, config)
