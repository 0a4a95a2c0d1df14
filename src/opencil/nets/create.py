"""Create backbones by name and values, with weights from a file, trainable or frozen."""

from pathlib import Path
from typing import Any

from torch import Tensor

from opencil.errors import BadInput, one_line
from opencil.files import checksum
from opencil.nets.model import Backbone
from opencil.registry import BACKBONES
from opencil.validation import check_arguments

#: A backbone in a config: a name, or a mapping with a ``name`` and values.
Named = str | dict[str, Any]
#: Keys of every backbone in a config, beside the arguments of its function or class.
COMMON = ("name", "weights", "sha256", "freeze")


def create_backbone(
    name: str, *, weights: str | None = None, sha256: str | None = None, freeze: bool = False, **values: Any
) -> Backbone:
    """Create a registered backbone, with weights from a safetensors file of it or of a model of ours.

    ``sha256`` is the expected checksum of the file. ``freeze`` excludes the weights from every training.
    """
    backbone = BACKBONES.create(name, **values)
    if not isinstance(backbone, Backbone) or not isinstance(getattr(backbone, "width", None), int):
        kind = f"is a {type(backbone).__name__}, not an opencil.Backbone with a width"
        raise BadInput(f"backbone {name!r} {kind}: opencil.AdaptedBackbone turns any module into one")
    if weights is not None:
        tensors, _ = _read(weights, sha256)
        prefix = "backbone."  # the head in a whole model's file is left out
        of_model = {k.removeprefix(prefix): tensor for k, tensor in tensors.items() if k.startswith(prefix)}
        try:
            backbone.weighted.load_state_dict(of_model or tensors, strict=True)
        except RuntimeError as error:
            raise BadInput(f"backbone.weights = {weights!r} does not fit: {one_line(error)}") from None
    return backbone.freeze() if freeze else backbone


def check_backbone(named: Named) -> Named:
    """Return a config's backbone if its name and values are allowed; as a name only, if it has no values."""
    named = {"name": named} if isinstance(named, str) else named
    name = str(named.get("name", ""))
    check_arguments(named, "backbone", create_backbone, BACKBONES.entry(name).make)
    own = {key: value for key, value in named.items() if key not in COMMON}
    common = {key: named[key] for key in COMMON if named.get(key)}
    if "sha256" in common and "weights" not in common:
        raise BadInput("backbone.sha256 is not allowed without backbone.weights: it is that file's checksum")
    return {"name": name, **own, **common} if own or len(common) > 1 else name


def pin_weights(named: Named) -> Named:
    """Return the backbone with the checksum of its file of weights; refuse an unexpected checksum."""
    if isinstance(named, str) or "weights" not in named:
        return named
    return named | {"sha256": _read(named["weights"], named.get("sha256"))[1]}


def without_weights(named: Named) -> Named:
    """Return the backbone without its file, for a model with other weights."""
    hidden = ("weights", "sha256")
    return named if isinstance(named, str) else {key: named[key] for key in named if key not in hidden}


def _read(weights: str, sha256: str | None) -> tuple[dict[str, Tensor], str]:
    """Return the tensors of a file of weights, and its checksum; refuse an unexpected checksum."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    key = f"backbone.weights = {weights!r}"
    try:
        content = Path(weights).expanduser().read_bytes()
    except OSError as error:
        raise BadInput(f"{key} cannot be read: {error.strerror}") from None
    found = checksum(content)
    if sha256 not in (None, found):
        raise BadInput(f"{key} has changed: its sha256 is {found}, and {sha256} is expected")
    try:
        return load(content), found
    except SafetensorError as error:
        raise BadInput(f"{key} is no safetensors file: {error}") from None
