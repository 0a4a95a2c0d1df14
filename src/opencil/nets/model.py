"""Models: a backbone φ from images to features, and a growing head h."""

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
    """Run backbones through torch.compile inside the block: fewer kernels, other roundings."""
    token = _fused.set(enabled)
    try:
        yield
    finally:
        _fused.reset(token)


class Backbone(nn.Module):
    """A network from images to pooled features [B, width]."""

    width: int
    frozen: bool = False

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return features [B, width] of normalised images."""
        # One compiled function for all backbones: copies and later steps are not compiled again.
        if _fused.get() and not self.has_kernels_for(*args):
            return _compiled_forward()(self, *args)
        return super().__call__(*args, **kwargs)  # type: ignore[no-any-return]

    def has_kernels_for(self, images: Tensor) -> bool:
        """Return whether it runs on these images in its own kernels, without a compiler."""
        return False

    @property
    def weighted(self) -> nn.Module:
        """Return the module to load a file of weights into."""
        return self

    def freeze(self) -> Self:
        """Turn parameters into buffers of the same names, beyond optimisers and ``requires_grad_``."""
        for module in self.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                delattr(module, name)
                module.register_buffer(name, parameter.detach())
        self.frozen = True
        return self.eval()

    def train(self, mode: bool = True) -> Self:
        """Set training mode, unless it is frozen, where normalisation keeps its statistics."""
        return super().train(mode and not self.frozen)

    def maps(self, images: Tensor) -> list[Tensor]:
        """Return the maps of each stage after its last activation, [B, C, H, W] each."""
        raise BadInput(f"{type(self).__name__} has no maps of its stages: it needs a method maps(images)")

    def features_and_maps(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return features and maps; a subclass may compute both in one pass."""
        return self(images), self.maps(images)

    def split(self) -> "tuple[Backbone, Backbone]":
        """Return all stages but the last, and the last, from maps to features, each as a backbone."""
        raise BadInput(f"{type(self).__name__} cannot be split: it needs a method split()")


@cache
def _compiled_forward() -> Callable[[Backbone, Tensor], Tensor]:
    return torch.compile(lambda backbone, images: backbone.forward(images), dynamic=False)


class Classifier(Protocol):
    """Interface of models for evaluation and detectors: features, and logits from features."""

    def features(self, images: Tensor) -> Tensor:
        """Return pooled penultimate features f [B, D] of normalised images."""
        ...

    def classify(self, features: Tensor) -> Tensor:
        """Return logits z [B, classes] of features."""
        ...


class Head(nn.Linear):
    """A linear classifier with further rows for further classes."""

    def reset_parameters(self) -> None:
        """Draw weights kaiming-uniform for a linear layer, and set the bias to 0."""
        nn.init.kaiming_uniform_(self.weight, nonlinearity="linear")
        nn.init.zeros_(self.bias)

    def grow(self, classes: int, width: int | None = None) -> Self:
        """Return a head over ``classes`` classes and ``width`` features with a copy of this one's weights."""
        # Drawn on the CPU, the same for all devices.
        head = type(self)(width or self.in_features, classes).to(self.weight.device)
        with torch.no_grad():
            head.weight[: self.out_features, : self.in_features] = self.weight
            head.bias[: self.out_features] = self.bias
        return head


class Model(nn.Module):
    """θ = φ (``features``) + h (``classify``)."""

    class_names: tuple[str, ...] = ()  #: of the classes, in the order of the logits, if a run sets them

    def __init__(self, backbone: Backbone, classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = Head(backbone.width, classes)

    def features(self, images: Tensor) -> Tensor:
        """Return pooled penultimate features f [B, D] of normalised images."""
        return self.backbone(images)

    def maps(self, images: Tensor) -> list[Tensor]:
        """Return the backbone's maps after each stage, [B, C, H, W] each."""
        return self.backbone.maps(images)

    def last_stage(self, maps: Tensor) -> Tensor:
        """Return features [B, D] for given maps before the last stage."""
        return self.backbone.split()[1](maps)

    def classify(self, features: Tensor) -> Tensor:
        """Return logits z [B, classes] of features."""
        return self.head(features)  # type: ignore[no-any-return]

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of normalised images."""
        return self.classify(self.features(images))

    def extra_head(self) -> nn.Module:
        """Return a copy of h, from features to logits, to be trained by fine-tuning detectors."""
        return copy.deepcopy(self.head).requires_grad_(True)

    def grow(self, classes: int) -> None:
        """Widen the head to ``classes`` classes."""
        self.head = self.head.grow(classes)
