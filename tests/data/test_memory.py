"""The exemplar memory: quota, herding, and indices in herding order."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from opencil.data.memory import Memory, herd
from opencil.errors import BadInput


def normalised(features: "np.ndarray") -> list["np.ndarray"]:
    points = features.astype(np.float64)
    return [row / np.linalg.norm(row) if row.any() else row for row in points]


def distances(points: list["np.ndarray"], picks: list[int]) -> dict[int, float]:
    """Return the distance between the picks' mean with another sample and the class mean, for each sample."""
    mean = sum(points) / len(points)
    chosen = sum((points[j] for j in picks), np.zeros_like(points[0]))
    return {
        i: float(np.linalg.norm((chosen + point) / (len(picks) + 1) - mean))
        for i, point in enumerate(points)
        if i not in picks
    }


def naive_herd(features: Tensor, count: int) -> list[int]:
    """Pick sample by sample; of samples that are equally good up to rounding the first."""
    points, picks = normalised(features.numpy()), list[int]()
    for _ in range(min(count, len(points))):
        left = distances(points, picks)
        picks.append(min(i for i, d in left.items() if d <= min(left.values()) + 1e-12))
    return picks


def random_features(count: int, width: int, seed: int) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed)).relu() + 0.01


def test_quota_of_the_paper() -> None:
    shares = [200, 100, 66, 50, 40, 33, 28, 25, 22, 20]
    assert [Memory(2000).quota(seen) for seen in range(10, 101, 10)] == shares
    assert Memory(8).quota(8) == 1
    with pytest.raises(BadInput, match="memory = 7"):
        Memory(7).quota(8)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("count", "width"), [(5, 3), (20, 7), (31, 64)])
def test_herding_equals_the_naive_reference(count: int, width: int, seed: int) -> None:
    features = random_features(count, width, seed)
    before = features.clone()
    picks = herd(features, count).tolist()
    assert picks == naive_herd(features, count)
    assert herd(features.double(), 4).tolist() == picks[:4]
    assert sorted(herd(features, count + 5).tolist()) == list(range(count))
    assert torch.equal(features, before)


@settings(max_examples=60)
@given(rows=st.lists(st.tuples(*[st.integers(-3, 3)] * 3), min_size=1, max_size=9), count=st.integers(0, 12))
def test_every_pick_is_a_best_sample(rows: list[tuple[int, ...]], count: int) -> None:
    """Also with ties, and with rows of zeros, which have no direction."""
    features = torch.tensor(rows, dtype=torch.float32)
    points, picks = normalised(features.numpy()), herd(features, count).tolist()
    assert len(picks) == len(set(picks)) == min(count, len(rows))
    for n, pick in enumerate(picks):
        left = distances(points, picks[:n])
        assert left[pick] <= min(left.values()) + 1e-12


def candidates(start: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return ten shuffled training images of a class, from index ``start`` on, and their features."""
    shuffled = start + torch.randperm(10, generator=torch.Generator().manual_seed(seed))
    return shuffled, random_features(10, 4, seed)


def test_the_memory_contains_herded_indices_of_every_class() -> None:
    classes = [candidates(100 * c, c) for c in range(4)]
    herded = [[int(indices[i]) for i in naive_herd(features, 10)] for indices, features in classes]
    first = Memory(12).add_classes(classes[:2])
    assert [c.tolist() for c in first.per_class] == [order[:6] for order in herded[:2]]
    second = first.add_classes(classes[2:])
    assert [c.tolist() for c in second.per_class] == [order[:3] for order in herded]
    assert second.indices.tolist() == [index for order in herded for index in order[:3]]
    assert [c.tolist() for c in first.per_class] == [order[:6] for order in herded[:2]]
    large = Memory(100).add_classes(classes[:2])
    assert [sorted(c.tolist()) for c in large.per_class] == [list(range(10)), list(range(100, 110))]
    with pytest.raises(BadInput, match="memory = 2"):
        Memory(2).add_classes(classes[:3])


def test_a_fixed_number_per_class_stays_however_many_classes_there_are() -> None:
    classes = [candidates(100 * c, c) for c in range(4)]
    herded = [[int(indices[i]) for i in naive_herd(features, 3)] for indices, features in classes]
    first = Memory(0, fixed=3).add_classes(classes[:1])
    second = first.add_classes(classes[1:]).with_tensors(first.add_classes(classes[1:]).tensors())
    assert [c.tolist() for c in second.per_class] == herded
    assert (second.share(4), second.quota(9), Memory(10).share(4)) == (3, 3, 2.5)


@pytest.mark.parametrize("classes", [0, 1, 3])
def test_a_memory_is_restored_from_its_tensors(classes: int) -> None:
    memory = Memory(7)
    if classes:
        memory = memory.add_classes([candidates(100 * c, c) for c in range(classes)])
    again = Memory(7).with_tensors(memory.tensors())
    assert (again.size, again.indices.dtype) == (7, torch.int64)
    assert [c.tolist() for c in again.per_class] == [c.tolist() for c in memory.per_class]
