"""Corrupt batches of small images in the standard ways: noise, blur, weather and digital corruptions.

Severities have the values of CIFAR-100-C (Hendrycks and Dietterich, Benchmarking Neural Network Robustness to
Common Corruptions and Perturbations, 2019). Frost is left out, since it needs photographs. Lengths are in
pixels for images of 32; images may have 8 to 64.

A corruption takes images in float64 [N, 3, H, H] from 0 to 1, random numbers, and the values of a severity.
Each image has a random generator of its own, so that the result is the same in any batch and on any device.
"""

import io
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from opencil.errors import BadInput

_SMALLEST, _LARGEST = 8, 64


class Draws:
    """Draw random numbers from a generator for each image of a batch."""

    def __init__(self, generators: "Sequence[np.random.Generator]", device: torch.device) -> None:
        self.generators, self.device = generators, device

    def normal(self, *shape: int) -> Tensor:
        """Draw standard normal numbers [N, *shape]."""
        return self.each(lambda generator: generator.standard_normal(shape))

    def uniform(self, *shape: int) -> Tensor:
        """Draw uniform numbers from 0 to 1 [N, *shape]."""
        return self.each(lambda generator: generator.random(shape))

    def each(self, draw: "Callable[[np.random.Generator], Any]") -> Tensor:
        """Apply ``draw`` to each image's generator and stack the results."""
        return torch.from_numpy(np.stack([draw(g) for g in self.generators])).to(self.device)


Function = Callable[..., Tensor]
#: Corruptions by their file names in CIFAR-100-C: functions, and their values at severities 1 to 5. The order
#: of the names decides which image gets which corruption.
CORRUPTIONS: dict[str, tuple[Function, list[tuple[float, ...]]]] = {}


def _corruption(*values: tuple[float, ...]) -> Callable[[Function], Function]:
    """Add a function to the corruptions; ``values`` are those of each parameter at severities 1 to 5."""

    def add(function: Function) -> Function:
        CORRUPTIONS[function.__name__] = function, list(zip(*values, strict=True))
        return function

    return add


def corrupt_images(
    images: Tensor, name: str, severity: int, generators: "Sequence[np.random.Generator]"
) -> Tensor:
    """Apply a corruption to images, uint8 [N, 3, H, H], with a random generator for each image."""
    side = images.shape[-1]
    if not _SMALLEST <= side <= _LARGEST:
        raise BadInput(
            f"images of {side} pixels cannot be corrupted: the corruptions are those of images of 32 pixels, "
            f"and {_SMALLEST} to {_LARGEST} are allowed"
        )
    function, values = CORRUPTIONS[name]
    changed = function(images.double() / 255, Draws(generators, images.device), *values[severity - 1])
    return (changed.clamp(0, 1) * 255).round().to(torch.uint8)


@_corruption((0.04, 0.06, 0.08, 0.09, 0.10))
def gaussian_noise(x: Tensor, draws: Draws, sigma: float) -> Tensor:
    """Add normal noise."""
    return x + sigma * draws.normal(*x.shape[1:])


@_corruption((500, 250, 100, 75, 50))
def shot_noise(x: Tensor, draws: Draws, photons: float) -> Tensor:
    """Count photons: draw each pixel from a Poisson distribution."""
    rates = iter((x * photons).cpu().numpy())
    return draws.each(lambda generator: generator.poisson(next(rates)).astype(np.float64)) / photons


@_corruption((0.01, 0.02, 0.03, 0.05, 0.07))
def impulse_noise(x: Tensor, draws: Draws, amount: float) -> Tensor:
    """Replace a share of the values by 0 or 1."""
    drawn = draws.uniform(*x.shape[1:])
    return x.masked_fill(drawn < amount / 2, 0).masked_fill(drawn >= 1 - amount / 2, 1)


@_corruption((0.3, 0.4, 0.5, 1, 1.5), (0.4, 0.5, 0.6, 0.2, 0.1))
def defocus_blur(x: Tensor, _: Draws, radius: float, softness: float) -> Tensor:
    """Average over a disk whose edge is softened by a Gaussian of 3 × 3."""
    along = torch.arange(-8.0, 9.0, dtype=torch.float64)
    disk = (along[:, None] ** 2 + along**2 <= radius**2).double()
    edge = _gaussian(torch.arange(-1.0, 2.0, dtype=torch.float64), softness)
    kernel = F.conv2d((disk / disk.sum())[None, None], (edge[:, None] * edge)[None, None], padding=1)
    kernel = kernel[..., 6:11, 6:11].to(x.device)  # radii are at most 1.5
    padded = F.pad(x.flatten(0, 1)[:, None], (2, 2, 2, 2), mode="reflect")
    return F.conv2d(padded, kernel).view_as(x)


@_corruption((0.05, 0.25, 0.4, 0.25, 0.4), (1, 1, 1, 1, 1), (1, 1, 1, 2, 2))
def glass_blur(x: Tensor, draws: Draws, sigma: float, reach: float, rounds: float) -> Tensor:
    """Blur, exchange pixels with neighbours in sequence, and blur again."""
    side, near = x.shape[-1], int(reach)
    places = range(side - near, near, -1)
    order = np.tile(np.arange(side * side), (len(x), 1))
    moves = draws.each(lambda g: g.integers(-near, near, (int(rounds), len(places) ** 2, 2))).cpu().numpy()
    rows = np.arange(len(x))
    for round_ in range(int(rounds)):
        for i, (h, w) in enumerate((h, w) for h in places for w in places):
            here = h * side + w
            there = here + moves[:, round_, i, 0] * side + moves[:, round_, i, 1]
            order[rows, here], order[rows, there] = order[rows, there], order[rows, here]
    index = torch.from_numpy(order).to(x.device)[:, None].expand(-1, 3, -1)
    return _smooth(_smooth(x, sigma).flatten(2).gather(2, index).view_as(x), sigma)


@_corruption((6, 6, 6, 8, 9), (1, 1.5, 2, 2, 2.5))
def motion_blur(x: Tensor, draws: Draws, radius: float, sigma: float) -> Tensor:
    """Blur along a line of a random angle within 45° of the horizontal."""
    return _blur_along(x, radius, sigma, (90 * draws.uniform() - 45).deg2rad())


@_corruption((1.05, 1.10, 1.15, 1.20, 1.25))
def zoom_blur(x: Tensor, _: Draws, largest: float) -> Tensor:
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
def snow(x: Tensor, draws: Draws, *values: float) -> Tensor:
    """Add a layer of flakes in motion, and the same layer rotated by 180°, to a paler image."""
    mean, spread, zoom, threshold, radius, sigma, clear = values
    flakes = _zoom(mean + spread * draws.normal(1, *x.shape[2:]), zoom)
    flakes = flakes.masked_fill(flakes < threshold, 0).clamp(0, 1)
    flakes = _blur_along(flakes, radius, sigma, (90 * draws.uniform() - 135).deg2rad())
    grey = (x * x.new_tensor([0.299, 0.587, 0.114])[:, None, None]).sum(dim=1, keepdim=True)
    pale = clear * x + (1 - clear) * torch.maximum(x, 1.5 * grey + 0.5)
    return pale + flakes + flakes.rot90(2, (2, 3))


@_corruption((0.2, 0.5, 0.75, 1, 1.5), (3, 3, 2.5, 2, 1.75))
def fog(x: Tensor, draws: Draws, strength: float, decay: float) -> Tensor:
    """Add clouds, and darken to the former maximum."""
    brightest = x.amax(dim=(1, 2, 3), keepdim=True)
    side = x.shape[-1]
    fog = _plasma(draws, 2 ** math.ceil(math.log2(side)), decay)[:, None, :side, :side]
    return (x + strength * fog) * brightest / (brightest + strength)


def _plasma(draws: Draws, side: int, decay: float) -> Tensor:
    """Draw periodic clouds [N, side, side] from 0 to 1 by the diamond-square algorithm."""
    clouds = torch.zeros(len(draws.generators), side, side, dtype=torch.float64, device=draws.device)
    step, wobble = side, 100.0

    def rough(mean: Tensor) -> Tensor:
        return mean + wobble**2 * (2 * draws.uniform(*mean.shape[1:]) - 1)

    while step >= 2:
        half = step // 2
        corners = clouds[:, ::step, ::step]
        square = corners + corners.roll(-1, 1)
        square = square + square.roll(-1, 2)
        clouds[:, half::step, half::step] = middles = rough(square / 4)
        rows = middles + middles.roll(1, 1) + corners + corners.roll(-1, 2)
        columns = middles + middles.roll(1, 2) + corners + corners.roll(-1, 1)
        clouds[:, ::step, half::step] = rough(rows / 4)
        clouds[:, half::step, ::step] = rough(columns / 4)
        step, wobble = half, wobble / decay
    clouds = clouds - clouds.amin(dim=(1, 2), keepdim=True)
    return clouds / clouds.amax(dim=(1, 2), keepdim=True)


@_corruption((0.05, 0.1, 0.15, 0.2, 0.3))
def brightness(x: Tensor, _: Draws, added: float) -> Tensor:
    """Increase the value of HSV: hue and saturation stay, so all channels grow by the same factor."""
    value = x.amax(dim=1, keepdim=True)
    brighter = (value + added).clamp(max=1)
    return torch.where(value > 0, x * (brighter / value.clamp(min=1e-12)), brighter)


@_corruption((0.75, 0.5, 0.4, 0.3, 0.15))
def contrast(x: Tensor, _: Draws, share: float) -> Tensor:
    """Move all values towards the mean of their channel."""
    mean = x.mean(dim=(2, 3), keepdim=True)
    return (x - mean) * share + mean


@_corruption((0, 0.05, 0.08, 0.1, 0.1), (0, 0.2, 0.06, 0.04, 0.03), (0.08, 0.07, 0.06, 0.05, 0.03))
def elastic_transform(x: Tensor, draws: Draws, strength: float, sigma: float, corner: float) -> Tensor:
    """Apply an affine map that moves three points by up to ``corner``, then a smooth field of small shifts.

    Values are fractions of the side.
    """
    side = x.shape[-1]
    centre, third = side // 2, side // 3
    low, high = centre - third, centre + third
    points = x.new_tensor([[high, high], [high, low], [low, low]])  # each (x, y)
    moved = points + side * corner * (2 * draws.uniform(3, 2) - 1)
    ones = x.new_ones(len(x), 3, 1)
    # The inverse map, from the moved points to the points, gives the source of each pixel.
    back = torch.linalg.solve(torch.cat([moved, ones], dim=2), points.expand(len(x), 3, 2))
    at = torch.arange(side, dtype=x.dtype, device=x.device)
    y, x_at = torch.meshgrid(at, at, indexing="ij")
    grid = torch.stack([x_at, y, torch.ones_like(y)], dim=2).flatten(0, 1) @ back  # [N, HH, 2]
    image = _sample(x, grid.view(len(x), side, side, 2), skipped=1)
    shifts = 2 * draws.uniform(2, side, side) - 1
    shifts = side * strength * _smooth(shifts, side * sigma, truncate=3, mirrored=True)
    return _sample(image, torch.stack([x_at + shifts[:, 0], y + shifts[:, 1]], dim=3), skipped=0)


@_corruption((0.95, 0.9, 0.85, 0.75, 0.65))
def pixelate(x: Tensor, _: Draws, share: float) -> Tensor:
    """Reduce to fewer pixels, each the mean of the pixels inside it, and enlarge again."""
    side = x.shape[-1]
    small = int(side * share)
    at = torch.arange(small, device=x.device) + 0.5
    centres = torch.arange(side, device=x.device) + 0.5
    low, high = (at - 0.5) * (side / small), (at + 0.5) * (side / small)
    inside = ((centres > low[:, None]) & (centres <= high[:, None])).double()
    inside = inside / inside.sum(dim=1, keepdim=True)
    nearest = (centres * small / side).long().clamp(max=small - 1)
    # Intermediate images are bytes, with halves rounded up, as in the reference.
    narrow = ((255 * x).round() @ inside.T + 0.5).floor()
    coarse = (inside @ narrow + 0.5).floor() / 255
    return coarse[:, :, nearest][:, :, :, nearest]


@_corruption((80, 65, 58, 50, 40))
def jpeg_compression(x: Tensor, _: Draws, quality: float) -> Tensor:
    """Compress to JPEG and decompress again."""
    from PIL import Image

    changed = []
    for pixels in (x * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy():
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=int(quality))
        changed.append(np.asarray(Image.open(file)))
    return torch.from_numpy(np.stack(changed)).to(x.device).permute(0, 3, 1, 2).double() / 255


#: The standard corruptions; those below are extras.
STANDARD = tuple(CORRUPTIONS)


@_corruption((0.06, 0.1, 0.12, 0.16, 0.2))
def speckle_noise(x: Tensor, draws: Draws, sigma: float) -> Tensor:
    """Add normal noise in proportion to the values."""
    return x + x * sigma * draws.normal(*x.shape[1:])


@_corruption((0.4, 0.6, 0.7, 0.8, 1))
def gaussian_blur(x: Tensor, _: Draws, sigma: float) -> Tensor:
    """Smooth by a Gaussian."""
    return _smooth(x, sigma)


def _smooth(x: Tensor, sigma: float, truncate: float = 4, mirrored: bool = False) -> Tensor:
    """Smooth the last two dimensions by a Gaussian cut at ``truncate`` σ; repeat or mirror edge pixels."""
    reach = int(truncate * sigma + 0.5)
    if not reach:
        return x
    kernel = _gaussian(torch.arange(-reach, reach + 1, dtype=x.dtype, device=x.device), sigma)
    side = x.shape[-1]
    at = torch.arange(-reach, side + reach, device=x.device)
    at = _mirror(at, side) if mirrored else at.clamp(0, side - 1)
    rows = F.conv2d(x.flatten(0, 1)[:, None][:, :, at], kernel[None, None, :, None])
    return F.conv2d(rows[:, :, :, at], kernel[None, None, None]).view_as(x)


def _gaussian(at: Tensor, sigma: float) -> Tensor:
    """Return Gaussian weights of positions, with sum 1."""
    weights = torch.exp(-(at**2) / (2 * sigma**2))
    return weights / weights.sum()


def _mirror(at: Tensor, side: int, skipped: int = 0) -> Tensor:
    """Reflect positions at the image's edges: −1 is 0, or 1 if the edge pixel is ``skipped`` (1)."""
    at = at.remainder(2 * (side - skipped))
    return torch.where(at >= side, 2 * side - 1 - skipped - at, at)


def _blur_along(x: Tensor, radius: float, sigma: float, angle: Tensor) -> Tensor:
    """Average along a line of each image's angle [N] with one-sided Gaussian weights; edge pixels repeat."""
    width, side = 2 * int(radius) + 1, x.shape[-1]
    along = torch.arange(width, dtype=x.dtype, device=x.device)
    pixels = torch.arange(side, device=x.device)
    moved = torch.zeros_like(x)
    channels = torch.arange(x.shape[1], device=x.device)[None, :, None, None]
    images = torch.arange(len(x), device=x.device)[:, None, None, None]
    for i, weight in enumerate(_gaussian(along, sigma)):
        right = (i * angle.cos() - 0.5).ceil().long()[:, None, None, None]
        down = (i * angle.sin() - 0.5).ceil().long()[:, None, None, None]
        rows = (pixels[:, None] + down).clamp(0, side - 1)
        columns = (pixels + right).clamp(0, side - 1)
        moved = moved + weight * x[images, channels, rows, columns]
    return moved


def _zoom(x: Tensor, zoom: float) -> Tensor:
    """Enlarge the centre of the images linearly to their size."""
    side = x.shape[-1]
    part = math.ceil(side / zoom)
    top = (side - part) // 2
    size = round(part * zoom)
    cut = x[:, :, top : top + part, top : top + part]
    large = F.interpolate(cut, size=(size, size), mode="bilinear", align_corners=True)
    trim = (size - side) // 2
    return large[:, :, trim : trim + side, trim : trim + side]


def _sample(x: Tensor, at: Tensor, skipped: int) -> Tensor:
    """Sample images at positions (x, y) [N, H, W, 2], linearly between pixels and mirrored at the edges."""
    side = x.shape[-1]
    low = at.floor()
    part = at - low
    images = torch.arange(len(x), device=x.device)[:, None, None]
    found = torch.zeros_like(x)
    for right in (0, 1):
        for down in (0, 1):
            place = _mirror(low.long() + torch.tensor([right, down], device=x.device), side, skipped)
            share_x = part[..., 0] if right else 1 - part[..., 0]
            share_y = part[..., 1] if down else 1 - part[..., 1]
            pixels = x[images, :, place[..., 1], place[..., 0]].permute(0, 3, 1, 2)
            found = found + (share_x * share_y)[:, None] * pixels
    return found
