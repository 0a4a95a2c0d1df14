"""The checks of the backbones' contract: ours pass them, and each check catches what it is for."""

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
    """Nothing wrong: one convolution."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.width = width
        self.layer = nn.Conv2d(3, width, 3)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, images: Tensor) -> Tensor:
        return self.norm(self.layer(images)).relu().mean(dim=(2, 3))


def test_one_of_ones_own_keeps_the_contract_under_any_values() -> None:
    opencil.register_backbone("right")(Right)
    check_backbone("right")
    check_backbone({"name": "right", "width": 3, "freeze": True}, side=12)


class Wide(Right):
    """Says another width than it has."""

    def __init__(self) -> None:
        super().__init__()
        self.width = 5


class Mixes(Right):
    """Takes the mean of a batch off."""

    def forward(self, images: Tensor) -> Tensor:
        features = super().forward(images)
        return features - features.mean(dim=0)


class Dice(Right):
    """Draws in evaluation too."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) + torch.rand(1)


class Same(Right):
    """Has the same weights whatever the seed."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.constant_(self.layer.weight, 0.1)
        nn.init.constant_(self.layer.bias, 0.1)


class Hidden(Right):
    """Learns something that is no buffer."""

    seen = 0.0

    def forward(self, images: Tensor) -> Tensor:
        self.seen += float(self.training)
        return super().forward(images) + self.seen


class Detached(Right):
    """Stops every gradient."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images).detach()


class Spoils(Right):
    """Changes the images."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images.mul_(0.5))


class Flat(Right):
    """Has maps without height and width."""

    def maps(self, images: Tensor) -> list[Tensor]:
        return [self(images)]


class Apart(Right):
    """Has other features beside its maps than alone."""

    def maps(self, images: Tensor) -> list[Tensor]:
        return [self.norm(self.layer(images)).relu()]

    def features_and_maps(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        return 2 * self(images), self.maps(images)


class Torn(Apart):
    """Has a last part that reads something else than the maps of the first."""

    def split(self) -> tuple[opencil.Backbone, opencil.Backbone]:
        last = opencil.AdaptedBackbone(nn.Conv2d(self.width, self.width, 1), self.width)
        return Apart(), last


WRONG: dict[type[Right], tuple[str, str]] = {
    Wide: ("result", r"gives \[6, 4\] for 6 images of 32 × 32 pixels: \[6, 5\] is promised"),
    Mixes: ("alone", "other features when it stands alone"),
    Dice: ("alone", "other features the second time"),
    Same: ("seeded", "the same weights by every seed"),
    Hidden: ("stored", "computes otherwise when it is with its weights loaded"),
    Detached: ("trains", "no parameter that a loss reaches, in float32"),
    Spoils: ("inputs_unchanged", "changes the images"),
    Flat: ("maps", r"maps are \[\[6, 4\]\] for 6 images"),
    Apart: ("maps", "features_and_maps are not what it gives"),
    Torn: ("split", "parts give other features than the whole"),
}


@pytest.mark.parametrize("cls", WRONG)
def test_a_check_catches_what_it_is_for(cls: type[Right]) -> None:
    opencil.register_backbone("wrong")(cls)
    check, sentence = WRONG[cls]
    with pytest.raises(AssertionError, match=f"wrong.* {sentence}"):
        BACKBONE_CHECKS[check]("wrong", 32)
    with pytest.raises(AssertionError):
        check_backbone("wrong")


def test_what_is_no_backbone_is_told() -> None:
    def plain() -> Any:
        return nn.Linear(2, 2)

    opencil.register_backbone("plain")(plain)
    with pytest.raises(
        AssertionError, match=r"plain refuses good images: .* makes a Linear: an opencil\.Back"
    ):
        check_backbone("plain")
