"""The checks of the backbones' contract: ours pass them, and each check finds backbones that break it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import opencil
from opencil.testing import BACKBONE_CHECKS, check_backbone


@pytest.mark.parametrize("check", BACKBONE_CHECKS)
def test_ours_keep_the_contract(check: str) -> None:
    BACKBONE_CHECKS[check]("resnet8", 8)


class Right(opencil.Backbone):
    """A correct backbone: one convolution."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.width = width
        self.layer = nn.Conv2d(3, width, 3)
        self.norm = nn.BatchNorm2d(width)
        self.seen = 0.0

    def forward(self, images: Tensor) -> Tensor:
        return self.norm(self.layer(images)).relu().mean(dim=(2, 3))


def test_a_custom_backbone_keeps_the_contract() -> None:
    opencil.register_backbone("right")(Right)
    check_backbone("right")
    check_backbone({"name": "right", "width": 3, "freeze": True}, side=12)


def forwards(compute: Callable[[Any, Tensor, Tensor], Tensor]) -> dict[str, Any]:
    """Return a ``forward`` that computes something of the images and of the correct features."""
    return {"forward": lambda self, images: compute(self, images, Right.forward(self, images))}


def initialised(change: Callable[[Any], object]) -> dict[str, Any]:
    def init(self: Any) -> None:
        Right.__init__(self)
        change(self)

    return {"__init__": init}


def constant(self: Any) -> None:
    for parameter in self.layer.parameters():
        nn.init.constant_(parameter, 0.1)


def count_trainings(self: Any, images: Tensor, features: Tensor) -> Tensor:
    self.seen += float(self.training)
    return features + self.seen


MAPS = {"maps": lambda self, images: [self.norm(self.layer(images)).relu()]}
WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    r"\[6, 5\]": ("result", initialised(lambda self: setattr(self, "width", 5))),
    "batch of its own": ("alone", forwards(lambda self, x, f: f - f.mean(dim=0))),
    "second time": ("alone", forwards(lambda self, x, f: f + torch.rand(1))),
    "every seed": ("seeded", initialised(constant)),
    "state dict": ("stored", forwards(count_trainings)),
    "gradient": ("trains", forwards(lambda self, x, f: f.detach())),
    "changes the images": ("inputs_unchanged", forwards(lambda self, x, f: f + 0 * x.mul_(0.5).sum())),
    r"\[\[6, 4\]\]": ("maps", {"maps": lambda self, images: [self(images)]}),
    "features_and_maps": (
        "maps",
        MAPS | {"features_and_maps": lambda self, images: (2 * self(images), self.maps(images))},
    ),
    "parts": ("split", MAPS | {"split": lambda self: (self, opencil.AdaptedBackbone(nn.Conv2d(4, 4, 1), 4))}),
}


@pytest.mark.parametrize("key", WRONG)
def test_a_check_finds_a_backbone_that_breaks_it(key: str) -> None:
    check, members = WRONG[key]
    opencil.register_backbone("wrong")(type("Wrong", (Right,), {"__doc__": "A backbone.", **members}))
    with pytest.raises(AssertionError, match=key):
        BACKBONE_CHECKS[check]("wrong", 32)
    with pytest.raises(AssertionError, match="wrong"):
        check_backbone("wrong")


def test_a_module_that_is_no_backbone_is_refused() -> None:
    def plain() -> Any:
        return nn.Linear(2, 2)

    opencil.register_backbone("plain")(plain)
    with pytest.raises(AssertionError, match="plain"):
        check_backbone("plain")
