"""Outliers in feature space: the queues that fill, and which samples VOS and NPOS keep."""

from collections import deque
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import MultivariateNormal

from opencil.detectors import moments
from opencil.detectors.finetune.energy_margins import Queue
from opencil.detectors.finetune.npos import NPOS
from opencil.detectors.finetune.tuner import Batch
from opencil.detectors.finetune.views import ViewSource
from opencil.detectors.finetune.vos import VOS
from opencil.engine.forward import Inputs
from opencil.errors import BadInput


def numbers(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batch(seed: int = 0, *drawn: Tensor) -> Batch:
    """Return a batch with the fields that a synthesiser reads: draws and a generator."""
    return Batch(None, None, drawn, None, numbers(seed))  # type: ignore[arg-type]


CLASSES = [1, 4, 5]


@settings(max_examples=150)
@given(
    size=st.integers(1, 4),
    pushes=st.lists(st.lists(st.sampled_from(CLASSES), min_size=1, max_size=12), min_size=1, max_size=8),
)
def test_a_queue_keeps_the_last_features_of_each_class(size: int, pushes: list[list[int]]) -> None:
    """Labels with gaps, batches with more of a class than fit, and classes that a batch does not have."""
    queue = Queue(torch.tensor(CLASSES), size, 2)
    expected = {label: deque(maxlen=size) for label in CLASSES}
    pushed = dict.fromkeys(CLASSES, 0)
    number = 0
    for labels in pushes:
        features = []
        for label in labels:
            number += 1
            features.append([float(number), float(-label)])
            expected[label].append(features[-1])
            pushed[label] += 1
        queue.push(torch.tensor(features), torch.tensor(labels))
        assert queue.contents.shape == (3, size, 2)
        for label, contents in zip(CLASSES, queue.contents.tolist(), strict=True):
            filled = [row for row in contents if row != [0.0, 0.0]]
            assert sorted(filled) == sorted(expected[label])
        full = all(count >= size for count in pushed.values())
        assert bool(queue.full) == full
        assert queue.may_be_full == full
    assert queue.pushed.tolist() == list(pushed.values())


def gaussian_features() -> Tensor:
    """Of three classes, whose common covariance is far from round: [3, 40, 4]."""
    mixing = torch.tensor([[3.0, 0, 0, 0], [2, 1, 0, 0], [0, -1, 0.5, 0], [1, 0, 0, 0.1]])
    means = 5 * torch.randn(3, 1, 4, generator=numbers(0))
    return means + torch.randn(3, 40, 4, generator=numbers(1)) @ mixing.T


@pytest.mark.parametrize("ridge", [1e-4, 2.0])
@pytest.mark.parametrize("budget", [2**26, 1], ids=["at once", "class by class"])
def test_vos_keeps_the_least_likely_sample_of_each_class(
    monkeypatch: pytest.MonkeyPatch, ridge: float, budget: int
) -> None:
    """Against the density itself, on the same noise, in float64."""
    monkeypatch.setattr(moments, "BUDGET", budget)
    features = gaussian_features()
    found = VOS(samples=200, ridge=ridge).outliers(features, batch(5))
    together = numbers(5)
    if budget > 1:
        noise = torch.randn(3, 200, 4, generator=together)
    else:
        noise = torch.cat([torch.randn(1, 200, 4, generator=together) for _ in range(3)])
    means = [sum(rows.double()) / 40 for rows in features]
    covariance = ridge * torch.eye(4, dtype=torch.float64)
    for rows, mean in zip(features, means, strict=True):
        for row in rows.double():
            covariance = covariance + torch.outer(row - mean, row - mean) / 120
    factor = torch.linalg.cholesky(covariance)
    assert found.shape == (3, 4)
    for mean, drawn, kept in zip(means, noise.double(), found, strict=True):
        density = MultivariateNormal(mean, covariance)
        samples = [mean + factor @ e for e in drawn]
        rarest = min(samples, key=lambda sample: float(density.log_prob(sample)))
        torch.testing.assert_close(kept.double(), rarest, rtol=1e-4, atol=1e-4)


VALUES: dict[str, Any] = {
    "queue": 30,
    "neighbours": 4,
    "boundary": 5,
    "chosen": 2,
    "perturbations": 40,
    "kept": 7,
}


def kth_distance(point: Tensor, features: Tensor, k: int, distances: str = "directions") -> float:
    """Distance to the k-th nearest, between directions or as they are, in float64."""
    one, *others = (f.double() for f in (point, *features))
    if distances == "directions":
        one, *others = (f / f.norm() for f in (one, *others))
    return sorted(float((one - other).norm()) for other in others)[k - 1]


def boundary_of(features: Tensor, count: int, k: int, distances: str = "directions") -> set[int]:
    """The features with the largest distance to their k-th nearest neighbour, themselves aside."""
    apart = []
    for i, point in enumerate(features):
        others = torch.cat([features[:i], features[i + 1 :]])
        apart.append((kth_distance(point, others, k, distances), i))
    return {i for _, i in sorted(apart)[-count:]}


def scattered_features() -> Tensor:
    """Three classes [3, 30, 3]: a dense crowd each, and some stragglers at no two alike distances."""
    points = torch.randn(3, 30, 3, generator=numbers(2))
    far = torch.linspace(1, 6, 30).view(1, 30, 1)
    order = torch.stack([torch.randperm(30, generator=numbers(i)) for i in range(3)])
    points = (points * far).gather(1, order[:, :, None].expand(3, 30, 3))
    return points + 9 * torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, -1]])[:, None]


@pytest.mark.parametrize("distances", ["directions", "features"])
@pytest.mark.parametrize("seed", range(4))
def test_npos_keeps_the_farthest_perturbations_of_boundary_points(
    seed: int, distances: Literal["directions", "features"]
) -> None:
    """Point by point and class by class, on the same noise: a wrong reshape would mix them."""
    tuner = NPOS(**VALUES, sigma=0.1, distances=distances)
    features = scattered_features()
    found = tuner.outliers(features, batch(seed))
    assert found.shape == (3 * 2 * 7, 3)
    same = numbers(seed)
    torch.rand(3, 5, generator=same)  # which of the boundary are perturbed
    noise = torch.randn(3, 2, 40, 3, generator=same)
    groups = found.view(3, 2, 7, 3)
    for c in range(3):
        picks = set()
        for j in range(2):
            # The perturbed point is the only point whose perturbations by this noise include all outliers.
            moved = features[c][:, None] + 0.1 * noise[c, j]  # [30, 40, 3]
            apart = (moved[:, :, None] - groups[c, j]).norm(dim=3)  # [30, 40, 7]
            (pick,) = (apart.amin(dim=1) < 1e-5).all(dim=1).nonzero().flatten().tolist()
            picks.add(pick)
            kept = set(apart[pick].argmin(dim=0).tolist())
            assert len(kept) == 7
            distance = [kth_distance(point, features[c], 4, distances) for point in moved[pick]]
            others = [d for i, d in enumerate(distance) if i not in kept]
            assert min(distance[i] for i in kept) >= max(others) - 1e-5
        assert len(picks) == 2
        assert picks <= boundary_of(features[c], 5, 4, distances)


@pytest.mark.parametrize("make", [VOS, NPOS])
def test_a_queue_that_can_never_be_full_is_refused(make: Any, toy: Any) -> None:
    labels = torch.tensor([2] * 30 + [3] * 5)
    source = ViewSource(Inputs(toy, torch.randn(35, 3, 4, 4)), labels)
    with pytest.raises(BadInput):
        make().extra(source)
    VOS(queue=50).extra(source)


def test_a_synthesiser_needs_as_many_samples_as_fill_a_queue() -> None:
    assert [VOS(queue=size).fewest for size in (1000, 1001, 5)] == [100, 101, 1]
    assert VOS(queue=5, scored_by={"name": "knn", "neighbours": 7}).fewest == 7
