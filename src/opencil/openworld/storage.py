"""One file for a classifier: a zip of JSON and safetensors, from which nothing is executed.

The head is stored without the tensors that a new one draws from its seed; a checksum covers them all. The
detector is set up again from stored features, and has to give the stored calibration scores.
"""

import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import count, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from safetensors.torch import load as read_tensors
from safetensors.torch import save as write_tensors
from torch import Tensor

from opencil._version import __version__
from opencil.data.transforms import Transform
from opencil.errors import BadInput, one_line
from opencil.files import write
from opencil.nets.create import checksum_tensors, is_published, without_weights
from opencil.openworld.fitting import HeadOf, HeadValues, Known, create_detector, finish
from opencil.openworld.network import Pretrained, Trained
from opencil.validation import Count, Values, build

if TYPE_CHECKING:
    from opencil.engine.frozen import Runtime
    from opencil.openworld.classifier import OpenWorldClassifier

FORMAT = 2
_RECORD, _TENSORS = "classifier.json", "tensors.safetensors"
#: The most bytes of the record, and the most that a head may draw anew.
_LARGEST_RECORD, _LARGEST_DRAWN = 2**26, 2**30
_LARGEST_SIDE = 4096  #: of images for the network, in pixels
#: Largest difference of calibration scores computed again, relative to their size: of other processors.
_TOLERANCE = 1e-3
Found = TypeVar("Found", bound="OpenWorldClassifier")


@dataclass(frozen=True)
class Record(Values):
    """The JSON of a file; ``values`` are the arguments of the classifier."""

    format: int
    opencil: str
    values: dict[str, Any]
    classes: tuple[str, ...]
    tasks: tuple[Count, ...]
    transform: Transform
    head: HeadValues
    sha256: str  #: of all tensors of the head


def save(classifier: "OpenWorldClassifier", path: Path) -> None:
    """Write a classifier to a file, whole or not at all."""
    classifier._check()
    fitted, network = classifier._ready(), classifier._network
    known = fitted.known
    tensors = {f"known.{key}": getattr(known, key) for key in _OF_KNOWN}
    tensors["calibration.scores"] = fitted.calibration.scores
    for number, part in enumerate(fitted.carried):
        tensors |= {f"carried.{number}.{key}": tensor for key, tensor in part.items()}
    values = {"reject": float(classifier.reject), **fitted.given}
    if isinstance(network, Pretrained):
        values["backbone"] = network.named
        if not is_published(network.named):
            values["backbone"] = without_weights(network.named)
            state = network.frozen.backbone.weighted.state_dict()
            tensors |= {f"network.{key}": tensor for key, tensor in state.items()}
    state = fitted.model.state_dict()
    drawn = fitted.values.blank(known.features.shape[1]).state_dict()
    tensors |= {f"head.{key}": t for key, t in state.items() if not torch.equal(t, drawn[key])}
    assert network is not None
    record = Record(
        FORMAT,
        __version__,
        values,
        known.classes,
        known.tasks,
        network.preprocessing.transform,
        fitted.values,
        checksum_tensors(state),
    )
    text = json.dumps(asdict(record), indent=2, default=lambda number: number.item())  # of NumPy
    content = write_tensors({key: tensor.cpu().contiguous().clone() for key, tensor in tensors.items()})

    def fill(partial: Path) -> None:
        with zipfile.ZipFile(partial, "w") as archive:  # stored: features do not shrink
            archive.writestr(_RECORD, text)
            archive.writestr(_TENSORS, content)

    write(path, fill)


#: The tensors of ``Known``.
_OF_KNOWN = ("keys", "labels", "features", "held", "calibrate")


def load(cls: type[Found], path: Path, runtime: "Runtime", device: str) -> Found:
    """Return the classifier in a file, or refuse the file in a sentence."""
    if path.is_dir() and (path / "config.yml").exists():
        raise BadInput(
            f"{path} is a stored run: OpenWorldClassifier.from_run makes a classifier of it, to save"
        )
    if not path.is_file():
        raise BadInput(f"there is no file {path}: a classifier that was saved is needed")
    try:
        record, tensors = _read(path)
        return _restore(cls, record, tensors, runtime, device)
    except Exception as error:  # parts that contradict each other fail in many ways
        why = error if isinstance(error, BadInput) else f"{type(error).__name__}: {error}"
        raise BadInput(f"{path} is no classifier of this version: {one_line(why)}") from None


def _read(path: Path) -> tuple[Record, dict[str, Tensor]]:
    """Return the two parts of a file; both are stored as they are, so that none is larger than the file."""
    with zipfile.ZipFile(path) as archive:
        members = {member.filename: member for member in archive.infolist()}
        if len(archive.infolist()) != 2 or members.keys() != {_RECORD, _TENSORS}:
            raise BadInput(f"it has other files than {_RECORD} and {_TENSORS}")
        sizes = {name: member.file_size for name, member in members.items()}
        if any(m.compress_type != zipfile.ZIP_STORED or m.flag_bits & 1 for m in members.values()):
            raise BadInput("its files are compressed or encrypted")
        if sizes[_RECORD] > _LARGEST_RECORD or sum(sizes.values()) > path.stat().st_size:
            raise BadInput("its files are larger than it can hold")
        text, content = archive.read(_RECORD), archive.read(_TENSORS)
    values = json.loads(text)
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        found = values.get("format") if isinstance(values, dict) else None
        older = isinstance(found, int) and found < FORMAT
        advice = "learn its images again, or use the opencil that wrote it" if older else "update opencil"
        raise BadInput(f"its format is {one_line(found)}, and {FORMAT} is expected: {advice}")
    return build(Record, values, where="classifier"), read_tensors(content)


def _restore(
    cls: type[Found], record: Record, tensors: dict[str, Tensor], runtime: "Runtime", device: str
) -> Found:
    """Return the classifier of a record and tensors, all of which are checked."""
    if max(record.transform.crop, record.transform.resize or 0) > _LARGEST_SIDE:
        raise BadInput(f"its images have more than {_LARGEST_SIDE} pixels a side")
    classifier = cls(**record.values, runtime=runtime, device=device)
    classifier._check()
    known = _check_known(Known(record.classes, record.tasks, **_part(tensors, "known.")))
    model = _restore_head(record, _part(tensors, "head."), known.features.shape[1])
    parts = (_part(tensors, f"carried.{number}.") for number in count())
    carried = tuple(takewhile(bool, parts))
    detector = create_detector(classifier.detector)
    fitted = finish(known, record.head, model, detector, classifier._given(), carried)
    found, stored = fitted.calibration.scores, tensors["calibration.scores"]
    if found.shape != stored.shape or not ((found - stored).abs() <= _TOLERANCE * stored.abs().max()).all():
        raise BadInput("its detector gives other scores here than where it was stored: use the same versions")
    if isinstance(model, HeadOf):
        classifier._network = Trained(model.model, record.transform)
    else:
        named = classifier.backbone
        if without_weights(named) != named and not is_published(named):
            raise BadInput("its network has weights elsewhere, which are not opened")
        weights = _part(tensors, "network.")
        values = asdict(record.transform)
        classifier._network = Pretrained(named, values, runtime, device, weights)
        classifier._network.given = (classifier.backbone, classifier.transform)
    classifier._fitted = fitted
    return classifier


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin alike, without the beginning."""
    return {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}


def _check_known(known: Known) -> Known:
    """Refuse features, labels and classes that do not belong together."""
    classes, images = len(known.classes), len(known.keys)
    kinds = {"keys": torch.int64, "labels": torch.int64, "features": torch.float32}
    for key, kind in (kinds | dict.fromkeys(("held", "calibrate"), torch.bool)).items():
        tensor = getattr(known, key)
        if tensor.dtype != kind or len(tensor) != images or tensor.ndim != (2 if key == "features" else 1):
            raise BadInput(f"its {key} are {tensor.dtype} {list(tensor.shape)}")
    if not torch.isfinite(known.features).all():
        raise BadInput("its features are not finite")
    if (known.held & ~known.calibrate).any():
        raise BadInput("its held-out images are not those that may calibrate")
    if not classes or len({*known.classes}) != classes or len(known.tasks) != classes:
        raise BadInput("its classes have no names of their own")
    if not images or not 0 <= int(known.labels.min()) <= int(known.labels.max()) < classes:
        raise BadInput("its labels are not those of its classes")
    return known


def _restore_head(record: Record, stored: Mapping[str, Tensor], width: int) -> Any:
    """Return the head of a record, with its stored tensors, if it has the checksum that it had."""
    backbone = record.head.backbone
    if backbone is not None and without_weights(backbone) != backbone:
        raise BadInput("its head has weights elsewhere, which are not opened")
    blank = record.head.blank(width, meta=True).state_dict()  # how large would it be?
    drawn = sum(tensor.nbytes for key, tensor in blank.items() if key not in stored)
    alike = all(
        key in blank and (tensor.shape, tensor.dtype) == (blank[key].shape, blank[key].dtype)
        for key, tensor in stored.items()
    )
    if not alike or drawn > _LARGEST_DRAWN:
        raise BadInput("its head has other tensors than its learner makes")
    model = record.head.blank(width)
    state = {**model.state_dict(), **stored}
    if checksum_tensors(state) != record.sha256:
        raise BadInput("the checksum of its head differs: it was stored by other versions, or is damaged")
    model.load_state_dict(state)
    return model.eval()
