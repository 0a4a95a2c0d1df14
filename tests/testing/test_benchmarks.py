"""The checks of a benchmark: ours pass them, and each check finds configs that break it."""

import pytest
import torch
from torch import Tensor, nn

import opencil
from opencil.testing import BENCHMARK_CHECKS, check_benchmark


@pytest.mark.parametrize("check", BENCHMARK_CHECKS)
def test_ours_keep_the_contract(check: str) -> None:
    for name in ("digits", "cifar100"):
        BENCHMARK_CHECKS[check](opencil.resolve({"benchmark": name}))


def test_a_single_step_fails() -> None:
    config = opencil.resolve({"benchmark": {"name": "digits", "classes_per_step": 8}})
    with pytest.raises(AssertionError, match="classes_per_step = 8"):
        check_benchmark(config)


def test_a_backbone_for_another_image_size_fails() -> None:
    @opencil.register_backbone("thirty-two")
    class ThirtyTwo(opencil.Backbone):
        """A backbone for images of 32 × 32 alone."""

        def __init__(self) -> None:
            super().__init__()
            self.width, self.layer = 4, nn.Linear(3 * 32 * 32, 4)

        def forward(self, images: Tensor) -> Tensor:
            features: Tensor = self.layer(torch.flatten(images, 1))
            return features

    config = opencil.resolve({"benchmark": {"name": "digits", "backbone": "thirty-two"}})
    with pytest.raises(AssertionError, match="8 × 8 pixels"):
        check_benchmark(config)
