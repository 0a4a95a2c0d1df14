"""Images from the user: by index and in order, in batches of a loader's own size."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from opencil.data.foreign import ForeignImages, serve_images
from opencil.errors import BadInput

IMAGES = torch.randn(20, 3, 4, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(20)
CPU = torch.device("cpu")


def foreign(images: Any, **values: Any) -> ForeignImages:
    found = serve_images(images, "mine", CPU, **values)
    assert isinstance(found, ForeignImages)
    return found


def shuffled(**values: Any) -> Any:
    numbers = torch.Generator().manual_seed(1)
    return DataLoader(TensorDataset(IMAGES, LABELS), shuffle=True, generator=numbers, **values)


def test_a_shuffled_loader_is_read_by_index_in_its_first_order() -> None:
    images = foreign(shuffled(batch_size=6))
    order = torch.cat([labels for _, labels in images.batches(None, 512) if labels is not None])
    assert order.tolist() != LABELS.tolist()
    assert sorted(order.tolist()) == LABELS.tolist()
    rows = torch.tensor([5, 0, 5, 19])
    ((pixels, labels),) = images.batches(rows, 512)
    assert labels is not None
    assert torch.equal(labels, order[rows])
    assert torch.equal(pixels, IMAGES[order[rows]])


@pytest.mark.parametrize(
    ("images", "size", "sizes"),
    [
        (shuffled(batch_size=6), 512, [6, 6, 6, 2]),
        (shuffled(batch_size=6), 4, [4, 4, 4, 4, 4]),
        ([(IMAGES[:9], LABELS[:9]), (IMAGES[9:], LABELS[9:])], 4, [4, 4, 1, 4, 4, 3]),
    ],
)
def test_batches_are_no_larger_than_requested_or_than_the_loaders(
    images: Any, size: int, sizes: list[int]
) -> None:
    assert [len(batch) for batch, _ in foreign(images).batches(None, size)] == sizes


def test_a_memory_map_is_read_by_rows(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", IMAGES.double().numpy())
    images = foreign(np.load(tmp_path / "images.npy", mmap_mode="r"))
    assert len(images) == 20
    ((pixels, labels),) = images.batches(torch.tensor([3, 1]), 8)
    assert (pixels.dtype, labels) == (torch.float32, None)
    assert torch.equal(pixels, IMAGES[[3, 1]])


def test_labels_are_read_only_on_request() -> None:
    words = [(IMAGES[:2], ["cat", "dog"])]
    ((_, labels),) = foreign(words, labelled=False).batches(None, 8)
    assert labels is None
    with pytest.raises(BadInput, match="mine"):
        next(foreign(words).batches(None, 8))


def test_a_tensor_on_another_device_is_copied_in_batches() -> None:
    assert serve_images(IMAGES, "mine", None).device == CPU
    images = serve_images(IMAGES, "mine", torch.device("meta"))
    assert isinstance(images, ForeignImages)
    found = [(tuple(batch.shape), batch.device.type) for batch, _ in images.batches(None, 15)]
    assert found == [((15, 3, 4, 4), "meta"), ((5, 3, 4, 4), "meta")]


def batches() -> Iterator[Tensor]:
    yield from IMAGES.split(7)


def test_an_iterable_is_counted_and_not_indexed() -> None:
    once, again = foreign(batches()), foreign(list(batches()))
    assert (once.again, again.again, again.count) == (False, True, None)
    assert (len(once), len(again)) == (20, 20)
    for images, rows in ((once, None), (again, LABELS)):
        with pytest.raises(BadInput, match="mine"):
            next(images.batches(rows, 8))


def test_other_images_the_second_time_are_refused() -> None:
    changing = list(batches())
    images = foreign(changing)
    assert len(images) == 20
    changing.append(IMAGES[:1])
    with pytest.raises(BadInput, match="mine"):
        list(images.batches(None, 8))
    del changing[2:]
    with pytest.raises(BadInput, match="mine"):
        list(images.batches(None, 8))
