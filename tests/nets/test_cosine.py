"""The cosine head: its formula, its proxies, how it grows, what is frozen and imprinted."""

import copy
import math

import pytest
import torch
from torch import Tensor

from opencil.engine.forward import linear_head
from opencil.engine.seeding import seeded
from opencil.nets.cosine import CosineHead, centres_of


def head(sizes: tuple[int, ...] = (2, 3), proxies: int = 1) -> CosineHead:
    with seeded(3):
        made = CosineHead(4, sizes, proxies)
    made.scale.data.fill_(7.0)
    return made


def cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


FEATURES = torch.tensor([[1.0, 2.0, 0.5, 0.0], [-1.0, 0.3, 4.0, 1.0]])


@pytest.mark.parametrize("proxies", [1, 3])
def test_logits_are_the_scale_times_cosines(proxies: int) -> None:
    """Of several proxies: their mean, weighted by the softmax of their cosines."""
    made = head(proxies=proxies)
    rows = [row for part in made.rows for row in part.tolist()]
    expected = []
    for f in FEATURES.tolist():
        each = [cosine(f, row) for row in rows]
        classes = [each[i : i + proxies] for i in range(0, len(each), proxies)]
        weights = [[math.exp(c) for c in of_class] for of_class in classes]
        expected.append(
            [
                7 * sum(w * c for w, c in zip(ws, cs, strict=True)) / sum(ws)
                for ws, cs in zip(weights, classes, strict=True)
            ]
        )
    torch.testing.assert_close(made(FEATURES), torch.tensor(expected))
    assert (made.in_features, made.out_features) == (4, 5)


def test_lengths_of_features_and_rows_do_not_matter() -> None:
    made = head()
    longer = copy.deepcopy(made)
    longer.rows[0].data.mul_(5)
    torch.testing.assert_close(longer(3 * FEATURES), made(FEATURES))


def test_cosines_are_float32_under_autocast() -> None:
    made = head()
    with torch.autocast("cpu", torch.bfloat16):
        found = made(FEATURES.bfloat16())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, made(FEATURES.bfloat16().float()))


def test_growing_keeps_the_rows_and_adds_some() -> None:
    made = head(proxies=2)
    with seeded(4):
        grown = made.grown(6)
    assert [len(rows) for rows in grown.rows] == [4, 6, 2]
    torch.testing.assert_close(grown(FEATURES)[:, :5], made(FEATURES))
    assert grown.rows[2].abs().max() <= 0.5
    assert len(made.rows) == 2


def test_old_rows_can_stay_while_new_ones_and_the_scale_train() -> None:
    made = head((2, 1, 2))
    made.freeze_old()
    made(FEATURES).square().sum().backward()
    assert [rows.grad is None for rows in made.rows] == [True, True, False]
    assert made.scale.grad is not None


def test_imprinted_rows_point_to_the_mean_of_unit_features() -> None:
    made, numbers = head(), torch.Generator().manual_seed(0)
    classes = [torch.rand(n, 4, generator=numbers) * torch.rand(n, 1, generator=numbers) for n in (5, 3, 1)]
    old = made.rows[0].detach().clone()
    made.imprint(classes)
    assert torch.equal(made.rows[0], old)
    length = float(old.norm(dim=1).mean())
    for row, features in zip(made.rows[1], classes, strict=True):
        mean = torch.stack([f / f.norm() for f in features]).mean(dim=0)
        torch.testing.assert_close(row.detach(), length * mean / mean.norm())


def clusters(count: int, each: int) -> tuple[Tensor, Tensor]:
    numbers = torch.Generator().manual_seed(1)
    centres = 10 * torch.randn(count, 4, generator=numbers)
    noise = 0.1 * torch.randn(count, each, 4, generator=numbers)
    return centres, (centres[:, None] + noise).flatten(0, 1)


def test_k_means_finds_clusters_and_draws_nothing() -> None:
    centres, points = clusters(5, 20)
    before = torch.get_rng_state()
    found = centres_of(points, 5)
    assert torch.equal(torch.get_rng_state(), before)
    nearest = torch.cdist(found, centres)
    assert sorted(nearest.argmin(dim=1).tolist()) == [0, 1, 2, 3, 4]
    assert float(nearest.amin(dim=1).max()) < 0.2
    shuffled = centres_of(points[torch.randperm(100, generator=torch.Generator().manual_seed(0))], 5)
    assert float(torch.cdist(shuffled, found).amin(dim=1).max()) < 1e-5


@pytest.mark.parametrize("count", [1, 3, 10])
def test_k_means_of_few_points_has_as_many_centres(count: int) -> None:
    points = torch.eye(4)[:3]
    found = centres_of(points, count)
    assert found.shape == (count, 4)
    assert torch.isfinite(found).all()
    if count == 1:
        torch.testing.assert_close(found[0], points.mean(dim=0))
    else:
        assert {tuple(row) for row in found.tolist()} == {tuple(row) for row in points.tolist()}


def test_resetting_draws_rows_anew_and_the_scale_is_one() -> None:
    made = head()
    before = made.rows[0].clone()
    with seeded(9):
        made.reset_parameters()
    assert not torch.equal(made.rows[0], before)
    assert made.scale.item() == 1


def test_a_cosine_head_is_not_taken_for_a_linear_one() -> None:
    assert linear_head(head(), 4, torch.device("cpu")) is None
