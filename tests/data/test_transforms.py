"""Augmentation, resizing and normalisation, pixel for pixel."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from opencil.data.images import ImageSet
from opencil.data.transforms import Transform, statistics
from opencil.errors import BadInput

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def transform(crop: int = 4, padding: int = 0, flip: bool = True) -> Transform:
    return Transform(MEAN, STD, crop, padding, flip)


def random_images(count: int, side: int, seed: int = 0) -> Tensor:
    pixels = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, side, side), generator=pixels, dtype=torch.uint8)


def naive(image: Tensor, top: int, left: int, flip: bool, crop: int, padding: int, factor: float) -> Tensor:
    """Transform an image pixel after pixel, with zeros outside of it."""
    side = image.shape[-1]
    result = torch.empty(3, crop, crop)
    for channel in range(3):
        for row in range(crop):
            for column in range(crop):
                y = top + row - padding
                x = left + (crop - 1 - column if flip else column) - padding
                inside = 0 <= y < side and 0 <= x < side
                value = min(255.0, int(image[channel, y, x]) * factor) if inside else 0
                result[channel, row, column] = (value / 255 - MEAN[channel]) / STD[channel]
    return result


@settings(max_examples=40)
@given(data=st.data(), side=st.integers(2, 6), padding=st.integers(0, 3), bright=st.booleans())
def test_train_equals_the_naive_reference(data: st.DataObject, side: int, padding: int, bright: bool) -> None:
    crop = data.draw(st.integers(1, side), label="crop")
    offset = st.integers(0, side + 2 * padding - crop)
    factor = st.floats(0, 2, width=32) if bright else st.just(1.0)
    choices = data.draw(st.lists(st.tuples(offset, offset, st.booleans(), factor), min_size=1, max_size=4))
    images = random_images(len(choices), side)
    before = images.clone()
    top, left, flip, factors = zip(*choices, strict=True)
    draw = [torch.tensor(values) for values in (top, left, flip, factors)[: 4 if bright else 3]]
    result = transform(crop, padding).train(images, draw)
    expected = [naive(image, y, x, f, crop, padding, b) for image, (y, x, f, b) in zip(images, choices)]  # noqa: B905
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, torch.stack(expected), rtol=0, atol=1e-4 if bright else 1e-5)
    assert torch.equal(images, before)


@pytest.mark.parametrize(("side", "crop"), [(4, 4), (6, 4), (7, 4), (5, 1), (5, 2)])
def test_test_is_a_centre_crop(side: int, crop: int) -> None:
    images = random_images(3, side)
    start = (side - crop) // 2
    expected = [naive(image, start, start, False, crop, 0, 1.0) for image in images]
    result = transform(crop, padding=2).test(images)  # padding is for training only
    torch.testing.assert_close(result, torch.stack(expected), rtol=0, atol=1e-5)
    assert torch.equal(transform(side).pixels(transform(side).test(images)), images.float())


@pytest.mark.parametrize(("side", "crop", "padding"), [(8, 8, 1), (8, 6, 0), (6, 5, 2), (4, 4, 0)])
def test_draws_reach_every_offset_and_no_other(side: int, crop: int, padding: int) -> None:
    top, left, flip = transform(crop, padding).draw(5000, side, torch.Generator().manual_seed(0))
    offsets = range(side + 2 * padding - crop + 1)
    reached = set(zip(top.tolist(), left.tolist(), flip.tolist(), strict=True))
    assert reached == {(y, x, f) for y in offsets for x in offsets for f in (False, True)}
    assert abs(float(flip.float().mean()) - 0.5) < 0.03  # standard error .007
    plain = transform(crop, padding, flip=False).draw(5000, side, torch.Generator().manual_seed(0))
    assert not plain[2].any()


def test_brightness_is_uniform_and_draws_nothing_if_it_is_off() -> None:
    generators = [torch.Generator().manual_seed(3) for _ in range(3)]
    top, left = torch.randint(0, 5, (2, 20_000), generator=generators[0])
    flip = torch.rand(20_000, generator=generators[0]) < 0.5
    plain = transform(4, padding=2).draw(20_000, 4, generators[1])
    assert len(plain) == 3
    assert torch.equal(generators[0].get_state(), generators[1].get_state())
    share = 63 / 255
    bright = replace(transform(4, padding=2), brightness=share).draw(20_000, 4, generators[2])
    for drawn in (plain, bright):
        assert all(map(torch.equal, drawn[:3], (top, left, flip)))
    factor = bright[3]
    assert 1 - share <= factor.min() < 1 - share + 0.001
    assert 1 + share - 0.001 < factor.max() <= 1 + share
    assert factor.mean() == pytest.approx(1, abs=0.005)
    assert factor.var() == pytest.approx((2 * share) ** 2 / 12, rel=0.03)


@pytest.mark.parametrize(("side", "crop", "padding"), [(4, 5, 0), (4, 9, 2), (4, 5, 1)])
def test_a_crop_larger_than_the_image_is_refused(side: int, crop: int, padding: int) -> None:
    with pytest.raises(BadInput, match=f"crop = {crop}"):
        transform(crop, padding).draw(1, side, torch.Generator())


def resized_levels(images: Tensor, size: int) -> "np.ndarray":
    resize = Transform(MEAN, STD, crop=size, resize=size)
    return resize.pixels(resize.test(images)).numpy()


@pytest.mark.parametrize(("side", "size"), [(64, 32), (28, 32), (9, 4), (2, 12)])
def test_the_device_resizes_like_pillow(side: int, size: int) -> None:
    image = random_images(1, side)
    pillow = Image.fromarray(image[0].permute(1, 2, 0).numpy())
    expected = np.asarray(pillow.resize((size, size), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert np.abs(resized_levels(image, size)[0] - expected).max() < 1.01  # Pillow rounds after each axis


def test_images_are_resized_before_they_are_cropped() -> None:
    images = random_images(3, 4)
    top, _, _ = Transform(MEAN, STD, 6, 1, resize=8).draw(200, 4, torch.Generator().manual_seed(0))
    assert (int(top.min()), int(top.max())) == (0, 4)  # 6 of 8 + 2 · 1 pixels
    draw = [torch.tensor([1, 3, 0]), torch.tensor([1, 2, 4]), torch.tensor([False, True, False])]
    large = torch.from_numpy(resized_levels(images, 8)).to(torch.uint8)
    expected = Transform(MEAN, STD, 6, 1).train(large, draw)
    torch.testing.assert_close(Transform(MEAN, STD, 6, 1, resize=8).train(images, draw), expected)


def test_statistics_of_many_images_are_not_those_of_the_first() -> None:
    pixels = torch.zeros(40_000, 3, 1, 1, dtype=torch.uint8)
    pixels[20_000:] = 255
    assert statistics(ImageSet("sorted", pixels, torch.zeros(40_000).long())) == ((0.5,) * 3, (0.5,) * 3)
