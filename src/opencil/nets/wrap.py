"""Wrap other models: features by a hook on their head, or logits only."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from opencil.arrays import dense, tensor_of
from opencil.errors import BadInput, nearest
from opencil.nets.model import Backbone, Classifier


def wrap(model: nn.Module, head: str, stages: Sequence[str] = ()) -> "WrappedModel":
    """Wrap a trained classifier (torchvision, timm, Hugging Face …) as a model with features and logits.

    ``head`` is the dotted name of its last linear layer: ``fc``, ``classifier.6``, ``heads.head``. The
    layer's input are the features, and its output must be the model's: a tensor, an object or a mapping with
    ``logits``, or a tuple that begins with them. ``stages`` names the layers whose outputs are the maps [B,
    C, H, W], for detectors that read them; a model with timm's ``forward_intermediates`` needs none. The
    model itself is not changed.
    """
    return WrappedModel(model, head, stages)


class WrappedModel(nn.Module):
    """A classifier made of another network, with ``features``, ``classify`` and, given stages, ``maps``."""

    def __init__(self, network: nn.Module, head: str, stages: Sequence[str] = ()) -> None:
        super().__init__()
        if not isinstance(network, nn.Module):
            raise BadInput(f"a {type(network).__name__} has no layers to wrap: a torch module is needed")
        self.network, self.head_name = network, head
        self.stage_names = (stages,) if isinstance(stages, str) else tuple(stages)
        layers = {name: layer for name, layer in network.named_modules() if name}
        linear = [name for name, layer in layers.items() if isinstance(layer, nn.Linear)]
        of_network = f"of {type(network).__name__} is"
        if head not in linear:
            kind = f"a {type(layers[head]).__name__}" if head in layers else "not there"
            inside = [name for name in linear if name.startswith(f"{head}.")]
            hint = f"; did you mean {inside[-1]!r}?" if inside else nearest(str(head), linear)
            raise BadInput(
                f"head {head!r} {of_network} {kind}: a linear layer is needed, allowed are "
                f"{_list_last(linear)}{hint}"
            )
        children = [name for name, _ in network.named_children()]
        for stage in self.stage_names:
            if stage not in layers:
                hint = nearest(str(stage), children)
                raise BadInput(
                    f"stage {stage!r} {of_network} not there: allowed are {_list_last(children)}{hint}"
                )

    @property
    def head(self) -> nn.Module:
        """Return the linear layer of the network."""
        return self.network.get_submodule(self.head_name)

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
            raise BadInput(
                f"{name} returns {describe(logits)}, not the output of its head {self.head_name!r}: wrap the "
                "part that ends with it, or use a function to logits"
            )
        return features

    def classify(self, features: Tensor) -> Tensor:
        """Return logits z [B, classes] of features."""
        logits: Tensor = self.head(features)
        return logits

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of normalised images."""
        return self.classify(self.features(images))

    def maps(self, images: Tensor) -> list[Tensor]:
        """Return the outputs of the stages, [B, C, H, W] each."""
        intermediates = getattr(self.network, "forward_intermediates", None)
        if intermediates is not None and not self.stage_names:
            return list(intermediates(images, intermediates_only=True))
        if not self.stage_names:
            raise self._no_stages()
        layers = [self.network.get_submodule(name) for name in self.stage_names]
        outputs: dict[nn.Module, Any] = {}

        def note(layer: nn.Module, _: Any, output: Any) -> None:
            outputs[layer] = output

        with ExitStack() as hooks:
            for layer in layers:
                hooks.enter_context(layer.register_forward_hook(note))
            self.network(images)
        maps = [outputs.get(layer) for layer in layers]
        for name, output in zip(self.stage_names, maps, strict=True):
            if not isinstance(output, Tensor) or output.ndim != 4:
                raise BadInput(f"stage {name!r} returns {describe(output)}: maps [B, C, H, W] are needed")
        return maps  # type: ignore[return-value]

    def last_stage(self, maps: Tensor) -> Tensor:
        """Return the means over pixels of the last stage's output for given maps before it."""
        if not self.stage_names:
            raise self._no_stages()
        output: Tensor = self.network.get_submodule(self.stage_names[-1])(maps)
        return output.mean(dim=(2, 3))

    def _no_stages(self) -> BadInput:
        name = type(self.network).__name__
        return BadInput(f"the stages of {name} are not known: name them, wrap(model, head=…, stages=[…])")


class LogitsAlone(nn.Module):
    """A function from images to logits as a classifier without features."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    @property
    def name(self) -> str:
        """Return the name for errors."""
        return getattr(self.function, "__name__", type(self.function).__name__)

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
        raise BadInput(
            f"{type(model).__name__} is a backbone without a head: use opencil.Model(backbone, classes)"
        )
    for weight in model.parameters() if isinstance(model, nn.Module) else ():
        if weight.is_floating_point() and weight.dtype != torch.float32:
            name = type(model).__name__
            raise BadInput(f"{name} has weights in {weight.dtype}, not float32: use model.float()")
    if not isinstance(model, type):
        if callable(getattr(model, "features", None)) and callable(getattr(model, "classify", None)):
            classifier: Classifier = model
            return classifier
        if callable(model):
            return LogitsAlone(model)
    raise BadInput(
        f"{describe(model)} is no model: a module with features(images) and classify(features), as "
        "opencil.wrap(model, head=…) makes it, or a function from images to logits, is needed"
    )


def logits_of(output: Any, rows: int, name: str) -> Tensor:
    """Return the logits [B, classes] in a model's output.

    They are the tensor itself, ``logits`` of an object or a mapping, or the first element of a tuple.
    """
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
    raise BadInput(
        f"{name} returns {describe(output)}{keys}: logits [{rows}, classes] are needed, as a tensor, as "
        "'logits' of an object or mapping, or as the first of a tuple"
    )


def _version(value: Any) -> int | None:
    """Return how often a tensor was changed in place, if torch counts it."""
    return value._version if isinstance(value, Tensor) and not value.is_inference() else None


def _list_last(names: list[str]) -> str:
    """Return the last names as text: a model's head is among them."""
    return ", ".join([*["…"] * (len(names) > 4), *names[-4:]]) or "none"


def describe(value: Any) -> str:
    """Return a value's type, and a tensor's shape, for an error."""
    if isinstance(value, Tensor):
        return f"{value.dtype} {list(value.shape)}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return "None" if value is None else f"a {type(value).__name__}"
