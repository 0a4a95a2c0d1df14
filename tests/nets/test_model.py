"""The growing head and the model."""

import math

import pytest
import torch

from opencil.engine.seeding import seeded
from opencil.errors import BadInput
from opencil.nets.model import Backbone, Head, Model
from opencil.nets.resnet import resnet8


def test_a_new_head_is_kaiming_uniform_with_bias_0() -> None:
    with seeded(0):
        head = Head(50, 200)
    bound = math.sqrt(3 / 50)  # gain 1, fan-in 50
    weight = head.weight.detach()
    assert 0.99 * bound < float(weight.abs().max()) <= bound
    assert abs(float(weight.std()) / (bound / math.sqrt(3)) - 1) < 0.03
    assert torch.equal(head.bias, torch.zeros(200))


def test_growing_keeps_the_old_rows_bit_for_bit() -> None:
    with seeded(0):
        head = Head(8, 3)
        torch.nn.init.normal_(head.weight)
        torch.nn.init.normal_(head.bias)
        old_weight, old_bias = head.weight.clone(), head.bias.clone()
        grown = head.grown(7)
    assert (grown.in_features, grown.out_features) == (8, 7)
    assert torch.equal(grown.weight[:3], old_weight)
    assert torch.equal(grown.bias[:3], old_bias)
    assert torch.equal(grown.bias[3:], torch.zeros(4))
    assert float(grown.weight[3:].detach().abs().max()) <= math.sqrt(3 / 8)
    assert len(set(grown.weight[3:].flatten().tolist())) > 16  # drawn, not left as they were
    assert grown.weight.requires_grad
    assert grown.bias.requires_grad


def test_a_grown_head_does_not_share_memory_with_the_old_one() -> None:
    head = Head(4, 2)
    before = head.weight.clone()
    grown = head.grown(3)
    with torch.no_grad():
        grown.weight.zero_()
    assert torch.equal(head.weight, before)


def test_logits_of_old_classes_survive_growth() -> None:
    with seeded(0):
        model = Model(resnet8(), 3).eval()
    images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    before = model(images)
    model.grow(5)
    assert model(images).shape == (4, 5)
    torch.testing.assert_close(model(images)[:, :3], before)


def test_features_classify_and_forward_agree() -> None:
    with seeded(0):
        model = Model(resnet8(), 3).eval()
        torch.nn.init.normal_(model.head.bias)
    images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    features = model.features(images)
    assert features.shape == (4, 64)
    assert torch.equal(features, model.backbone(images))
    assert torch.equal(model(images), model.classify(features))
    torch.testing.assert_close(model(images), features @ model.head.weight.T + model.head.bias)


def test_weights_of_another_shape_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"size mismatch for head\.weight"):
        Model(resnet8(), 4).load_state_dict(Model(resnet8(), 2).state_dict(), strict=True)


def test_weights_come_back_whole() -> None:
    with seeded(0):
        model, other = Model(resnet8(), 4).eval(), Model(resnet8(), 4).eval()
    model.train()
    images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    model(images)  # moves the batch-norm statistics, which belong to the weights
    model.eval()
    assert not torch.equal(model(images), other(images))
    other.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(model(images), other(images))


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


def test_a_models_maps_are_its_backbones() -> None:
    with seeded(0):
        model = Model(resnet8(), 3).eval()
    images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    for found, expected in zip(model.maps(images), model.backbone.maps(images), strict=True):
        assert torch.equal(found, expected)


def test_a_backbone_without_maps_says_so() -> None:
    class Plain(Backbone):
        width = 2

    with pytest.raises(BadInput, match=r"Plain has no maps of its stages"):
        Plain().maps(torch.zeros(1, 3, 8, 8))
    with pytest.raises(BadInput, match=r"Plain cannot be split: a method split\(\) gives"):
        Plain().split()
