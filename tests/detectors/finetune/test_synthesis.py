"""Outliers in feature space: the queues that fill, and which samples VOS and NPOS keep."""

from collections import deque
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import MultivariateNormal

from opencil.detectors import chunks
from opencil.detectors.finetune.more import TaskHead
from opencil.detectors.finetune.npos import NPOS
from opencil.detectors.finetune.synthesis import Queue
from opencil.detectors.finetune.tuner import Batch, Tuning
from opencil.detectors.finetune.views import ViewSource
from opencil.detectors.finetune.vos import VOS
from opencil.engine.forward import Inputs
from opencil.engine.schedule import Schedule
from opencil.errors import BadInput


def numbers(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batch(seed: int = 0, *drawn: Tensor) -> Batch:
    """What a synthesiser reads of a batch: draws and a generator."""
    return Batch(None, None, drawn, None, numbers(seed))  # type: ignore[arg-type]


# --- queues ------------------------------------------------------------------------------------------------

CLASSES = [1, 4, 5]


@settings(max_examples=150)
@given(
    size=st.integers(1, 4),
    pushes=st.lists(st.lists(st.sampled_from(CLASSES), min_size=1, max_size=12), min_size=1, max_size=8),
)
def test_a_queue_keeps_the_last_features_of_each_class(size: int, pushes: list[list[int]]) -> None:
    """Labels with gaps, batches with more of a class than fit, and classes that a batch does not have."""
    queue = Queue(torch.tensor(CLASSES), size, 2, labels=7)
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
        assert queue.known_to_wait == (not full)
    assert queue.pushed.tolist() == list(pushed.values())


def test_the_oldest_is_displaced_first() -> None:
    queue = Queue(torch.tensor([0]), 3, 1, labels=1)
    seen = []
    for number in range(1, 8):
        queue.push(torch.tensor([[float(number)]]), torch.tensor([0]))
        seen.append(queue.contents.flatten().tolist())
    filling = [[1, 0, 0], [1, 2, 0], [1, 2, 3]]
    assert seen == [*filling, [4, 2, 3], [4, 5, 3], [4, 5, 6], [7, 5, 6]]


def test_a_queue_goes_on_from_its_stored_tensors() -> None:
    queues = [Queue(torch.tensor(CLASSES), 3, 2, labels=6) for _ in range(2)]
    labels = torch.tensor([4, 1, 4, 4, 5])
    queues[0].push(torch.randn(5, 2, generator=numbers(0)), labels)
    queues[1].load_state_dict(queues[0].state_dict(), strict=True)
    for queue in queues:
        queue.push(torch.randn(5, 2, generator=numbers(1)), labels)
    assert torch.equal(queues[0].contents, queues[1].contents)
    assert torch.equal(queues[0].pushed, queues[1].pushed)


def test_what_is_stored_of_a_queue_is_what_it_holds() -> None:
    queue = Queue(torch.tensor(CLASSES), 3, 2, labels=6)
    assert set(queue.state_dict()) == {"slots", "pushed"}
    head = TaskHead(torch.nn.Linear(2, 3), torch.tensor([1, 2, 2]))
    assert set(head.state_dict()) == {"classes.weight", "classes.bias", "other.weight", "other.bias"}


def test_features_are_taken_as_they_are_then() -> None:
    queue = Queue(torch.tensor([0]), 1, 2, labels=1)
    features = torch.ones(1, 2)
    queue.push(features, torch.tensor([0]))
    features.zero_()
    assert queue.contents.tolist() == [[[1.0, 1.0]]]


# --- VOS ---------------------------------------------------------------------------------------------------


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
    monkeypatch.setattr(chunks, "BUDGET", budget)
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


def test_vos_draws_anew_in_every_iteration() -> None:
    features, same = gaussian_features(), batch(0)
    first, second = (VOS(samples=50).outliers(features, same) for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(VOS(samples=50).outliers(features, batch(0)), first)


def test_vos_bears_classes_whose_features_are_all_alike() -> None:
    """A covariance of 0 has the ridge alone: outliers lie at the means."""
    features = torch.tensor([1.0, -2.0]).view(2, 1, 1).expand(2, 5, 3)
    found = VOS(samples=20, ridge=1e-6).outliers(features, batch(0))
    torch.testing.assert_close(found, features[:, 0], rtol=0, atol=0.02)


# --- NPOS --------------------------------------------------------------------------------------------------

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
            # The perturbed point is the only one of which all kept ones are perturbations by this noise.
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


def test_npos_planted() -> None:
    """A class in one direction, and two loners across it: what is kept lies beyond a loner.

    Far out in the class's own direction lies another: by its plain distance it would be the loneliest.
    """
    crowd = (
        0.01 * torch.randn(2, 30, 2, generator=numbers(0)) + torch.tensor([[4.0, 0.0], [0.0, -4.0]])[:, None]
    )
    for c, (across, along) in enumerate(((1, 0), (0, 1))):
        crowd[c, 3] = crowd[c, 17] = 0.0
        crowd[c, 3, across], crowd[c, 17, across] = 9.0, -3.0
        crowd[c, 5, along] *= 10
    tuner = NPOS(**VALUES | {"boundary": 2}, sigma=0.1)
    found = tuner.outliers(crowd, batch(1)).view(2, 2, 7, 2)
    for groups, (across, along), sign in zip(found, ((1, 0), (0, 1)), (1, -1), strict=True):
        reached = []
        for group in groups:
            loner = min((9.0, -3.0), key=lambda at, group=group, a=across: abs(float(group[0, a]) - at))
            reached.append(loner)
            away = -sign * group[:, along]
            assert float(away.min()) > 0.04, "the farthest seventh of the noise, not any of it"
            assert float((group[:, across] - loner).abs().max()) < 0.5, "features are moved, not directions"
        assert sorted(reached) == [-3.0, 9.0]


def test_npos_picks_boundary_points_at_random() -> None:
    features = scattered_features()
    boundary = boundary_of(features[0], 5, 4)
    farthest = [sorted(range(30), key=lambda i, f=f: -kth_distance(f[i], f, 5)) for f in features[:2]]
    tuner, picked = NPOS(**VALUES, sigma=1e-6), set()
    alike = 0
    for seed in range(150):
        found = tuner.outliers(features, batch(seed))
        pairs = []
        for c in (0, 1):
            nearest = torch.cdist(found[14 * c : 14 * c + 14], features[c]).argmin(dim=1).tolist()
            pairs.append(frozenset(farthest[c].index(i) for i in nearest))
            picked |= {frozenset(nearest)} if c == 0 else set()
        alike += pairs[0] == pairs[1]
    assert set().union(*picked) == boundary
    assert len(picked) == 10, "every pair of the five"
    assert alike < 50, "each class has a choice of its own"


def test_a_queue_of_one_more_than_the_neighbours_is_enough() -> None:
    tuner = NPOS(queue=5, neighbours=4, boundary=5, chosen=5, perturbations=3, kept=3)
    features = torch.randn(2, 5, 3, generator=numbers(0))
    found = tuner.outliers(features, batch(0))
    assert found.shape == (2 * 5 * 3, 3)
    assert torch.isfinite(found).all()


def test_vos_of_features_that_do_not_fill_their_space() -> None:
    """Rank 8 of 64 columns, large: the ridge is below float32's rounding; samples stay where they belong."""
    spread = 10 * torch.randn(8, 64, generator=numbers(0))
    features = torch.randn(2, 200, 8, generator=numbers(1)) @ spread
    found = VOS(samples=500).outliers(features, batch(3))
    size = features.norm(dim=2).max()
    assert float((found - features.mean(dim=1)).norm(dim=1).max()) < 2 * float(size)


@pytest.mark.parametrize("make", [VOS, NPOS])
def test_a_queue_that_can_never_be_full_is_refused(make: Any, toy: Any) -> None:
    labels = torch.tensor([2] * 30 + [3] * 5)
    source = ViewSource(Inputs(toy, torch.randn(35, 3, 4, 4)), labels)
    with pytest.raises(
        BadInput, match="queue = 1000 is never full: class 3 has 5 images and each is seen 10"
    ):
        make().extra(source)
    VOS(queue=50).extra(source)


def test_a_synthesiser_needs_as_many_samples_as_fill_a_queue() -> None:
    assert [VOS(queue=size).fewest for size in (1000, 1001, 5)] == [100, 101, 1]
    assert VOS(queue=5, scored_by={"name": "knn", "neighbours": 7}).fewest == 7


def test_epochs_have_random_numbers_of_their_own_on_the_device(
    toy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a synthesiser draws is drawn anew in every epoch, and the same in every run."""
    source = ViewSource(Inputs(toy, torch.randn(8, 3, 4, 4)), torch.tensor([2, 3] * 4))
    runs = []
    for _ in range(2):
        tuner, drawn = VOS(queue=4, samples=10, schedule=Schedule(epochs=3, lr=0.01), batch_size=8), []

        def outliers(features: Tensor, batch: Batch, drawn: list[Tensor] = drawn) -> Tensor:
            drawn.append(torch.rand(3, generator=batch.generator))
            return features[:, 0]

        monkeypatch.setattr(tuner, "outliers", outliers)
        for _ in Tuning(tuner, source).advance():
            pass
        runs.append(torch.stack(drawn))
    assert torch.equal(*runs)
    assert len({tuple(row.tolist()) for row in runs[0]}) == 3
