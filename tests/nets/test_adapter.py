"""Networks from elsewhere: what is called on them, and timm, ours in its place where it is not installed."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import opencil
from opencil.errors import BadInput
from opencil.nets.create import checked

IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Foreign(nn.Module):
    """Shaped like a network of timm's."""

    def __init__(self, num_classes: int = 10, width: int = 6) -> None:
        super().__init__()
        self.num_features, self.stages = (
            width,
            nn.ModuleList([nn.Conv2d(3, 4, 2, 2), nn.Conv2d(4, width, 2, 2)]),
        )
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


def test_weights_are_the_networks_own(timm: list[Any], tmp_path: Any) -> None:
    from safetensors.torch import save_file

    path, source = str(tmp_path / "w.safetensors"), Foreign(num_classes=0)
    save_file(source.state_dict(), path)
    backbone = opencil.create_backbone("timm", model="foreign_tiny", weights=path, freeze=True)
    assert torch.equal(backbone(IMAGES), source(IMAGES))
    assert not list(backbone.parameters())


@pytest.mark.usefixtures("timm")
def test_what_timm_refuses_is_told() -> None:
    with pytest.raises(BadInput, match=r"'foreign_tin' of {}: Unknown model.*did you mean 'foreign_tiny'"):
        opencil.create_backbone("timm", model="foreign_tin")
    with pytest.raises(BadInput, match=r"'foreign_tiny' of {'depth': 3}: .*unexpected"):
        opencil.create_backbone("timm", model="foreign_tiny", depth=3)
    with pytest.raises(BadInput, match=r"pretrained is not allowed: weights come from a file"):
        opencil.create_backbone("timm", model="foreign_tiny", pretrained=True)


def test_without_timm_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    assert checked({"name": "timm", "model": "vit_tiny_patch16_224"})  # a config can be read without it
    with pytest.raises(BadInput, match=r"pip install 'opencil\[timm\]'"):
        opencil.create_backbone("timm", model="vit_tiny_patch16_224")


def test_the_real_timm() -> None:
    pytest.importorskip("timm")
    backbone = opencil.create_backbone("timm", model="vit_tiny_patch16_224", img_size=32, patch_size=8)
    images = torch.randn(2, 3, 32, 32)
    assert backbone(images).shape == (2, backbone.width) == (2, 192)
    assert [tuple(m.shape) for m in backbone.maps(images)] == [(2, 192, 4, 4)] * 12


def test_any_module_can_be_adapted() -> None:
    convolution = nn.Conv2d(3, 7, 3)
    backbone = opencil.AdaptedBackbone(convolution, width=7)
    assert torch.equal(backbone(IMAGES), convolution(IMAGES).mean(dim=(2, 3)))
    flat = nn.Sequential(nn.Flatten(), nn.Linear(192, 9))
    assert torch.equal(opencil.AdaptedBackbone(flat, width=9)(IMAGES), flat(IMAGES))
    with pytest.raises(BadInput, match="Sequential does not say how many features"):
        opencil.AdaptedBackbone(flat)
    with pytest.raises(BadInput, match="has no maps of its stages"):
        backbone.maps(IMAGES)
