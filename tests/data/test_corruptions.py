"""Compare each corruption with a naive reference, and check properties of all."""

import io
import math

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage

from opencil.data.corruptions import CORRUPTIONS, corrupt_images
from opencil.errors import BadInput

Array = np.ndarray
SIDE = 32


def generators(count: int) -> list[np.random.Generator]:
    return [np.random.default_rng([3, i]) for i in range(count)]


def pictures(count: int = 3, side: int = SIDE) -> Array:
    """Return smooth random images with black and white corners."""
    noise = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (count, 3, side // 4, side // 4)))
    images = torch.nn.functional.interpolate(noise.double(), size=(side, side), mode="bicubic").clamp(0, 255)
    images[:, :, :3, :3] = 0
    images[:, :, -3:, -3:] = 255
    return images.round().to(torch.uint8).numpy()


def smooth(x: Array, sigma: float) -> Array:
    return np.stack([ndimage.gaussian_filter(c, sigma, mode="nearest", truncate=4) for c in x])


def gaussian_noise(x: Array, g: np.random.Generator, sigma: float) -> Array:
    return x + sigma * g.standard_normal(x.shape)


def shot_noise(x: Array, g: np.random.Generator, photons: float) -> Array:
    return g.poisson(x * photons) / photons


def impulse_noise(x: Array, g: np.random.Generator, amount: float) -> Array:
    drawn, out = g.random(x.shape), x.copy()
    out[drawn < amount / 2] = 0
    out[drawn >= 1 - amount / 2] = 1
    return out


def speckle_noise(x: Array, g: np.random.Generator, sigma: float) -> Array:
    return x * (1 + sigma * g.standard_normal(x.shape))


def gaussian_blur(x: Array, _: np.random.Generator, sigma: float) -> Array:
    return smooth(x, sigma)


def glass_blur(x: Array, g: np.random.Generator, sigma: float, reach: int, rounds: int) -> Array:
    x = smooth(x, sigma)
    places = [(h, w) for h in range(SIDE - reach, reach, -1) for w in range(SIDE - reach, reach, -1)]
    moves = g.integers(-reach, reach, (rounds, len(places), 2))
    for turn in range(rounds):
        for (h, w), (dy, dx) in zip(places, moves[turn], strict=True):
            kept = x[:, h, w].copy()
            x[:, h, w] = x[:, h + dy, w + dx]
            x[:, h + dy, w + dx] = kept
    return smooth(x, sigma)


def defocus_blur(x: Array, _: np.random.Generator, radius: float, softness: float) -> Array:
    y, z = np.mgrid[-8:9, -8:9]
    disk = (y**2 + z**2 <= radius**2).astype(float)
    edge = np.exp(-(np.arange(-1, 2) ** 2) / (2 * softness**2))
    edge /= edge.sum()
    kernel = ndimage.convolve(disk / disk.sum(), np.outer(edge, edge), mode="constant")
    return np.stack([ndimage.correlate(c, kernel, mode="mirror") for c in x])


def in_motion(x: Array, radius: float, sigma: float, angle: float) -> Array:
    weights = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(2 * int(radius) + 1)]
    out = np.zeros_like(x)
    for h in range(SIDE):
        for w in range(SIDE):
            for i, weight in enumerate(weights):
                down = min(max(h + math.ceil(i * math.sin(angle) - 0.5), 0), SIDE - 1)
                right = min(max(w + math.ceil(i * math.cos(angle) - 0.5), 0), SIDE - 1)
                out[:, h, w] += weight / sum(weights) * x[:, down, right]
    return out


def motion_blur(x: Array, g: np.random.Generator, radius: float, sigma: float) -> Array:
    return in_motion(x, radius, sigma, math.radians(90 * g.random(()) - 45))


def zoomed(x: Array, zoom: float) -> Array:
    part = math.ceil(SIDE / zoom)
    top = (SIDE - part) // 2
    large = np.stack([ndimage.zoom(c[top : top + part, top : top + part], zoom, order=1) for c in x])
    trim = (large.shape[1] - SIDE) // 2
    return large[:, trim : trim + SIDE, trim : trim + SIDE]


def zoom_blur(x: Array, _: np.random.Generator, largest: float) -> Array:
    zooms = np.arange(1, largest + 0.005, 0.01)
    return (x + sum(zoomed(x, z) for z in zooms)) / (len(zooms) + 1)


def snow(x: Array, g: np.random.Generator, *c: float) -> Array:
    flakes = zoomed(c[0] + c[1] * g.standard_normal((1, SIDE, SIDE)), c[2])
    flakes[flakes < c[3]] = 0
    flakes = in_motion(np.clip(flakes, 0, 1), c[4], c[5], math.radians(90 * g.random(()) - 135))
    grey = 0.299 * x[0] + 0.587 * x[1] + 0.114 * x[2]
    return c[6] * x + (1 - c[6]) * np.maximum(x, 1.5 * grey + 0.5) + flakes + flakes[:, ::-1, ::-1]


def plasma(g: np.random.Generator, decay: float, side: int = SIDE) -> Array:
    """Compute the diamond-square algorithm on a torus, point by point."""
    at = np.zeros((side, side))
    step, wobble = side, 100.0
    while step >= 2:
        half, many = step // 2, side // step
        sets = [
            ([(half, half)], [(-half, -half), (half, -half), (-half, half), (half, half)]),
            ([(0, half)], [(0, -half), (0, half), (-half, 0), (half, 0)]),
            ([(half, 0)], [(0, -half), (0, half), (-half, 0), (half, 0)]),
        ]
        drawn = [2 * g.random((many, many)) - 1 for _ in sets]
        for ((start,), around), noise in zip(sets, drawn, strict=True):
            for i in range(many):
                for j in range(many):
                    y, x = start[0] + i * step, start[1] + j * step
                    mean = sum(at[(y + dy) % side, (x + dx) % side] for dy, dx in around) / 4
                    at[y, x] = mean + wobble**2 * noise[i, j]
        step, wobble = half, wobble / decay
    at -= at.min()
    return at / at.max()


def fog(x: Array, g: np.random.Generator, strength: float, decay: float) -> Array:
    return (x + strength * plasma(g, decay)) * x.max() / (x.max() + strength)


def brightness(x: Array, _: np.random.Generator, added: float) -> Array:
    import colorsys

    out = np.empty_like(x)
    for h in range(SIDE):
        for w in range(SIDE):
            hue, saturation, value = colorsys.rgb_to_hsv(*x[:, h, w])
            out[:, h, w] = colorsys.hsv_to_rgb(hue, saturation, min(value + added, 1))
    return out


def contrast(x: Array, _: np.random.Generator, share: float) -> Array:
    mean = x.mean(axis=(1, 2), keepdims=True)
    return (x - mean) * share + mean


def elastic_transform(
    x: Array, g: np.random.Generator, strength: float, sigma: float, corner: float
) -> Array:
    middle, third = SIDE // 2, SIDE // 3
    points = np.array([[middle + third] * 2, [middle + third, middle - third], [middle - third] * 2], float)
    moved = points + SIDE * corner * (2 * g.random((3, 2)) - 1)
    back = np.linalg.solve(np.c_[moved, np.ones(3)], points)
    ys, xs = np.mgrid[:SIDE, :SIDE].astype(float)
    source = np.stack([xs, ys, np.ones_like(xs)], axis=-1) @ back
    x = np.stack(
        [ndimage.map_coordinates(c, [source[..., 1], source[..., 0]], order=1, mode="mirror") for c in x]
    )
    shifts = 2 * g.random((2, SIDE, SIDE)) - 1
    if not strength:
        return x
    dx, dy = (
        SIDE * strength * ndimage.gaussian_filter(s, SIDE * sigma, mode="reflect", truncate=3) for s in shifts
    )
    return np.stack([ndimage.map_coordinates(c, [ys + dy, xs + dx], order=1, mode="reflect") for c in x])


def pil(x: Array) -> Image.Image:
    return Image.fromarray((x.transpose(1, 2, 0) * 255).round().astype(np.uint8))


def pixelate(x: Array, _: np.random.Generator, share: float) -> Array:
    small = (int(SIDE * share),) * 2
    out = pil(x).resize(small, Image.Resampling.BOX).resize((SIDE, SIDE), Image.Resampling.BOX)
    return np.asarray(out).transpose(2, 0, 1) / 255


def jpeg_compression(x: Array, _: np.random.Generator, quality: float) -> Array:
    file = io.BytesIO()
    pil(x).save(file, "JPEG", quality=int(quality))
    return np.asarray(Image.open(file)).transpose(2, 0, 1) / 255


@pytest.mark.parametrize("severity", [1, 2, 5])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corruption_is_its_naive_reference(name: str, severity: int) -> None:
    images = pictures(2)
    found = corrupt_images(images, name, severity, generators(2)).astype(int)
    values = CORRUPTIONS[name][1][severity - 1]
    for image, generator, here in zip(images / 255, generators(2), found, strict=True):
        expected = np.clip(globals()[name](image, generator, *values), 0, 1) * 255
        assert np.abs(here - expected).max() <= 0.51


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_an_image_is_the_same_in_any_batch(name: str) -> None:
    images = pictures(3)
    whole = corrupt_images(images, name, 4, generators(3))
    alone = corrupt_images(images[1:2], name, 4, generators(3)[1:2])
    assert np.array_equal(whole[1:2], alone)
    assert not np.array_equal(whole, images)
    for side in (8, 48):
        assert corrupt_images(pictures(1, side), name, 3, generators(1)).shape == (1, 3, side, side)


def test_sizes_that_are_refused() -> None:
    with pytest.raises(BadInput, match="224 pixels"):
        corrupt_images(pictures(1, 224), "contrast", 1, generators(1))
