"""What a detector accepts and refuses; what holds for every registered one is in ``tests/testing``."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from opencil import Inputs, create_detector
from opencil.data.digits import Digits
from opencil.data.transforms import Transform
from opencil.detectors.detector import Detector, LogitDetector, Reads
from opencil.engine.forward import Outputs, forward
from opencil.engine.seeding import seeded
from opencil.errors import BadInput
from opencil.nets.model import Model
from opencil.nets.resnet import resnet8
from opencil.registry import DETECTORS

Maker = Callable[..., Outputs]


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


@dataclass
class Products(Nearness):
    """Products of matrices, which autocast rounds, in the set-up and in the scores."""

    def set_up(self, outputs: Outputs) -> None:
        self.products = outputs.features.T @ outputs.features

    def scores(self, outputs: Outputs) -> Tensor:
        return (outputs.features @ self.products).sum(dim=1)


@pytest.fixture(scope="module")
def of_digits() -> Outputs:
    """Outputs of a network for 240 digits of two classes: enough to set every detector up on."""
    with seeded(0, "model"):
        model = Model(resnet8(), 2)
    digits = Digits().load("train", 8, None)
    chosen = torch.cat([(digits.labels == c).nonzero().flatten()[:120] for c in range(2)])
    return forward(model, digits, Transform((0.3, 0.3, 0.3), (0.4, 0.4, 0.4), crop=8), chosen)


@pytest.mark.parametrize("name", ["products", *DETECTORS.names()])
def test_a_callers_autocast_reaches_neither_set_up_nor_scores(name: str, of_digits: Outputs) -> None:
    def made() -> Detector:
        return Products() if name == "products" else DETECTORS.create(name)

    detector = made().fit(of_digits)
    with torch.autocast("cpu", torch.bfloat16):
        set_up_inside = made().fit(of_digits)
        scored_inside = detector.score(of_digits)
    expected = detector.score(of_digits)
    assert torch.equal(set_up_inside.score(of_digits), expected)
    assert torch.equal(scored_inside, expected)


def test_gradients_are_not_kept(make_outputs: Maker) -> None:
    samples = make_outputs(6)
    features, logits = (t.clone().requires_grad_() for t in (samples.features, samples.logits))
    assert not Nearness().fit(features, logits).score(features, logits).requires_grad


def test_plain_tensors_and_outputs_score_alike(make_outputs: Maker) -> None:
    samples = make_outputs(6)
    for detector in (First(), Nearness().fit(samples)):
        expected = detector.score(samples)
        assert torch.equal(detector.score(samples.features, samples.logits), expected)
        assert torch.equal(detector.score(features=samples.features, logits=samples.logits), expected)
    assert torch.equal(First().score(logits=samples.logits), First().score(samples))
    nearness = Nearness().fit(samples)
    assert torch.equal(nearness.score(samples.features), nearness.score(samples))


def as_given(array: Tensor, form: str) -> Any:
    """The same numbers in other forms of numpy's."""
    numbers = array.numpy()
    if form == "read-only":
        numbers = numbers.copy()
        numbers.flags.writeable = False
    elif form == "reversed":
        numbers = numbers[:, ::-1].copy()[:, ::-1]
    elif form == "other bytes":
        numbers = numbers.astype(">f4")
    return numbers.astype("f8") if form == "float64" else numbers


@pytest.mark.parametrize("form", ["plain", "read-only", "reversed", "other bytes", "float64"])
def test_of_numpy_arrays_scores_are_numpy_arrays(form: str, make_outputs: Maker) -> None:
    train, test = make_outputs(60, seed=0), make_outputs(20, seed=1)
    expected = DETECTORS.create("nnguide", neighbours=5).fit(train.features, train.logits)
    nnguide = DETECTORS.create("nnguide", neighbours=5)
    nnguide.fit(as_given(train.features, form), as_given(train.logits, form))
    found = nnguide.score(as_given(test.features, form), as_given(test.logits, form))
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.float32
    assert found.tolist() == expected.score(test.features, test.logits).tolist()
    energy = DETECTORS.create("energy")
    assert energy.score(logits=as_given(test.logits, form)).tolist() == energy.score(test).tolist()
    assert isinstance(energy.score(logits=test.logits), Tensor)


@pytest.mark.parametrize(
    ("logits", "sentence"),
    [
        (np.zeros((2, 3), dtype="i4"), r"logits are torch.int32 \[2, 3\]: a floating-point matrix is needed"),
        (np.array([["cat"]]), "an array of <U3 is given: numbers are needed"),
        (np.array([[1.0, np.nan]]), "logits of sample 0 are not finite"),
        ([[1.0, 2.0]], "logits are a list: a tensor or a numpy array is needed"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(logits: Any, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        DETECTORS.create("energy").score(logits=logits)


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
        ({}, "First reads the logits: missing here"),
        ({"features": Z}, "First reads the logits: missing here"),
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


def test_a_detector_that_reads_what_there_is_not() -> None:
    class Misread(First):
        reads = frozenset({"layer"})  # type: ignore[arg-type]

    with pytest.raises(BadInput, match=r"Misread reads 'layer', which is unknown: .*did you mean 'layers'"):
        Misread().score(logits=Z)


def test_scores_that_are_not_one_for_each_sample_are_refused() -> None:
    class Wide(First):
        def scores(self, outputs: Outputs) -> torch.Tensor:
            return outputs.logits

    with pytest.raises(BadInput, match=r"Wide gives scores \[4, 3\]: one is needed for each of 4 samples"):
        Wide().score(logits=Z)


def test_labels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BadInput, match="same number of rows"):
        Nearness().fit(Z, Z, torch.zeros(3, dtype=torch.int64))

    with pytest.raises(BadInput, match="labels reach down to -1: classes are counted from 0"):
        create_detector("mahalanobis").fit(Z, labels=torch.tensor([0, 1, -1, 1]))
    images = Inputs(Model(resnet8(), 2), torch.zeros(6, 3, 8, 8))
    for count in (4, 9):
        with pytest.raises(BadInput, match=f"{count} labels are given for 6 images: one each is needed"):
            create_detector("logitnorm").fit(labels=torch.arange(count) % 2, inputs=images)


def test_who_scores_without_a_head_keeps_none(make_outputs: Maker) -> None:
    """It may be a whole network, or a function that cannot be stored."""
    outputs = make_outputs(200)
    weights = outputs.logits.new_ones(outputs.features.shape[1], outputs.logits.shape[1])
    outputs = replace(outputs, classify=lambda features: features @ weights)
    for name in ("knn", "fdbd", "vim"):
        made = create_detector(name).fit(outputs)
        kept = pickle.loads(pickle.dumps(made))
        assert torch.equal(kept.score(outputs), made.score(outputs)), name
    react = create_detector("react").fit(outputs)
    assert torch.equal(react.score(outputs.features), react.score(outputs)), "by the head of its set-up"
    ash = create_detector("ash").fit(replace(outputs, classify=lambda features: -features @ weights))
    assert torch.equal(ash.fit(outputs).score(outputs.features), ash.score(outputs)), "not by the first head"
    bare = create_detector("ash").fit(replace(outputs, classify=None), classify=outputs.classify)
    assert torch.equal(bare.score(outputs.features), ash.score(outputs)), "nor by none"


def test_outputs_are_checked_as_tensors_are() -> None:
    with pytest.raises(BadInput, match="logits of sample 0 are not finite"):
        First().score(Outputs(Z, Z + torch.nan))


def test_a_single_number_is_refused() -> None:
    with pytest.raises(BadInput, match="matrix is needed"):
        First().score(logits=torch.tensor(1.0))
