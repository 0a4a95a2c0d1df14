"""The cosine head: formula, proxies, growth, freezing and imprinting."""

import math

import pytest
import torch
from torch import Tensor

from opencil.engine.seeding import seeded
from opencil.nets.cosine import CosineHead, find_centres


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


def test_growing_keeps_the_rows_and_adds_some() -> None:
    made = head(proxies=2)
    with seeded(4):
        grown = made.grow(6)
    assert [len(rows) for rows in grown.rows] == [4, 6, 2]
    torch.testing.assert_close(grown(FEATURES)[:, :5], made(FEATURES))
    assert grown.rows[2].abs().max() <= 0.5
    assert len(made.rows) == 2
    grown.freeze_old()
    grown(FEATURES).square().sum().backward()
    assert [rows.grad is None for rows in grown.rows] == [True, True, False]
    assert grown.scale.grad is not None


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
    found = find_centres(points, 5)
    assert torch.equal(torch.get_rng_state(), before)
    nearest = torch.cdist(found, centres)
    assert sorted(nearest.argmin(dim=1).tolist()) == [0, 1, 2, 3, 4]
    assert float(nearest.amin(dim=1).max()) < 0.2
