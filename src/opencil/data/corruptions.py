"""Corrupt small images in the standard ways: noise, blur, weather and digital corruptions.

Severities have the values of CIFAR-100-C (Hendrycks and Dietterich, Benchmarking Neural Network Robustness to
Common Corruptions and Perturbations, 2019). Frost is left out, since it needs photographs. Lengths are in
pixels for images of 32; images may have 8 to 64.

A corruption takes an image in float64 [3, H, H] from 0 to 1, its random generator, and the values of a
severity.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from opencil.data.readers.source import Pixels
from opencil.errors import BadInput

if TYPE_CHECKING:  # imported inside functions: listing datasets stays fast
    from numpy.random import Generator
    from PIL import Image

Array = NDArray[np.float64]
Function = Callable[..., Array]
#: Corruptions by their file names in CIFAR-100-C: functions, and their values at severities 1 to 5. The order
#: of the names decides which image gets which corruption.
CORRUPTIONS: dict[str, tuple[Function, list[tuple[float, ...]]]] = {}


def _corruption(*values: tuple[float, ...]) -> Callable[[Function], Function]:
    """Add a function to the corruptions; ``values`` are those of each parameter at severities 1 to 5."""

    def add(function: Function) -> Function:
        CORRUPTIONS[function.__name__] = function, list(zip(*values, strict=True))
        return function

    return add


def corrupt_images(images: Pixels, name: str, severity: int, generators: Sequence[Generator]) -> Pixels:
    """Apply a corruption to images, uint8 [N, 3, H, H], with a random generator for each image."""
    if not 8 <= (side := images.shape[-1]) <= 64:
        raise BadInput(f"images of {side} pixels cannot be corrupted: 8 to 64 pixels are allowed")
    function, values = CORRUPTIONS[name]
    pairs = zip(images / 255, generators, strict=True)
    changed = np.stack([function(x, generator, *values[severity - 1]) for x, generator in pairs])
    return (changed.clip(0, 1) * 255).round().astype(np.uint8)


@_corruption((0.04, 0.06, 0.08, 0.09, 0.10))
def gaussian_noise(x: Array, generator: Generator, sigma: float) -> Array:
    """Add normal noise."""
    return x + sigma * generator.standard_normal(x.shape)


@_corruption((500, 250, 100, 75, 50))
def shot_noise(x: Array, generator: Generator, photons: float) -> Array:
    """Count photons: draw each pixel from a Poisson distribution."""
    return generator.poisson(x * photons) / photons


@_corruption((0.01, 0.02, 0.03, 0.05, 0.07))
def impulse_noise(x: Array, generator: Generator, amount: float) -> Array:
    """Replace a share of the values by 0 or 1."""
    drawn = generator.random(x.shape)
    return np.where(drawn < amount / 2, 0, np.where(drawn >= 1 - amount / 2, 1, x))


@_corruption((0.3, 0.4, 0.5, 1, 1.5), (0.4, 0.5, 0.6, 0.2, 0.1))
def defocus_blur(x: Array, _: Generator, radius: float, softness: float) -> Array:
    """Average over a disk whose edge is softened by a Gaussian of 3 × 3."""
    from scipy import ndimage

    along = np.arange(-2, 3)  # radii are at most 1.5
    disk = along[:, None] ** 2 + along**2 <= radius**2
    edge = _gaussian(np.arange(-1, 2), softness)
    kernel = ndimage.convolve(disk / disk.sum(), np.outer(edge, edge), mode="constant")
    return np.asarray(ndimage.convolve(x, kernel[None], mode="mirror"))


@_corruption((0.05, 0.25, 0.4, 0.25, 0.4), (1, 1, 1, 1, 1), (1, 1, 1, 2, 2))
def glass_blur(x: Array, generator: Generator, sigma: float, reach: float, rounds: float) -> Array:
    """Blur, exchange pixels with neighbours in sequence, and blur again."""
    side, near = x.shape[-1], int(reach)
    places, order = range(side - near, near, -1), list(range(side * side))
    for moves in generator.integers(-near, near, (int(rounds), len(places) ** 2, 2)).tolist():
        for (h, w), (down, right) in zip(product(places, places), moves, strict=True):
            here, there = h * side + w, (h + down) * side + w + right
            order[here], order[there] = order[there], order[here]
    return _smooth(_smooth(x, sigma).reshape(3, -1)[:, order].reshape(x.shape), sigma)


@_corruption((6, 6, 6, 8, 9), (1, 1.5, 2, 2, 2.5))
def motion_blur(x: Array, generator: Generator, radius: float, sigma: float) -> Array:
    """Blur along a line of a random angle within 45° of the horizontal."""
    return _blur_along(x, radius, sigma, 90 * generator.random() - 45)


@_corruption((1.05, 1.10, 1.15, 1.20, 1.25))
def zoom_blur(x: Array, _: Generator, largest: float) -> Array:
    """Average the image and zooms into it by 1.00, 1.01, … ``largest``."""
    zooms = np.arange(1, largest + 0.005, 0.01).tolist()
    return (x + sum(_zoom(x, zoom) for zoom in zooms)) / (len(zooms) + 1)


@_corruption(
    (0.1, 0.1, 0.15, 0.25, 0.3),
    (0.2, 0.2, 0.3, 0.3, 0.3),
    (1, 1, 1.75, 2.25, 1.25),
    (0.6, 0.5, 0.55, 0.6, 0.65),
    (8, 10, 10, 12, 14),
    (3, 4, 4, 6, 12),
    (0.95, 0.9, 0.9, 0.85, 0.8),
)
def snow(x: Array, generator: Generator, *values: float) -> Array:
    """Add a layer of flakes in motion, and the same layer rotated by 180°, to a paler image."""
    mean, spread, zoom, threshold, radius, sigma, clear = values
    flakes = _zoom(mean + spread * generator.standard_normal((1, *x.shape[1:])), zoom)
    flakes = np.where(flakes < threshold, 0, flakes).clip(0, 1)
    flakes = _blur_along(flakes, radius, sigma, 90 * generator.random() - 135)
    grey = 0.299 * x[0] + 0.587 * x[1] + 0.114 * x[2]
    pale: Array = clear * x + (1 - clear) * np.maximum(x, 1.5 * grey + 0.5)
    return pale + flakes + flakes[:, ::-1, ::-1]


@_corruption((0.2, 0.5, 0.75, 1, 1.5), (3, 3, 2.5, 2, 1.75))
def fog(x: Array, generator: Generator, strength: float, decay: float) -> Array:
    """Add clouds, and darken to the former maximum."""
    side, brightest = x.shape[-1], float(x.max())
    clouds = _plasma(generator, 2 ** math.ceil(math.log2(side)), decay)[:side, :side]
    return (x + strength * clouds) * brightest / (brightest + strength)


def _plasma(generator: Generator, side: int, decay: float) -> Array:
    """Draw periodic clouds [side, side] from 0 to 1 by the diamond-square algorithm."""
    clouds, step, wobble = np.zeros((side, side)), side, 100.0

    def rough(mean: Array) -> Array:
        return mean + wobble**2 * (2 * generator.random(mean.shape) - 1)

    while step >= 2:
        half = step // 2
        corners = clouds[::step, ::step]
        square = corners + np.roll(corners, -1, 0)
        square = square + np.roll(square, -1, 1)
        clouds[half::step, half::step] = middles = rough(square / 4)
        rows = middles + np.roll(middles, 1, 0) + corners + np.roll(corners, -1, 1)
        columns = middles + np.roll(middles, 1, 1) + corners + np.roll(corners, -1, 0)
        clouds[::step, half::step] = rough(rows / 4)
        clouds[half::step, ::step] = rough(columns / 4)
        step, wobble = half, wobble / decay
    clouds = clouds - float(clouds.min())
    return clouds / float(clouds.max())


@_corruption((0.05, 0.1, 0.15, 0.2, 0.3))
def brightness(x: Array, _: Generator, added: float) -> Array:
    """Increase the value of HSV: hue and saturation stay, so all channels grow by the same factor."""
    value: Array = x.max(axis=0)
    brighter = (value + added).clip(max=1)
    return np.where(value > 0, x * (brighter / value.clip(min=1e-12)), brighter)


@_corruption((0.75, 0.5, 0.4, 0.3, 0.15))
def contrast(x: Array, _: Generator, share: float) -> Array:
    """Move all values towards the mean of their channel."""
    # NumPy sums in another order: values between two bytes would be rounded differently.
    mean: Array = torch.from_numpy(x).mean(dim=(1, 2), keepdim=True).numpy()
    return (x - mean) * share + mean


@_corruption((0, 0.05, 0.08, 0.1, 0.1), (0, 0.2, 0.06, 0.04, 0.03), (0.08, 0.07, 0.06, 0.05, 0.03))
def elastic_transform(x: Array, generator: Generator, strength: float, sigma: float, corner: float) -> Array:
    """Move three points by up to ``corner`` of the side in an affine map, then add small smooth shifts."""
    side = x.shape[-1]
    low, high = side // 2 - side // 3, side // 2 + side // 3
    points = np.array([[high, high], [low, high], [low, low]])  # each (row, column)
    moved = points + side * corner * (2 * generator.random((3, 2))[:, ::-1] - 1)
    # The inverse map, from the moved points to the points, gives the source of each pixel.
    back = np.linalg.solve(np.column_stack([moved, np.ones(3)]), points)
    at = np.mgrid[:side, :side]  # rows and columns of all pixels
    image = _sample(x, np.tensordot(back[:2].T, at, 1) + back[2][:, None, None], "mirror")
    shifts = 2 * generator.random((2, side, side))[::-1] - 1
    shifts = side * strength * _smooth(shifts, side * sigma, truncate=3, mode="reflect")
    return _sample(image, at + shifts, "reflect")


@_corruption((0.95, 0.9, 0.85, 0.75, 0.65))
def pixelate(x: Array, _: Generator, share: float) -> Array:
    """Reduce to fewer pixels, each the mean of the pixels inside it, and enlarge again."""
    from PIL import Image

    side, box = x.shape[-1], Image.Resampling.BOX
    small = int(side * share)
    return _change_bytes(x, lambda image: image.resize((small, small), box).resize((side, side), box))


@_corruption((80, 65, 58, 50, 40))
def jpeg_compression(x: Array, _: Generator, quality: float) -> Array:
    """Compress to JPEG and decompress again."""
    from PIL import Image

    def compress(image: Image.Image) -> Image.Image:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=int(quality))
        return Image.open(file)

    return _change_bytes(x, compress)


#: The standard corruptions; those below are extras.
STANDARD = tuple(CORRUPTIONS)


@_corruption((0.06, 0.1, 0.12, 0.16, 0.2))
def speckle_noise(x: Array, generator: Generator, sigma: float) -> Array:
    """Add normal noise in proportion to the values."""
    return x + x * sigma * generator.standard_normal(x.shape)


@_corruption((0.4, 0.6, 0.7, 0.8, 1))
def gaussian_blur(x: Array, _: Generator, sigma: float) -> Array:
    """Smooth by a Gaussian."""
    return _smooth(x, sigma)


def _smooth(x: Array, sigma: float, truncate: float = 4, mode: str = "nearest") -> Array:
    """Smooth the last two dimensions by a Gaussian cut at ``truncate`` σ; ``mode`` continues the edges."""
    from scipy import ndimage

    return np.asarray(ndimage.gaussian_filter(x, (0, sigma, sigma), truncate=truncate, mode=mode))


def _gaussian(at: NDArray[Any], sigma: float) -> Array:
    """Return Gaussian weights of positions, with sum 1."""
    weights: Array = np.exp(-(at**2) / (2 * sigma**2))
    return weights / float(weights.sum())


def _blur_along(x: Array, radius: float, sigma: float, degrees: float) -> Array:
    """Average along a line with one-sided Gaussian weights; edge pixels repeat."""
    angle, pixels, moved = math.radians(degrees), np.arange(x.shape[-1]), np.zeros_like(x)
    for i, weight in enumerate(_gaussian(np.arange(2 * int(radius) + 1), sigma)):
        right, down = math.ceil(i * math.cos(angle) - 0.5), math.ceil(i * math.sin(angle) - 0.5)
        rows, columns = ((pixels + by).clip(0, pixels[-1]) for by in (down, right))
        moved += weight * x[:, rows[:, None], columns]
    return moved


def _zoom(x: Array, zoom: float) -> Array:
    """Enlarge the centre of an image linearly to its size."""
    side = x.shape[-1]
    part = math.ceil(side / zoom)
    top = (side - part) // 2
    size = round(part * zoom)
    cut = torch.from_numpy(x[None, :, top : top + part, top : top + part])
    large = F.interpolate(cut, size=(size, size), mode="bilinear", align_corners=True)[0]
    trim = (size - side) // 2
    return large[:, trim : trim + side, trim : trim + side].numpy()


def _sample(x: Array, at: Array, mode: str) -> Array:
    """Sample an image linearly at positions (row, column) [2, H, W]; ``mode`` continues its edges."""
    from scipy import ndimage

    return np.stack([ndimage.map_coordinates(channel, at, order=1, mode=mode) for channel in x])


def _change_bytes(x: Array, change: Callable[[Image.Image], Image.Image]) -> Array:
    """Apply a function of Pillow's images to the bytes of an image."""
    from PIL import Image

    changed = change(Image.fromarray((x * 255).round().astype(np.uint8).transpose(1, 2, 0)))
    return np.asarray(changed).transpose(2, 0, 1) / 255
