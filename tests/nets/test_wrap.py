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
    """Of torchvision too: the head is the last of a sequence, and ``features`` is a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(2))
        self.classifier = nn.Sequential(nn.Linear(16, 7), nn.ReLU(True), nn.Dropout(), nn.Linear(7, 5))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x).flatten(1))
        return logits


class LikeTimm(nn.Module):
    """A network of timm's with ``head.fc`` and ``forward_intermediates``."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 4, 4)
        self.head = nn.Sequential()
        self.head.add_module("norm", nn.LayerNorm(4))
        self.head.add_module("fc", nn.Linear(4, 5))

    def forward_intermediates(self, x: Tensor, intermediates_only: bool = False) -> Any:
        x = self.stem(x).relu()
        return [x] if intermediates_only else (x, [x])

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.stem(x).relu().mean(dim=(2, 3)))
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
    (LikeTimm, "head.fc"),
    (LikeHuggingFace, "classifier"),
    (lambda: LikeHuggingFace("dictionary"), "classifier"),
    (lambda: LikeHuggingFace("tuple"), "classifier"),
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
    torch.testing.assert_close(model.eval()(IMAGES).detach(), outputs.logits, rtol=1e-5, atol=1e-6)


def test_the_model_stays_as_it_is() -> None:
    network = LikeTorchvision().train()
    network.fc.eval()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    model = opencil.wrap(network, head="fc", stages=["layer1"])
    opencil.forward(model, IMAGES)
    list(opencil.Inputs(model, IMAGES).maps())
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    assert network.training
    assert not network.fc.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())


def test_gradients_reach_the_images() -> None:
    images = IMAGES.clone().requires_grad_()
    opencil.wrap(LikeVGG(), "classifier.3")(images).sum().backward()
    assert images.grad is not None
    assert images.grad.abs().sum() > 0


def test_a_hook_is_taken_away_after_an_error() -> None:
    network = LikeTorchvision(end=lambda z: z / 0 if z.dtype == torch.float64 else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        opencil.wrap(network, "fc").features(IMAGES)
    assert not network.fc._forward_hooks


def test_maps_are_those_of_the_named_stages_or_of_timm() -> None:
    network = LikeTorchvision().eval()
    maps = opencil.wrap(network, "fc", stages=["layer1", "layer2"]).maps(IMAGES)
    assert torch.equal(maps[0], network.layer1(IMAGES))
    assert torch.equal(maps[1], network.layer2(maps[0]))
    timm = LikeTimm()
    assert torch.equal(opencil.wrap(timm, "head.fc").maps(IMAGES)[0], timm.stem(IMAGES).relu())
    with pytest.raises(BadInput, match=r"LikeTorchvision does not say what its stages are: .*stages=\["):
        opencil.wrap(network, "fc").maps(IMAGES)
    with pytest.raises(BadInput, match=r"LikeTorchvision does not say what its last stage is: .*stages=\["):
        opencil.wrap(network, "fc").last_stage(maps[0])
    with pytest.raises(BadInput, match=r"stage 'fc' gives torch.float32 \[4, 5\]: maps"):
        opencil.wrap(network, "fc", stages="fc").maps(IMAGES)
    with pytest.raises(BadInput, match=r"stage 'layer3' is not in LikeTorchvision: .*'layer[12]'"):
        opencil.wrap(network, "fc", stages=["layer3"])


class Twice(LikeTorchvision):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x) + super().forward(x)


class OnMaps(nn.Module):
    """A linear layer on each place, whose results are pooled."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        pooled: Tensor = self.fc(x.flatten(2).transpose(1, 2)).mean(dim=1)
        return pooled


@pytest.mark.parametrize(
    ("network", "head", "sentence"),
    [
        (LikeTorchvision(), "fcc", "head 'fcc' is not in LikeTorchvision: its linear layers are fc, auxiliary"
         "; did you mean 'fc'?"),
        (LikeTorchvision(), "", "head '' is not in LikeTorchvision"),
        (LikeTorchvision(), 3, "head 3 is not in LikeTorchvision"),
        (nn.Conv2d(3, 5, 1), "fc", "head 'fc' is not in Conv2d: its linear layers are none"),
        (LikeVGG(), "classifier", "head 'classifier' of LikeVGG is a Sequential: a linear layer is needed, "
         "which are classifier.0, classifier.3; did you mean 'classifier.3'?"),
        (LikeTorchvision(), "layer1", "head 'layer1' of LikeTorchvision is a Conv2d: a linear layer"),
        (len, "fc", "a builtin_function_or_method has no layers to wrap: a torch module is needed"),
    ],
)  # fmt: skip
def test_a_head_that_is_none_is_refused(network: Any, head: Any, sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        opencil.wrap(network, head=head)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("network", "head", "sentence"),
    [
        (LikeTorchvision(), "auxiliary", "head 'auxiliary' of LikeTorchvision is not called when the"),
        (Twice(), "fc", "head 'fc' of Twice is called 2 times when the model runs"),
        (LikeVGG(), "classifier.0", "which is not what its head 'classifier.0' gives: a softmax, a scale or"),
        (LikeTorchvision(lambda z: z.softmax(dim=1)), "fc", "which is not what its head 'fc' gives"),
        (LikeTorchvision(lambda z: 2 * z), "fc", "LikeTorchvision gives torch.float32 [4, 5], which is not"),
        (LikeTorchvision(lambda z: z.mul_(2)), "fc", "which is not what its head 'fc' gives"),
        (LikeTorchvision(lambda z: {"scores": z}), "fc", "gives a dict with scores: logits [4, classes] are"),
        (LikeTorchvision(lambda _: "cat"), "fc", "gives a str: logits [4, classes] are needed"),
        (OnMaps(), "fc", "head 'fc' of OnMaps reads torch.float32 [4, 64, 3]: features [B, D] are needed"),
    ],
)  # fmt: skip
def test_a_head_that_does_not_end_the_model_is_refused(network: nn.Module, head: str, sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        opencil.forward(opencil.wrap(network, head=head), IMAGES)
    assert sentence in str(caught.value)


def test_logits_that_were_copied_are_the_heads() -> None:
    model = opencil.wrap(LikeTorchvision(lambda z: z.double().clone()), "fc")
    assert opencil.forward(model, IMAGES).logits.shape == (4, 5)
