"""The growing head and the model."""

import math

import pytest
import torch

from opencil.engine.seeding import seeded
from opencil.errors import BadInput
from opencil.nets.model import Backbone, Head, Model
from opencil.nets.resnet import resnet8


def test_growing_keeps_the_old_rows_bit_for_bit() -> None:
    with seeded(0):
        head = Head(8, 3)
        torch.nn.init.normal_(head.weight)
        torch.nn.init.normal_(head.bias)
        old_weight, old_bias = head.weight.clone(), head.bias.clone()
        grown = head.grow(7)
    assert torch.equal(grown.weight[:3], old_weight)
    assert torch.equal(grown.bias[:3], old_bias)
    assert torch.equal(grown.bias[3:], torch.zeros(4))
    assert float(grown.weight[3:].detach().abs().max()) <= math.sqrt(3 / 8)
    assert len(set(grown.weight[3:].flatten().tolist())) > 16  # drawn, not left as they were


def test_an_extra_head_is_a_copy_that_can_be_trained() -> None:
    with seeded(0):
        model = Model(resnet8(), 3).eval()
        torch.nn.init.normal_(model.head.bias)
    model.requires_grad_(False)
    features = torch.rand(4, 64, generator=torch.Generator().manual_seed(0))
    before = model.classify(features)
    extra = model.extra_head()
    assert torch.equal(extra(features), before)
    assert all(p.requires_grad for p in extra.parameters())
    assert not any(p.requires_grad for p in model.parameters())
    with torch.no_grad():
        for p in extra.parameters():
            p.add_(1)
    assert torch.equal(model.classify(features), before)
    assert set(extra.state_dict()) == {"weight", "bias"}


def test_a_backbone_without_maps_says_so() -> None:
    class Plain(Backbone):
        width = 2

    with pytest.raises(BadInput, match=r"Plain has no maps of its stages"):
        Plain().maps(torch.zeros(1, 3, 8, 8))
    with pytest.raises(BadInput, match="Plain cannot be split"):
        Plain().split()
