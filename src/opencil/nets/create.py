"""Create backbones by name and values, with weights from a file, trainable or frozen."""

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from opencil.errors import BadInput, one_line
from opencil.nets.model import Backbone
from opencil.registry import BACKBONES
from opencil.validation import Values, build, check_arguments, names_of

#: A backbone in a config: a name, or a mapping with a ``name`` and values.
Named = str | dict[str, Any]


@dataclass(frozen=True)
class _Common(Values):
    """Values of every backbone, beside the arguments of its function or class."""

    weights: str | None = None
    sha256: str | None = None
    freeze: bool = False


#: Keys of every backbone in a config.
COMMON = ("name", *sorted(names_of(_Common)))


def create_backbone(
    name: str, *, weights: str | None = None, sha256: str | None = None, freeze: bool = False, **values: Any
) -> Backbone:
    """Create the registered backbone ``name`` with its values.

    ``weights`` names a safetensors file of the backbone, or of a whole model of ours; ``sha256`` is the
    expected checksum of the file. ``freeze`` excludes the weights from every training.
    """
    backbone = BACKBONES.create(name, **values)
    if not isinstance(backbone, Backbone) or not isinstance(getattr(backbone, "width", None), int):
        raise BadInput(
            f"backbone {name!r} is a {type(backbone).__name__}, not an opencil.Backbone with a width: "
            "opencil.AdaptedBackbone turns any module into one"
        )
    if weights is not None:
        _load(backbone, Path(weights).expanduser(), sha256)
    return backbone.freeze() if freeze else backbone


def check_backbone(named: Named) -> Named:
    """Return a config's backbone if its name and values are allowed; as a name only, if it has no values."""
    if isinstance(named, str):
        named = {"name": named}
    name = named.get("name")
    if not isinstance(name, str):
        raise BadInput(f"backbone.name is missing: allowed are {', '.join(BACKBONES.names())}")
    own = {key: value for key, value in named.items() if key not in COMMON}
    common = build(_Common, {k: v for k, v in named.items() if k in COMMON and k != "name"}, where="backbone")
    check_arguments(BACKBONES.entry(name).make, own, where="backbone", beside=COMMON)
    if common.sha256 and not common.weights:
        raise BadInput("backbone.sha256 is not allowed without backbone.weights: it is that file's checksum")
    shared = {key: value for key, value in asdict(common).items() if value}
    return {"name": name, **own, **shared} if own or shared else name


def pin_weights(named: Named) -> Named:
    """Return the backbone with the checksum of its file of weights, which must match an expected one."""
    if isinstance(named, str) or "weights" not in named:
        return named
    content = _content(Path(named["weights"]).expanduser(), named.get("sha256"))
    _tensors(named["weights"], content)
    return named | {"sha256": hashlib.sha256(content).hexdigest()}


def without_weights(named: Named) -> Named:
    """Return the backbone without its file, for a model whose weights will be loaded."""
    if isinstance(named, str):
        return named
    return {key: value for key, value in named.items() if key not in ("weights", "sha256")}


def _content(path: Path, sha256: str | None) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInput(f"backbone.weights = {str(path)!r} cannot be read: {error.strerror}") from None
    found = hashlib.sha256(content).hexdigest()
    if sha256 not in (None, found):
        raise BadInput(
            f"backbone.weights = {str(path)!r} has changed: its sha256 is {found}, and {sha256} is expected"
        )
    return content


def _tensors(path: Path | str, content: bytes) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(content)
    except SafetensorError as error:
        raise BadInput(f"backbone.weights = {str(path)!r} is no safetensors file: {error}") from None


def _load(backbone: Backbone, path: Path, sha256: str | None) -> None:
    tensors = _tensors(path, _content(path, sha256))
    prefix = "backbone."  # the head in a whole model's file is left out
    of_model = {k.removeprefix(prefix): tensor for k, tensor in tensors.items() if k.startswith(prefix)}
    try:
        backbone.weighted.load_state_dict(of_model or tensors, strict=True)
    except RuntimeError as error:
        raise BadInput(f"backbone.weights = {str(path)!r} does not fit: {one_line(error)}") from None
