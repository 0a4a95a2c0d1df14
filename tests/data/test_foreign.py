"""Images from elsewhere: by index and in order, in batches of a loader's own size, and never kept."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from opencil.data.foreign import ForeignImages, served
from opencil.errors import BadInput

IMAGES = torch.randn(20, 3, 4, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(20)
CPU = torch.device("cpu")


def foreign(given: Any, **values: Any) -> ForeignImages:
    found = served(given, "mine", CPU, **values)
    assert isinstance(found, ForeignImages)
    return found


def shuffled(**values: Any) -> Any:
    numbers = torch.Generator().manual_seed(1)
    return DataLoader(TensorDataset(IMAGES, LABELS), shuffle=True, generator=numbers, **values)


def test_a_shuffled_loaders_images_are_had_by_index_in_the_order_that_was_drawn() -> None:
    images = foreign(shuffled(batch_size=6))
    order = torch.cat([labels for _, labels in images.batches(None, 512) if labels is not None])
    assert order.tolist() != LABELS.tolist()
    assert sorted(order.tolist()) == LABELS.tolist()
    chosen = torch.tensor([5, 0, 5, 19])
    (pixels, labels), *more = images.batches(chosen, 512)
    assert labels is not None
    assert torch.equal(labels, order[chosen])
    assert torch.equal(pixels, IMAGES[order[chosen]])
    assert not more


@pytest.mark.parametrize(("size", "sizes"), [(512, [6, 6, 6, 2]), (4, [4, 4, 4, 4, 4])])
def test_a_loaders_batches_are_no_larger_than_its_own(size: int, sizes: list[int]) -> None:
    found = foreign(shuffled(batch_size=6)).batches(None, size)
    assert [len(images) for images, _ in found] == sizes


def test_batches_that_are_larger_than_asked_for_are_cut() -> None:
    found = list(foreign([(IMAGES[:9], LABELS[:9]), (IMAGES[9:], LABELS[9:])]).batches(None, 4))
    assert [len(images) for images, _ in found] == [4, 4, 1, 4, 4, 3]
    assert torch.equal(torch.cat([images for images, _ in found]), IMAGES)


def test_a_memory_map_is_read_where_it_lies(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", IMAGES.double().numpy())
    images = foreign(np.load(tmp_path / "images.npy", mmap_mode="r"))
    assert len(images) == 20
    (pixels, labels), *_ = images.batches(torch.tensor([3, 1]), 8)
    assert pixels.dtype == torch.float32
    assert torch.equal(pixels, IMAGES[[3, 1]])
    assert labels is None


def test_labels_are_left_alone_where_they_are_not_asked_for() -> None:
    words = [(IMAGES[:2], ["cat", "dog"])]
    ((_, labels),) = foreign(words, labelled=False).batches(None, 8)
    assert labels is None
    with pytest.raises(BadInput, match="mine has labels that are no numbers"):
        next(foreign(words).batches(None, 8))


def test_a_tensor_elsewhere_is_moved_batch_by_batch() -> None:
    assert served(IMAGES, "mine", CPU) is IMAGES
    assert served(IMAGES, "mine", None) is IMAGES
    moved = served(IMAGES, "mine", torch.device("meta"))
    assert isinstance(moved, ForeignImages)
    assert [tuple(images.shape) for images, _ in moved.batches(None, 15)] == [(15, 3, 4, 4), (5, 3, 4, 4)]
    assert next(moved.batches(None, 15))[0].device.type == "meta"


def batches() -> Iterator[Tensor]:
    yield from IMAGES.split(7)


def test_an_iterable_can_be_counted_and_not_indexed() -> None:
    once, again = foreign(batches()), foreign(list(batches()))
    assert not once.again
    assert again.again
    assert not again.by_index
    assert len(again) == 20
    assert len(once) == 20
    with pytest.raises(BadInput, match="mine is an iterator, which gives its images once"):
        next(once.batches(None, 8))
    with pytest.raises(
        BadInput, match="mine is an iterable of batches: its images cannot be had by their index"
    ):
        next(again.batches(LABELS, 8))


def test_images_that_are_others_the_second_time_are_refused() -> None:
    changing = list(batches())
    images = foreign(changing)
    assert len(images) == 20
    changing.append(IMAGES[:1])
    with pytest.raises(BadInput, match="gave other images, or the same in another order"):
        list(images.batches(None, 8))
    del changing[2:]
    with pytest.raises(BadInput, match="mine gave 20 images, and 14 when read again"):
        list(images.batches(None, 8))
