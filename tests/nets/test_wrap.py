"""Models shaped like those of torchvision, timm and Hugging Face, by a hook on their head."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import opencil
from opencil import BadInput

IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class LikeTorchvision(nn.Module):
    """A ResNet of torchvision: ``layer1`` …, pooled, flattened, ``fc``; its class may end otherwise."""

    def __init__(self, end: Callable[[Tensor], Any] = lambda z: z) -> None:
        super().__init__()
        self.layer1, self.layer2 = nn.Conv2d(3, 4, 3, 2), nn.Sequential(nn.Conv2d(4, 6, 2), nn.BatchNorm2d(6))
        self.avgpool, self.dropout, self.fc = nn.AdaptiveAvgPool2d(1), nn.Dropout(0.5), nn.Linear(6, 5)
        self.auxiliary, self.end = nn.Linear(6, 5), end

    def forward(self, x: Tensor) -> Any:
        x = self.avgpool(self.layer2(self.layer1(x)).relu())
        return self.end(self.fc(self.dropout(torch.flatten(x, 1))))


class LikeVGG(nn.Module):
    """Torchvision's VGG: the head is the last of a sequence, and ``features`` is a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(2))
        self.classifier = nn.Sequential(nn.Linear(16, 7), nn.ReLU(True), nn.Dropout(), nn.Linear(7, 5))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x).flatten(1))
        return logits


@dataclass
class ImageClassifierOutput:
    loss: Tensor | None
    logits: Tensor


class LikeHuggingFace(nn.Module):
    """A vision transformer of Hugging Face's: ``classifier`` reads the first token."""

    def __init__(self, form: str = "object") -> None:
        super().__init__()
        self.patches, self.encoder = nn.Conv2d(3, 6, 4, 4), nn.Linear(6, 6)
        self.classifier, self.form = nn.Linear(6, 5), form

    def forward(self, pixel_values: Tensor | None = None, labels: Tensor | None = None) -> Any:
        assert pixel_values is not None
        tokens = self.encoder(self.patches(pixel_values).flatten(2).transpose(1, 2)).tanh()
        logits = self.classifier(tokens[:, 0, :])
        if self.form == "object":
            return ImageClassifierOutput(None, logits)
        return {"loss": None, "logits": logits} if self.form == "dictionary" else (logits, tokens)


MODELS: list[tuple[Callable[[], nn.Module], str]] = [
    (LikeTorchvision, "fc"),
    (LikeVGG, "classifier.3"),
    (LikeHuggingFace, "classifier"),
    (lambda: LikeHuggingFace("dictionary"), "classifier"),
    (lambda: LikeHuggingFace("tuple"), "classifier"),
    (lambda: LikeTorchvision(lambda z: z.clone()), "fc"),
]


def logits_of(output: Any) -> Tensor:
    if isinstance(output, dict):
        output = output["logits"]
    found: Tensor = output[0] if isinstance(output, tuple) else getattr(output, "logits", output)
    return found


@pytest.mark.parametrize(("make", "head"), MODELS, ids=[f"{i} {head}" for i, (_, head) in enumerate(MODELS)])
def test_a_wrapped_model_gives_what_the_model_gives(make: Callable[[], nn.Module], head: str) -> None:
    torch.manual_seed(0)
    network = make().train()
    model = opencil.wrap(network, head=head)
    outputs = opencil.forward(model, IMAGES)
    layer = network.get_submodule(head)
    assert isinstance(layer, nn.Linear)
    assert outputs.features.shape == (4, layer.in_features)
    # Not bit for bit: where gradients are kept torch may take another routine, on a CPU without AVX-512 say.
    expected = logits_of(network.eval()(IMAGES)).detach()
    torch.testing.assert_close(outputs.logits, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(outputs.logits, layer(outputs.features).detach(), rtol=1e-5, atol=1e-6)
    weight, bias = outputs.linear()
    torch.testing.assert_close(weight, layer.weight.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(bias, layer.bias.detach())


def test_the_model_stays_as_it_is() -> None:
    network = LikeTorchvision().train()
    network.fc.eval()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    model = opencil.wrap(network, head="fc", stages=["layer1"])
    list(opencil.forward(model, IMAGES).layers())
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    assert network.training
    assert not network.fc.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())


def test_maps_are_those_of_the_named_stages_or_of_timm() -> None:
    network = LikeTorchvision().eval()
    maps = opencil.wrap(network, "fc", stages=["layer1", "layer2"]).maps(IMAGES)
    assert torch.equal(maps[0], network.layer1(IMAGES))
    assert torch.equal(maps[1], network.layer2(maps[0]))
    network.forward_intermediates = lambda x, intermediates_only: [x + 1]  # as timm's models have
    assert torch.equal(opencil.wrap(network, "fc").maps(IMAGES)[0], IMAGES + 1)
    del network.forward_intermediates
    with pytest.raises(BadInput, match=r"stages of LikeTorchvision"):
        opencil.wrap(network, "fc").maps(IMAGES)
    with pytest.raises(BadInput, match=r"stages of LikeTorchvision"):
        opencil.wrap(network, "fc").last_stage(maps[0])
    with pytest.raises(BadInput, match=r"stage 'fc' .*\[4, 5\]"):
        opencil.wrap(network, "fc", stages="fc").maps(IMAGES)
    with pytest.raises(BadInput, match=r"LikeTorchvision's stage 'layer3' .*'layer[12]'"):
        opencil.wrap(network, "fc", stages=["layer3"])


class Twice(LikeTorchvision):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x) + super().forward(x)


@pytest.mark.parametrize(
    ("network", "head", "message"),
    [
        (LikeTorchvision(), "fcc", "head 'fcc' .*did you mean 'fc'"),
        (LikeTorchvision(), "", "head ''"),
        (nn.Conv2d(3, 5, 1), "fc", "head 'fc' .*none"),
        (LikeVGG(), "classifier", "head 'classifier' .*did you mean 'classifier.3'"),
        (LikeTorchvision(), "layer1", "head 'layer1' .*allowed are auxiliary, fc"),
        (len, "fc", "builtin_function_or_method"),
        (LikeTorchvision(), None, "NoneType is given for a layer"),
        # These are noticed when the model runs.
        (LikeTorchvision(), "auxiliary", "head 'auxiliary' .*called 0 times"),
        (Twice(), "fc", "head 'fc' .*called 2 times"),
        (LikeTorchvision(lambda z: z.softmax(dim=1)), "fc", "head 'fc'"),
        (LikeTorchvision(lambda z: z.mul_(2)), "fc", "head 'fc'"),
        (LikeTorchvision(lambda z: {"scores": z}), "fc", "dict with scores"),
    ],
)
def test_a_head_that_does_not_end_the_model_is_refused(network: Any, head: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        opencil.forward(opencil.wrap(network, head=head), IMAGES)
