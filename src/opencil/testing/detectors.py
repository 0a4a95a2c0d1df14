"""Check the contract of detectors."""

import copy
from contextlib import suppress
from dataclasses import replace
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opencil.detectors.detector import Detector, Reads
from opencil.engine.forward import Outputs, forward
from opencil.errors import BadInput
from opencil.evaluation.metrics import ood_metrics
from opencil.registry import DETECTORS
from opencil.testing.contract import call_twice, collect_checks, list_differences, nearly_equal, run_checks

_CLASSES, _WIDTH, _SHAPE = 6, 24, (3, 4, 4)
#: Arguments of ``fit`` and ``score`` by field of ``Outputs``, where the names differ.
_ARGUMENTS = {"head": "classify", "linear": "classify", "images": "inputs", "layers": "inputs"}

AnyDetector = str | Detector


class _Network(nn.Module):
    """A small fixed network whose classes lie along given directions, with batch norm that could drift."""

    def __init__(self) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(0)
        self.layer = nn.Linear(prod(_SHAPE), _WIDTH)
        self.norm = nn.BatchNorm1d(_WIDTH)
        self.head = nn.Linear(_WIDTH, _CLASSES)
        self.centres = torch.randn(_CLASSES, *_SHAPE, generator=random)
        with torch.no_grad():
            self.layer.weight.copy_(torch.randn(self.layer.weight.shape, generator=random) / 7)
            self.layer.bias.zero_()
            self.eval()
            means = F.normalize(self.features(self.centres), dim=1)
            # Fully centred weights would give the logits of all samples the same mean.
            self.head.weight.copy_(4 * (means - 0.8 * means.mean(dim=0)))
            self.head.bias.zero_()
        self.filters = torch.randn(8, 3, 3, 3, generator=random) / 5
        self.spread = torch.randn(prod(_SHAPE), 2 * _WIDTH, generator=random) / 2

    def features(self, images: Tensor) -> Tensor:
        """Return f [B, D] ≥ 0."""
        return F.relu(self.norm(self.layer(images.flatten(1))))

    def maps(self, images: Tensor) -> list[Tensor]:
        """Return maps of two stages: the images with filtered copies, and four pixels whose mean is f."""
        offsets = (images.flatten(1) @ self.spread).view(-1, _WIDTH, 2)
        last = self.features(images)[:, :, None] + torch.cat([offsets, -offsets], dim=2)
        filtered = F.relu(F.conv2d(images, self.filters, padding=1))
        return [torch.cat([images, filtered], dim=1), last.view(-1, _WIDTH, 2, 2)]

    def last_stage(self, maps: Tensor) -> Tensor:
        """Return f [B, D] of the images among the first maps."""
        return self.features(maps[:, :3])

    def classify(self, features: Tensor) -> Tensor:
        """Return z [B, C]."""
        return self.head(features)  # type: ignore[no-any-return]


class _Trial:
    """A new detector, and outputs of one network: training samples, ID samples like them, and OOD samples."""

    def __init__(self, detector: AnyDetector) -> None:
        new: Detector = DETECTORS.create(detector) if isinstance(detector, str) else copy.deepcopy(detector)
        self.detector, self.network, random = new, _Network(), torch.Generator().manual_seed(1)

        def near_centres(count: int) -> Outputs:
            labels, noise = torch.arange(count) % _CLASSES, torch.randn(count, *_SHAPE, generator=random)
            return replace(forward(self.network, self.network.centres[labels] + 0.3 * noise), labels=labels)

        self.setup, self.test = near_centres(max(300, _CLASSES * new.fewest)), near_centres(60)
        self.ood = forward(self.network, 0.5 * torch.randn(60, *_SHAPE, generator=random))


def _fit(detector: AnyDetector) -> tuple[Detector, _Trial]:
    """Return a new detector fitted on its trial's samples, and the trial."""
    trial = _Trial(detector)
    return trial.detector.fit(trial.setup), trial


def _images(outputs: Outputs) -> Tensor:
    """Return the images behind outputs."""
    assert outputs.inputs is not None
    return torch.cat(list(outputs.inputs.batches()))


def _select(outputs: Any, rows: Tensor) -> Outputs:
    """Return some of the labelled samples, in the order of ``rows``."""
    inputs = replace(outputs.inputs, images=_images(outputs)[rows])
    features, logits, labels = (values[rows] for values in (outputs.features, outputs.logits, outputs.labels))
    return Outputs(features, logits, labels, outputs.classify, inputs)


def _arguments(outputs: Outputs, reads: frozenset[Reads]) -> dict[str, Any]:
    """Return the outputs a detector reads, without labels, as arguments of ``fit`` and ``score``."""
    return {name: getattr(outputs, name) for name in {_ARGUMENTS.get(r, r) for r in reads} - {"labels"}}


def check_result(detector: AnyDetector) -> None:
    """Scores are finite, float32, one for each sample, without a gradient."""
    fitted, trial = _fit(detector)
    scores = fitted.score(trial.test)
    assert scores.dtype == torch.float32, f"scores in {scores.dtype}: float32 is expected"
    assert scores.shape == (len(trial.test),), f"gives scores {list(scores.shape)}: [N] is expected"
    assert not scores.requires_grad, "gives scores with a gradient graph"


def check_larger_is_id(detector: AnyDetector) -> None:
    """ID samples near the set-up samples score higher than noise."""
    fitted, trial = _fit(detector)
    auc = ood_metrics(fitted.score(trial.test), fitted.score(trial.ood)).auc
    assert auc > 0.7, f"does not score easy ID samples above noise: AUC {auc:.2f}"


def check_alone(detector: AnyDetector) -> None:
    """A sample's score depends neither on the other samples nor on their order."""
    fitted, trial = _fit(detector)
    test, whole = trial.test, fitted.score(trial.test)
    for size in (1, 7):
        batches = torch.split(torch.arange(len(test)), size)
        parts = torch.cat([fitted.score(_select(test, rows)) for rows in batches])
        assert nearly_equal(parts, whole), f"scores samples differently in batches of {size}"
    order = torch.randperm(len(test), generator=torch.Generator().manual_seed(2))
    shuffled = fitted.score(_select(test, order))
    assert nearly_equal(shuffled, whole[order]), "scores samples differently in another order"


def check_repeatable(detector: AnyDetector) -> None:
    """The same set-up and samples give the same scores, whatever the global random state."""
    fitted, trial = _fit(detector)
    first, again = call_twice(lambda: fitted.score(trial.test))
    assert torch.equal(first, again), "scores the same samples differently the second time"
    new = _Trial(detector).detector
    first, other = call_twice(lambda: copy.deepcopy(new).fit(trial.setup).score(trial.test))
    assert torch.equal(first, other), "scores differently after the same set-up"


def check_reads(detector: AnyDetector) -> None:
    """The declared ``reads`` are sufficient: without anything else the scores are the same."""
    fitted, trial = _fit(detector)
    setup, reads = trial.setup, fitted.reads
    try:
        for_setup = _arguments(setup, fitted.reads_to_set_up | (reads & {"head"}))
        new = _Trial(detector).detector.fit(**for_setup, labels=setup.labels)
        scores = new.score(**_arguments(trial.test, reads))
    except Exception as error:
        raise AssertionError(f"fails where it is given only {', '.join(sorted(reads))}: {error}") from error
    assert nearly_equal(scores, fitted.score(trial.test)), "scores differently with only its `reads`"


def check_refit(detector: AnyDetector) -> None:
    """A second set-up replaces the first."""
    fitted, trial = _fit(detector)
    first = fitted.score(trial.test)
    again = fitted.fit(_select(trial.setup, torch.arange(len(trial.setup)).flip(0))).fit(trial.setup)
    assert nearly_equal(again.score(trial.test), first), "scores differently after a second set-up"


def check_inputs_unchanged(detector: AnyDetector) -> None:
    """``fit`` and ``score`` change neither tensors nor the network; parameters get no gradient."""
    trial = _Trial(detector)
    network = trial.network

    def state() -> dict[str, Tensor]:
        tensors = {f"the network's {name}": tensor for name, tensor in network.state_dict().items()}
        for which, outputs in (("set-up", trial.setup), ("scored", trial.test)):
            read = vars(outputs) | {"images": _images(outputs)}
            tensors |= {f"the {which} samples' {n}": t for n, t in read.items() if isinstance(t, Tensor)}
        flags = [m.training for m in network.modules()] + [p.requires_grad for p in network.parameters()]
        tensors["the modes or frozen parameters of the network"] = torch.tensor(flags)
        return tensors | {"torch's global random state": torch.get_rng_state()}

    network.train()
    network.norm.eval()  # so that modes differ from module to module
    before = {name: tensor.clone() for name, tensor in state().items()}
    trial.detector.fit(trial.setup).score(trial.test)
    changed = list_differences(state(), before)
    assert not changed, f"changes {changed}"
    graded = [name for name, parameter in network.named_parameters() if parameter.grad is not None]
    assert not graded, f"leaves a gradient on the network's {', '.join(graded)}"


def check_extreme_logits(detector: AnyDetector) -> None:
    """Scores stay finite on logits of ±1e4, in the scored samples and in the set-up samples."""
    trial = _Trial(detector)
    network = copy.deepcopy(trial.network)
    with torch.no_grad():
        network.head.weight.mul_(1e4 / float(trial.setup.logits.abs().max()))
    setup, test = (forward(network, _images(outputs)) for outputs in (trial.setup, trial.test))
    for fitted_on in (trial.setup, replace(setup, labels=trial.setup.labels)):
        try:
            _Trial(detector).detector.fit(fitted_on).score(test)
        except BadInput as error:
            raise AssertionError(f"cannot score logits of ±10000: {error}") from error


def check_fewest(detector: AnyDetector) -> None:
    """A set-up on ``fewest`` samples works, and one sample fewer is refused."""
    trial = _Trial(detector)
    fewest, labels = trial.detector.fewest, trial.setup.labels
    if not trial.detector.needs_setup or labels is None:
        return
    by_class = labels.argsort(stable=True)  # some detectors need enough of each class
    try:
        trial.detector.fit(_select(trial.setup, by_class[:fewest])).score(trial.test)
    except Exception as error:
        raise AssertionError(f"fails on its fewest = {fewest} set-up samples: {error}") from error
    if fewest > 1:
        with suppress(BadInput):
            _Trial(detector).detector.fit(_select(trial.setup, by_class[: fewest - 1]))
            raise AssertionError(f"accepts {fewest - 1} set-up samples, and fewest = {fewest}")


#: Every check of the detectors' contract, by name.
DETECTOR_CHECKS = collect_checks(vars())


def check_detector(detector: AnyDetector) -> None:
    """Run every check on a detector: a registered name, or a detector that is not fitted."""
    run_checks(DETECTOR_CHECKS, detector, detector)
