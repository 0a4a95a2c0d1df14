"""AugMix's operations against Pillow's own, image by image, and the mixing of their chains."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from opencil.detectors.finetune.augmix_operations import AugMixDraw, Operation, Rule, augmix, draw, operate

OPERATIONS = [operation for operation in Operation if operation is not Operation.NOTHING]
TABLES = {Operation.AUTOCONTRAST, Operation.EQUALIZE, Operation.POSTERIZE, Operation.SOLARIZE}
#: (height, width); among them images in which nothing is left to smooth, and more pixels than table entries.
SIZES = [(32, 32), (8, 8), (20, 13), (13, 20), (1, 5), (2, 2), (48, 64)]


def numbers(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_images(count: int, height: int, width: int, seed: int = 0) -> Tensor:
    """Noise of every contrast, from faint to full: a channel of an image may use 4 values or all 256."""
    pixels = torch.rand(count, 3, height, width, generator=numbers(seed))
    span = torch.randint(4, 257, (count, 3, 1, 1), generator=numbers(seed + 1))
    darkest = (torch.rand(count, 3, 1, 1, generator=numbers(seed + 2)) * (257 - span)).floor()
    return (darkest + pixels * span).floor().clamp(0, 255).to(torch.uint8)


def with_pillow(image: Tensor, operation: int, level: float) -> Tensor:
    """The reference's operation on one uint8 image [3, H, W]; the level has the sign that is random there."""
    height, width = image.shape[1:]
    pil = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
    strength = abs(level)
    factor = float(strength) * 1.8 / 10.0 + 0.1

    def move(*matrix: float) -> Image.Image:
        return pil.transform(
            (width, height), Image.Transform.AFFINE, matrix, resample=Image.Resampling.BILINEAR
        )

    def signed_int(maximum: float) -> int:
        return int(strength * maximum / 10) * (1 if level > 0 else -1)

    shear = float(level) * 0.3 / 10.0
    does: dict[int, Callable[[], Image.Image]] = {
        Operation.AUTOCONTRAST: lambda: ImageOps.autocontrast(pil),
        Operation.EQUALIZE: lambda: ImageOps.equalize(pil),
        Operation.POSTERIZE: lambda: ImageOps.posterize(pil, 4 - int(strength * 4 / 10)),
        Operation.ROTATE: lambda: pil.rotate(signed_int(30), resample=Image.Resampling.BILINEAR),
        Operation.SOLARIZE: lambda: ImageOps.solarize(pil, 256 - int(strength * 256 / 10)),
        Operation.SHEAR_X: lambda: move(1, shear, 0, 0, 1, 0),
        Operation.SHEAR_Y: lambda: move(1, 0, 0, shear, 1, 0),
        Operation.TRANSLATE_X: lambda: move(1, 0, signed_int(width / 3), 0, 1, 0),
        Operation.TRANSLATE_Y: lambda: move(1, 0, 0, 0, 1, signed_int(height / 3)),
        Operation.COLOR: lambda: ImageEnhance.Color(pil).enhance(factor),
        Operation.CONTRAST: lambda: ImageEnhance.Contrast(pil).enhance(factor),
        Operation.BRIGHTNESS: lambda: ImageEnhance.Brightness(pil).enhance(factor),
        Operation.SHARPNESS: lambda: ImageEnhance.Sharpness(pil).enhance(factor),
        Operation.NOTHING: lambda: pil,
    }
    return torch.from_numpy(np.array(does[operation]())).permute(2, 0, 1)


def same_operation(images: Tensor, operation: Operation, level: Tensor, rule: Rule = "original") -> Tensor:
    """The same operation on uint8 images, as uint8; fails where a result is no whole value 0 … 255."""
    result = operate(images.float(), torch.full((len(images),), operation), level, rule)
    assert result.dtype == torch.float32
    whole = result.to(torch.uint8)
    assert torch.equal(whole.float(), result)
    return whole


@settings(max_examples=150)
@given(
    operation=st.sampled_from(OPERATIONS),
    level=st.floats(0.1, 9.99),
    negative=st.booleans(),
    size=st.tuples(st.integers(1, 24), st.integers(1, 24)),
    seed=st.integers(0, 2**32),
)
def test_an_operation_is_pillows_on_any_size(
    operation: Operation, level: float, negative: bool, size: tuple[int, int], seed: int
) -> None:
    level = -level if negative else level
    image = random_images(1, *size, seed=seed)
    result = same_operation(image, operation, torch.tensor([level], dtype=torch.float64))
    difference = (result[0].int() - with_pillow(image[0], operation, level).int()).abs()
    # How many are one level off is not limited: a round level puts many interpolated values on whole numbers.
    assert difference.max() <= (0 if operation in TABLES else 1)


def blended(image: np.ndarray, degenerate: np.ndarray, factor: float) -> np.ndarray:
    """factor · image + (1 − factor) · degenerate as a byte, fractions cut off."""
    # Rounded first: 1.1 · 10 is 11.000000000000002.
    return np.trunc(np.clip(np.round(factor * image + (1 - factor) * degenerate, 4), 0, 255))


def smoothed(image: np.ndarray) -> np.ndarray:
    """Each inner pixel the mean of nine, itself counted five times."""
    result = image.copy()
    for row in range(1, image.shape[1] - 1):
        for column in range(1, image.shape[2] - 1):
            around = image[:, row - 1 : row + 2, column - 1 : column + 2].sum(axis=(1, 2))
            result[:, row, column] = np.round((around + 4 * image[:, row, column]) / 13)
    return result


def stretched(channel: np.ndarray) -> np.ndarray:
    low, high = channel.min(), channel.max()
    return channel if low == high else np.trunc(np.clip((channel - low) * 255 / (high - low), 0, 255))


def equalised(channel: np.ndarray) -> np.ndarray:
    counts = [int((channel == value).sum()) for value in range(256)]
    step = sum([count for count in counts if count][:-1]) // 255
    if step == 0:
        return channel
    table = [min(255, (sum(counts[:value]) + step // 2) // step) for value in range(256)]
    return np.array(table)[channel.astype(int)]


def by_torchvision(image: Tensor, operation: int, level: int) -> Tensor:
    """Return a uint8 image [3, H, W] after an operation of torchvision's AugMix, with its value of a bin."""
    height, width = image.shape[1:]
    pixels, size, sign = image.numpy().astype(float), abs(level), 1 if level >= 0 else -1
    gray = np.trunc(0.2989 * pixels[0] + 0.587 * pixels[1] + 0.114 * pixels[2])
    factor = 1 + sign * np.linspace(0.0, 0.9, 10)[size]
    shear = sign * np.linspace(0.0, 0.3, 10)[size]
    bits = [4, 4, 3, 3, 2, 2, 1, 1, 0, 0][size]
    threshold = np.linspace(255.0, 0.0, 10)[size]
    pil = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())

    def move(*matrix: float) -> np.ndarray:
        moved = pil.transform(
            (width, height), Image.Transform.AFFINE, matrix, resample=Image.Resampling.BILINEAR
        )
        return np.array(moved).transpose(2, 0, 1)

    def shift(side: int) -> int:
        return sign * int(np.linspace(0.0, side / 3.0, 10)[size])

    degrees = sign * np.linspace(0.0, 30.0, 10)[size]
    does: dict[int, Callable[[], np.ndarray]] = {
        Operation.AUTOCONTRAST: lambda: np.stack([stretched(channel) for channel in pixels]),
        Operation.EQUALIZE: lambda: np.stack([equalised(channel) for channel in pixels]),
        Operation.POSTERIZE: lambda: pixels // 2 ** (8 - bits) * 2 ** (8 - bits),
        Operation.ROTATE: lambda: np.array(pil.rotate(degrees, resample=Image.Resampling.BILINEAR)).transpose(
            2, 0, 1
        ),
        Operation.SOLARIZE: lambda: np.where(pixels >= threshold, 255 - pixels, pixels),
        Operation.SHEAR_X: lambda: move(1, shear, 0, 0, 1, 0),
        Operation.SHEAR_Y: lambda: move(1, 0, 0, shear, 1, 0),
        Operation.TRANSLATE_X: lambda: move(1, 0, shift(width), 0, 1, 0),
        Operation.TRANSLATE_Y: lambda: move(1, 0, 0, 0, 1, shift(height)),
        Operation.COLOR: lambda: blended(pixels, gray[None], factor),
        Operation.CONTRAST: lambda: blended(pixels, gray.mean(), factor),
        Operation.BRIGHTNESS: lambda: blended(pixels, np.zeros(()), factor),
        Operation.SHARPNESS: lambda: blended(pixels, smoothed(pixels), factor),
    }
    return torch.from_numpy(does[operation]().astype(np.uint8))


#: Operations that leave an image as it is in the first bin, which is all that severity 1 has.
IDLE = set(OPERATIONS) - TABLES


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name.lower())
def test_an_operation_is_torchvisions_in_every_bin(operation: Operation) -> None:
    bins = [sign * level for level in range(10) for sign in (1, -1)]
    images = random_images(len(bins), 20, 26)
    images[0, :, 0, 0] = 255  # which alone is solarised in the first bin
    result = same_operation(images, operation, torch.tensor(bins, dtype=torch.float64), "torchvision")
    expected = torch.stack([by_torchvision(i, operation, b) for i, b in zip(images, bins, strict=True)])
    difference = (result.int() - expected.int()).abs()
    # Means and greys are rounded once more here, as Pillow does; stretching cuts fractions off elsewhere.
    exact = operation in TABLES - {Operation.AUTOCONTRAST}
    assert difference.max() <= (0 if exact else 1)
    assert torch.equal(result[:2], images[:2]) == (operation in IDLE)


def test_an_images_mixture_is_of_whole_values_by_torchvisions_rule_alone() -> None:
    images = random_images(40, 16, 16)
    choices = draw(40, 3, 0, 1.0, 1.0, "torchvision", numbers())
    result = augmix(images, choices, "torchvision")
    assert torch.equal(result, result.floor())
    original = augmix(images, choices, "original")
    assert not torch.equal(original, original.floor())
    mixed = torch.zeros(images.shape, dtype=torch.float64)
    for row, image in enumerate(images):
        for chain, weight in enumerate(choices.weights[row].tolist()):
            augmented = image
            for operation in choices.operation[row, chain].tolist():
                if operation != Operation.NOTHING:
                    augmented = by_torchvision(augmented, operation, 0)
            mixed[row] += float(choices.strength[row]) * weight * augmented.double()
        mixed[row] += (1 - float(choices.strength[row])) * image.double()
    # Weights of sum 1 make of an unchanged value one that is whole but for rounding: either side is right.
    cut_off = mixed - result
    assert ((cut_off < -1e-3) | (cut_off > 1 + 1e-3)).double().mean() < 2e-3


def naive_augmix(image: Tensor, choices: AugMixDraw, row: int) -> Tensor:
    """One image after the other, one chain after the other, with Pillow."""
    mix = torch.zeros(image.shape, dtype=torch.float64)
    for chain, weight in enumerate(choices.weights[row].tolist()):
        augmented = image
        for operation, level in zip(
            choices.operation[row, chain].tolist(), choices.level[row, chain].tolist(), strict=True
        ):
            augmented = with_pillow(augmented, operation, level)
        mix += weight * augmented.double()
    strength = float(choices.strength[row])
    return (1 - strength) * image.double() + strength * mix


@pytest.mark.parametrize(
    ("width", "depth", "severity"), [(3, 0, 1.0), (3, 0, 10.0), (1, 1, 3.0), (2, 5, 3.0)]
)
def test_augmix_equals_the_naive_loop(width: int, depth: int, severity: float) -> None:
    images = random_images(40, 24, 32)
    choices = draw(40, width, depth, severity, 1.0, "original", numbers())
    result = augmix(images, choices, "original")
    assert result.dtype == torch.float32
    expected = torch.stack([naive_augmix(image, choices, row) for row, image in enumerate(images)])
    difference = (result - expected).abs()
    # A value that is one level off may be spread far by an equalization after it; such values must stay rare.
    assert (difference > 1e-3).double().mean() < 2e-3
    assert difference.mean() < 2e-3


def test_autocast_has_no_effect() -> None:
    images = random_images(12, 10, 14)
    choices = draw(12, 3, 0, 10.0, 1.0, "original", numbers())
    expected = augmix(images, choices, "original")
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(augmix(images, choices, "original"), expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_on_a_gpu_it_is_the_cpus() -> None:
    images, choices = random_images(64, 32, 32), draw(64, 3, 0, 10.0, 1.0, "original", numbers())
    device = torch.device("cuda")
    found = augmix(images.to(device), choices.to(device), "original").cpu()
    difference = (found - augmix(images, choices, "original")).abs()
    assert (difference > 1e-3).double().mean() < 2e-3


@pytest.mark.parametrize("severity", [1.0, 3.0, 10.0])
def test_levels_are_uniform_up_to_the_severity(severity: float) -> None:
    level = draw(4000, 3, 0, severity, 1.0, "original", numbers()).level.abs()
    assert level.dtype == torch.float64
    assert 0.1 <= level.min() < 0.1 + 0.01 * severity
    assert severity * 0.99 < level.max() < severity
    assert level.mean() == pytest.approx((0.1 + severity) / 2, rel=0.02)


def test_a_random_depth_is_1_to_3_in_every_chain() -> None:
    choices = draw(3000, 3, 0, 1.0, 1.0, "original", numbers())
    done = choices.operation != Operation.NOTHING
    lengths = done.sum(dim=2)
    assert torch.equal(done, torch.arange(3) < lengths[:, :, None])  # the operations come first
    for length in (1, 2, 3):
        assert (lengths == length).double().mean() == pytest.approx(1 / 3, abs=0.02)
    assert (lengths[:, 0] != lengths[:, 1]).any()
