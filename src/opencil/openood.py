"""Provide OpenOOD's evaluator, with its arguments, table and conventions, for these detectors."""

from collections.abc import Callable, Mapping
from functools import cache, reduce
from operator import getitem
from statistics import fmean
from typing import Any, cast

import pandas as pd
import torch
from torch import Tensor, nn

from opencil.data.roles import OOD_ROLES
from opencil.data.transforms import Transform
from opencil.detectors.detector import Detector
from opencil.engine.forward import Outputs, device_of
from opencil.errors import BadInput, check_known
from opencil.evaluation.evaluate import check_reads, compute_outputs, have_names
from opencil.evaluation.metric import Reading, Samples, metrics
from opencil.nets.model import Classifier
from opencil.nets.wrap import as_classifier, wrap
from opencil.registry import DETECTORS
from opencil.runs.loading import benchmark

#: Columns of the table, and their metrics.
COLUMNS = {"FPR@95": "fpr_ood_positive", "AUROC": "auc", "AUPR_IN": "aupr_in", "AUPR_OUT": "aupr_out"}


class Evaluator:
    """One detector on one network, like ``openood.evaluation_api.Evaluator`` of OpenOOD v1.5.

    ``net`` is a model as for ``evaluate``; with ``head``, the name of its last linear layer, it is wrapped
    (OpenOOD's own networks: ``fc``). ``id_name`` is one of ``opencil.list_benchmarks()``, with its files in
    ``data_root``, or any name with a ``dataloader_dict`` like OpenOOD's::

        {"id": {"train": …, "test": …}, "csid": {name: …}, "ood": {"near": {name: …}, "far": {name: …}}}

    Each value is a DataLoader or other images as for ``evaluate``. Detectors with a set-up need ``train``,
    full-spectrum metrics ``csid``. ``preprocessor`` is a ``Transform`` (default: the benchmark's).
    ``postprocessor_name`` is the name of a detector, ours or OpenOOD's; ``postprocessor`` is a detector.

    The conventions are OpenOOD's, not this project's: OOD is the positive class. FPR@95 is the share of ID
    rejected at a threshold that rejects at least 95 % of OOD (``fpr_ood_positive``; ``fpr``, the paper's,
    exchanges the roles). AUPR_IN has ID positive, AUPR_OUT has OOD positive, with straight lines between the
    points of the curve (``ap_id_positive`` and ``ap`` are step-wise). AUROC is ``auc``. All in percent.
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
            raise BadInput("preprocessor should be an opencil.Transform; others belong into a Dataset")
        self.id_name, self.batch_size = id_name, batch_size
        self.net = as_classifier(net) if head is None else wrap(cast(nn.Module, net), head)
        if postprocessor is None and postprocessor_name is not None:
            postprocessor = DETECTORS.create(postprocessor_name)
        if not isinstance(postprocessor, Detector):
            raise BadInput("postprocessor should be a detector, or postprocessor_name the name of one")
        self.postprocessor = postprocessor
        check_reads(self.net, {postprocessor_name or type(self.postprocessor).__name__: self.postprocessor})
        self.preprocessor = preprocessor
        sets = self._load(data_root) if dataloader_dict is None else _check_sets(dataloader_dict)
        self.dataloader_dict: dict[str, Any] = sets
        #: Functions of a set's keys in ``dataloader_dict``; each set is computed once.
        self._outputs, self._scores = cache(self._forward), cache(self._score)

    def eval_acc(self, data_name: str = "id") -> float:
        """Return the accuracy in percent on the ID test images, with ``csid`` also on the shifted images."""
        check_known("data_name", [data_name], ("id", "csid"))
        right = []
        for place in self._id_places(data_name == "csid"):
            outputs = self._outputs(place)
            if outputs.labels is None:
                raise BadInput(f"images of {' '.join(place)} have no labels: accuracy needs them")
            right.append(outputs.logits.argmax(dim=1) == outputs.labels)
        return 100 * int(torch.cat(right).sum()) / sum(map(len, right))

    def eval_ood(self, fsood: bool = False) -> pd.DataFrame:
        """Return the table in percent: a row for each OOD set, and for the means nearood and farood.

        With ``fsood``, full-spectrum, the shifted images (``csid``) are ID, like the test images.
        """
        inside = torch.cat([self._scores(place) for place in self._id_places(fsood)])
        accuracy = self.eval_acc("csid" if fsood else "id")
        rows: dict[str, list[float]] = {}
        for split in OOD_ROLES:
            names = self.dataloader_dict["ood"].get(split) or {}
            figures = {name: _figures(inside, self._scores(("ood", split, name))) for name in names}
            rows |= {name: [*found, accuracy] for name, found in figures.items()}
            if figures:
                means = [fmean(column) for column in zip(*figures.values(), strict=True)]
                rows[f"{split}ood"] = [*means, accuracy]
        return pd.DataFrame.from_dict(rows, orient="index", columns=[*COLUMNS, "ACC"])

    def _id_places(self, full_spectrum: bool) -> list[tuple[str, ...]]:
        """Return the keys of the ID test images and, for the full spectrum, of the shifted images."""
        shifted = list(self.dataloader_dict.get("csid") or ()) if full_spectrum else []
        if full_spectrum and not shifted:
            raise BadInput(f"{self.id_name} has no shifted ID images: full-spectrum metrics need 'csid'")
        return [("id", "test"), *(("csid", name) for name in shifted)]

    def _score(self, place: tuple[str, ...]) -> Tensor:
        """Return the scores of a set; fit the detector if it is not ready."""
        if not self.postprocessor.ready:
            if "train" not in self.dataloader_dict["id"]:
                raise BadInput("the detector needs training images: dataloader_dict['id'] has no 'train'")
            self.postprocessor.fit(self._forward(("id", "train")))
        return self.postprocessor.score(self._outputs(place))

    def _forward(self, place: tuple[str, ...]) -> Outputs:
        """Return the outputs of a set."""
        images, labelled = reduce(getitem, place, self.dataloader_dict), place[0] != "ood"
        return compute_outputs(
            self.net, images, " ".join(place), self.preprocessor, self.batch_size, labelled
        )

    def _load(self, data_root: str | None) -> dict[str, Any]:
        """Return a benchmark's images under OpenOOD's keys, and set its transform by default."""
        data = benchmark(self.id_name, data_root, str(device_of(self.net) or "cpu"))
        self.preprocessor = self.preprocessor or data.transform
        outside: dict[str, dict[str, Any]] = {role: {} for role in OOD_ROLES}
        for name, ood in data.ood.items():
            outside[ood.distance][name] = ood.images
        return {"id": {"train": data.train, "test": data.test}, "csid": data.shifted, "ood": outside}


def _check_sets(sets: Any) -> dict[str, Any]:
    """Return a ``dataloader_dict`` with the necessary keys."""
    found: dict[str, Any] = dict(sets) if isinstance(sets, Mapping) else {}
    inside, outside = found.get("id"), found.get("ood")
    splits = [outside.get(split) or {} for split in OOD_ROLES] if isinstance(outside, Mapping) else []
    named = all(map(have_names, (*splits, found.get("csid") or {})))
    if not (isinstance(inside, Mapping) and "test" in inside and any(splits) and named):
        needed = "{'id': {'train': …, 'test': …}, 'csid': {name: …}, 'ood': {'near': {name: …}, 'far': …}}"
        raise BadInput(f"dataloader_dict is not of the form {needed}: test and one OOD set are needed")
    return found


def _figures(inside: Tensor, outside: Tensor) -> list[float]:
    """Return the metrics of the table's columns, in percent."""
    nothing = inside.new_empty(0)
    reading = Reading(Samples(nothing, scores=inside), Samples(nothing, scores=outside))
    values = [metrics()[name].measure(reading) for name in COLUMNS.values()]
    return [100 * float(value) for value in values if isinstance(value, Tensor)]
