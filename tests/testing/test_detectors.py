"""The checks of the detectors' contract: ours pass them, and each check finds detectors that break it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from opencil import BadInput, Detector, LogitDetector, Outputs, SetUpDetector, create_detector, list_detectors
from opencil.detectors.detector import Reads
from opencil.testing import DETECTOR_CHECKS, check_detector

#: Values that make a check ten times as fast.
QUICK = {
    "npos": {"queue": 100, "neighbours": 40, "boundary": 20, "perturbations": 100, "kept": 30},
    "vos": {"queue": 100, "samples": 1000},
}


@pytest.mark.parametrize("check", DETECTOR_CHECKS)
@pytest.mark.parametrize("name", list_detectors())
def test_every_registered_detector_keeps_the_contract(name: str, check: str) -> None:
    DETECTOR_CHECKS[check](create_detector(name, **QUICK[name]) if name in QUICK else name)


@dataclass
class Right(LogitDetector):
    """A correct detector: the largest logit."""

    def scores(self, outputs: Outputs) -> Tensor:
        return outputs.logits.amax(dim=1)


@dataclass
class Near(SetUpDetector):
    """A correct detector: nearness to the set-up features."""

    def set_up(self, outputs: Outputs) -> None:
        self.features = outputs.features

    def scores(self, outputs: Outputs) -> Tensor:
        return outputs.features.norm(dim=1) - torch.cdist(outputs.features, self.features).amin(dim=1)


@dataclass
class Margin(LogitDetector):
    """A correct detector: distance to the boundaries between classes, by W alone."""

    reads: ClassVar[frozenset[Reads]] = frozenset({"features", "linear"})

    def scores(self, outputs: Outputs) -> Tensor:
        weight, bias = outputs.linear()
        z = outputs.features @ weight.T + bias
        gaps = (weight[z.argmax(dim=1)][:, None] - weight[None]).norm(dim=2).clamp(min=1e-6)
        return ((z.amax(dim=1, keepdim=True) - z) / gaps).sum(dim=1)


@dataclass
class Means(SetUpDetector):
    """A correct detector: nearness to the set-up samples, in the pooled maps of all stages."""

    reads: ClassVar[frozenset[Reads]] = frozenset({"layers"})

    def pooled(self, outputs: Outputs) -> Tensor:
        return torch.cat([torch.cat([m.mean(dim=(2, 3)) for m in maps], dim=1) for maps in outputs.layers()])

    def set_up(self, outputs: Outputs) -> None:
        self.bank = self.pooled(outputs)

    def scores(self, outputs: Outputs) -> Tensor:
        pooled = self.pooled(outputs)
        return pooled.norm(dim=1) - torch.cdist(pooled, self.bank).amin(dim=1)


@pytest.mark.parametrize("detector", [Right(), Near(), Margin(), Means()])
def test_a_custom_detector_keeps_the_contract(detector: Detector) -> None:
    check_detector(detector)


def own(base: type[Detector] = Right, **members: Any) -> Detector:
    """Return a detector of a new class with some other members."""
    detector: Detector = dataclass(type("Own", (base,), {"__doc__": "A detector.", **members}))()
    return detector


def adding(term: Callable[[Outputs], Any], base: type[Detector] = Right, **members: Any) -> Detector:
    """Return a detector that adds something to its scores."""
    return own(base, scores=lambda self, outputs: base.scores(self, outputs) + term(outputs), **members)


def replaced(change: Callable[[Tensor], Tensor]) -> Detector:
    """Return a detector that changes the result of ``score``."""
    return own(score=lambda self, *args, **given: change(Right.score(self, *args, **given)))


def hoard(self: Any, outputs: Outputs) -> None:
    self.count = getattr(self, "count", 0) + len(outputs)
    Near.set_up(self, outputs)


def draw_bank(self: Any, outputs: Outputs) -> None:
    self.features = outputs.features[torch.randperm(len(outputs))[:20]]


def fit_any(self: Any, features: Outputs, *_: Any) -> Any:
    self.features, self._widths = features.features, {"features": 24, "logits": 6}
    return self


def train(self: Detector, outputs: Outputs) -> Tensor:
    assert outputs.inputs is not None
    model: Any = outputs.inputs.model
    model.train()
    return torch.cat([model.features(images).sum(dim=1) for images in outputs.inputs.batches()])


def go_backward(self: Detector, outputs: Outputs) -> Tensor:
    assert outputs.inputs is not None
    with torch.enable_grad():
        z = torch.cat([outputs.inputs.model.features(b).sum(dim=1) for b in outputs.inputs.batches()])
        z.sum().backward()
    return z.detach()


IMAGES = frozenset({"images"})

WRONG: dict[str, tuple[str, Detector]] = {
    "larger is OOD": ("larger_is_id", own(scores=lambda self, o: -o.logits.amax(dim=1))),
    "float64": ("result", replaced(Tensor.double)),
    "matrix": ("result", own(scores=lambda self, o: o.logits[:, :1])),
    "NaN": ("result", adding(lambda o: torch.nan)),
    "gradient graph": ("result", replaced(lambda scores: scores.requires_grad_())),
    "mean of the batch": ("alone", adding(lambda o: -o.logits.mean())),
    "place in the batch": ("alone", adding(lambda o: torch.arange(len(o)))),
    "global random score": ("repeatable", adding(lambda o: 1e-3 * torch.rand(len(o)))),
    "global random set-up": ("repeatable", own(Near, set_up=draw_bank)),
    "undeclared features": ("reads", adding(lambda o: o.features.sum(dim=1))),
    "undeclared maps": (
        "reads",
        own(scores=lambda self, o: torch.cat([m[0].sum((1, 2, 3)) for m in o.layers()])),
    ),
    "sum of set-ups": (
        "refit",
        own(Near, set_up=hoard, scores=lambda self, o: self.count * Near.scores(self, o)),
    ),
    "global seed": ("inputs_unchanged", adding(lambda o: float(torch.manual_seed(0).initial_seed()))),
    "changed logits": (  # of a built-in detector: others get copies
        "inputs_unchanged",
        own(scores=lambda self, o: o.logits.sub_(1).amax(dim=1), __module__="opencil.own"),
    ),
    "training mode": ("inputs_unchanged", own(scores=train, reads=IMAGES)),
    "left gradient": ("inputs_unchanged", own(scores=go_backward, reads=IMAGES)),
    "overflow": ("extreme_logits", own(scores=lambda self, o: o.logits.exp().sum(dim=1).log())),
    "too few": (
        "fewest",
        own(
            Near,
            scores=lambda self, o: (
                -torch.cdist(o.features, self.features).topk(5, largest=False).values[:, 4]
            ),
        ),
    ),
    "too many": ("fewest", own(Near, fewest=5, fit=fit_any)),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_check_finds_a_detector_that_breaks_it(what: str) -> None:
    check, detector = WRONG[what]
    with pytest.raises((AssertionError, BadInput)):
        DETECTOR_CHECKS[check](detector)
    with pytest.raises(AssertionError, match="Own "):
        check_detector(detector)


def test_every_check_has_a_detector_that_breaks_it() -> None:
    assert {check for check, _ in WRONG.values()} == set(DETECTOR_CHECKS)


@dataclass
class Labelled(SetUpDetector):
    """A correct detector that lists the labels, which a set-up alone has, with what it reads."""

    reads: ClassVar[frozenset[Reads]] = frozenset({"logits", "labels"})

    def set_up(self, outputs: Outputs) -> None:
        with torch.enable_grad():
            scale = torch.ones((), requires_grad=True)
            torch.nn.functional.cross_entropy(scale * outputs.logits, outputs.labels).backward()
        self.warmth = float(scale.detach() - scale.grad)

    def scores(self, outputs: Outputs) -> Tensor:
        return (abs(self.warmth) * outputs.logits).logsumexp(dim=1)


def test_labels_are_read_in_a_set_up_and_gradients_are_to_be_switched_on() -> None:
    check_detector(Labelled())
    assert (Labelled().reads_to_score, Labelled().reads_to_set_up) == ({"logits"}, {"logits", "labels"})

    def without(self: Detector, outputs: Outputs) -> None:
        (torch.ones((), requires_grad=True) * outputs.logits.sum()).backward()

    with pytest.raises(BadInput, match=r"torch\.enable_grad\(\)"):
        DETECTOR_CHECKS["result"](own(Labelled, set_up=without))
