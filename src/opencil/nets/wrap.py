"""Models from elsewhere: their features by a hook in front of the head, or their logits alone."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from opencil.arrays import dense, tensor_of
from opencil.errors import BadInput, nearest
from opencil.nets.model import Backbone, Classifier

Hook = Callable[[nn.Module, Any, Any], None]


def wrap(model: nn.Module, head: str, stages: Sequence[str] = ()) -> "WrappedModel":
    """A trained classifier from elsewhere (torchvision, timm, Hugging Face …) as a model of ours.

    ``head`` is the name of its last linear layer, with dots where it lies deeper: ``fc``, ``classifier.6``,
    ``heads.head``. What that layer reads are the features, what it gives must be what the model gives: a
    tensor, an object or a mapping with ``logits``, or a tuple that begins with them. ``stages`` names the
    layers whose outputs are the maps [B, C, H, W], for detectors that read them; a model with timm's
    ``forward_intermediates`` needs none. The model itself stays as it is.
    """
    return WrappedModel(model, head, stages)


class WrappedModel(nn.Module):
    """A classifier from elsewhere with ``features``, ``classify`` and, where it has stages, ``maps``."""

    def __init__(self, network: nn.Module, head: str, stages: Sequence[str] = ()) -> None:
        super().__init__()
        if not isinstance(network, nn.Module):
            raise BadInput(
                f"a {type(network).__name__} has no layers to wrap: a torch module is needed. A function "
                "from images to logits is used as it is, by detectors that read logits"
            )
        self.network, self.head_name = network, head
        self.stage_names = (stages,) if isinstance(stages, str) else tuple(stages)
        linear = [name for name, layer in network.named_modules() if isinstance(layer, nn.Linear) and name]
        found = _layer(network, head, "head", linear)
        if not isinstance(found, nn.Linear):
            inside = [name for name in linear if name.startswith(f"{head}.")]
            hint = f"; did you mean {inside[-1]!r}?" if inside else nearest(head, linear)
            raise BadInput(
                f"head {head!r} of {type(network).__name__} is a {type(found).__name__}: a linear layer is "
                f"needed, which are {_listed(linear)}{hint}"
            )
        for name in self.stage_names:
            _layer(network, name, "stage", [n for n, _ in network.named_children()])

    @property
    def head(self) -> nn.Module:
        """The linear layer, where it lies in the network."""
        return self.network.get_submodule(self.head_name)

    def features(self, images: Tensor) -> Tensor:
        """What the head reads, [B, D]."""
        read: list[Any] = []
        given: list[tuple[Any, int | None]] = []

        def note(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            read.append(inputs[0] if inputs else None)
            given.append((output, _version(output)))

        with _hooked([(self.head, note)]):
            output = self.network(images)
        self._check(images, read, given, output)
        features: Tensor = read[0]
        return features

    def classify(self, features: Tensor) -> Tensor:
        """Logits z [B, classes] of features."""
        logits: Tensor = self.head(features)
        return logits

    def forward(self, images: Tensor) -> Tensor:
        """Logits of normalised images."""
        return self.classify(self.features(images))

    def maps(self, images: Tensor) -> list[Tensor]:
        """What the stages give, [B, C, H, W] each."""
        intermediates = getattr(self.network, "forward_intermediates", None)
        if intermediates is not None and not self.stage_names:
            return list(intermediates(images, intermediates_only=True))
        if not self.stage_names:
            raise BadInput(
                f"{type(self.network).__name__} does not say what its stages are: name the layers, "
                "wrap(model, head=…, stages=[…]), for detectors that read their maps"
            )
        found: list[Any] = [None] * len(self.stage_names)

        def keep(place: int) -> Hook:
            def note(_: nn.Module, __: Any, output: Any) -> None:
                found[place] = output

            return note

        layers = [self.network.get_submodule(name) for name in self.stage_names]
        with _hooked([(layer, keep(place)) for place, layer in enumerate(layers)]):
            self.network(images)
        for name, one in zip(self.stage_names, found, strict=True):
            if not isinstance(one, Tensor) or one.ndim != 4:
                raise BadInput(f"stage {name!r} gives {_described(one)}: maps [B, C, H, W] are needed")
        return found

    def last_stage(self, maps: Tensor) -> Tensor:
        """Means over pixels of what the last stage makes of maps: features, where the model's are such."""
        if not self.stage_names:
            raise BadInput(
                f"{type(self.network).__name__} does not say what its last stage is: name the layers, "
                "wrap(model, head=…, stages=[…]), for detectors that run it on maps of their own"
            )
        found: Tensor = self.network.get_submodule(self.stage_names[-1])(maps)
        return found.mean(dim=(2, 3))

    def _check(
        self, images: Tensor, read: list[Any], given: list[tuple[Any, int | None]], output: Any
    ) -> None:
        """Refuse a head whose input are no features, or whose output is not what the network gives."""
        place = f"head {self.head_name!r} of {type(self.network).__name__}"
        if len(read) != 1:
            times = "not called" if not read else f"called {len(read)} times"
            raise BadInput(
                f"{place} is {times} when the model runs: the layer that gives its logits is needed, which "
                "is called once"
            )
        if not isinstance(read[0], Tensor) or read[0].ndim != 2 or len(read[0]) != len(images):
            raise BadInput(
                f"{place} reads {_described(read[0])}: features [B, D] are needed, one row for each of "
                f"{len(images)} images"
            )
        logits = logits_of(output, len(images), type(self.network).__name__)
        ((of_head, version),) = given
        if _version(of_head) != version:
            # Written into since, by a mask or a scale in place: what the head gave is computed again.
            of_head = self.classify(read[0])
        if logits is of_head:
            return
        same = logits.shape == of_head.shape and torch.equal(logits.float(), of_head.float())
        if not same:
            raise BadInput(
                f"{type(self.network).__name__} gives {_described(logits)}, which is not what its "
                f"head {self.head_name!r} gives: a softmax, a scale or a second head comes after it. Wrap "
                "the part that ends with the linear layer, or give a function from images to logits"
            )


class LogitsAlone(nn.Module):
    """A function from images to logits in a classifier's place: it has no features."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    @property
    def name(self) -> str:
        """What errors call it."""
        return getattr(self.function, "__name__", type(self.function).__name__)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of normalised images."""
        return logits_of(self.function(images), len(images), self.name)

    def features(self, images: Tensor) -> Tensor:
        """None are known."""
        raise BadInput(f"{self.name} gives logits alone: {WRAP_HINT}")

    def classify(self, features: Tensor) -> Tensor:
        """No head is known."""
        raise BadInput(f"{self.name} gives logits alone: {WRAP_HINT}")


WRAP_HINT = "opencil.wrap(model, head=…) gives features too, from in front of a module's last linear layer"


def as_classifier(model: Any) -> Classifier:
    """A model with features where it has them, else its logits alone; what is neither is refused."""
    if isinstance(model, Backbone):
        raise BadInput(
            f"{type(model).__name__} is a backbone, which gives features and no logits: "
            "opencil.Model(backbone, classes) has a head too"
        )
    weights = list(model.parameters()) if isinstance(model, nn.Module) else []
    if any(weight.device.type == "meta" for weight in weights):
        raise BadInput(
            f"{type(model).__name__} has weights on the device 'meta', which holds no numbers: "
            "model.to_empty(device='cpu') and load_state_dict give it some"
        )
    if other := next((w.dtype for w in weights if w.is_floating_point() and w.dtype != torch.float32), None):
        raise BadInput(
            f"{type(model).__name__} has weights in {str(other).removeprefix('torch.')}, and images and "
            "features are float32: model.float() makes the weights so"
        )
    if not isinstance(model, type):
        if callable(getattr(model, "features", None)) and callable(getattr(model, "classify", None)):
            classifier: Classifier = model
            return classifier
        if callable(model):
            return LogitsAlone(model)
    raise BadInput(
        f"{_named(model)} is no model: a module with features(images) and classify(features) is needed, one "
        "from opencil.wrap(model, head=…), or a function from images to logits"
    )


def logits_of(output: Any, rows: int, name: str) -> Tensor:
    """The logits [B, classes] in what a model gives: a tensor, ``logits`` of an object or a mapping, or the
    first of several.
    """
    found = output
    if isinstance(output, Mapping):
        found = output.get("logits")
    elif not isinstance(output, Tensor) and hasattr(output, "logits"):
        found = output.logits
    elif isinstance(output, (tuple, list)) and output:
        found = output[0]
    if not isinstance(found, Tensor | type) and hasattr(found, "__array__"):
        found = tensor_of(np.asarray(found))
    if isinstance(found, Tensor):
        found = dense(found, f"logits of {name}")
    if not isinstance(found, Tensor) or found.ndim != 2 or len(found) != rows or not found.shape[1]:
        keys = f" with {', '.join(map(str, output))}" if isinstance(output, Mapping) else ""
        raise BadInput(
            f"{name} gives {_described(output)}{keys}: logits [{rows}, classes] are needed, as a tensor, "
            "as 'logits' of an object or mapping, or as the first of a tuple"
        )
    return found


@contextmanager
def _hooked(hooks: Sequence[tuple[nn.Module, Hook]]) -> Iterator[None]:
    """Forward hooks that are there inside the block alone."""
    with ExitStack() as stack:
        for layer, hook in hooks:
            stack.callback(layer.register_forward_hook(hook).remove)
        yield


def _layer(network: nn.Module, name: str, what: str, known: list[str]) -> nn.Module:
    layers: dict[str, nn.Module] = dict(network.named_modules())
    if not isinstance(name, str) or not name or name not in layers:
        hint = nearest(name, known) if isinstance(name, str) else ""
        kind = "linear layers" if what == "head" else "layers"
        raise BadInput(
            f"{what} {name!r} is not in {type(network).__name__}: its {kind} are {_listed(known)}{hint}"
        )
    return layers[name]


def _version(value: Any) -> int | None:
    """How often a tensor has been written into, where torch counts it."""
    return value._version if isinstance(value, Tensor) and not value.is_inference() else None


def _listed(names: list[str]) -> str:
    """The last of some names: a model's head is among them."""
    return ", ".join([*["…"] * (len(names) > 4), *names[-4:]]) or "none"


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} {list(value.shape)}"
    return _named(value)


def _named(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return "None" if value is None else f"a {type(value).__name__}"
