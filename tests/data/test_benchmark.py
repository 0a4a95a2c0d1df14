"""A benchmark's data: the ID splits and the OOD sets with their roles."""

import torch

import opencil
from opencil.data.stream import class_order


def test_a_benchmark_has_its_sets_in_order_and_a_stream() -> None:
    data = opencil.benchmark("digits")
    roles = {"digits-held-out": "near", "photo-patches": "far", "noise": "far", "corrupted": "shifted"}
    assert list(data.roles.items()) == list(roles.items())
    assert all(ood.images.name == name for name, ood in data.ood.items())
    stream = data.stream(3)
    assert [step.new for step in stream] == [3, 3, 2]
    order = class_order(8)
    assert stream.train.labels.tolist() == [order.index(c) for c in data.train.labels.tolist()]
    assert len(stream[-1].test) == len(data.test)
    assert not torch.equal(data.stream(3, order=1).train.labels, stream.train.labels)
    for value in (data, data.test, stream[1]):
        assert "\n" not in repr(value)
