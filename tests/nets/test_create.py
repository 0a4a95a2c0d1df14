"""Backbones by name and values: weights from a file, and those that stay as they are."""

import copy
import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

import opencil
from opencil.engine.seeding import seeded
from opencil.errors import BadInput
from opencil.nets.create import check_backbone, pin_weights, without_weights

IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """The weights of a ResNet-8, whose statistics are not those of a new one."""
    with seeded(7):
        backbone = opencil.create_backbone("resnet8").train()
    backbone(IMAGES)
    path = tmp_path / "resnet8.safetensors"
    save_file(backbone.state_dict(), path)
    return path


def same(one: nn.Module, other: nn.Module) -> bool:
    theirs = other.state_dict()
    return all(torch.equal(tensor, theirs[name]) for name, tensor in one.state_dict().items())


def test_a_class_is_made_of_its_arguments() -> None:
    @opencil.register_backbone("own")
    class Own(opencil.Backbone):
        """One convolution."""

        def __init__(self, width: int, bias: bool = True) -> None:
            super().__init__()
            self.width, self.layer = width, nn.Conv2d(3, width, 3, bias=bias)

        def forward(self, images: Tensor) -> Tensor:
            return F.relu(self.layer(images)).mean(dim=(2, 3))

    backbone = opencil.create_backbone("own", width=5, bias=False)
    assert backbone(IMAGES).shape == (4, 5)
    assert backbone.layer.bias is None
    with pytest.raises(BadInput, match=r"own\.widht"):
        opencil.create_backbone("own", widht=5)
    with pytest.raises(BadInput, match=r"own\.width is missing"):
        opencil.create_backbone("own")
    opencil.register_backbone("foreign")(lambda: nn.Identity())
    with pytest.raises(BadInput, match="'foreign' is a Identity"):
        opencil.create_backbone("foreign")


@pytest.mark.parametrize("whole", [False, True])
def test_weights_come_from_a_file_of_a_backbone_or_of_a_model(stored: Path, whole: bool) -> None:
    expected = opencil.create_backbone("resnet8", weights=str(stored))
    if whole:
        save_file(opencil.Model(copy.deepcopy(expected), 3).state_dict(), stored)
    with seeded(8):
        found = opencil.create_backbone("resnet8", weights=str(stored))
    assert same(found, expected)
    assert not same(found, opencil.create_backbone("resnet8"))
    assert all(p.requires_grad for p in found.parameters())


def test_a_file_that_does_not_fit_is_refused(stored: Path) -> None:
    weights = str(stored)
    digest = hashlib.sha256(stored.read_bytes()).hexdigest()
    opencil.create_backbone("resnet8", weights=weights, sha256=digest)
    with pytest.raises(BadInput, match="sha256"):
        opencil.create_backbone("resnet8", weights=weights, sha256="0" * 64)
    with pytest.raises(BadInput, match=r"resnet8\.safetensors' does not fit: .*blocks\.3\."):
        opencil.create_backbone("resnet32", weights=weights)
    stored.write_bytes(b"nothing")
    with pytest.raises(BadInput, match="no safetensors file"):
        opencil.create_backbone("resnet8", weights=weights)
    stored.unlink()
    with pytest.raises(BadInput, match="cannot be read"):
        opencil.create_backbone("resnet8", weights=weights)


def test_weights_that_would_lose_their_imaginary_part_are_refused(stored: Path, tmp_path: Path) -> None:
    tensors = opencil.create_backbone("resnet8", weights=str(stored)).state_dict()
    name = next(iter(tensors))
    save_file({**tensors, name: tensors[name] + 1j}, path := tmp_path / "complex.safetensors")
    with pytest.raises(BadInput, match=f"{name} is torch.complex64"):
        opencil.create_backbone("resnet8", weights=str(path))


def test_as_a_config_names_it(stored: Path) -> None:
    assert check_backbone({"name": "resnet8", "weights": None, "freeze": False}) == "resnet8"
    named: dict[str, Any] = {"name": "resnet8", "freeze": True, "weights": str(stored)}
    full = pin_weights(check_backbone(named))
    assert full == named | {"sha256": hashlib.sha256(stored.read_bytes()).hexdigest()}
    assert without_weights(full) == {"name": "resnet8", "freeze": True}
    assert pin_weights("resnet8") == without_weights("resnet8") == "resnet8"


def test_a_frozen_backbone_never_changes() -> None:
    with seeded(0):
        free, model = (opencil.Model(opencil.create_backbone("resnet8", freeze=f), 2) for f in (False, True))
    model.load_state_dict(free.state_dict(), strict=True)
    assert torch.equal(model.eval()(IMAGES), free.eval()(IMAGES))
    grown = copy.deepcopy(model)
    grown.grow(3)
    before = {name: tensor.clone() for name, tensor in grown.backbone.state_dict().items()}
    grown.requires_grad_(False).requires_grad_(True).train()
    assert not any(module.training for module in grown.backbone.modules())
    trained = list(grown.parameters())
    assert {id(p) for p in trained} == {id(p) for p in grown.head.parameters()}
    grown(IMAGES).square().sum().backward()
    torch.optim.SGD(trained, lr=0.1, weight_decay=0.1).step()
    assert all(torch.equal(t, before[name]) for name, t in grown.backbone.state_dict().items())
