"""The checks of the detectors' contract: ours pass them all, and each check catches what it is there for."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from opencil import (
    BadInput,
    Detector,
    LogitDetector,
    Outputs,
    SetUpDetector,
    create_detector,
    list_detectors,
)
from opencil.detectors.detector import Reads
from opencil.detectors.finetune.logitnorm import LogitNorm
from opencil.engine.schedule import Schedule
from opencil.testing import DETECTOR_CHECKS, check_detector

#: Values under which the same is checked in a tenth of the time.
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
    """Nothing wrong: the largest logit."""

    def scores(self, outputs: Outputs) -> Tensor:
        return outputs.logits.amax(dim=1)


@dataclass
class Near(SetUpDetector):
    """Nothing wrong: nearness to the set-up features."""

    def set_up(self, outputs: Outputs) -> None:
        self.features = outputs.features

    def scores(self, outputs: Outputs) -> Tensor:
        return outputs.features.norm(dim=1) - torch.cdist(outputs.features, self.features).amin(dim=1)


@dataclass
class Residual(SetUpDetector):
    """Nothing wrong: the part of a feature that W cannot see, from the origin where W f + b is 0."""

    reads: ClassVar[frozenset[Reads]] = frozenset({"features", "linear"})

    def set_up(self, outputs: Outputs) -> None:
        weight, bias = outputs.linear()
        self.seen, self.origin = weight.T, -torch.linalg.pinv(weight) @ bias

    def scores(self, outputs: Outputs) -> Tensor:
        weight, bias = outputs.linear()
        centred = outputs.features - self.origin
        rest = centred - centred @ torch.linalg.pinv(self.seen).T @ self.seen.T
        return (outputs.features @ weight.T + bias).amax(dim=1) - 0.01 * rest.norm(dim=1)


@dataclass
class Margin(LogitDetector):
    """Nothing wrong: distance to the nearest boundary between classes, of W alone."""

    reads: ClassVar[frozenset[Reads]] = frozenset({"features", "linear"})

    def scores(self, outputs: Outputs) -> Tensor:
        weight, bias = outputs.linear()
        z = outputs.features @ weight.T + bias
        top = z.argmax(dim=1)
        gaps = (weight[top][:, None] - weight[None]).norm(dim=2).clamp(min=1e-6)
        return ((z.amax(dim=1, keepdim=True) - z) / gaps).sum(dim=1)


@dataclass
class Means(SetUpDetector):
    """Nothing wrong: nearness to the set-up samples, in the pooled maps of all stages."""

    reads: ClassVar[frozenset[Reads]] = frozenset({"layers"})

    def pooled(self, outputs: Outputs) -> Tensor:
        return torch.cat([torch.cat([m.mean(dim=(2, 3)) for m in maps], dim=1) for maps in outputs.layers()])

    def set_up(self, outputs: Outputs) -> None:
        self.bank = self.pooled(outputs)

    def scores(self, outputs: Outputs) -> Tensor:
        pooled = self.pooled(outputs)
        return pooled.norm(dim=1) - torch.cdist(pooled, self.bank).amin(dim=1)


@pytest.mark.parametrize("detector", [Right(), Near(), Residual(), Margin(), Means()])
def test_a_detector_of_ones_own_keeps_the_contract(detector: Detector) -> None:
    check_detector(detector)


@dataclass
class Upside(Right):
    """Larger is more OOD."""

    def scores(self, outputs: Outputs) -> Tensor:
        return -super().scores(outputs)


@dataclass
class Halves(Right):
    """Gives float64."""

    def score(self, *args: Any, **given: Any) -> Tensor:
        return super().score(*args, **given).double()


@dataclass
class Column(Right):
    """Gives a matrix."""

    def scores(self, outputs: Outputs) -> Tensor:
        return outputs.logits[:, :1]


@dataclass
class Graph(Right):
    """Gives scores with a gradient."""

    def score(self, *args: Any, **given: Any) -> Tensor:
        return super().score(*args, **given).requires_grad_()


@dataclass
class Nowhere(Right):
    """Gives NaN."""

    def scores(self, outputs: Outputs) -> Tensor:
        return super().scores(outputs) * torch.nan


@dataclass
class Company(Right):
    """Compares a sample with the others of its batch."""

    def scores(self, outputs: Outputs) -> Tensor:
        return super().scores(outputs) - outputs.logits.mean()


@dataclass
class Queue(Right):
    """Ranks samples by their place."""

    def scores(self, outputs: Outputs) -> Tensor:
        return super().scores(outputs) + torch.arange(len(outputs))


@dataclass
class Dice(Right):
    """Draws from the global random numbers at each score."""

    def scores(self, outputs: Outputs) -> Tensor:
        return super().scores(outputs) + 1e-3 * torch.rand(len(outputs))


@dataclass
class LuckyBank(Near):
    """Draws from the global random numbers in its set-up."""

    def set_up(self, outputs: Outputs) -> None:
        self.features = outputs.features[torch.randperm(len(outputs))[:20]]


@dataclass
class Snob(Right):
    """Scores plain tensors otherwise."""

    def score(self, features: Any = None, logits: Any = None, **given: Any) -> Tensor:
        return super().score(features, logits, **given) + isinstance(features, Outputs)


@dataclass
class Undeclared(Right):
    """Uses features and does not say so."""

    def scores(self, outputs: Outputs) -> Tensor:
        return outputs.logits.amax(dim=1) + outputs.features.sum(dim=1)


@dataclass
class Hoarder(Near):
    """Counts what it was ever set up on."""

    def set_up(self, outputs: Outputs) -> None:
        self.count = getattr(self, "count", 0) + len(outputs)
        super().set_up(outputs)

    def scores(self, outputs: Outputs) -> Tensor:
        return super().scores(outputs) * self.count


@dataclass
class Seeder(Right):
    """Seeds everybody's random numbers."""

    def scores(self, outputs: Outputs) -> Tensor:
        torch.manual_seed(0)
        return super().scores(outputs)


@dataclass
class Vandal(Right):
    """Writes into what it reads."""

    def scores(self, outputs: Outputs) -> Tensor:
        return outputs.logits.sub_(1.0).amax(dim=1)


@dataclass
class Trainer(Detector):
    """Moves the network's statistics."""

    reads: ClassVar[frozenset[Reads]] = frozenset({"images"})

    def scores(self, outputs: Outputs) -> Tensor:
        assert outputs.inputs is not None
        outputs.inputs.model.train()  # type: ignore[attr-defined]
        batches = list(outputs.inputs.batches())
        return torch.cat([outputs.inputs.model.features(b).sum(dim=1) for b in batches])


@dataclass
class Backward(Detector):
    """Leaves gradients on the network."""

    reads: ClassVar[frozenset[Reads]] = frozenset({"images"})

    def scores(self, outputs: Outputs) -> Tensor:
        assert outputs.inputs is not None
        with torch.enable_grad():
            z = [outputs.inputs.model.features(b).sum(dim=1) for b in outputs.inputs.batches()]
            torch.cat(z).sum().backward()
        return torch.cat(z).detach()


@dataclass
class Overflow(Right):
    """Takes an exponential without care."""

    def scores(self, outputs: Outputs) -> Tensor:
        return outputs.logits.exp().sum(dim=1).log()


@dataclass
class Careless(Right):
    """Checks nothing that it is given."""

    def score(self, features: Any = None, logits: Any = None, **given: Any) -> Tensor:
        return (features.logits if isinstance(features, Outputs) else logits).amax(dim=1)


@dataclass
class Lenient(Careless):
    """Takes what is not there for zeros."""

    def score(self, features: Any = None, logits: Any = None, **given: Any) -> Tensor:
        given_logits = features.logits if isinstance(features, Outputs) else logits
        return torch.zeros(3) if given_logits is None else given_logits.amax(dim=1)


@dataclass
class Forward(Near):
    """Scores before it has been set up."""

    def score(self, *args: Any, **given: Any) -> Tensor:
        if not hasattr(self, "features"):
            return torch.zeros(1)
        return super().score(*args, **given)


@dataclass
class Mute(Near):
    """Refuses without saying why."""

    def score(self, *args: Any, **given: Any) -> Tensor:
        if not hasattr(self, "features"):
            raise BadInput
        return super().score(*args, **given)


@dataclass
class Boastful(Near):
    """Says that one sample is enough, and needs five."""

    def scores(self, outputs: Outputs) -> Tensor:
        return -torch.cdist(outputs.features, self.features).topk(5, dim=1, largest=False).values.mean(dim=1)


@dataclass
class Timid(Near):
    """Says that it needs five samples, and takes fewer."""

    @property
    def fewest(self) -> int:
        return 5

    def fit(self, features: Any = None, logits: Any = None, labels: Any = None, **given: Any) -> "Timid":
        self.features = features.features if isinstance(features, Outputs) else features
        self._widths = {"features": 24, "logits": 6}
        return self


@dataclass
class Bent(LogitDetector):
    """Takes a head that is not linear for one."""

    reads: ClassVar[frozenset[Reads]] = frozenset({"features", "linear"})

    def scores(self, outputs: Outputs) -> Tensor:
        assert outputs.classify is not None
        return outputs.classify(outputs.features).amax(dim=1)


@dataclass
class Blind(Right):
    """Says that it reads maps, and does not miss them."""

    reads: ClassVar[frozenset[Reads]] = frozenset({"logits", "layers"})


@dataclass
class Peeping(Right):
    """Reads maps without saying so."""

    def scores(self, outputs: Outputs) -> Tensor:
        return torch.cat([maps[0].amax(dim=(1, 2, 3)) for maps in outputs.layers()])


@dataclass
class Stubborn(Right):
    """Adds to its scores what is not theirs, by task."""

    def score(self, *args: Any, **given: Any) -> Tensor:
        standardised = super().score(*args, **given)
        return standardised + 1 if self.by_task else standardised


@dataclass
class Deaf(LogitNorm):
    """Scores by its energy, whatever is asked."""

    schedule: Schedule = Schedule(epochs=1, lr=0.001)

    def score(self, *args: Any, **given: Any) -> Tensor:
        return super().score(*args, **given) + (self.scored_by is not None)


WRONG = [
    ("larger_is_id", Upside(), "larger score must mean more in-distribution"),
    ("result", Halves(), "float32 is promised"),
    ("result", Column(), r"scores \[60, 1\]: one is needed for each of 60 samples"),
    ("result", Nowhere(), "cannot score good samples: Nowhere has no finite score"),
    ("result", Graph(), "gradient graph"),
    ("batch_size", Company(), "must not depend on the other samples"),
    ("order", Queue(), "in another order"),
    ("repeatable", Dice(), "differently a second time"),
    ("repeatable", LuckyBank(), "random choices need a seed of their own"),
    ("plain_tensors", Snob(), "plain tensors differently"),
    ("reads", Undeclared(), "given only what it says it reads"),
    ("reads", Peeping(), "fails where it is given only logits"),
    ("refit", Hoarder(), "after it has been set up again"),
    ("inputs_unchanged", Seeder(), "global random state"),
    ("inputs_unchanged", Vandal(), "Vandal changes the scored samples' logits"),
    ("inputs_unchanged", Trainer(), "Trainer leaves the network in another mode"),
    ("inputs_unchanged", Backward(), "leaves a gradient on the network's layer.weight"),
    ("extreme_logits", Overflow(), r"with logits of ±10000: Overflow has no finite score"),
    ("not_a_number", Careless(), "should refuse logits with nan with BadInput, and takes it"),
    ("missing_setup", Forward(), "should refuse samples before it is set up with BadInput, and takes it"),
    ("missing_setup", Mute(), "without a word"),
    ("missing_reads", Lenient(), "should refuse samples without logits with BadInput, and takes it"),
    ("missing_reads", Careless(), "with BadInput, and raises AttributeError"),
    ("missing_reads", Bent(), "should refuse a cosine head with BadInput, and takes it"),
    ("missing_reads", Blind(), "should refuse a network without maps with BadInput, and takes it"),
    ("wrong_shapes", Careless(), "should refuse .* with BadInput"),
    ("fewest", Boastful(), "says that 1 set-up samples are enough, and fails on them"),
    ("fewest", Timid(), "should refuse 4 set-up samples with BadInput, and takes it"),
    ("scored_by", Deaf(), "Deaf scored by energy gives other scores than energy on its head's logits"),
    ("by_task", Stubborn(), "gives other scores than its own, standardised"),
]


@pytest.mark.parametrize(
    ("check", "detector", "sentence"), WRONG, ids=lambda v: v if isinstance(v, str) else ""
)
def test_a_broken_promise_is_caught_and_named(check: str, detector: Detector, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        DETECTOR_CHECKS[check](detector)


def test_every_check_has_a_detector_that_breaks_it() -> None:
    assert {check for check, _, _ in WRONG} == set(DETECTOR_CHECKS)


def test_check_detector_runs_them_all() -> None:
    for _, detector, _ in WRONG:
        with pytest.raises(AssertionError):
            check_detector(detector)
