"""PODNet: NCA, pooled maps, the factor of the old classes."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from opencil.cil.learner import Setting
from opencil.cil.podnet import PODNet, nca, pool, pooled_distance
from opencil.data.memory import Memory
from opencil.data.stream import Stream

COSINES = 2 * torch.rand(6, 4, generator=torch.Generator().manual_seed(0)) - 1
LABELS = torch.tensor([0, 1, 2, 3, 0, 1])


def naive_nca(scale: float, cosines: Tensor, labels: Tensor) -> float:
    """As its authors compute it: a margin taken off all cosines, then the maximum, then all but e⁰ for y."""
    losses = []
    for row, label in zip(cosines.double().tolist(), labels.tolist(), strict=True):
        shifted = [scale * (s - 0.6) for s in row]
        shifted = [s - max(shifted) for s in shifted]
        excluded = [0.0 if c == label else s for c, s in enumerate(shifted)]
        losses.append(math.log(sum(map(math.exp, excluded))) - shifted[label])
    return sum(losses) / len(losses)


@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_nca_equals_its_definition(scale: float) -> None:
    found = nca(scale * COSINES, LABELS)
    assert found.item() == pytest.approx(naive_nca(scale, COSINES, LABELS), rel=1e-5)


def test_pooled_maps_are_sums_over_rows_and_columns() -> None:
    maps = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    other = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(1))
    expected = []
    for one in (maps, other):
        rows = []
        for image in one.double():
            values = []
            for channel in image:
                values += [float((channel[i] ** 2).sum()) for i in range(4)]
                values += [float((channel[:, j] ** 2).sum()) for j in range(5)]
            length = math.sqrt(sum(v * v for v in values))
            rows.append([v / length for v in values])
        expected.append(torch.tensor(rows))
    torch.testing.assert_close(pool(maps), expected[0])
    apart = sum(math.dist(a, b) for a, b in zip(*(e.tolist() for e in expected), strict=True)) / 2
    assert float(pooled_distance([maps, maps], [other, maps])) == pytest.approx(apart / 2, rel=1e-5)


def test_the_cost_of_forgetting_equals_its_definition(setting: Setting, stream: Stream) -> None:
    learner = PODNet(epochs=1, flat=2.0, spatial=7.0)
    first = learner.begin(setting, stream[0], Memory(12), None)
    task = learner.begin(setting, stream[1], Memory(12), first.model)
    task.model.backbone.stem[0].weight.data.add_(0.02)
    model, teacher = task.model.eval(), task.teacher
    images = setting.transform.test(setting.images.images[:5])
    features, cost = learner.retention(task, images)
    torch.testing.assert_close(features, model.features(images))
    turned = (1 - F.cosine_similarity(features, teacher.features(images))).mean()
    apart = pooled_distance(model.maps(images), teacher.maps(images))
    assert turned.item() > 1e-5
    torch.testing.assert_close(cost, math.sqrt(4 / 2) * (2 * turned + 7 * apart), rtol=1e-4, atol=1e-6)
    cost.backward()
    assert all(p.grad is None for p in teacher.parameters())
