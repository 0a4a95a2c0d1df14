"""A benchmark's data: the ID splits and the OOD sets with their roles."""

import pytest
import torch

from opencil.data.benchmark import BenchmarkData, load_data
from opencil.data.roles import Role
from opencil.data.stream import class_order
from opencil.data.transforms import Transform
from opencil.errors import BadInput

OOD: dict[str, Role] = {"digits-held-out": "near", "noise": "far", "photo-patches": "far"}


def load(name: str) -> BenchmarkData:
    transform = Transform((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), crop=8)
    return load_data(name, OOD, image_size=8, transform=transform, device=torch.device("cpu"))


def test_a_benchmark_has_its_sets_in_order_and_a_stream() -> None:
    data = load("digits")
    assert list(data.roles.items()) == list(OOD.items())
    assert all(ood.images.name == name for name, ood in data.ood.items())
    stream = data.stream(3)
    assert [step.new for step in stream] == [3, 3, 2]
    order = class_order(8)
    assert stream.train.labels.tolist() == [order.index(c) for c in data.train.labels.tolist()]
    assert len(stream[-1].test) == len(data.test)
    assert not torch.equal(data.stream(3, order_seed=1).train.labels, stream.train.labels)
    for value in (data, data.test, stream[1]):
        assert "\n" not in repr(value)


def test_an_unknown_dataset_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(BadInput, match="'digits'"):
        load("digit")
