"""Test the inputs that detectors accept and refuse; ``tests/testing`` has the contract of all detectors."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

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
def test_autocast_changes_neither_set_up_nor_scores(name: str, of_digits: Outputs) -> None:
    def made() -> Detector:
        return Products() if name == "products" else DETECTORS.create(name)

    detector = made().fit(of_digits)
    with torch.autocast("cpu", torch.bfloat16):
        set_up_inside = made().fit(of_digits)
        scored_inside = detector.score(of_digits)
    expected = detector.score(of_digits)
    assert torch.equal(set_up_inside.score(of_digits), expected)
    assert torch.equal(scored_inside, expected)


def test_plain_tensors_and_outputs_score_alike(make_outputs: Maker) -> None:
    samples = make_outputs(6)
    for detector in (First(), Nearness().fit(samples)):
        expected = detector.score(samples)
        assert torch.equal(detector.score(samples.features, samples.logits), expected)
        assert torch.equal(detector.score(features=samples.features, logits=samples.logits), expected)
    assert torch.equal(First().score(logits=samples.logits), First().score(samples))
    nearness = Nearness().fit(samples)
    assert torch.equal(nearness.score(samples.features), nearness.score(samples))


def test_scores_of_numpy_arrays_are_numpy_arrays(make_outputs: Maker) -> None:
    train, test = make_outputs(60, seed=0), make_outputs(20, seed=1)
    expected = DETECTORS.create("nnguide", neighbours=5).fit(train.features, train.logits)
    nnguide = DETECTORS.create("nnguide", neighbours=5)
    nnguide.fit(train.features.numpy(), train.logits.numpy().astype("f8"))
    found = nnguide.score(test.features.numpy(), test.logits.numpy())
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.float32
    assert found.tolist() == expected.score(test.features, test.logits).tolist()
    swapped = (part.numpy().astype(">f4") for part in (test.features, test.logits))
    assert nnguide.score(*swapped).tolist() == found.tolist()


@pytest.mark.parametrize("name", DETECTORS.names())
def test_missing_and_narrower_inputs_are_refused(name: str, of_digits: Outputs) -> None:
    detector = DETECTORS.create(name).fit(of_digits)
    arguments = {"head": "classify", "images": "inputs", "layers": "inputs"}
    given = {key: getattr(of_digits, key) for key in ("features", "logits", "classify", "inputs")}
    for read in detector.reads - {"head"}:
        with pytest.raises(BadInput):
            detector.score(**given | {arguments.get(read, read): None})
    for read in detector.reads & {"features", "logits"}:
        width = 1 if detector.needs_setup else 0
        with pytest.raises(BadInput):
            detector.score(**given | {read: given[read][:, :width]})


@pytest.mark.parametrize("name", ["gen", "pnml", "tempscale"])
def test_scores_of_a_single_class_are_0(name: str) -> None:
    features, logits, labels = torch.rand(3, 4) + 1, torch.rand(3, 1), torch.zeros(3).long()
    detector = DETECTORS.create(name).fit(features, logits, labels, classify=lambda f: f[:, :1])
    assert detector.score(features, logits).tolist() == [0.0] * 3


def test_scoring_before_fit_is_refused(make_outputs: Maker) -> None:
    detector, samples = Nearness(), make_outputs(3)
    with pytest.raises(BadInput):
        detector.score(samples)
    assert detector.fit(samples) is detector
    assert detector.score(samples).shape == (3,)
    with pytest.raises(BadInput):
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
    with pytest.raises(BadInput):
        First().score(logits=logits)
    with pytest.raises(BadInput):
        Nearness().fit(logits)


def test_inputs_that_are_not_read_are_not_checked() -> None:
    assert First().score(torch.full((4, 2), torch.nan), Z).tolist() == [0.0] * 4


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"features": Z},
        {"logits": torch.zeros(4)},
        {"logits": torch.tensor(1.0)},
        {"logits": torch.zeros(4, 3, 2)},
        {"logits": Z.long()},
        {"logits": torch.zeros(0, 3)},
        {"logits": torch.zeros(4, 0)},
        {"features": torch.zeros(5, 2), "logits": Z},
        {"logits": np.zeros((2, 3), dtype="i4")},
        {"logits": np.array([["cat"]])},
        {"logits": np.array([[1.0, np.nan]])},
        {"logits": [[1.0, 2.0]]},
        {"logits": torch.zeros(4, 3, device="meta")},
        {"features": Outputs(Z, Z + torch.nan)},
    ],
    ids=str,
)
def test_invalid_tensors_and_arrays_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        First().score(**arguments)


@pytest.mark.parametrize("found", [None, "a", torch.zeros(4, dtype=torch.complex64)], ids=str)
def test_scores_that_are_no_tensor_of_real_numbers_are_refused(found: Any) -> None:
    class Odd(First):
        def scores(self, outputs: Outputs) -> torch.Tensor:
            return found  # type: ignore[no-any-return]

    with pytest.raises(BadInput, match="scores of Odd"):
        Odd().score(logits=Z)


def test_scores_that_are_not_one_for_each_sample_are_refused() -> None:
    class Wide(First):
        def scores(self, outputs: Outputs) -> torch.Tensor:
            return outputs.logits

    with pytest.raises(BadInput):
        Wide().score(logits=Z)


class Vandal(Detector):
    """Change all that it is given in place, also through numpy."""

    reads = frozenset({"features", "logits"})
    setup_reads = frozenset({"features", "logits", "labels"})
    needs_setup = True

    def set_up(self, outputs: Outputs) -> None:
        assert outputs.labels is not None
        assert outputs.tasks is not None
        outputs.labels.zero_()
        outputs.tasks.zero_()
        self.scores(outputs)

    def scores(self, outputs: Outputs) -> Tensor:
        outputs.features.mul_(-1)
        outputs.logits.numpy()[:] = 0
        return outputs.logits.sum(1)


def test_outputs_cannot_be_changed_by_a_detector_of_a_plugin(of_digits: Outputs) -> None:
    assert of_digits.labels is not None
    outputs = replace(of_digits, tasks=torch.tensor([1, 2]))
    given = [of_digits.features, of_digits.logits, of_digits.labels, outputs.tasks]
    before = [tensor.clone() for tensor in given if tensor is not None]
    Vandal().fit(outputs).score(outputs)
    assert all(torch.equal(now, then) for now, then in zip(given, before, strict=True) if now is not None)


def test_labels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BadInput):
        Nearness().fit(Z, Z, torch.zeros(3, dtype=torch.int64))

    with pytest.raises(BadInput):
        create_detector("mahalanobis").fit(Z, labels=torch.tensor([0, 1, -1, 1]))
    images = Inputs(Model(resnet8(), 2), torch.zeros(6, 3, 8, 8))
    for count in (4, 9):
        with pytest.raises(BadInput):
            create_detector("logitnorm").fit(labels=torch.arange(count) % 2, inputs=images)


def test_the_head_is_stored_only_if_it_is_read(make_outputs: Maker) -> None:
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


@pytest.mark.parametrize("name", ["vim", "nci"])
def test_a_head_has_the_classes_of_the_logits(name: str) -> None:
    features, classify = torch.rand(20, 6), nn.Linear(6, 9)
    labels = torch.arange(20) % 5
    with pytest.raises(BadInput):
        create_detector(name).fit(features, features[:, :5], labels, classify=classify)
    by_head = create_detector("nci").fit(features, labels=labels, classify=classify)
    with pytest.raises(BadInput):
        by_head.score(features, features[:, :5])
    assert len(by_head.score(features, classify(features).detach())) == 20


def test_the_head_of_outputs_comes_before_a_given_one_and_that_before_the_stored(make_outputs: Maker) -> None:
    outputs = make_outputs(200)
    weights = outputs.logits.new_ones(outputs.features.shape[1], outputs.logits.shape[1])
    outputs = replace(outputs, classify=lambda features: features @ weights)
    other, bare = (lambda features: -features @ weights), replace(outputs, classify=None)
    expected = create_detector("ash").fit(outputs).score(outputs)
    ash = create_detector("ash").fit(outputs, classify=other)
    assert torch.equal(ash.score(bare), expected)
    assert not torch.equal(ash.score(bare, classify=other), expected)
    ash.fit(bare, classify=other)
    assert torch.equal(ash.score(outputs, classify=other), expected)
    assert torch.equal(ash.score(bare, classify=outputs.classify), expected)
