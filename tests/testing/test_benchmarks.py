"""The checks of a benchmark: ours pass them, and each check catches what it is for."""

import pytest
import torch
from torch import Tensor, nn

import opencil
from opencil.testing import BENCHMARK_CHECKS, check_benchmark


@pytest.mark.parametrize("check", BENCHMARK_CHECKS)
def test_ours_keep_the_contract(check: str) -> None:
    for name in ("digits", "cifar100"):
        BENCHMARK_CHECKS[check](opencil.resolve({"benchmark": name}))


def test_a_single_step_is_told() -> None:
    config = opencil.resolve({"benchmark": {"name": "digits", "classes_per_step": 8}})
    with pytest.raises(
        AssertionError, match="classes_per_step = 8 makes one step of the 8 classes of 'digits'"
    ):
        check_benchmark(config)


def test_a_backbone_that_does_not_fit_is_told() -> None:
    @opencil.register_backbone("thirty-two")
    class ThirtyTwo(opencil.Backbone):
        """Takes images of 32 × 32 alone."""

        def __init__(self) -> None:
            super().__init__()
            self.width, self.layer = 4, nn.Linear(3 * 32 * 32, 4)

        def forward(self, images: Tensor) -> Tensor:
            features: Tensor = self.layer(torch.flatten(images, 1))
            return features

    config = opencil.resolve({"benchmark": {"name": "digits", "backbone": "thirty-two"}})
    with pytest.raises(AssertionError, match="thirty-two cannot take images of 8 × 8 pixels: mat1 and mat2"):
        check_benchmark(config)
