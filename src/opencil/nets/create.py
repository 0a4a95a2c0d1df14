"""Backbones by name and values, with weights from a file, trained or kept as they are."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from opencil.errors import BadInput, unknown
from opencil.nets.model import Backbone
from opencil.registry import BACKBONES
from opencil.validation import Values, build, names_of

#: A backbone as a config names it: a word, or a mapping with a ``name`` and values.
Named = str | dict[str, Any]


@dataclass(frozen=True)
class _Common(Values):
    """Values of every backbone, beside those of the function or class that makes it."""

    weights: str | None = None
    sha256: str | None = None
    freeze: bool = False


#: What a config can say of every backbone.
COMMON = ("name", *sorted(names_of(_Common)))


def create_backbone(
    name: str, *, weights: str | None = None, sha256: str | None = None, freeze: bool = False, **values: Any
) -> Backbone:
    """The registered backbone ``name``, made of its values.

    ``weights`` names a safetensors file with every tensor of it, or of a whole model of ours; ``sha256`` is
    the checksum which that file must have. ``freeze`` keeps the weights as they are in every training.
    """
    backbone = BACKBONES.create(name, **values)
    if not isinstance(backbone, Backbone) or not isinstance(getattr(backbone, "width", None), int):
        raise BadInput(
            f"backbone {name!r} makes a {type(backbone).__name__}: an opencil.Backbone with a width is "
            "needed, and opencil.AdaptedBackbone makes one of any module"
        )
    if weights is not None:
        _load(backbone, Path(weights).expanduser(), sha256)
    return backbone.freeze() if freeze else backbone


def checked(named: Named) -> Named:
    """A backbone of a config whose name and values are allowed; one that is only a name is that word."""
    if isinstance(named, str):
        named = {"name": named}
    name = named.get("name")
    if not isinstance(name, str):
        raise BadInput(f"backbone.name is missing: allowed are {', '.join(BACKBONES.names())}")
    own = {key: value for key, value in named.items() if key not in COMMON}
    said_of_all = {key: value for key, value in named.items() if key in COMMON and key != "name"}
    common = build(_Common, said_of_all, where="backbone")
    if name not in BACKBONES.names():
        raise unknown("backbone", name, BACKBONES.names())
    BACKBONES.check(name, own, where="backbone", beside=COMMON)
    if common.sha256 and not common.weights:
        raise BadInput(
            "backbone.sha256 is not allowed without backbone.weights, the file whose checksum it is"
        )
    said = {key: value for key, value in asdict(common).items() if value}
    return {"name": name, **own, **said} if own or said else name


def pinned(named: Named) -> Named:
    """The same with the checksum of its file of weights, which must be the one that is asked for, if any."""
    if isinstance(named, str) or "weights" not in named:
        return named
    content = _content(Path(named["weights"]).expanduser(), named.get("sha256"))
    _tensors(named["weights"], content)
    return named | {"sha256": hashlib.sha256(content).hexdigest()}


def without_weights(named: Named) -> Named:
    """The same backbone with fresh weights, for a model whose weights are about to be loaded."""
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
            f"backbone.weights = {str(path)!r} has changed: its sha256 is {found}, and {sha256} is asked for"
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
    prefix = "backbone."  # of a whole model's file the head is left out
    of_model = {k.removeprefix(prefix): tensor for k, tensor in tensors.items() if k.startswith(prefix)}
    tensors, module = of_model or tensors, backbone.weighted
    if misfits := _misfits(module.state_dict(), tensors):
        raise BadInput(
            f"backbone.weights = {str(path)!r} does not fit {type(module).__name__}: " + "; ".join(misfits)
        )
    module.load_state_dict(tensors, strict=True)


def _misfits(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[str]:
    """What is wrong with tensors that are to take the places of others."""
    shapes = [
        f"{name} is {list(given[name].shape)} and should be {list(own[name].shape)}"
        for name in own
        if name in given and given[name].shape != own[name].shape
    ]
    missing, strange = [n for n in own if n not in given], [n for n in given if n not in own]
    wrong = ((missing, "missing"), (strange, "unexpected"), (shapes, "of another shape"))
    return [f"{len(names)} {what} ({_few(names)})" for names, what in wrong if names]


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
