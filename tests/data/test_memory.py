"""Exemplar memory: quota, herding, and indices that stay in herding order."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from opencil.data.memory import Memory, herd, quota
from opencil.errors import BadInput


def normalised(features: "np.ndarray") -> list["np.ndarray"]:
    points = []
    for row in features.astype(np.float64):
        length = np.sqrt(sum(value * value for value in row))
        points.append(row / length if length > 0 else row)
    return points


def distances(points: list["np.ndarray"], picks: list[int]) -> dict[int, float]:
    """For every sample not picked yet: how far the mean of picks would be from the class mean with it."""
    mean = sum(points) / len(points)
    found = {}
    for i, point in enumerate(points):
        if i not in picks:
            running = (sum((points[j] for j in picks), np.zeros_like(point)) + point) / (len(picks) + 1)
            found[i] = float(np.sqrt(sum(value * value for value in running - mean)))
    return found


def naive_herd(features: Tensor, count: int) -> list[int]:
    """Sample by sample; of samples that are equally good (up to rounding) the first."""
    points, picks = normalised(features.numpy()), []
    for _ in range(min(count, len(points))):
        left = distances(points, picks)
        best = min(left.values())
        picks.append(min(i for i, d in left.items() if d <= best + 1e-12))
    return picks


def random_features(count: int, width: int, seed: int) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed)).relu() + 0.01


def test_quota_of_the_paper() -> None:
    assert [quota(2000, seen) for seen in range(10, 101, 10)] == [200, 100, 66, 50, 40, 33, 28, 25, 22, 20]


def test_one_image_per_class_is_the_least() -> None:
    assert quota(8, 8) == 1
    with pytest.raises(
        BadInput, match="memory = 7 is not allowed: at least 1 image for each of 8 classes is needed"
    ):
        quota(7, 8)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("count", "width"), [(5, 3), (20, 7), (31, 64)])
def test_herding_equals_the_naive_reference(count: int, width: int, seed: int) -> None:
    features = random_features(count, width, seed)
    assert herd(features, count).tolist() == naive_herd(features, count)
    assert herd(features.double(), 4).tolist() == naive_herd(features.double(), 4)


@pytest.mark.parametrize("seed", range(4))
def test_herding_of_repeated_points_takes_the_first_of_equals(seed: int) -> None:
    features = random_features(6, 5, seed).repeat(3, 1)
    picks = herd(features, 18).tolist()
    assert picks == naive_herd(features, 18)
    assert sorted(picks) == list(range(18))


@settings(max_examples=60)
@given(
    rows=st.lists(st.tuples(*[st.integers(-3, 3)] * 3), min_size=1, max_size=9),
    count=st.integers(0, 12),
)
def test_every_pick_is_a_best_one(rows: list[tuple[int, ...]], count: int) -> None:
    """Holds with any number of ties, and of rows of zeros, which have no direction."""
    features = torch.tensor(rows, dtype=torch.float32)
    points, picks = normalised(features.numpy()), herd(features, count).tolist()
    assert len(picks) == len(set(picks)) == min(count, len(rows))
    for n, pick in enumerate(picks):
        left = distances(points, picks[:n])
        assert left[pick] <= min(left.values()) + 1e-12


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), fewer=st.integers(0, 15), more=st.integers(15, 20))
def test_fewer_picks_are_the_first_of_more(seed: int, fewer: int, more: int) -> None:
    features = random_features(15, 4, seed)
    assert torch.equal(herd(features, more)[:fewer], herd(features, fewer))


def test_features_are_normalised_before_herding() -> None:
    """By direction the long one is in the middle; by distance the short ones are nearer to the mean."""
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [50.0, 50.0]])
    assert herd(features, 1).tolist() == [2]


def test_the_mean_is_not_normalised_again() -> None:
    """It lies at (.41, 0), so the second pick goes aside; for (1, 0) it would be the other one ahead."""
    degrees = torch.tensor([0.0, 0.0, 100.0, -100.0])
    features = torch.stack([degrees.deg2rad().cos(), degrees.deg2rad().sin()], dim=1)
    first, second = herd(features, 2).tolist()
    assert first == 0
    assert second in (2, 3)


def test_more_picks_than_samples_are_all_of_them() -> None:
    features = random_features(4, 3, 0)
    assert sorted(herd(features, 100).tolist()) == [0, 1, 2, 3]
    assert herd(features, 0).tolist() == []


def test_herding_leaves_the_features_alone() -> None:
    features = random_features(6, 3, 0)
    before = features.clone()
    herd(features, 3)
    assert torch.equal(features, before)


def candidates(start: int, seed: int) -> tuple[Tensor, Tensor]:
    """Ten training images of a class, from index ``start`` on in no order, and their features."""
    shuffled = start + torch.randperm(10, generator=torch.Generator().manual_seed(seed))
    return shuffled, random_features(10, 4, seed)


def test_memory_holds_the_herded_indices_of_every_class() -> None:
    classes = [candidates(100 * c, c) for c in range(4)]
    first = Memory(12).updated(classes[:2])
    assert [len(c) for c in first.per_class] == [6, 6]
    for kept, (indices, features) in zip(first.per_class, classes, strict=False):
        assert kept.tolist() == [int(indices[i]) for i in naive_herd(features, 6)]

    second = first.updated(classes[2:])
    assert [len(c) for c in second.per_class] == [3, 3, 3, 3]
    for c in range(2):
        assert second.per_class[c].tolist() == first.per_class[c][:3].tolist()
    for c in range(2, 4):
        indices, features = classes[c]
        assert second.per_class[c].tolist() == [int(indices[i]) for i in naive_herd(features, 3)]
    assert second.indices.tolist() == [index for kept in second.per_class for index in kept.tolist()]
    assert second.indices.dtype == torch.int64


def test_an_old_memory_is_not_changed_by_the_next() -> None:
    first = Memory(4).updated([candidates(0, 0)])
    before = first.indices.clone()
    first.updated([candidates(100, 1)])
    assert torch.equal(first.indices, before)


def test_an_empty_memory_has_no_indices() -> None:
    assert Memory(10).indices.tolist() == []
    assert Memory(10).indices.dtype == torch.int64


def test_a_memory_smaller_than_the_classes_is_refused() -> None:
    memory = Memory(2).updated([candidates(0, 0), candidates(100, 1)])
    with pytest.raises(BadInput, match="each of 3 classes"):
        memory.updated([candidates(200, 2)])


def test_a_class_with_fewer_images_than_its_share_keeps_them_all() -> None:
    memory = Memory(100).updated([candidates(0, 0), candidates(100, 1)])
    assert [sorted(c.tolist()) for c in memory.per_class] == [list(range(10)), list(range(100, 110))]


@pytest.mark.parametrize("classes", [0, 1, 3])
def test_memory_comes_back_from_its_tensors(classes: int) -> None:
    memory = Memory(7)
    if classes:
        memory = memory.updated([candidates(100 * c, c) for c in range(classes)])
    again = Memory.from_tensors(7, memory.tensors())
    assert again.size == 7
    assert [c.tolist() for c in again.per_class] == [c.tolist() for c in memory.per_class]
    assert all(tensor.dtype == torch.int64 for tensor in memory.tensors().values())
