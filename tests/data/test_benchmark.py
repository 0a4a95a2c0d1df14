"""A benchmark's data: the ID splits and the OOD sets with their roles."""

import pytest
import torch

from opencil.data.benchmark import BenchmarkData, load_data
from opencil.data.stream import class_order
from opencil.data.transforms import Transform
from opencil.errors import BadInput


@pytest.fixture(scope="module")
def data() -> BenchmarkData:
    return load_data(
        "digits",
        {"digits-held-out": "near", "noise": "far", "photo-patches": "far"},
        image_size=8,
        transform=Transform((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), crop=8),
        device=torch.device("cpu"),
    )


def test_ood_sets_have_their_distance_in_the_order_given(data: BenchmarkData) -> None:
    assert [(name, ood.distance) for name, ood in data.ood.items()] == [
        ("digits-held-out", "near"),
        ("noise", "far"),
        ("photo-patches", "far"),
    ]
    assert all(ood.images.name == name for name, ood in data.ood.items())


def test_the_stream_runs_over_the_id_splits(data: BenchmarkData) -> None:
    stream = data.stream(3)
    assert [step.new for step in stream] == [3, 3, 2]
    order = class_order(8)
    assert stream.train.labels.tolist() == [order.index(c) for c in data.train.labels.tolist()]
    assert len(stream[-1].test) == len(data.test)
    assert not torch.equal(data.stream(3, order_seed=1).train.labels, stream.train.labels)


def test_an_unknown_dataset_is_refused_with_the_nearest() -> None:
    with pytest.raises(BadInput, match="did you mean 'digits'"):
        load_data(
            "digit",
            {"noise": "far"},
            image_size=8,
            transform=Transform((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), crop=8),
            device=torch.device("cpu"),
        )


def test_a_repr_is_one_line(data: BenchmarkData) -> None:
    assert repr(data) == (
        f"BenchmarkData(digits: {len(data.train)} training and {len(data.test)} test images of 8 × 8; "
        "near digits-held-out; far noise, photo-patches)"
    )
    assert repr(data.test) == f"ImageSet('digits': {len(data.test)} images of 8 × 8)"
    step = data.stream(2)[1]
    counts = f"{len(step.train)} training and {len(step.test)} test images"
    assert repr(step) == f"Step(2 of 4: classes 2 to 3 are new, {counts})"
