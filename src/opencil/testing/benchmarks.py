"""What a benchmark of one's own must keep: the checks of a config, short of reading its data."""

from collections.abc import Callable

import torch

from opencil.config import Config, parse_yaml, resolve
from opencil.data.stream import StepSizes
from opencil.errors import OpenCILError
from opencil.nets.create import create_backbone
from opencil.registry import DATASETS


def check_benchmark(config: Config) -> None:
    """Run every check on a resolved config; what its datasets hold is ``opencil data check``'s matter."""
    for check in BENCHMARK_CHECKS.values():
        try:
            check(config)
        except OpenCILError as error:
            raise AssertionError(f"{config.benchmark.name}: {error}") from error


def check_printed(config: Config) -> None:
    """The YML that ``opencil config`` prints of it gives the same config again."""
    again = resolve(parse_yaml(config.to_yaml(), "the printed YML"))
    assert again == config, f"{config.benchmark.name} is another benchmark when its printed YML is read"


def check_backbone_fits(config: Config) -> None:
    """Its backbone takes images of the size that its transform gives."""
    benchmark = config.benchmark
    side, named = benchmark.transform.crop, benchmark.backbone
    backbone = create_backbone(**({"name": named} if isinstance(named, str) else named)).eval()
    try:
        with torch.no_grad():
            features = backbone(torch.zeros(2, 3, side, side))
    except (RuntimeError, ValueError, AssertionError) as error:
        raise AssertionError(f"{named} cannot take images of {side} × {side} pixels: {error}") from error
    assert list(features.shape) == [2, backbone.width], (
        f"{named} gives {list(features.shape)} for 2 images of {side} × {side} pixels: "
        f"[2, {backbone.width}] is promised"
    )


def check_steps(config: Config) -> None:
    """Where the number of classes is known, its steps take them all, in two steps or more."""
    benchmark = config.benchmark
    if benchmark.id in benchmark.datasets:
        return
    classes = getattr(DATASETS.entry(benchmark.id).make, "classes", None)
    for k in benchmark.classes_per_step:
        assert classes is None or len(StepSizes.parse(k).of(classes)) > 1, (
            f"classes_per_step = {k} makes one step of the {classes} classes of {benchmark.id!r}: nothing "
            "would be learned incrementally"
        )


#: Every check of a benchmark, by name.
BENCHMARK_CHECKS: dict[str, Callable[[Config], None]] = {
    check.__name__.removeprefix("check_"): check
    for check in (check_printed, check_backbone_fits, check_steps)
}
