"""Image sets: their types, their batches, new labels."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from opencil.data.images import Access, ImageSet
from opencil.errors import BadInput

PIXELS = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("images", "labels"),
    [
        (PIXELS.float(), torch.zeros(2).long()),
        (PIXELS[:, :1], torch.zeros(2).long()),
        (PIXELS.permute(0, 2, 3, 1), torch.zeros(2).long()),
        (PIXELS[0], torch.zeros(3).long()),
        (PIXELS, torch.zeros(2)),
        (PIXELS, torch.zeros(2).int()),
        (PIXELS, torch.zeros(3).long()),
    ],
    ids=["float", "grey", "channels last", "an image", "float labels", "int32 labels", "more labels"],
)
def test_wrong_types_and_shapes_are_refused(images: Tensor, labels: Tensor) -> None:
    with pytest.raises(BadInput, match="'toy'"):
        ImageSet("toy", images, labels)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_batches_are_in_the_order_of_the_indices(make_images: Callable[..., ImageSet], size: int) -> None:
    images = make_images([0, 1, 2, 0, 1], side=5)
    indices = torch.tensor([4, 0, 0, 3, 2])
    batches = list(images.to(torch.device("cpu")).batches(indices, size))
    assert [len(batch) for batch in batches] == [min(size, 5 - start) for start in range(0, 5, size)]
    assert torch.equal(torch.cat(batches), images.images[indices])
    assert (len(images), images.side, images.device.type) == (5, 5, "cpu")


def test_labels_become_positions_in_an_order(make_images: Callable[..., ImageSet]) -> None:
    images = make_images([0, 1, 2, 2, 1])
    order = [2, 0, 1]
    relabelled = images.relabel(order)
    assert relabelled.labels.tolist() == [order.index(c) for c in images.labels.tolist()]
    assert relabelled.labels.dtype == torch.int64
    assert torch.equal(relabelled.images, images.images)
    assert images.labels.tolist() == [0, 1, 2, 2, 1]


def test_larger_splits_are_streamed() -> None:
    access = Access(resident_mb=3)  # 1,024 images of 32 x 32 have 3 MiB
    assert [access.streams(count, 32) for count in (1024, 1025)] == [False, True]
    assert [Access(store=store).streams(1, 1) for store in ("resident", "streamed")] == [False, True]
