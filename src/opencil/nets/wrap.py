"""Wrap other models: features by a hook on their head, or logits only."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from opencil.arrays import dense, listed, tensor_of
from opencil.errors import BadInput, nearest, unknown
from opencil.nets.model import Backbone, Classifier


class WrappedModel(nn.Module):
    """A trained classifier (torchvision, timm, Hugging Face …) as a model with features and logits.

    ``head`` is the dotted name of its last linear layer: ``fc``, ``classifier.6``, ``heads.head``. The
    layer's input are the features, and its output must be the model's: a tensor, an object or a mapping with
    ``logits``, or a tuple that begins with them. ``stages`` names the layers whose outputs are the maps [B,
    C, H, W], for detectors that read them; a model with timm's ``forward_intermediates`` needs none. The
    network itself is not changed.
    """

    def __init__(self, network: nn.Module, head: str, stages: Sequence[str] = ()) -> None:
        super().__init__()
        if not isinstance(network, nn.Module):
            raise BadInput(f"a {type(network).__name__} has no layers to wrap: a torch module is needed")
        self.network, self.head_name, name = network, head, type(network).__name__
        self.stage_names = (stages,) if isinstance(stages, str) else tuple(listed(stages, "stages"))
        layers = dict(network.named_modules())
        linear = [name for name, layer in layers.items() if name and isinstance(layer, nn.Linear)]
        for layer in (head, *self.stage_names):
            if not isinstance(layer, str):
                raise BadInput(f"{describe(layer)} is given for a layer: its dotted name is needed")
        if head not in linear:
            inside = [layer for layer in linear if layer.startswith(f"{head}.")]
            hint = f"; did you mean {inside[-1]!r}?" if inside else nearest(str(head), linear)
            raise unknown(f"{name}'s linear head", str(head), linear[-4:], hint)
        for stage in self.stage_names:
            if stage not in layers:
                raise unknown(f"{name}'s stage", str(stage), dict(network.named_children()))

    @property
    def head(self) -> nn.Module:
        """Return the linear layer of the network."""
        return self.network.get_submodule(self.head_name)

    @property
    def stages(self) -> list[nn.Module]:
        """Return the layers whose outputs are the maps."""
        if not self.stage_names:
            name = type(self.network).__name__
            raise BadInput(f"the stages of {name} are not known: name them, wrap(model, head=…, stages=[…])")
        return [self.network.get_submodule(name) for name in self.stage_names]

    def features(self, images: Tensor) -> Tensor:
        """Return the head's input, [B, D]."""
        calls: list[tuple[Any, Any, int | None]] = []

        def note(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            calls.append((inputs[0] if inputs else None, output, _version(output)))

        with self.head.register_forward_hook(note):
            output = self.network(images)
        name = type(self.network).__name__
        place = f"head {self.head_name!r} of {name}"
        if len(calls) != 1:
            raise BadInput(f"{place} is called {len(calls)} times by the model: the last layer is needed")
        ((features, of_head, version),) = calls
        if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != len(images):
            raise BadInput(f"{place} reads {describe(features)}: features [{len(images)}, D] are needed")
        logits = logits_of(output, len(images), name)
        if _version(of_head) != version:  # changed in place, by a mask or a scale
            of_head = self.classify(features)
        # Compared only if necessary: tensors cannot be compared while a step is captured.
        if logits is not of_head and not torch.equal(logits.float(), of_head.float()):
            raise BadInput(f"{place} does not end it: wrap the part it ends, or use a function to logits")
        return features

    def classify(self, features: Tensor) -> Tensor:
        """Return logits z [B, classes] of features."""
        return self.head(features)  # type: ignore[no-any-return]

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of normalised images."""
        return self.classify(self.features(images))

    def maps(self, images: Tensor) -> list[Tensor]:
        """Return the outputs of the stages, [B, C, H, W] each."""
        intermediates = getattr(self.network, "forward_intermediates", None)
        if intermediates is not None and not self.stage_names:
            return list(intermediates(images, intermediates_only=True))
        layers, outputs = self.stages, dict[nn.Module, Any]()

        def note(layer: nn.Module, _: Any, output: Any) -> None:
            outputs[layer] = output

        with ExitStack() as hooks:
            for layer in layers:
                hooks.enter_context(layer.register_forward_hook(note))
            self.network(images)
        for name, layer in zip(self.stage_names, layers, strict=True):
            if not isinstance(output := outputs.get(layer), Tensor) or output.ndim != 4:
                raise BadInput(f"stage {name!r} returns {describe(output)}: maps [B, C, H, W] are needed")
        return [outputs[layer] for layer in layers]

    def last_stage(self, maps: Tensor) -> Tensor:
        """Return the means over pixels of the last stage's output for given maps before it."""
        return self.stages[-1](maps).mean(dim=(2, 3))  # type: ignore[no-any-return]


wrap = WrappedModel


class LogitsAlone(nn.Module):
    """A function from images to logits as a classifier without features; errors call it ``name``."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function, self.name = function, getattr(function, "__name__", type(function).__name__)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of normalised images."""
        return logits_of(self.function(images), len(images), self.name)

    def features(self, images: Tensor) -> Tensor:
        """Raise: there are neither features nor a head."""
        raise BadInput(f"{self.name} returns logits only: {WRAP_HINT}")

    classify = features


WRAP_HINT = "opencil.wrap(model, head=…) adds features, the input of a module's last linear layer"


def as_classifier(model: Any) -> Classifier:
    """Return a model with features as it is, a function from images to logits wrapped; else raise."""
    if isinstance(model, Backbone):
        raise BadInput(f"{type(model).__name__} is a backbone: use opencil.Model(backbone, classes)")
    for weight in model.parameters() if isinstance(model, nn.Module) else ():
        if weight.is_floating_point() and weight.dtype != torch.float32:
            name = type(model).__name__
            raise BadInput(f"{name} has weights in {weight.dtype}, not float32: use model.float()")
    if not isinstance(model, type):
        if callable(getattr(model, "features", None)) and callable(getattr(model, "classify", None)):
            return model  # type: ignore[no-any-return]
        if callable(model):
            return LogitsAlone(model)
    needed = "a function from images to logits, or features(images) and classify(features), are needed"
    raise BadInput(f"{describe(model)} is no model: {needed}, as opencil.wrap(model, head=…) has them")


def logits_of(output: Any, rows: int, name: str) -> Tensor:
    """Return a model's output or, in it, ``logits`` of an object or a mapping, or the first of a tuple."""
    found = output
    if isinstance(output, Mapping):
        found = output.get("logits")
    elif hasattr(output, "logits"):
        found = output.logits
    elif isinstance(output, (tuple, list)) and output:
        found = output[0]
    if not isinstance(found, Tensor | type) and hasattr(found, "__array__"):
        found = tensor_of(np.asarray(found))
    if isinstance(found, Tensor):
        found = dense(found, f"logits of {name}")
        if found.ndim == 2 and len(found) == rows and found.shape[1]:
            return found
    keys = f" with {', '.join(map(str, output))}" if isinstance(output, Mapping) else ""
    ways = "a tensor, 'logits' of an object or a mapping, or the first of a tuple"
    raise BadInput(f"{name} returns {describe(output)}{keys}: logits [{rows}, classes] are needed, as {ways}")


def _version(value: Any) -> int | None:
    """Return how often a tensor was changed in place, if torch counts it."""
    return value._version if isinstance(value, Tensor) and not value.is_inference() else None


def describe(value: Any) -> str:
    """Return a value's type, and a tensor's shape, for an error."""
    if isinstance(value, Tensor) and not value.is_nested:  # a nested tensor has no shape
        return f"{value.dtype} {list(value.shape)}"
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
