"""Augmentation and normalisation, pixel for pixel."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from opencil.data.transforms import Draw, Transform
from opencil.errors import BadInput

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def transform(crop: int = 4, padding: int = 0, flip: bool = True) -> Transform:
    return Transform(MEAN, STD, crop, padding, flip)


def random_images(count: int, side: int, seed: int = 0) -> Tensor:
    pixels = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, side, side), generator=pixels, dtype=torch.uint8)


def naive(image: Tensor, *, top: int, left: int, flip: bool, crop: int, padding: int) -> Tensor:
    """One image, pixel after pixel: zeros outside of it, before normalising."""
    side = image.shape[-1]
    result = torch.empty(3, crop, crop)
    for channel in range(3):
        for row in range(crop):
            for column in range(crop):
                y = top + row - padding
                x = left + (crop - 1 - column if flip else column) - padding
                inside = 0 <= y < side and 0 <= x < side
                value = int(image[channel, y, x]) if inside else 0
                result[channel, row, column] = (value / 255 - MEAN[channel]) / STD[channel]
    return result


@settings(max_examples=40)
@given(data=st.data(), side=st.integers(2, 6), padding=st.integers(0, 3))
def test_train_equals_the_naive_reference(data: st.DataObject, side: int, padding: int) -> None:
    crop = data.draw(st.integers(1, side), label="crop")
    offset = st.integers(0, side + 2 * padding - crop)
    choices = data.draw(st.lists(st.tuples(offset, offset, st.booleans()), min_size=1, max_size=4))
    images = random_images(len(choices), side)
    top, left, flip = zip(*choices, strict=True)
    result = transform(crop, padding).train(
        images, Draw(torch.tensor(top), torch.tensor(left), torch.tensor(flip))
    )
    expected = [
        naive(image, top=y, left=x, flip=f, crop=crop, padding=padding)
        for image, (y, x, f) in zip(images, choices, strict=True)
    ]
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, torch.stack(expected), rtol=0, atol=1e-5)


@settings(max_examples=40)
@given(factors=st.lists(st.floats(0, 2, width=32), min_size=1, max_size=4), flip=st.booleans())
def test_brightness_equals_the_naive_reference(factors: list[float], flip: bool) -> None:
    """Pixels 0 … 255 times a factor, none above 255, before normalising; padding stays black."""
    images = random_images(len(factors), 4)
    zeros = torch.zeros(len(factors), dtype=torch.int64)
    draw = Draw(zeros, zeros, torch.full((len(factors),), flip), torch.tensor(factors))
    result = transform(crop=5, padding=1).train(images, draw)
    for image, factor, made in zip(images, factors, result, strict=True):
        pixels = naive(image, top=0, left=0, flip=flip, crop=5, padding=1)
        for channel in range(3):
            for row in range(5):
                for column in range(5):
                    value = 255 * (float(pixels[channel, row, column]) * STD[channel] + MEAN[channel])
                    brighter = min(255.0, max(0.0, value * factor))
                    expected = (brighter / 255 - MEAN[channel]) / STD[channel]
                    assert float(made[channel, row, column]) == pytest.approx(expected, abs=1e-4)


def test_without_brightness_not_one_number_more_is_drawn() -> None:
    """And with it, crops and flips are the same."""
    generators = [torch.Generator().manual_seed(3) for _ in range(3)]
    top, left = torch.randint(0, 5, (2, 50), generator=generators[0])
    flip = torch.rand(50, generator=generators[0]) < 0.5
    plain = transform(4, padding=2).draw(50, 4, generators[1])
    assert len(plain.tensors) == 3
    assert torch.equal(generators[0].get_state(), generators[1].get_state())
    bright = replace(transform(4, padding=2), brightness=63 / 255).draw(50, 4, generators[2])
    for drawn in (plain, bright):
        assert all(map(torch.equal, drawn.tensors[:3], (top, left, flip)))
    assert not torch.equal(generators[2].get_state(), generators[1].get_state())


def test_brightness_is_uniform_around_1() -> None:
    share = 63 / 255
    draw = replace(transform(), brightness=share).draw(20_000, 4, torch.Generator().manual_seed(0))
    factor = draw.brightness
    assert factor is not None
    assert 1 - share <= factor.min() < 1 - share + 0.001
    assert 1 + share - 0.001 < factor.max() <= 1 + share
    assert factor.mean() == pytest.approx(1, abs=0.005)
    assert factor.var() == pytest.approx((2 * share) ** 2 / 12, rel=0.03)
    part = draw[5:9]
    assert torch.equal(part.brightness, factor[5:9])
    assert torch.equal(Draw(*part.to(torch.device("cpu")).tensors).brightness, factor[5:9])


@pytest.mark.parametrize(("side", "crop"), [(4, 4), (6, 4), (7, 4), (5, 1), (5, 2)])
def test_test_is_a_centre_crop(side: int, crop: int) -> None:
    images = random_images(3, side)
    start = (side - crop) // 2
    expected = [naive(i, top=start, left=start, flip=False, crop=crop, padding=0) for i in images]
    result = transform(crop, padding=2).test(images)  # padding is for training only
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, torch.stack(expected), rtol=0, atol=1e-5)


def test_images_are_not_changed() -> None:
    images = random_images(4, 6)
    before = images.clone()
    crop = transform(4, padding=1)
    crop.train(images, crop.draw(4, 6, torch.Generator()))
    crop.test(images)
    assert torch.equal(images, before)


@pytest.mark.parametrize(("side", "crop", "padding"), [(8, 8, 1), (8, 6, 0), (6, 5, 2), (4, 4, 0)])
def test_draws_reach_every_offset_and_no_other(side: int, crop: int, padding: int) -> None:
    draw = transform(crop, padding).draw(5000, side, torch.Generator().manual_seed(0))
    offsets = range(side + 2 * padding - crop + 1)
    reached = set(zip(draw.top.tolist(), draw.left.tolist(), draw.flip.tolist(), strict=True))
    assert reached == {(y, x, f) for y in offsets for x in offsets for f in (False, True)}


def test_half_of_the_images_are_flipped() -> None:
    flips = transform().draw(10_000, 4, torch.Generator().manual_seed(0)).flip
    assert abs(float(flips.float().mean()) - 0.5) < 0.02  # standard error .005


def test_flipping_can_be_switched_off() -> None:
    assert not transform(flip=False).draw(10_000, 4, torch.Generator().manual_seed(0)).flip.any()


def parts(draw: Draw) -> list[list[int]]:
    return [draw.top.tolist(), draw.left.tolist(), draw.flip.tolist()]


def test_the_same_generator_gives_the_same_draw() -> None:
    def drawn(seed: int) -> list[list[int]]:
        return parts(transform(4, padding=2).draw(20, 4, torch.Generator().manual_seed(seed)))

    first = drawn(1)
    torch.manual_seed(99)  # the global generator must not matter
    assert drawn(1) == first
    assert drawn(2) != first


def test_a_part_of_a_draw_belongs_to_the_same_images() -> None:
    whole = transform(4, padding=2).draw(10, 4, torch.Generator().manual_seed(0))
    assert parts(whole[3:7]) == [part[3:7] for part in parts(whole)]
    assert parts(whole.to(torch.device("cpu"))) == parts(whole)


@pytest.mark.parametrize(("side", "crop", "padding"), [(4, 5, 0), (4, 9, 2)])
def test_a_crop_larger_than_the_padded_image_is_refused(side: int, crop: int, padding: int) -> None:
    with pytest.raises(BadInput, match=f"crop = {crop} is not allowed: images of {side} pixels"):
        transform(crop, padding).draw(1, side, torch.Generator())


def test_a_crop_that_only_the_padding_makes_room_for_is_refused() -> None:
    """The test transform has no padding: it would cut a sliver out of the image."""
    with pytest.raises(BadInput, match="crop = 5 is not allowed: images of 4 pixels allow at most 4"):
        transform(5, padding=1).draw(1, 4, torch.Generator())
