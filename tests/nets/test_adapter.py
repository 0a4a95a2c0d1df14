"""Adapters of other networks: the methods that they call, and timm, by a fake of it."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import opencil
from opencil.errors import BadInput
from opencil.nets.create import check_backbone, pin_weights, preprocessing, without_weights

IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Foreign(nn.Module):
    """Shaped like a network of timm's."""

    def __init__(self, num_classes: int = 10, width: int = 6) -> None:
        super().__init__()
        self.num_features = width
        self.stages = nn.ModuleList([nn.Conv2d(3, 4, 2, 2), nn.Conv2d(4, width, 2, 2)])
        self.head = nn.Linear(width, num_classes) if num_classes else nn.Identity()

    def forward_intermediates(self, x: Tensor, intermediates_only: bool = False) -> Any:
        found = []
        for stage in self.stages:
            x = stage(x).relu()
            found.append(x)
        return found if intermediates_only else (x, found)

    def forward_features(self, x: Tensor) -> Tensor:
        return self.forward_intermediates(x)[0]

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        pooled = x.amax(dim=(2, 3))
        return pooled if pre_logits else self.head(pooled)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """A timm of ours, which notes what it is asked for."""
    asked = []

    def create_model(name: str, **values: Any) -> nn.Module:
        asked.append((name, values))
        if name != "foreign_tiny":
            raise RuntimeError(f"Unknown model ({name})")
        return Foreign(**values)

    fake = SimpleNamespace(create_model=create_model, list_models=lambda: ["foreign_tiny"])
    monkeypatch.setitem(sys.modules, "timm", fake)
    return asked


def test_a_network_of_timms_is_a_backbone(timm: list[Any]) -> None:
    backbone = opencil.create_backbone("timm", model="foreign_tiny", width=5)
    assert timm == [("foreign_tiny", {"num_classes": 0, "width": 5})]
    maps = backbone.maps(IMAGES)
    assert [tuple(m.shape) for m in maps] == [(2, 4, 4, 4), (2, 5, 2, 2)]
    assert backbone.width == 5
    assert torch.equal(backbone(IMAGES), maps[-1].amax(dim=(2, 3)))
    assert opencil.Model(backbone, 3)(IMAGES).shape == (2, 3)
    features, again = backbone.features_and_maps(IMAGES)
    assert torch.equal(features, backbone(IMAGES))
    assert all(torch.equal(one, other) for one, other in zip(again, maps, strict=True))
    with pytest.raises(BadInput, match="Timm cannot be split"):
        backbone.split()


@pytest.mark.usefixtures("timm")
def test_errors_of_timm_name_the_model() -> None:
    with pytest.raises(BadInput, match=r"'foreign_tin' .*did you mean 'foreign_tiny'"):
        opencil.create_backbone("timm", model="foreign_tin")
    with pytest.raises(BadInput, match=r"'foreign_tiny' .*depth"):
        opencil.create_backbone("timm", model="foreign_tiny", depth=3)


def test_pretrained_weights_of_timm_come_with_their_preprocessing_and_a_checksum(
    timm: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = 0

    def create_model(name: str, pretrained: bool = False, **values: Any) -> nn.Module:
        torch.manual_seed(seed if pretrained else torch.seed() % 2**31)
        return Foreign(**values)

    cfg = SimpleNamespace(input_size=(3, 8, 8), mean=[0.5] * 3, std=[0.2] * 3, interpolation="bicubic")
    fake = SimpleNamespace(
        create_model=create_model, list_models=list, get_pretrained_cfg={"foreign_tiny": cfg}.get
    )
    monkeypatch.setitem(sys.modules, "timm", fake)
    named: dict[str, Any] = {"name": "timm", "model": "foreign_tiny", "pretrained": True}
    pinned = pin_weights(named)
    assert isinstance(pinned, dict)
    assert len(pinned["sha256"]) == 64
    opencil.create_backbone(**pinned)
    assert check_backbone(pinned) == pinned
    assert without_weights(pinned) == {"name": "timm", "model": "foreign_tiny"}
    own = preprocessing(named)
    assert own is not None
    assert (own["resize"], own["crop"], own["mean"], own["interpolation"]) == (8, 8, (0.5,) * 3, "bicubic")
    assert preprocessing(named | {"pretrained": False}) is None
    assert preprocessing(named | {"model": "unknown"}) is None
    seed = 1  # timm has other weights under the same name now
    with pytest.raises(BadInput, match=pinned["sha256"]):
        opencil.create_backbone(**pinned)


def test_without_timm_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    assert check_backbone({"name": "timm", "model": "vit_tiny"}), "a config can be read without it"
    with pytest.raises(BadInput, match=r"pip install 'opencil\[timm\]'"):
        opencil.create_backbone("timm", model="vit_tiny_patch16_224")


def test_any_module_can_be_adapted() -> None:
    convolution = nn.Conv2d(3, 7, 3)
    backbone = opencil.AdaptedBackbone(convolution, width=7)
    assert torch.equal(backbone(IMAGES), convolution(IMAGES).mean(dim=(2, 3)))
    flat = nn.Sequential(nn.Flatten(), nn.Linear(192, 9))
    assert torch.equal(opencil.AdaptedBackbone(flat, width=9)(IMAGES), flat(IMAGES))
    with pytest.raises(BadInput, match=r"Sequential .*width"):
        opencil.AdaptedBackbone(flat)
    with pytest.raises(BadInput, match="has no maps of its stages"):
        backbone.maps(IMAGES)
