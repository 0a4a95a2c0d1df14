"""φ and h: a backbone that gives features and a head that grows with the classes."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from opencil.errors import BadInput

_fused: ContextVar[bool] = ContextVar("fused", default=False)


@contextmanager
def fused_backbones(enabled: bool) -> Iterator[None]:
    """Inside the block backbones run as torch.compile makes them: fewer, larger kernels, other roundings."""
    token = _fused.set(enabled)
    try:
        yield
    finally:
        _fused.reset(token)


class Backbone(nn.Module):
    """A network from images to pooled features [B, width]."""

    width: int
    frozen: bool = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Features [B, width] of normalised images."""
        # One compiled function for all backbones: neither a copy nor the next step needs the compiler again.
        if _fused.get() and not self.has_kernels_for(*args):
            return _compiled()(self, *args)
        return super().__call__(*args, **kwargs)

    def has_kernels_for(self, images: Tensor) -> bool:
        """Whether it runs in kernels of its own on these images, which leave nothing to a compiler."""
        return False

    @property
    def weighted(self) -> nn.Module:
        """The module that a file of weights describes."""
        return self

    def freeze(self) -> Self:
        """Keep the weights and the statistics as they are, whatever trains around them.

        Parameters become buffers: no optimiser finds them and no ``requires_grad_``, of this module or of one
        around it, reaches them; files and copies hold them as before, under the same names.
        """
        for module in self.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                delattr(module, name)
                module.register_buffer(name, parameter.detach())
        self.frozen = True
        return self.eval()

    def train(self, mode: bool = True) -> Self:
        """Training mode, unless it is frozen: then normalisation keeps its statistics."""
        return super().train(mode and not self.frozen)

    def maps(self, images: Tensor) -> list[Tensor]:
        """What each stage gives after its last activation, [B, C, H, W] each."""
        raise BadInput(
            f"{type(self).__name__} has no maps of its stages: a method maps(images) gives them, "
            "[B, C, H, W] each"
        )

    def features_and_maps(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Features and the stages' maps; in one pass where a backbone says how."""
        return self(images), self.maps(images)

    def split(self) -> "tuple[Backbone, Backbone]":
        """All but the last stage, and the last one, which gives the features of the other's last maps."""
        raise BadInput(
            f"{type(self).__name__} cannot be split: a method split() gives all of its stages but the last, "
            "and the last one, each as a Backbone"
        )


@cache
def _compiled() -> Callable[[Backbone, Tensor], Tensor]:
    def forward(backbone: Backbone, images: Tensor) -> Tensor:
        features: Tensor = backbone.forward(images)
        return features

    return torch.compile(forward, dynamic=False)


class Classifier(Protocol):
    """What evaluation and detectors need of a model: features, and logits from features."""

    def features(self, images: Tensor) -> Tensor:
        """Pooled penultimate features f [B, D] of normalised images."""
        ...

    def classify(self, features: Tensor) -> Tensor:
        """Logits z [B, classes] of features."""
        ...


class Head(nn.Linear):
    """A linear classifier whose old part stays when it grows."""

    def reset_parameters(self) -> None:
        """Weights kaiming-uniform for a linear layer, bias 0."""
        nn.init.kaiming_uniform_(self.weight, nonlinearity="linear")
        nn.init.zeros_(self.bias)

    def grown(self, classes: int, width: int | None = None) -> Self:
        """A head over ``classes`` classes (and ``width`` features) that keeps this one's rows and columns."""
        # Drawn on the CPU: the same everywhere.
        head = type(self)(width or self.in_features, classes).to(self.weight.device)
        with torch.no_grad():
            head.weight[: self.out_features, : self.in_features] = self.weight
            head.bias[: self.out_features] = self.bias
        return head


class Model(nn.Module):
    """θ = φ (``features``) + h (``classify``)."""

    def __init__(self, backbone: Backbone, classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = Head(backbone.width, classes)

    def features(self, images: Tensor) -> Tensor:
        """Pooled penultimate features f [B, D] of normalised images."""
        features: Tensor = self.backbone(images)
        return features

    def maps(self, images: Tensor) -> list[Tensor]:
        """The backbone's maps after each stage, [B, C, H, W] each."""
        return self.backbone.maps(images)

    def last_stage(self, maps: Tensor) -> Tensor:
        """Features [B, D] of maps that take the place of those before the last stage."""
        features: Tensor = self.backbone.split()[1](maps)
        return features

    def classify(self, features: Tensor) -> Tensor:
        """Logits z [B, classes] of features."""
        logits: Tensor = self.head(features)
        return logits

    def forward(self, images: Tensor) -> Tensor:
        """Logits of normalised images."""
        return self.classify(self.features(images))

    def extra_head(self) -> nn.Module:
        """A copy of h, from features to logits, that fine-tuning detectors can train; θ stays as it is."""
        return copy.deepcopy(self.head).requires_grad_(True)

    def grow(self, classes: int) -> None:
        """Widen the head to ``classes`` classes."""
        self.head = self.head.grown(classes)
