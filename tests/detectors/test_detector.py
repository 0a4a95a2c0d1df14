"""The contract of a detector: what it accepts, what it refuses, and what holds for every registered one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from opencil.detectors.detector import Detector, LogitDetector, Reads
from opencil.engine.forward import Outputs
from opencil.errors import BadInput
from opencil.registry import DETECTORS

Maker = Callable[..., Outputs]

#: Every detector that comes with the package.
OURS = [name for name in DETECTORS.names() if DETECTORS.entry(name).make.__module__.startswith("opencil.")]
every_detector = pytest.mark.parametrize("name", OURS)


@dataclass
class First(LogitDetector):
    """The first logit: nothing to go wrong in it."""

    def scores(self, outputs: Outputs) -> Tensor:
        return outputs.logits[:, 0]


@dataclass
class Nearness(Detector):
    """Minus the distance to the mean of the set-up features."""

    reads: ClassVar[frozenset[Reads]] = frozenset({"features"})
    needs_setup: ClassVar[bool] = True

    def set_up(self, outputs: Outputs) -> None:
        self.mean, self.labels = outputs.features.mean(dim=0), outputs.labels

    def scores(self, outputs: Outputs) -> Tensor:
        return -(outputs.features - self.mean).norm(dim=1)


def ready(name: str, make_outputs: Maker) -> Detector:
    detector: Detector = DETECTORS.create(name)
    return detector.fit(make_outputs(40, seed=7))


@every_detector
def test_it_says_what_it_is_and_where_it_comes_from(name: str) -> None:
    entry = DETECTORS.entry(name)
    assert entry.about
    assert entry.paper
    assert entry.paper.title
    assert 2000 < entry.paper.year < 2100
    assert entry.make.reads <= {"logits", "features"}  # type: ignore[attr-defined]


@every_detector
def test_scores_are_one_finite_float32_per_sample(name: str, make_outputs: Maker) -> None:
    scores = ready(name, make_outputs).score(make_outputs(9))
    assert scores.shape == (9,)
    assert scores.dtype == torch.float32
    assert torch.isfinite(scores).all()
    assert ready(name, make_outputs).score(make_outputs(1)).shape == (1,)


@every_detector
def test_larger_is_more_in_distribution(name: str, make_outputs: Maker) -> None:
    detector = ready(name, make_outputs)
    inside, outside = detector.score(make_outputs(50)), detector.score(make_outputs(50, strength=0.0))
    share = (inside[:, None] > outside[None, :]).float().mean()
    assert float(share) > 0.9


@every_detector
def test_a_score_does_not_depend_on_the_other_samples(name: str, make_outputs: Maker) -> None:
    """Neither on their order, nor on how they are cut into batches."""
    detector, samples = ready(name, make_outputs), make_outputs(12)
    whole = detector.score(samples)
    shuffled = torch.randperm(12, generator=torch.Generator().manual_seed(0))

    def part(rows: Tensor) -> Outputs:
        return Outputs(samples.features[rows], samples.logits[rows])

    torch.testing.assert_close(detector.score(part(shuffled)), whole[shuffled], rtol=1e-5, atol=1e-6)
    pieces = [detector.score(part(rows)) for rows in torch.arange(12).split(5)]
    torch.testing.assert_close(torch.cat(pieces), whole, rtol=1e-5, atol=1e-6)


@every_detector
def test_inputs_are_not_changed(name: str, make_outputs: Maker) -> None:
    samples = make_outputs(6)
    before = [tensor.clone() for tensor in (samples.features, samples.logits, samples.labels)]
    detector: Detector = DETECTORS.create(name)
    detector.fit(samples).score(samples)
    assert all(
        torch.equal(tensor, copy)
        for tensor, copy in zip((samples.features, samples.logits, samples.labels), before, strict=True)
    )


@every_detector
def test_scores_stay_finite_on_extreme_logits(name: str, make_outputs: Maker) -> None:
    samples = make_outputs(4)
    extreme = torch.tensor([[1e4] * 5, [-1e4] * 5, [1e4, -1e4, 0, 0, 0], [0.0] * 5])
    assert torch.isfinite(ready(name, make_outputs).score(samples.features, extreme)).all()


@every_detector
def test_scoring_twice_gives_the_same(name: str, make_outputs: Maker) -> None:
    detector, samples = ready(name, make_outputs), make_outputs(6)
    assert torch.equal(detector.score(samples), detector.score(samples))


@every_detector
def test_gradients_are_not_kept(name: str, make_outputs: Maker) -> None:
    samples = make_outputs(6)
    features, logits = (t.clone().requires_grad_() for t in (samples.features, samples.logits))
    assert not ready(name, make_outputs).score(features, logits).requires_grad


@every_detector
def test_unknown_values_are_refused(name: str) -> None:
    with pytest.raises(BadInput, match=rf"{name}\.sharpness = 3 is unknown"):
        DETECTORS.create(name, sharpness=3)


def test_plain_tensors_and_outputs_score_alike(make_outputs: Maker) -> None:
    samples = make_outputs(6)
    for detector in (First(), Nearness().fit(samples)):
        expected = detector.score(samples)
        assert torch.equal(detector.score(samples.features, samples.logits), expected)
        assert torch.equal(detector.score(features=samples.features, logits=samples.logits), expected)
    assert torch.equal(First().score(logits=samples.logits), First().score(samples))
    nearness = Nearness().fit(samples)
    assert torch.equal(nearness.score(samples.features), nearness.score(samples))


def test_plain_tensors_and_outputs_set_up_alike(make_outputs: Maker) -> None:
    setup, samples = make_outputs(20), make_outputs(6, seed=2)
    expected = -(samples.features - setup.features.mean(dim=0)).norm(dim=1)
    for detector in (
        Nearness().fit(setup),
        Nearness().fit(setup.features, setup.logits, setup.labels),
        Nearness().fit(features=setup.features, logits=setup.logits, labels=setup.labels),
    ):
        torch.testing.assert_close(detector.score(samples), expected)
        assert torch.equal(detector.labels, setup.labels)  # type: ignore[attr-defined]


def test_a_detector_that_has_not_been_set_up_says_so(make_outputs: Maker) -> None:
    detector, samples = Nearness(), make_outputs(3)
    with pytest.raises(BadInput, match="Nearness has not been set up: call fit on training samples first"):
        detector.score(samples)
    assert detector.fit(samples) is detector
    assert detector.score(samples).shape == (3,)
    with pytest.raises(BadInput, match="has not been set up"):
        Nearness().score(samples)  # another one is still without


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_any_floating_point_type_is_scored_in_float32(dtype: torch.dtype) -> None:
    scores = First().score(logits=torch.tensor([[1.5, 0.0]], dtype=dtype))
    assert scores.dtype == torch.float32
    assert scores.tolist() == [1.5]


Z = torch.zeros(4, 3)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_sample_that_is_not_finite_is_named(value: float) -> None:
    logits = Z.clone()
    logits[2, 1] = logits[3, 0] = value
    with pytest.raises(BadInput, match="logits of sample 2 are not finite: First cannot score them"):
        First().score(logits=logits)
    with pytest.raises(BadInput, match="features of sample 2 are not finite: Nearness"):
        Nearness().fit(logits)


def test_what_a_detector_does_not_read_may_be_anything_finite_or_not() -> None:
    assert First().score(torch.full((4, 2), torch.nan), Z).tolist() == [0.0] * 4


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ({}, "First reads logits, which are missing"),
        ({"features": Z}, "First reads logits, which are missing"),
        ({"logits": torch.zeros(4)}, r"logits are torch.float32 \[4\]: a floating-point matrix is needed"),
        ({"logits": torch.zeros(4, 3, 2)}, r"logits are torch.float32 \[4, 3, 2\]: .* matrix is needed"),
        ({"logits": Z.long()}, r"logits are torch.int64 \[4, 3\]: a floating-point matrix is needed"),
        ({"logits": torch.zeros(0, 3)}, r"\[0, 3\]: .* at least 1"),
        ({"logits": torch.zeros(4, 0)}, r"\[4, 0\]: .* matrix is needed"),
        ({"features": torch.zeros(5, 2), "logits": Z}, r"features are .* \[5, 2\]: .*same number of rows"),
    ],
    ids=["nothing", "features only", "vector", "cube", "integers", "no rows", "no columns", "rows differ"],
)
def test_tensors_that_do_not_fit_are_refused(tensors: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        First().score(**tensors)


def test_labels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BadInput, match="same number of rows"):
        Nearness().fit(Z, Z, torch.zeros(3, dtype=torch.int64))


def test_outputs_are_checked_as_tensors_are() -> None:
    with pytest.raises(BadInput, match="logits of sample 0 are not finite"):
        First().score(Outputs(Z, Z + torch.nan))


def test_a_single_number_is_refused() -> None:
    with pytest.raises(BadInput, match="matrix is needed"):
        First().score(logits=torch.tensor(1.0))
