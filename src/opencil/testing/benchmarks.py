"""Check the contract of benchmarks: their configs, without reading their data."""

from opencil.config import Config
from opencil.data.stream import StepSizes
from opencil.registry import DATASETS
from opencil.testing.backbones import BACKBONE_CHECKS
from opencil.testing.contract import collect_checks, run_checks


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
    make = None if benchmark.id in benchmark.datasets else DATASETS.entry(benchmark.id).make
    if classes := getattr(make, "classes", None):
        for k in benchmark.classes_per_step:
            single = len(StepSizes.parse(k).of(classes)) == 1
            assert not single, f"has a single step with classes_per_step = {k}, of {classes} classes"


#: Every check of a benchmark, by name.
BENCHMARK_CHECKS = collect_checks(vars())


def check_benchmark(config: Config) -> None:
    """Run every check on a resolved config; ``opencil data check`` checks its datasets."""
    run_checks(BENCHMARK_CHECKS, config.benchmark.name, config)
