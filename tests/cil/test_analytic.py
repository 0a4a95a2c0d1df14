"""RanPAC and ACIL: ridge regression, exactly that of all images seen, and how λ is chosen."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import Ridge
from torch import Tensor

from opencil.cil.acil import ACIL
from opencil.cil.analytic import RIDGES, best_ridge
from opencil.cil.learner import Setting, Task
from opencil.cil.ranpac import RanPAC
from opencil.data.stream import Stream
from opencil.engine.forward import forward
from opencil.engine.seeding import generator
from opencil.nets.random_features import RandomFeatureHead
from tests.cil.common import trained_tasks


def random_features(task: Task, seen: int) -> tuple[Tensor, Tensor]:
    """ReLU(f R) of all training images of the classes seen, in float64, and their labels."""
    images = task.setting.images
    chosen = (images.labels < seen).nonzero().flatten()
    f = forward(task.model, images, task.setting.transform, chosen).features.double()
    return (f @ task.model.head.projection.double()).clamp(min=0), images.labels[chosen]


def test_random_matrices_are_of_the_named_distribution() -> None:
    normal, uniform = (RandomFeatureHead(25, 2000, 2, drawn).projection for drawn in ("normal", "uniform"))
    assert float(normal.std()) == pytest.approx(1, abs=0.05)
    assert float(uniform.abs().max()) == pytest.approx(1 / 5, abs=0.01)


def test_weights_are_those_of_ridge_regression_on_all_images_seen(setting: Setting, stream: Stream) -> None:
    """scikit-learn's, fitted at once on the images of all steps."""
    for task in trained_tasks(ACIL(epochs=2, width=30, ridge=0.5), setting, stream):
        h, labels = random_features(task, task.step.seen)
        expected = Ridge(alpha=0.5, fit_intercept=False).fit(h.numpy(), np.eye(task.step.seen)[labels])
        found = task.model.head.last.weight.detach().double().numpy()
        np.testing.assert_allclose(found, expected.coef_, rtol=1e-3, atol=1e-5)


def test_sums_give_what_the_recursion_of_the_paper_gives(setting: Setting, stream: Stream) -> None:
    """Its equations (9) and (10), step by step from R = I/γ and W = 0."""
    learner = ACIL(epochs=2, width=30)
    tasks = trained_tasks(learner, setting, stream)
    inverse, weights = torch.eye(30).double() / 0.1, torch.zeros(30, 0).double()
    for task in tasks:
        h, labels = random_features(task, task.step.seen)
        new = labels >= task.step.old
        x, y = h[new], F.one_hot(labels[new], task.step.seen).double()
        weights = F.pad(weights, (0, task.step.new))
        gain = torch.linalg.inv(torch.eye(len(x)).double() + x @ inverse @ x.T)
        inverse = inverse - inverse @ x.T @ gain @ x @ inverse
        weights = weights + inverse @ x.T @ (y - x @ weights)
        torch.testing.assert_close(task.model.head.last.weight.double(), weights.T, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("width", [10, 200])  # fewer random features than images, and more
def test_a_single_step_needs_no_sums(width: int, setting: Setting, stream: Stream) -> None:
    """It has the weights of scikit-learn's ridge regression, and the λ of a step that others follow."""
    learner = RanPAC(epochs=2, width=width)
    (task,) = trained_tasks(learner, replace(setting, single=True), stream, 1)
    assert task.model.gram.numel() == task.model.products.numel() == 0
    (other,) = trained_tasks(learner, setting, stream, 1)
    torch.testing.assert_close(
        task.model.head.last.weight, other.model.head.last.weight, rtol=1e-3, atol=1e-5
    )
    h, labels = random_features(task, task.step.seen)
    numbers = generator(setting.data_seed, "held out", 1)
    order = torch.randperm(len(h), generator=numbers)
    ridge = best_ridge(h[order], F.one_hot(labels[order], task.step.seen).double())
    expected = Ridge(alpha=ridge, fit_intercept=False).fit(h.numpy(), np.eye(task.step.seen)[labels])
    found = task.model.head.last.weight.double().numpy(force=True)
    np.testing.assert_allclose(found, expected.coef_, rtol=1e-3, atol=1e-5)


def naive_errors(h: Tensor, targets: Tensor) -> list[float]:
    known = int(0.8 * len(h))
    errors = []
    for ridge in RIDGES:
        matrix = h[:known].T @ h[:known] + ridge * torch.eye(h.shape[1]).double()
        weights = torch.linalg.solve(matrix, h[:known].T @ targets[:known])
        errors.append(float((h[known:] @ weights - targets[known:]).square().mean()))
    return errors


@pytest.mark.parametrize(("rows", "width", "scale"), [(60, 12, 1.0), (30, 40, 1.0), (60, 12, 0.01)])
def test_the_ridge_chosen_predicts_the_last_fifth_best(rows: int, width: int, scale: float) -> None:
    """Whether there are more images than random features, or fewer; however small these are."""
    numbers = torch.Generator().manual_seed(width)
    h = scale * torch.rand(rows, width, generator=numbers).double()
    true = torch.randn(width, 3, generator=numbers).double() / scale
    targets = h @ true + 2 * torch.randn(rows, 3, generator=numbers).double()
    errors = naive_errors(h, targets)
    chosen = best_ridge(h, targets)
    assert chosen == RIDGES[errors.index(min(errors))]
    assert RIDGES[0] < chosen < RIDGES[-1]
    assert (RIDGES[0], RIDGES[-1], len(RIDGES)) == (1e-8, 1e8, 17)  # as published


def test_the_ridge_is_chosen_on_new_images_in_a_seeded_order(
    setting: Setting, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dataset may be sorted by class: without an order of their own the last fifth would be one class."""
    asked: list[Tensor] = []

    def spy(h: Tensor, targets: Tensor) -> float:
        asked.append(targets)
        return 1.0

    monkeypatch.setattr("opencil.cil.analytic.best_ridge", spy)
    for seed in (2, 2, 5):
        trained_tasks(RanPAC(epochs=1, width=10), replace(setting, data_seed=seed), stream)
    once, again, other = asked[0:3], asked[3:6], asked[6:9]
    assert [targets.sum(dim=0).tolist() for targets in once] == [[8, 8], [0, 0, 8, 8], [0, 0, 0, 0, 8]]
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
    assert not torch.equal(once[0], other[0])
    assert not torch.equal(once[0], once[0].sort(dim=0).values)
    order = torch.randperm(16, generator=generator(2, "held out", 1))
    assert torch.equal(once[0].argmax(dim=1), stream.train.labels[stream[0].train][order])
