"""Create backbones by name and values, with weights from a file, trainable or frozen."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from opencil.errors import BadInput, one_line
from opencil.files import checksum, read_plain
from opencil.nets.model import Backbone
from opencil.nets.published import Weights, fit_names, load_weights, read_pickle
from opencil.registry import BACKBONES
from opencil.validation import check_arguments

#: A backbone in a config: a name, or a mapping with a ``name`` and values.
Named = str | dict[str, Any]
#: Keys of every backbone in a config, beside the arguments of its function or class.
COMMON = ("name", "weights", "sha256", "freeze", "recompute")


def create_backbone(
    name: str,
    *,
    weights: str | None = None,
    sha256: str | None = None,
    freeze: bool = False,
    recompute: bool = False,  # noqa: ARG001 - for the config's benchmark
    **values: Any,
) -> Backbone:
    """Create a registered backbone, with published weights (``imagenet``) or weights from a safetensors file.

    The file is of the backbone or of a model of ours. ``sha256`` is the expected checksum of the file.
    ``freeze`` excludes the weights from every training. Then a run computes features of all images once,
    unless it is to ``recompute`` them in every step.
    """
    backbone = BACKBONES.create(name, **values)
    if not isinstance(backbone, Backbone) or not isinstance(getattr(backbone, "width", None), int):
        kind = f"is a {type(backbone).__name__}, not an opencil.Backbone with a width"
        raise BadInput(f"backbone {name!r} {kind}: opencil.AdaptedBackbone turns any module into one")
    if weights is not None:
        tensors, _ = _read(name, weights, sha256)
        prefix = "backbone."  # the head in a whole model's file is left out
        of_model = {k.removeprefix(prefix): tensor for k, tensor in tensors.items() if k.startswith(prefix)}
        try:
            if weights in _published(name):
                of_model = fit_names(tensors, backbone)
            load_weights(backbone.weighted, of_model or tensors)
        except (RuntimeError, BadInput) as error:
            raise BadInput(f"backbone.weights = {weights!r} does not fit: {one_line(error)}") from None
    elif sha256 is not None and sha256 != checksum_weights(backbone):
        raise BadInput(f"the weights of backbone {name!r} have changed: {sha256} is their expected checksum")
    return backbone.freeze() if freeze else backbone


def check_backbone(named: Named) -> Named:
    """Return a config's backbone if its name and values are allowed; as a name only, if it has no values."""
    named = {"name": named} if isinstance(named, str) else named
    name = str(named.get("name", ""))
    check_arguments(named, "backbone", create_backbone, BACKBONES.entry(name).make)
    own = {key: value for key, value in named.items() if key not in COMMON}
    common = {key: named[key] for key in COMMON if named.get(key)}
    if "sha256" in common and "weights" not in common and not own.get("pretrained"):
        raise BadInput("backbone.sha256 is not allowed without backbone.weights: it is that file's checksum")
    return {"name": name, **own, **common} if own or len(common) > 1 else name


def preprocessing(named: Any) -> dict[str, Any] | None:
    """Return what belongs to a backbone's published weights, as values of ``benchmark.transform``, or None.

    A class can have ``published`` weights by name, or a method ``preprocessing`` of the backbone's values.
    """
    if not isinstance(named, dict) or (name := str(named.get("name"))) not in BACKBONES.names():
        return None
    if (published := _published(name).get(named.get("weights", ""))) is not None:
        return published.preprocessing
    find = getattr(BACKBONES.entry(name).make, "preprocessing", None)
    return None if find is None else find(named)


def is_published(named: Named) -> bool:
    """Return whether a backbone's weights are those of an installed package."""
    return isinstance(named, dict) and named.get("weights") in _published(str(named["name"]))


def pin_weights(named: Named) -> Named:
    """Return the backbone with the checksum of its file of weights; refuse an unexpected checksum."""
    if isinstance(named, str) or not (named.get("weights") or named.get("pretrained")):
        return named
    if named.get("pretrained"):
        return named | {"sha256": checksum_weights(create_backbone(**named))}
    return named | {"sha256": _read(named["name"], named["weights"], named.get("sha256"))[1]}


def without_weights(named: Named | Backbone) -> Named | Backbone:
    """Return the backbone without its file, for a model with other weights."""
    hidden = ("weights", "sha256", "pretrained")
    return {key: named[key] for key in named if key not in hidden} if isinstance(named, dict) else named


def checksum_weights(backbone: Backbone) -> str:
    """Return a checksum of all parameters and buffers, wherever they come from."""
    return checksum_tensors(backbone.weighted.state_dict())


def checksum_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Return a checksum of tensors and their names."""
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _published(name: str) -> Mapping[str, Weights]:
    return getattr(BACKBONES.entry(name).make, "published", {})


def _read(name: str, weights: str, sha256: str | None) -> tuple[dict[str, Tensor], str]:
    """Return the tensors of a file of weights, and its checksum; refuse an unexpected checksum."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    key, published = f"backbone.weights = {weights!r}", _published(name).get(weights)
    try:
        content = published.read(name) if published else read_plain(Path(weights).expanduser())
    except OSError as error:
        known = f"; {', '.join(map(repr, _published(name)))} is published" if _published(name) else ""
        raise BadInput(f"{key} cannot be read: {error.strerror}{known}") from None
    found = checksum(content)
    if sha256 not in (None, found):
        raise BadInput(f"{key} has changed: its sha256 is {found}, and {sha256} is expected")
    try:
        return (read_pickle(content, key) if published else load(content)), found
    except SafetensorError as error:
        raise BadInput(f"{key} is no safetensors file: {error}") from None
