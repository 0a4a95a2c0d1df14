"""Fit a head, a detector and a threshold to the stored features of all images learned so far."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, floor, log
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opencil.cil.learner import Learner, Setting
from opencil.data.images import FeatureImages
from opencil.data.memory import Memory
from opencil.data.stream import Step
from opencil.data.transforms import Untransformed
from opencil.detectors.detector import Detector
from opencil.engine.forward import Outputs, Statistics, forward
from opencil.engine.seeding import derive, seeded
from opencil.errors import BadInput, not_allowed
from opencil.nets.features import StoredFeatures
from opencil.nets.model import Classifier, Model
from opencil.openworld.conformal import Calibration
from opencil.registry import DETECTORS, LEARNERS
from opencil.validation import Count, Values, Whole

_BATCH = 128
#: A label that predictions have, so that no class can have it.
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Known:
    """Features [N, D] of the images learned, by class and by key, whatever the order they were learned in.

    ``tasks`` is the call, counted from 1, that brought each class. Images that are ``held`` [N] out are for
    calibration, the others for learning and set-up. Those that may ``calibrate`` [N] can be held out.
    """

    classes: tuple[str, ...]
    tasks: tuple[int, ...]
    keys: Tensor
    labels: Tensor
    features: Tensor
    held: Tensor
    calibrate: Tensor

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def task_of_class(self) -> Tensor:
        """Return the task of each class, [C]."""
        return torch.tensor(self.tasks)


def check_class(name: str, of: str) -> None:
    """Refuse a class without a name, with the reserved one, or with one that cannot be written."""
    if not name.strip() or name.strip().casefold() == UNKNOWN:
        what = f"the class {name!r}, which is reserved" if name.strip() else "no class"
        raise BadInput(f"{of} has {what}: give labels, or a folder for each class")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise BadInput(f"{of} has the class {name!a}, which is not valid Unicode: rename it") from None


def add_images(
    known: Known | None,
    names: Sequence[str],
    keys: Tensor,
    features: Tensor,
    held_out: float,
    seed: int,
    calibrate: bool = True,
) -> Known:
    """Return what is known with further images of old and new classes.

    An image that was learned before counts once, under its newest name. Of every class with two images or
    more, the share ``held_out`` of those that may ``calibrate`` is held out, at least one. The seed chooses.
    """
    may = torch.full((len(keys),), calibrate)
    tasks = dict.fromkeys(names, 1)
    if known is not None:
        if known.features.shape[1] != features.shape[1]:
            raise BadInput(
                f"features have {features.shape[1]} columns: learned ones have {known.features.shape[1]}"
            )
        tasks = dict.fromkeys(names, max(known.tasks) + 1) | dict(
            zip(known.classes, known.tasks, strict=True)
        )
        names = [*(known.classes[label] for label in known.labels), *names]
        keys, features = torch.cat([known.keys, keys]), torch.cat([known.features, features])
        may = torch.cat([known.calibrate, may])
    newest = {key: row for row, key in enumerate(keys.tolist())}
    rows = sorted(newest.values(), key=lambda row: (names[row], int(keys[row])))
    classes = sorted({names[row] for row in rows})
    number = {name: label for label, name in enumerate(classes)}
    labels = torch.tensor([number[names[row]] for row in rows])
    keys, features, may = keys[rows], features[rows], may[rows]
    held = torch.zeros(len(rows), dtype=torch.bool)
    drawn = keys ^ derive(seed, "held out")
    for label in range(len(classes)):
        several = int((labels == label).sum()) > 1
        members = ((labels == label) & may).nonzero().flatten()
        count = max(floor(held_out * len(members) + 1e-9), int(several))
        held[members[drawn[members].argsort()[:count]]] = True
    return Known(tuple(classes), tuple(tasks[name] for name in classes), keys, labels, features, held, may)


@dataclass(frozen=True)
class HeadValues(Values):
    """What decides the shape of a head and the numbers that it draws.

    ``sizes`` are the numbers of classes of its steps. With a ``backbone`` it is the head of a whole model,
    whose features do not come from elsewhere.
    """

    learner: dict[str, Any]
    sizes: tuple[Count, ...]
    seed: Whole
    backbone: str | dict[str, Any] | None = None

    def blank(self, width: int, meta: bool = False) -> nn.Module:
        """Return a head of this shape, for features of some width, as it is before it learns.

        ``meta`` makes tensors without memory.
        """
        learner: Learner = LEARNERS.create(**self.learner)
        images = _as_images(torch.empty(0, width), None)
        setting = _setting(self.backbone or StoredFeatures(width), images, self.seed)
        with torch.device("meta") if meta else seeded(self.seed, "backbone"):  # as Learner.load
            model = learner.blank(setting, _step(self.sizes, 0))
        return HeadOf(model) if self.backbone else model.eval()


class HeadOf(nn.Module):
    """The head of a whole model: features come as images of one pixel."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model.eval()

    def features(self, images: Tensor) -> Tensor:
        """Return the features."""
        return images.flatten(1)

    def classify(self, features: Tensor) -> Tensor:
        """Return logits of features."""
        return self.model.classify(features)


@dataclass(frozen=True)
class Fitted:
    """A head with its detector and calibration; ``carried`` are statistics that its set-up was given.

    ``given`` are the arguments of the classifier that it was fitted with, which may be others by now.
    """

    known: Known
    values: HeadValues
    model: Any  #: a Model on stored features, or a HeadOf
    detector: Detector
    calibration: Calibration
    temperature: float  #: of probabilities
    given: dict[str, Any]
    carried: tuple[Statistics, ...] = ()

    def outputs(self, features: Tensor) -> Outputs:
        """Return outputs of the model for features of the network, [N, D]."""
        return compute_outputs(self.model, features)

    def score(self, outputs: Outputs) -> Tensor:
        """Return the detector's scores, [N]."""
        return self.detector.score(outputs)


def compute_outputs(model: Classifier, features: Tensor, labels: Tensor | None = None) -> Outputs:
    """Return outputs of a model on features in place of images."""
    found = forward(model, _as_images(features, labels), Untransformed())
    return replace(found, labels=labels, inputs=None)


def _as_images(features: Tensor, labels: Tensor | None) -> FeatureImages:
    labels = torch.zeros(len(features), dtype=torch.int64) if labels is None else labels
    return FeatureImages("learned images", features, labels, fingerprint="")


def as_named(given: str | dict[str, Any]) -> dict[str, Any]:
    """Return a name and values of a name, or of a mapping that has one."""
    values = {"name": given} if isinstance(given, str) else dict(given)
    if not isinstance(values.get("name"), str):
        raise not_allowed("learner or detector", given, "a name, or a mapping with a name, is needed")
    return values


def check_learner(given: str | dict[str, Any]) -> dict[str, Any]:
    """Return the name and values of a learner, if it learns from features."""
    named = as_named(given)
    learner: Learner = LEARNERS.create(**named)
    if learner.needs_images:
        raise BadInput(
            f"learner {named['name']!r} reads stages of the network, and features alone are kept: choose a "
            "learner such as ranpac, slda or fecam"
        )
    return named


def create_detector(given: str | dict[str, Any]) -> Detector:
    """Create a detector, if it scores by features and logits."""
    named = as_named(given)
    detector: Detector = DETECTORS.create(**named)
    if (detector.reads_to_score | detector.reads_to_set_up) & {"images", "layers"}:
        raise BadInput(
            f"detector {named['name']!r} reads images again, of which features alone are kept: choose a "
            "detector of features and logits, such as combined, knn or msp"
        )
    return detector


def _setting(backbone: Any, images: FeatureImages, seed: int) -> Setting:
    return Setting(images, images, Untransformed(), backbone, _BATCH, seed, seed, single=True)


def _step(sizes: Sequence[int], images: int) -> Step:
    return Step(tuple(sizes), len(sizes), torch.arange(images), torch.arange(0))


def fit_head(values: HeadValues, known: Known) -> Model:
    """Fit a head to the images that are not held out, in a single step over all classes."""
    learner: Learner = LEARNERS.create(**values.learner)
    features, labels = known.features[~known.held], known.labels[~known.held]
    images = _as_images(features, labels)
    setting = _setting(StoredFeatures(features.shape[1]), images, values.seed)
    task = learner.begin(setting, _step(values.sizes, len(images)), Memory(0), None)
    deque(learner.learn(task), maxlen=0)
    model: Model = task.model.eval()
    return model


def fit_detector(
    detector: Detector, model: Classifier, known: Known, carried: tuple[Statistics, ...] = ()
) -> Detector:
    """Set a detector up on the images that are not held out."""
    if not detector.needs_setup and not detector.by_task:
        return detector.fit(classify=model.classify)
    outputs = compute_outputs(model, known.features[~known.held], known.labels[~known.held])
    return detector.fit(replace(outputs, tasks=known.task_of_class, carried=carried))


def finish(
    known: Known,
    values: HeadValues,
    model: Any,
    detector: Detector,
    given: dict[str, Any],
    carried: tuple[Statistics, ...] = (),
) -> Fitted:
    """Set the detector of a head up, and calibrate both on the images that are held out."""
    for name in known.classes:
        check_class(name, "the classifier")
    detector = fit_detector(detector, model, known, carried)
    labels = known.labels[known.held]
    if not len(labels):
        raise BadInput(
            "no image is left to set the threshold with: learn at least two images of some class, with "
            "calibrate = True"
        )
    outputs = compute_outputs(model, known.features[known.held], labels)
    predicted, absent = outputs.logits.argmax(dim=1), len(known.classes) - len(torch.unique(labels))
    calibration = Calibration.of(detector.score(outputs), predicted, known.tasks, given["per"], absent)
    temperature = fit_temperature(outputs.logits, labels)
    return Fitted(known, values, model, detector, calibration, temperature, given, carried)


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the T of softmax(z / T) with the largest likelihood of held-out labels."""
    from scipy.optimize import minimize_scalar

    def loss(of: float) -> float:
        return float(F.cross_entropy(logits.double() / exp(of), labels))

    spread = log(max(float(logits.std()), 1e-6)) if logits.numel() > 1 else 0.0
    return exp(float(minimize_scalar(loss, bounds=(spread - 7, spread + 5), method="bounded").x))
