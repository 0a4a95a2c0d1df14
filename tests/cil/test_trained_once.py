"""Methods that train the backbone at step 1 only: SimpleCIL, FeCAM, FeTrIL."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from opencil.cil.fecam import FeCAM
from opencil.cil.fetril import FeTrIL
from opencil.cil.learner import Setting, Task
from opencil.cil.simplecil import SimpleCIL
from opencil.cil.slda import SLDA
from opencil.cil.trained_once import TrainedOnce
from opencil.data.memory import Memory
from opencil.data.stream import Stream
from opencil.engine.forward import forward
from opencil.engine.schedule import Schedule
from opencil.registry import LEARNERS
from tests.cil.common import naive_fecam, trained_tasks

METHODS = ("simplecil", "fecam", "fetril", "ranpac", "acil")


def small(name: str, epochs: int = 2) -> TrainedOnce:
    values = {"width": 40} if name in ("ranpac", "acil") else {}
    made: TrainedOnce = LEARNERS.create(name, epochs=epochs, **values)
    return made


def features_of(task: Task, labels: list[int]) -> list[Tensor]:
    """Features of all training images of some classes by a task's model."""
    images = task.setting.images
    outputs = forward(task.model, images, task.setting.transform)
    return [outputs.features[images.labels == label].double() for label in labels]


@pytest.mark.parametrize("name", METHODS)
def test_the_backbone_stays_as_step_1_left_it(name: str, setting: Setting, stream: Stream) -> None:
    learner = small(name)
    begun = learner.begin(setting, stream[0], Memory(12), None).model.backbone.state_dict()
    first, *later = trained_tasks(learner, setting, stream)
    trained = first.model.backbone.state_dict()
    assert any(not torch.equal(trained[key], tensor) for key, tensor in begun.items())
    for task in later:
        assert all(torch.equal(trained[key], t) for key, t in task.model.backbone.state_dict().items())
        assert len(learner.remember(task).indices) == 0


def test_rows_of_simplecil_are_class_means(setting: Setting, stream: Stream) -> None:
    learner = SimpleCIL(epochs=2)
    _, second, third = trained_tasks(learner, setting, stream)
    assert [len(rows) for rows in third.model.head.rows] == [2, 2, 1]
    rows = torch.cat(list(third.model.head.rows)).detach()
    for row, features in zip(rows, features_of(third, [0, 1, 2, 3, 4]), strict=True):
        torch.testing.assert_close(row.double(), features.mean(dim=0), rtol=1e-5, atol=1e-6)
    assert torch.equal(rows[:4], torch.cat(list(second.model.head.rows)))
    assert third.model.head.scale.item() == second.model.head.scale.item() != 1
    assert learner.first == Schedule(epochs=2, lr=0.01, decay="cosine", weight_decay=5e-4)


def test_the_head_of_slda_is_that_of_gaussians_with_one_covariance(setting: Setting, stream: Stream) -> None:
    task = trained_tasks(SLDA(epochs=1), setting, stream)[-1]
    features = [f.double().numpy() for f in features_of(task, [0, 1, 2, 3, 4])]
    means = np.stack([f.mean(axis=0) for f in features])
    centred = np.concatenate([f - f.mean(axis=0) for f in features])
    shrinkage, spread = SLDA(epochs=1).shrinkage, centred.T @ centred / len(centred)
    inverse = np.linalg.inv((1 - shrinkage) * spread + shrinkage * np.eye(len(spread)))
    head = task.model.head
    np.testing.assert_allclose(head.weight.detach().numpy(), means @ inverse, rtol=1e-3, atol=1e-3)
    expected = -0.5 * np.einsum("cd,de,ce->c", means, inverse, means)
    np.testing.assert_allclose(head.bias.detach().numpy(), expected, rtol=1e-3, atol=1e-3)


def test_logits_of_fecam_are_negative_distances(setting: Setting, stream: Stream) -> None:
    task = trained_tasks(FeCAM(epochs=2), setting, stream)[-1]
    features = features_of(task, [0, 1, 2, 3, 4])
    outputs = forward(task.model, setting.test_images, setting.transform, stream[2].test[:6])
    for f, z in zip(outputs.features.double().numpy(), outputs.logits.tolist(), strict=True):
        expected = naive_fecam(features, f)
        assert z == pytest.approx([-distance for distance in expected], rel=2e-3)
    assert float(outputs.logits.max()) <= 0


def test_fetril_moves_features_of_the_most_similar_new_class(setting: Setting, stream: Stream) -> None:
    learner = FeTrIL(epochs=2)
    (first,) = trained_tasks(learner, setting, stream, steps=1)
    task = learner.begin(setting, stream[1], Memory(12), first.model)
    (stage,) = list(learner.fit(task))
    means = [features.mean(dim=0) for features in features_of(task, [0, 1, 2, 3])]
    rows, labels = stage.tensors
    assert labels.bincount().tolist() == [8, 8, 8, 8]
    assert stage.module is task.model.head
    assert stage.indices.tolist() == stream[1].train.tolist()

    seen: list[tuple[Tensor, Tensor]] = []
    kept = task.model.head
    task.model.head = type("Spy", (torch.nn.Module,), {"forward": lambda _, f: seen.append(f) or kept(f)})()
    loss = stage.loss(rows, labels)
    made = seen[0].double()
    total = 0.0
    for label in range(4):
        of_class = made[labels == label]
        if label < 2:
            similar = [float(F.cosine_similarity(means[label], means[n], dim=0)) for n in (2, 3)]
            donor = 2 + similar.index(max(similar))
        else:
            donor = label
        expected = features_of(task, [donor])[0] - means[donor] + means[label]
        torch.testing.assert_close(of_class, expected, rtol=1e-4, atol=1e-5)
        for f in of_class:
            z = (kept.weight.detach().double() @ f + kept.bias.detach().double()).tolist()
            total += math.log(sum(math.exp(v) for v in z)) - z[label]
    assert loss.item() == pytest.approx(total / 32, rel=1e-5)
