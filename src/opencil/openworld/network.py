"""The part of a classifier that does not change: preprocessing, and a network from images to features."""

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from opencil.data.transforms import Transform
from opencil.engine.forward import forward
from opencil.engine.frozen import FrozenNetwork, Runtime
from opencil.errors import BadInput, one_line
from opencil.nets.create import (
    Named,
    check_backbone,
    is_published,
    pin_weights,
    preprocessing,
    without_weights,
)
from opencil.nets.model import Backbone, Classifier, Model
from opencil.openworld.preprocessing import Preprocessing
from opencil.validation import build

#: Where networks are kept that were converted for ONNX Runtime.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "opencil")


class Network(Protocol):
    """From images to features: ``preprocessing`` takes bytes of any size."""

    preprocessing: Preprocessing

    def features(self, images: Tensor) -> Tensor:
        """Return features [N, D] of normalised images, on the CPU."""
        ...

    def join(self, head: Classifier) -> nn.Module:
        """Return the network in torch, with a head that reads its features, as one model."""
        ...


class Pretrained:
    """A backbone with published weights, or with weights from a file; created when it is first needed.

    ``named`` has the checksum of its weights. ``tensors`` replace the file where they were stored.
    """

    def __init__(
        self,
        backbone: Named,
        transform: Mapping[str, Any] | None,
        runtime: Runtime,
        device: str,
        tensors: Mapping[str, Tensor] | None = None,
    ) -> None:
        named = {"name": backbone, "weights": "imagenet"} if isinstance(backbone, str) else dict(backbone)
        check_backbone(named)
        if isinstance(backbone, str) and not is_published(named):
            raise BadInput(f"backbone {backbone!r} has no published weights: give a mapping with its weights")
        values = preprocessing(named) if transform is None else transform
        if values is None:
            raise BadInput(f"backbone = {backbone!r} has no preprocessing of its own: give a transform")
        if not tensors and not named.get("weights") and not named.get("pretrained"):
            raise BadInput(f"backbone = {backbone!r} has no weights: features of random weights say little")
        self.given, self.backbone, self.tensors = (backbone, transform), named, tensors
        self.preprocessing = Preprocessing(build(Transform, values, where="transform"))
        self._runtime: Runtime = runtime
        self._device = device

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "frozen"}  # created again

    @cached_property
    def named(self) -> dict[str, Any]:
        """Return the backbone with the checksum of its weights."""
        named = self.backbone if self.tensors else pin_weights(self.backbone)
        assert isinstance(named, dict)
        return named

    @cached_property
    def frozen(self) -> FrozenNetwork:
        """Return the network."""
        named = without_weights(self.named) if self.tensors else self.named
        assert not isinstance(named, Backbone)
        network = FrozenNetwork(named, self._runtime, self._device, cache=CACHE.expanduser())
        if self.tensors:
            try:
                network.backbone.weighted.load_state_dict(dict(self.tensors))
            except RuntimeError as error:
                raise BadInput(f"stored weights are of another network: {one_line(error)}") from None
        return network

    def features(self, images: Tensor) -> Tensor:
        """Return features [N, D] of normalised images, on the CPU."""
        return self.frozen.features(images).cpu().clone()

    def join(self, head: Classifier) -> nn.Module:
        """Return the backbone and the head as one model."""
        return Joined(self.frozen.backbone, head)


class Joined(nn.Module):
    """A backbone, and a head that reads its features as images of one pixel."""

    def __init__(self, backbone: nn.Module, head: Classifier) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def features(self, images: Tensor) -> Tensor:
        """Return features of normalised images, as detectors read them."""
        return self.head.features(self.backbone(images)[:, :, None, None])

    def classify(self, features: Tensor) -> Tensor:
        """Return logits of features."""
        return self.head.classify(features)


class Trained:
    """A model of a run, which computes features in its own ways; its head reads them unchanged."""

    def __init__(self, model: Model, transform: Transform) -> None:
        self.model, self.preprocessing = model.eval(), Preprocessing(transform)

    def features(self, images: Tensor) -> Tensor:
        """Return features [N, D] of normalised images, on the CPU."""
        return forward(self.model, images).features.cpu()

    def join(self, head: Classifier) -> nn.Module:
        """Return the model, of which the head is a part."""
        return self.model
