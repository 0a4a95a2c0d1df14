"""An estimator that learns classes, predicts them or "unknown", and learns further classes."""

import copy
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, get_args

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from opencil.data.images import FeatureImages
from opencil.engine.forward import Outputs
from opencil.engine.frozen import Runtime
from opencil.errors import BadInput, check_known, not_allowed, shown
from opencil.nets.create import Named
from opencil.openworld.conformal import Calibration, Per
from opencil.openworld.fitting import (
    UNKNOWN,
    Fitted,
    HeadValues,
    add_images,
    check_class,
    check_learner,
    create_detector,
    finish,
    fit_head,
)
from opencil.openworld.inputs import Picture, find_items, find_key, read_pictures
from opencil.openworld.network import Network, Pretrained, Trained
from opencil.openworld.preprocessing import Preprocessing

if TYPE_CHECKING:
    import pandas as pd

    from opencil.openworld.monitoring import Report

#: Images that pass through the network together.
_TOGETHER = 32
_BEST = 3  #: classes that a prediction names


class OpenWorldClassifier(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Learn classes of images, predict them or "unknown", and learn further classes at any time.

    A pretrained network that does not change computes features. They are kept, 5 KB an image, and the images
    are not needed again: each call of ``learn`` fits a head, a detector and a threshold to all of them. The
    result is the same for the same images, in whatever order and calls they were learned.

    ``reject`` is the share of images of known classes that may be rejected; it can be changed at any time.
    ``per`` gives each predicted class, or the classes of each call (``task``), a threshold of its own.
    ``held_out`` is the share of a class's images that set the threshold, and that the head does not learn.

    ``backbone`` is a name, with its published weights, or a mapping as in a benchmark's YML. ``transform`` is
    its preprocessing, if it does not bring its own. ``learner`` and ``detector`` are names, or mappings with
    a name and values; see ``opencil.list_learners`` and ``opencil.list_detectors``.
    """

    _fitted: Fitted | None = None
    _network: Network | None = None

    def __init__(
        self,
        reject: float = 0.05,
        *,
        backbone: Named = "efficientnet-lite0",
        learner: str | dict[str, Any] = "ranpac",
        detector: str | dict[str, Any] = "combined@shared",
        per: Per = "all",
        held_out: float = 0.2,
        transform: dict[str, Any] | None = None,
        runtime: Runtime = "auto",
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        self.reject = reject
        self.backbone = backbone
        self.learner = learner
        self.detector = detector
        self.per = per
        self.held_out = held_out
        self.transform = transform
        self.runtime = runtime
        self.device = device
        self.seed = seed

    # --- learning ----------------------------------------------------------------------------------

    def learn(
        self, images: Any, labels: Any = None, *, calibrate: bool = True, progress: bool = False
    ) -> Self:
        """Learn images of new or known classes, beside all that was learned before.

        ``images`` is a folder with a folder for each class, or images with ``labels``: a list of files, of
        Pillow's images or of arrays, an array of bytes [N, …], a Dataset, a DataLoader. An image that was
        learned before moves to the class that it is given now. Images that cannot be read are refused.

        Images that were chosen by a prediction, as those that were rejected, look less known than others of
        their class and would lower the threshold: with ``calibrate=False`` they are learned alone.
        """
        self._check()
        # Values are checked before images are read.
        network, detector = self._find_network(), create_detector(self.detector)
        learner = check_learner(self.learner)
        if isinstance(network, Trained):
            raise BadInput("a classifier of a run learns no classes: its network would have to be trained")
        names, keys, features = [], list[int](), list[Tensor]()
        seen = dict[int, tuple[str, str]]()
        for pictures, found in self._read(images, labels, progress, "learning"):
            for picture in pictures:
                if picture.problem:
                    raise BadInput(picture.problem)
                check_class(picture.label, f"image {picture.name}")
                name, label = seen.setdefault(picture.key, (picture.name, picture.label))
                if label != picture.label and picture.pixels is not None:  # other images may share features
                    raise BadInput(
                        f"images {name} and {picture.name} are the same image, of the classes {shown(label)} "
                        f"and {shown(picture.label)}: leave one of them out"
                    )
            names += [picture.label for picture in pictures]
            keys += [picture.key for picture in pictures]
            features.append(found)
        if not names:
            raise BadInput("there are no images to learn: at least one is needed")
        before = self._fitted.known if self._fitted is not None else None
        known = add_images(
            before, names, torch.tensor(keys), torch.cat(features), self.held_out, self.seed, calibrate
        )
        values = HeadValues(learner, (len(known.classes),), self.seed)
        fitted = finish(known, values, fit_head(values, known), detector, self._given())
        self._fitted, self._network = fitted, network  # at once, for other threads that predict
        if calibrate and not fitted.calibration.promise(self.reject).holds:
            warnings.warn(self.promise_, stacklevel=2)
        return self

    partial_fit = learn

    def fit(self, images: Any, labels: Any = None, *, progress: bool = False) -> Self:
        """Forget everything, and learn."""
        learned = copy.copy(self)
        learned._fitted = learned._network = None
        learned.learn(images, labels, progress=progress)
        self._fitted, self._network = learned._fitted, learned._network
        return self

    # --- predicting --------------------------------------------------------------------------------

    def predict(self, images: Any, *, progress: bool = False) -> "pd.DataFrame":
        """Return a row for each image: file, label or "unknown", p_value, score, best classes, and a note.

        ``images`` is a folder, a file, or images as for ``learn``. ``p_value`` is the share of calibration
        images that look as unknown as this one, or more. The note says why a file could not be read.
        """
        import pandas as pd

        self._check()
        fitted = self._ready()
        thresholds = fitted.calibration.thresholds(self.reject)
        rows = list[tuple[Any, ...]]()
        for pictures, features in self._read(images, None, progress, "predicting"):
            columns = _judge(fitted, thresholds, features) if len(features) else iter(())
            for picture in pictures:
                if picture.problem:
                    rows.append((picture.name, "", None, None, (), picture.problem))
                    continue
                is_known, p_value, score, names = next(columns)
                rows.append((picture.name, names[0] if is_known else UNKNOWN, p_value, score, names, ""))
        return pd.DataFrame(rows, columns=["file", "label", "p_value", "score", "best", "note"])

    def predict_proba(self, images: Any) -> "np.ndarray[Any, Any]":
        """Return probabilities [N, classes] of known classes, at a temperature that fits held-out images."""
        fitted = self._ready()
        outputs = self._all_outputs(images)
        return (outputs.logits.double() / fitted.temperature).softmax(dim=1).numpy()

    def decision_function(self, images: Any) -> "np.ndarray[Any, Any]":
        """Return scores less thresholds [N]; images with negative values are unknown."""
        fitted, outputs = self._ready(), self._all_outputs(images)
        return (fitted.score(outputs) - self.threshold_[outputs.logits.argmax(dim=1)]).numpy()

    def report(self, window: Any) -> "Report":
        """Return how predictions, or images, compare with the images of calibration."""
        import pandas as pd

        from opencil.openworld.monitoring import Report

        fitted = self._ready()
        predictions = window if isinstance(window, pd.DataFrame) else self.predict(window)
        if absent := {"label", "score"} - {*predictions.columns}:
            raise BadInput(f"the table has no column {min(absent)!r}: give images, or what predict returned")
        return Report(predictions, fitted.calibration.scores.numpy(), fitted.known.classes, self.reject)

    # --- what was learned --------------------------------------------------------------------------

    @property
    def classes_(self) -> list[str]:
        """Return the names of the classes, sorted."""
        return list(self._ready().known.classes)

    @property
    def threshold_(self) -> Tensor:
        """Return the score below which an image predicted as a class is unknown, [classes]."""
        return self.calibration_.thresholds(self.reject)

    @property
    def promise_(self) -> str:
        """Return a sentence on the share of known images that is rejected."""
        return self.calibration_.promise(self.reject).text

    @property
    def calibration_(self) -> Calibration:
        """Return the scores of held-out images."""
        return self._ready().calibration

    @property
    def detector_(self) -> Any:
        """Return the detector, set up."""
        return self._ready().detector

    @property
    def preprocessing_(self) -> Preprocessing:
        """Return the module from bytes of any size to the network's normalised images."""
        return self._find_network().preprocessing

    @property
    def model_(self) -> nn.Module:
        """Return the network and the head in torch, with ``features`` and ``classify``."""
        return self._find_network().join(self._ready().model)

    # --- files -------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write all that was learned to one file, whole or not at all."""
        from opencil.openworld.storage import save

        save(self, Path(path))

    def export(self, path: str | Path, **values: Any) -> Any:
        """Write preprocessing, network, head, score and threshold as one graph: ``.onnx`` or ``.pt2``."""
        from opencil.openworld.export import export

        return export(self, path, **values)

    @classmethod
    def load(cls, path: str | Path, *, runtime: Runtime = "auto", device: str = "cpu") -> Self:
        """Return the classifier in a file; nothing in it is executed."""
        from opencil.openworld.storage import load

        return load(cls, Path(path), runtime, device)

    @classmethod
    def from_run(
        cls,
        path: str | Path,
        detector: str | dict[str, Any],
        step: int | None = None,
        *,
        reject: float = 0.05,
        per: Per = "all",
        calibration: Any = None,
        labels: Any = None,
        classes: Sequence[str] | None = None,
        data_root: str | None = None,
    ) -> Self:
        """Return a classifier of the model that a stored run has after a step, by default the last.

        Test images of the benchmark calibrate it; or ``calibration`` images, with ``labels`` or in a folder
        for each class, which are then all that is read if the detector needs no set-up. ``classes`` are the
        names of the dataset's labels, if it knows none. It learns no further classes.
        """
        from opencil.openworld.from_run import fill

        classifier = cls(reject, detector=detector, per=per)
        classifier._check()
        fill(classifier, path, step, calibration, labels, classes, data_root)
        return classifier

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return copy.copy(self)  # what was learned is replaced, and never changed

    def __sklearn_is_fitted__(self) -> bool:
        return self._fitted is not None

    # --- inside ------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Refuse values out of range; scikit-learn's estimators take any when they are created."""
        for name in ("reject", "held_out"):
            value = getattr(self, name)
            if not (isinstance(value, Real) and 0 < float(value) < 1):
                raise not_allowed(name, value, "a number between 0 and 1 is needed")
        if self.per not in get_args(Per):
            raise not_allowed("per", self.per, f"{', '.join(get_args(Per))} are")

    def _given(self) -> dict[str, Any]:
        """Return the arguments that decide what is learned: all but those that may change at any time."""
        later = ("reject", "runtime", "device")
        values = {key: value for key, value in self.get_params().items() if key not in later}
        return copy.deepcopy(values)

    def _ready(self) -> Fitted:
        if self._fitted is None:
            raise BadInput("nothing has been learned yet: call learn first")
        return self._fitted

    def _find_network(self) -> Network:
        """Return the network, which stays the same once images were learned."""
        fresh = self._network is None
        network = self._network or Pretrained(self.backbone, self.transform, self.runtime, self.device)
        if not fresh and isinstance(network, Pretrained) and network.given != (self.backbone, self.transform):
            raise BadInput("backbone or transform were changed after learning: create another classifier")
        return network

    def _read(
        self, images: Any, labels: Any, progress: bool, title: str
    ) -> Iterator[tuple[list[Picture], Tensor]]:
        """Yield batches of images, with the features of those that could be read."""
        if isinstance(images, FeatureImages):
            pairs = enumerate(images.labels.tolist() if labels is None else labels)
            names = [
                images.classes[label] if images.classes and labels is None else str(label)
                for _, label in pairs
            ]
            keys = map(find_key, images.features)
            found = zip(names, keys, strict=True)
            yield [Picture(str(i), name, None, key) for i, (name, key) in enumerate(found)], images.features
            return
        network = self._find_network()
        items, number = find_items(images, labels, learning=title == "learning")
        with (
            closing(read_pictures(items, network.preprocessing)) as pictures,
            Progress(console=Console(stderr=True), transient=True, disable=not progress) as bar,
        ):
            task, batch = bar.add_task(title, total=number), list[Picture]()
            for picture in pictures:
                batch.append(picture)
                if len(batch) == _TOGETHER:
                    yield batch, self._features(network, batch)
                    batch = []
                bar.advance(task)
            if batch:
                yield batch, self._features(network, batch)

    def _features(self, network: Network, batch: list[Picture]) -> Tensor:
        pixels = [picture.pixels for picture in batch if picture.pixels is not None]
        return network.features(torch.stack(pixels)) if pixels else torch.empty(0, 0)

    def _read_calibration(
        self, images: Any, labels: Any, classes: Sequence[str]
    ) -> Iterator[tuple[Tensor, Tensor, bool]]:
        """Yield features and labels of images of known classes, held out."""
        for pictures, features in self._read(images, labels, False, "learning"):
            if problem := next((p.problem for p in pictures if p.problem), ""):
                raise BadInput(problem)
            check_known("class", [p.label for p in pictures], classes)
            yield features, torch.tensor([classes.index(p.label) for p in pictures]), True

    def _all_outputs(self, images: Any) -> Outputs:
        """Return the outputs of images that can all be read."""
        found = list[Tensor]()
        for pictures, features in self._read(images, None, False, "predicting"):
            if problem := next((p.problem for p in pictures if p.problem), ""):
                raise BadInput(problem)
            found.append(features)
        if not found:
            raise BadInput("there are no images: at least one is needed")
        return self._ready().outputs(torch.cat(found))


def _judge(
    fitted: Fitted, thresholds: Tensor, features: Tensor
) -> Iterator[tuple[bool, float, float, tuple[str, ...]]]:
    """Yield for each image whether it is known, its p-value, its score, and its best classes."""
    outputs = fitted.outputs(features)
    scores, predicted = fitted.score(outputs), outputs.logits.argmax(dim=1)
    known = scores >= thresholds[predicted]
    order = outputs.logits.argsort(dim=1, descending=True)[:, :_BEST].tolist()
    best = [tuple(fitted.known.classes[label] for label in row) for row in order]
    p_values = fitted.calibration.p_values(scores, predicted)
    yield from zip(known.tolist(), p_values.tolist(), scores.tolist(), best, strict=True)
