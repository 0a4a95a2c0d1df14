"""OpenOOD's evaluator on our benchmarks and detectors: its arguments, its table and its conventions."""

from collections.abc import Callable, Mapping
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from opencil.data.foreign import served
from opencil.data.roles import OOD_ROLES
from opencil.data.transforms import Transform
from opencil.detectors.detector import Detector
from opencil.engine.forward import Outputs, device_of
from opencil.errors import BadInput, unknown
from opencil.evaluation.evaluate import check_reads, named, outputs_named, with_labels
from opencil.evaluation.metric import metrics
from opencil.evaluation.reading import Reading, Samples
from opencil.nets.model import Classifier
from opencil.nets.wrap import as_classifier, wrap
from opencil.registry import DETECTORS
from opencil.runs.loading import benchmark

if TYPE_CHECKING:
    import pandas as pd

#: OpenOOD's names of detectors that have another one here.
NAMES = {"ebo": "energy", "mls": "maxlogit"}
#: Columns of the table, and the metric that each is.
COLUMNS = {
    "FPR@95": "fpr_ood_positive",
    "AUROC": "auc",
    "AUPR_IN": "aupr_in",
    "AUPR_OUT": "aupr_out",
}


class Evaluator:
    """One detector on one network, as ``openood.evaluation_api.Evaluator`` of OpenOOD v1.5 has it.

    ``net`` is what ``evaluate`` takes as model; with ``head``, the name of its last linear layer, it is
    wrapped (OpenOOD's own networks: ``fc``). ``id_name`` is one of ``opencil.list_benchmarks()``, whose files
    lie in ``data_root``, or any name beside a ``dataloader_dict`` as OpenOOD has it::

        {"id": {"train": …, "test": …}, "csid": {name: …}, "ood": {"near": {name: …}, "far": {name: …}}}

    each a DataLoader or whatever ``evaluate`` takes as images; detectors that are set up need ``train``,
    full-spectrum figures ``csid``. ``preprocessor`` is a ``Transform`` (default: the benchmark's).
    ``postprocessor_name`` names a detector, in our words or OpenOOD's, ``postprocessor`` is one with values
    of your own.

    Conventions, which are OpenOOD's and not this project's: OOD is the positive class. FPR@95 is the share of
    ID rejected where at least 95 % of OOD are (rows of ours call it ``fpr_ood_positive``; ``fpr``, the
    paper's, has the roles exchanged). AUPR_IN has ID positive and AUPR_OUT has OOD positive, and both join
    the points of the curve by straight lines (``ap_id_positive`` and ``ap`` are step-wise). AUROC is ``auc``,
    whichever is positive. All in percent.
    """

    def __init__(
        self,
        net: Classifier | Callable[[Tensor], Any],
        id_name: str,
        data_root: str | None = None,
        *,
        preprocessor: Transform | None = None,
        postprocessor_name: str | None = None,
        postprocessor: Detector | None = None,
        dataloader_dict: Mapping[str, Any] | None = None,
        head: str | None = None,
        batch_size: int = 200,
    ) -> None:
        if preprocessor is not None and not isinstance(preprocessor, Transform):
            raise BadInput(
                f"preprocessor is a {type(preprocessor).__name__}: an opencil.Transform is needed. Datasets "
                "with a transform of their own come as dataloader_dict=..."
            )
        if head is not None and not isinstance(head, str):
            raise BadInput(f"head is a {type(head).__name__}: the name of a layer is needed")
        if head is not None and not isinstance(net, nn.Module):
            raise BadInput(f"head = {head!r} is a layer's name: it needs a net that is a torch module")
        self.id_name, self.batch_size = id_name, batch_size
        self.net = as_classifier(net) if head is None or not isinstance(net, nn.Module) else wrap(net, head)
        self.postprocessor = _detector(postprocessor_name, postprocessor)
        check_reads(self.net, {postprocessor_name or type(self.postprocessor).__name__: self.postprocessor})
        self.preprocessor = preprocessor
        self.dataloader_dict: dict[str, Any] = (
            self._loaded(data_root) if dataloader_dict is None else _checked(dataloader_dict)
        )
        #: What is computed so far, by its place in ``dataloader_dict``.
        self._outputs: dict[tuple[str, ...], Outputs] = {}
        self._scores: dict[tuple[str, ...], Tensor] = {}

    def eval_acc(self, data_name: str = "id") -> float:
        """Accuracy in percent: on the ID test images, or (``csid``) on these and the shifted ones."""
        if data_name not in ("id", "csid"):
            raise unknown("data_name", data_name, ("id", "csid"))
        right, count = 0, 0
        for place in self._id_places(data_name == "csid"):
            outputs = self._read(place)
            if outputs.labels is None:
                raise BadInput(f"images of {' '.join(place)} have no labels: accuracy needs them")
            right += int((outputs.logits.argmax(dim=1) == outputs.labels).sum())
            count += len(outputs)
        return 100 * right / count

    def eval_ood(self, fsood: bool = False) -> "pd.DataFrame":
        """The table: a row for each OOD set and for the mean of each split, nearood and farood, in percent.

        ``fsood``: full-spectrum, where shifted ID images (``csid``) count as ID beside the test images.
        """
        import pandas as pd

        inside = torch.cat([self._scored(place) for place in self._id_places(fsood)])
        accuracy = self.eval_acc("csid" if fsood else "id")
        rows: dict[str, list[float]] = {}
        for split in OOD_ROLES:
            names = self.dataloader_dict["ood"].get(split, {})
            figures = {name: _figures(inside, self._scored(("ood", split, name))) for name in names}
            rows |= {name: [*found, accuracy] for name, found in figures.items()}
            if figures:
                means = [fmean(column) for column in zip(*figures.values(), strict=True)]
                rows[f"{split}ood"] = [*means, accuracy]
        return pd.DataFrame.from_dict(rows, orient="index", columns=[*COLUMNS, "ACC"])

    def _id_places(self, full_spectrum: bool) -> list[tuple[str, ...]]:
        """Where the ID test images and, for the full spectrum, the shifted ones are."""
        shifted = list(self.dataloader_dict.get("csid") or ()) if full_spectrum else []
        if full_spectrum and not shifted:
            raise BadInput(f"{self.id_name} has no shifted ID images: full-spectrum figures need 'csid'")
        return [("id", "test"), *(("csid", name) for name in shifted)]

    def _scored(self, place: tuple[str, ...]) -> Tensor:
        """Scores of a set, computed once; the detector is set up on training images where it is not ready."""
        if not self.postprocessor.ready:
            if "train" not in self.dataloader_dict["id"]:
                raise BadInput(
                    f"{type(self.postprocessor).__name__} is set up on training images: "
                    "dataloader_dict['id'] has no 'train'"
                )
            self.postprocessor.fit(self._forward(("id", "train")))
        if place not in self._scores:
            self._scores[place] = self.postprocessor.score(self._read(place))
        return self._scores[place]

    def _read(self, place: tuple[str, ...]) -> Outputs:
        """Outputs of a set, computed once."""
        if place not in self._outputs:
            self._outputs[place] = self._forward(place)
        return self._outputs[place]

    def _forward(self, place: tuple[str, ...]) -> Outputs:
        images: Any = self.dataloader_dict
        for part in place:
            images = images[part]
        name, labelled = " ".join(place), place[0] != "ood"
        read = served(images, name, device_of(self.net), self.batch_size, labelled=labelled)
        outputs = outputs_named(self.net, read, name, self.preprocessor, self.batch_size)
        return with_labels(outputs, name) if labelled else outputs

    def _loaded(self, data_root: str | None) -> dict[str, Any]:
        """A benchmark's images in OpenOOD's places, and its transform where no other is given."""
        device = device_of(self.net)
        data = benchmark(self.id_name, data_root, "cpu" if device is None else str(device))
        self.preprocessor = self.preprocessor or data.transform
        return {
            "id": {"train": data.train, "test": data.test},
            "csid": data.shifted,
            "ood": {
                role: {name: ood.images for name, ood in data.ood.items() if ood.distance == role}
                for role in OOD_ROLES
            },
        }


def _detector(name: str | None, detector: Detector | None) -> Detector:
    if detector is not None:
        if not isinstance(detector, Detector):
            raise BadInput(
                f"postprocessor is a {type(detector).__name__}: what opencil.create_detector makes is needed"
            )
        return detector
    if name is None:
        raise BadInput(
            "an Evaluator needs a detector: postprocessor_name='energy', say, or postprocessor=..."
        )
    if not isinstance(name, str):
        raise BadInput(f"postprocessor_name is a {type(name).__name__}: the name of a detector is needed")
    made: Detector = DETECTORS.create(NAMES.get(name, name))
    return made


def _checked(sets: Mapping[str, Any]) -> dict[str, Any]:
    """The places that are read, or what is missing of them."""
    known: dict[str, Any] = dict(sets) if isinstance(sets, Mapping) else {}
    inside, outside = known.get("id"), known.get("ood")
    if not isinstance(inside, Mapping) or "test" not in inside:
        raise BadInput("dataloader_dict['id'] has no 'test': the ID images to tell from OOD are needed")
    sets_of = [outside.get(split) for split in OOD_ROLES] if isinstance(outside, Mapping) else []
    shifted = known.get("csid")
    if not all(one is None or (isinstance(one, Mapping) and named(one)) for one in (*sets_of, shifted)):
        raise BadInput("dataloader_dict should map names to images in 'near', 'far' and 'csid'")
    if not any(sets_of):
        raise BadInput("dataloader_dict['ood'] has no sets: 'near' or 'far' should map names to images")
    return known


def _figures(inside: Tensor, outside: Tensor) -> list[float]:
    """The metrics of the table's columns, in percent."""
    nothing, known = inside.new_empty(0), metrics()
    reading = Reading(Samples(nothing, scores=inside), Samples(nothing, scores=outside))
    values = [known[name].measure(reading) for name in COLUMNS.values()]
    return [100 * float(value) for value in values if isinstance(value, Tensor)]
