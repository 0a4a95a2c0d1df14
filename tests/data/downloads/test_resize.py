"""Resizing on the device, pixel for pixel."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from opencil.data.transforms import Draw, Transform

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def naive_line(values: list[float], size: int) -> list[float]:
    """One row resized: every new pixel is the mean of old ones, weighted by a triangle around its centre."""
    scale = len(values) / size
    reach = max(scale, 1.0)
    line = []
    for i in range(size):
        centre = (i + 0.5) * scale
        weights = [max(0.0, 1 - abs(j + 0.5 - centre) / reach) for j in range(len(values))]
        line.append(sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights))
    return line


def naive(image: np.ndarray, size: int) -> np.ndarray:
    """One image [3, H, W]: rows, then columns, then bytes."""
    wide = [[naive_line(row, size) for row in channel] for channel in image.astype(float).tolist()]
    tall = [
        [naive_line([row[x] for row in channel], size) for x in range(size)] for channel in wide
    ]  # [3, x, y]
    return np.array(tall).transpose(0, 2, 1)


def random_images(count: int, side: int) -> torch.Tensor:
    pixels = torch.Generator().manual_seed(side)
    return torch.randint(0, 256, (count, 3, side, side), generator=pixels, dtype=torch.uint8)


def levels(normalised: torch.Tensor) -> np.ndarray:
    """Bytes that a normalised image was made of."""
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (MEAN, STD))
    return ((normalised * std + mean) * 255).numpy()


@settings(max_examples=25)
@given(side=st.integers(2, 9), size=st.integers(1, 12))
def test_resized_images_equal_the_naive_reference(side: int, size: int) -> None:
    images = random_images(2, side)
    result = levels(Transform(MEAN, STD, crop=size, resize=size).test(images))
    for image, got in zip(images, result, strict=True):
        assert np.abs(got - naive(image.numpy(), size)).max() <= 0.5 + 1e-3, "rounded to the nearest byte"


@pytest.mark.parametrize(("side", "size"), [(64, 32), (28, 32), (32, 224)])
def test_files_and_the_device_resize_alike(side: int, size: int) -> None:
    image = random_images(1, side)
    ours = levels(Transform(MEAN, STD, crop=size, resize=size).test(image))[0]
    bilinear = Image.Resampling.BILINEAR
    pillow = Image.fromarray(image[0].permute(1, 2, 0).numpy()).resize((size, size), bilinear)
    assert np.abs(ours - np.asarray(pillow).transpose(2, 0, 1)).max() < 1.01, "Pillow computes in fixed point"


def test_crops_and_flips_come_after_it() -> None:
    images = random_images(3, 4)
    transform = Transform(MEAN, STD, crop=6, padding=1, resize=8)
    choices = transform.draw(200, 4, torch.Generator().manual_seed(0))
    assert (int(choices.top.min()), int(choices.top.max())) == (0, 4), "of 8 + 2 · 1 pixels, 6 are kept"
    draw = Draw(torch.tensor([1, 3, 0]), torch.tensor([1, 2, 4]), torch.tensor([False, True, False]))
    large = torch.from_numpy(levels(Transform(MEAN, STD, crop=8, resize=8).test(images)).round()).to(
        torch.uint8
    )
    expected = Transform(MEAN, STD, crop=6, padding=1).train(large, draw)
    torch.testing.assert_close(transform.train(images, draw), expected)


def test_images_that_have_the_size_are_left_alone() -> None:
    images = random_images(2, 8)
    plain, resizing = (Transform(MEAN, STD, crop=8, resize=size) for size in (None, 8))
    assert torch.equal(plain.test(images), resizing.test(images))
