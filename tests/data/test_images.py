"""Image sets: what they accept, the batches they serve, new labels."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from opencil.data.images import ImageSet
from opencil.errors import BadInput


def bytes_of(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.uint8)


@pytest.mark.parametrize(
    "images",
    [bytes_of(2, 3, 4, 4).float(), bytes_of(2, 1, 4, 4), bytes_of(2, 4, 4, 3), bytes_of(3, 4, 4)],
    ids=["float", "grey", "channels last", "one image"],
)
def test_images_of_a_wrong_kind_are_refused(images: Tensor) -> None:
    with pytest.raises(BadInput, match=r"images of 'toy' are .*uint8 \[N, 3, H, H\] is needed"):
        ImageSet("toy", images, torch.zeros(len(images), dtype=torch.int64))


@pytest.mark.parametrize(
    "labels",
    [torch.zeros(2), torch.zeros(2, dtype=torch.int32), torch.zeros(3, dtype=torch.int64)],
    ids=["float", "int32", "one too many"],
)
def test_labels_of_a_wrong_kind_are_refused(labels: Tensor) -> None:
    with pytest.raises(BadInput, match=r"labels of 'toy' are .*int64 \[2\] is needed"):
        ImageSet("toy", bytes_of(2, 3, 4, 4), labels)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_batches_serve_the_indices_in_order(make_images: Callable[..., ImageSet], size: int) -> None:
    images = make_images([0, 1, 2, 0, 1])
    indices = torch.tensor([4, 0, 0, 3, 2])
    served = list(images.batches(indices, size))
    assert [len(batch) for batch in served] == [min(size, 5 - start) for start in range(0, 5, size)]
    for image, index in zip(torch.cat(served), indices.tolist(), strict=True):
        assert image.dtype == torch.uint8
        assert torch.equal(image, images.images[index])


def test_relabelled_gives_each_class_its_position(make_images: Callable[..., ImageSet]) -> None:
    images = make_images([0, 1, 2, 2, 1])
    order = [2, 0, 1]
    relabelled = images.relabelled(order)
    assert relabelled.labels.tolist() == [order.index(c) for c in images.labels.tolist()]
    assert relabelled.labels.dtype == torch.int64
    assert torch.equal(relabelled.images, images.images)
    assert images.labels.tolist() == [0, 1, 2, 2, 1]


def test_size_and_place(make_images: Callable[..., ImageSet]) -> None:
    images = make_images([0, 0, 1], side=5)
    assert (len(images), images.side, images.device.type) == (3, 5, "cpu")
    assert torch.equal(images.to(torch.device("cpu")).images, images.images)
