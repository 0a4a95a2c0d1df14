"""Check the contract of detectors."""

import copy
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opencil.detectors.detector import Detector, Reads
from opencil.engine.forward import Outputs, forward
from opencil.errors import BadInput
from opencil.evaluation.metrics import ood_metrics
from opencil.registry import DETECTORS
from opencil.testing.contract import collect_checks, list_differences, nearly_equal, run_checks

_CLASSES, _WIDTH, _SIDE = 6, 24, 4
_EXTREME = 1e4
#: The arguments of ``fit`` and ``score`` that give what a detector reads, where the names differ.
_ARGUMENTS = {"head": "classify", "linear": "classify", "images": "inputs", "layers": "inputs"}

AnyDetector = str | Detector


class _Network(nn.Module):
    """A small fixed network whose classes lie along given directions, with batch norm that could drift."""

    def __init__(self) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(0)
        self.layer = nn.Linear(3 * _SIDE * _SIDE, _WIDTH)
        self.norm = nn.BatchNorm1d(_WIDTH)
        self.head = nn.Linear(_WIDTH, _CLASSES)
        self.centres = torch.randn(_CLASSES, 3, _SIDE, _SIDE, generator=random)
        with torch.no_grad():
            self.layer.weight.copy_(torch.randn(self.layer.weight.shape, generator=random) / 7)
            self.layer.bias.zero_()
            self.eval()
            means = F.normalize(self.features(self.centres), dim=1)
            # Fully centred weights would give the logits of all samples the same mean.
            self.head.weight.copy_(4 * (means - 0.8 * means.mean(dim=0)))
            self.head.bias.zero_()
        self.filters = torch.randn(8, 3, 3, 3, generator=random) / 5
        self.spread = torch.randn(3 * _SIDE * _SIDE, 2 * _WIDTH, generator=random) / 2

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
        logits: Tensor = self.head(features)
        return logits


@dataclass(frozen=True)
class _Samples:
    """Outputs of one network: training samples, ID samples like them, and OOD samples."""

    network: _Network
    setup: Outputs
    test: Outputs
    ood: Outputs


def _samples(fewest: int = 1) -> _Samples:
    """Create new samples, so that no check depends on another; training samples enough for ``fewest``."""
    network, random = _Network(), torch.Generator().manual_seed(1)

    def near_centres(count: int) -> Outputs:
        labels = torch.arange(count) % _CLASSES
        images = network.centres[labels] + 0.3 * torch.randn(count, 3, _SIDE, _SIDE, generator=random)
        return replace(forward(network, images), labels=labels)

    setup, test = near_centres(max(300, _CLASSES * fewest)), near_centres(60)
    ood = forward(network, 0.5 * torch.randn(60, 3, _SIDE, _SIDE, generator=random))
    return _Samples(network, setup, test, ood)


def _create(detector: AnyDetector) -> tuple[Detector, _Samples]:
    """Return a new detector that is not fitted, and enough samples for it."""
    new: Detector = DETECTORS.create(detector) if isinstance(detector, str) else copy.deepcopy(detector)
    return new, _samples(new.fewest)


def _fit(detector: AnyDetector, setup: Outputs | None = None) -> tuple[Detector, _Samples]:
    """Return a new detector fitted on its samples, or on others, and these samples."""
    new, samples = _create(detector)
    return new.fit(samples.setup if setup is None else setup), samples


def _images(outputs: Outputs) -> Tensor:
    assert outputs.inputs is not None
    assert isinstance(outputs.inputs.images, Tensor)
    return outputs.inputs.images


def _select(outputs: Outputs, rows: Tensor) -> Outputs:
    """Return some of the samples, in the order of ``rows``."""
    assert outputs.inputs is not None
    inputs = replace(outputs.inputs, images=_images(outputs)[rows])
    labels = None if outputs.labels is None else outputs.labels[rows]
    return Outputs(outputs.features[rows], outputs.logits[rows], labels, outputs.classify, inputs)


def _arguments(outputs: Outputs, reads: frozenset[Reads] | None = None) -> dict[str, Any]:
    """Return outputs as arguments of ``fit`` and ``score``: all, or what a detector reads."""
    names = {"features", "logits", "classify", "inputs"}
    if reads is not None:
        names &= {_ARGUMENTS.get(read, read) for read in reads}
    return {name: getattr(outputs, name) for name in names}


def check_result(detector: AnyDetector) -> None:
    """Scores are finite, float32, one for each sample, without a gradient."""
    fitted, samples = _fit(detector)
    scores = fitted.score(samples.test)
    assert scores.dtype == torch.float32, f"scores in {scores.dtype}: float32 is expected"
    assert scores.shape == (len(samples.test),), f"gives scores {list(scores.shape)}: [N] is expected"
    assert not scores.requires_grad, "gives scores with a gradient graph"


def check_larger_is_id(detector: AnyDetector) -> None:
    """ID samples near the set-up samples score higher than noise."""
    fitted, samples = _fit(detector)
    auc = ood_metrics(fitted.score(samples.test), fitted.score(samples.ood)).auc
    assert auc > 0.7, f"does not score easy ID samples above noise: AUC {auc:.2f}"


def check_alone(detector: AnyDetector) -> None:
    """A sample's score depends neither on the other samples nor on their order."""
    fitted, samples = _fit(detector)
    test, whole = samples.test, fitted.score(samples.test)
    for size in (1, 7):
        batches = torch.split(torch.arange(len(test)), size)
        parts = torch.cat([fitted.score(_select(test, rows)) for rows in batches])
        assert nearly_equal(parts, whole), f"scores samples differently in batches of {size}"
    order = torch.randperm(len(test), generator=torch.Generator().manual_seed(2))
    shuffled = fitted.score(_select(test, order))
    assert nearly_equal(shuffled, whole[order]), "scores samples differently in another order"


def check_repeatable(detector: AnyDetector) -> None:
    """The same set-up and samples give the same scores, whatever the global random state."""
    test = _samples().test
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        fitted, _ = _fit(detector)
        first, again = fitted.score(test), fitted.score(test)
        torch.manual_seed(4)
        other = _fit(detector)[0].score(test)
    assert torch.equal(first, again), "scores the same samples differently the second time"
    assert torch.equal(first, other), (
        "scores differently after the same set-up: random choices need a generator of their own"
    )


def check_reads(detector: AnyDetector) -> None:
    """The declared ``reads`` are sufficient: without anything else the scores are the same."""
    fitted, samples = _fit(detector)
    setup, reads = samples.setup, fitted.reads
    try:
        for_setup = _arguments(setup, fitted.reads_to_set_up | (reads & {"head"}))
        new = _create(detector)[0].fit(**for_setup, labels=setup.labels)
        scores = new.score(**_arguments(samples.test, reads))
    except Exception as error:
        raise AssertionError(f"fails where it is given only {', '.join(sorted(reads))}: {error}") from error
    assert nearly_equal(scores, fitted.score(samples.test)), (
        "scores differently where it is given only its `reads`"
    )


def check_refit(detector: AnyDetector) -> None:
    """A second set-up replaces the first."""
    fitted, samples = _fit(detector)
    first = fitted.score(samples.test)
    reverse = torch.arange(len(samples.setup) - 1, -1, -1)
    again = fitted.fit(_select(samples.setup, reverse)).fit(samples.setup)
    assert nearly_equal(again.score(samples.test), first), "scores differently after a second set-up"


def check_inputs_unchanged(detector: AnyDetector) -> None:
    """``fit`` and ``score`` change neither tensors nor the network; parameters get no gradient."""
    new, samples = _create(detector)
    network = samples.network

    def state() -> dict[str, Tensor]:
        tensors = {f"the network's {name}": tensor for name, tensor in network.state_dict().items()}
        for which, outputs in (("set-up", samples.setup), ("scored", samples.test)):
            assert outputs.labels is not None
            read = (outputs.features, outputs.logits, _images(outputs), outputs.labels)
            names = ("features", "logits", "images", "labels")
            tensors |= {f"the {which} samples' {n}": t for n, t in zip(names, read, strict=True)}
        flags = [m.training for m in network.modules()] + [p.requires_grad for p in network.parameters()]
        tensors["the modes or frozen parameters of the network"] = torch.tensor(flags)
        return tensors | {"torch's global random state": torch.get_rng_state()}

    network.train()
    network.norm.eval()  # so that modes differ from module to module
    before = {name: tensor.clone() for name, tensor in state().items()}
    new.fit(samples.setup).score(samples.test)
    changed = list_differences(state(), before)
    assert not changed, f"changes {changed}"
    graded = [name for name, parameter in network.named_parameters() if parameter.grad is not None]
    assert not graded, f"leaves a gradient on the network's {', '.join(graded)}"


def check_extreme_logits(detector: AnyDetector) -> None:
    """Scores stay finite on logits of ±1e4, in the scored samples and in the set-up samples."""
    _, samples = _create(detector)
    network = copy.deepcopy(samples.network)
    with torch.no_grad():
        network.head.weight.mul_(_EXTREME / float(samples.setup.logits.abs().max()))
    setup = replace(forward(network, _images(samples.setup)), labels=samples.setup.labels)
    test = forward(network, _images(samples.test))
    for fitted_on in (samples.setup, setup):
        try:
            _fit(detector, fitted_on)[0].score(test)
        except BadInput as error:
            raise AssertionError(f"cannot score logits of ±{_EXTREME:g}: {error}") from error


def check_fewest(detector: AnyDetector) -> None:
    """A set-up on ``fewest`` samples works, and one sample fewer is refused."""
    new, samples = _create(detector)
    if not new.needs_setup:
        return
    assert samples.setup.labels is not None
    by_class = samples.setup.labels.argsort(stable=True)  # some detectors need enough of each class
    try:
        new.fit(_select(samples.setup, by_class[: new.fewest])).score(samples.test)
    except Exception as error:
        raise AssertionError(f"fails on its fewest = {new.fewest} set-up samples: {error}") from error
    if new.fewest > 1:
        with suppress(BadInput):
            _create(detector)[0].fit(_select(samples.setup, by_class[: new.fewest - 1]))
            raise AssertionError(f"accepts {new.fewest - 1} set-up samples, and fewest = {new.fewest}")


#: Every check of the detectors' contract, by name.
DETECTOR_CHECKS = collect_checks(vars())


def check_detector(detector: AnyDetector) -> None:
    """Run every check on a detector: a registered name, or a detector that is not fitted."""
    run_checks(DETECTOR_CHECKS, detector, detector)
