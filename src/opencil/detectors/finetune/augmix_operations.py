"""AugMix's image operations (Hendrycks et al. 2020, arXiv 1912.02781), batched on the images' device.

The reference implementation calls Pillow for one image after another. Here every image of a batch has an
operation of its own: the host, which has drawn them, puts images with the same one side by side, and each
operation computes its own images alone. Roundings are Pillow's: values stay whole between operations, and
fractions are cut off. Nothing here is a product of matrices or a convolution, which autocast would round to
bfloat16. Many steps work in place: with new memory for every intermediate result, a CPU spends more time on
getting pages than on computing.

How strong an operation is at a level is a matter of the rule. ``original`` is the authors' reference; at its
lowest severity colour, contrast, brightness and sharpness fall to a fifth. ``torchvision`` is what that
library's AugMix made of it; at its lowest severity all but four operations leave an image as it is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from opencil.data.images import moved
from opencil.data.precision import widest
from opencil.detectors.finetune.mixing import beta, dirichlet
from opencil.errors import BadInput


class Operation(IntEnum):
    """What is done to an image: the reference's list with its extra operations, and nothing."""

    AUTOCONTRAST = 0
    EQUALIZE = 1
    POSTERIZE = 2
    ROTATE = 3
    SOLARIZE = 4
    SHEAR_X = 5
    SHEAR_Y = 6
    TRANSLATE_X = 7
    TRANSLATE_Y = 8
    COLOR = 9
    CONTRAST = 10
    BRIGHTNESS = 11
    SHARPNESS = 12
    NOTHING = 13  # fills up a chain that is shorter than others; never drawn as an operation


#: The depth that stands for a random one, and the longest chain that it gives.
RANDOM_DEPTH, LONGEST = 0, 3

#: Severities are at most FULL_LEVEL; LOWEST_LEVEL is where levels start under the rule ``original``.
FULL_LEVEL, LOWEST_LEVEL = 10.0, 0.1

Rule = Literal["torchvision", "original"]


@dataclass(frozen=True)
class AugMixDraw:
    """The random choices for N images, each mixed from ``width`` chains of ``depth`` operations.

    On the CPU: ``operation``, int64 [N, width, depth], values of ``Operation``; ``level``, float64 [N, width,
    depth]: how strongly, with a sign that only rotating, shearing and shifting look at. ``weights``, float32
    [N, width]: of the chains, with sum 1. ``strength``, float32 [N]: the chains' share in the mixed image.
    """

    operation: Tensor
    level: Tensor
    weights: Tensor
    strength: Tensor

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The choices, in the order that ``AugMixDraw`` takes them."""
        return self.operation, self.level, self.weights, self.strength

    def __getitem__(self, rows: slice) -> "AugMixDraw":
        return AugMixDraw(*(tensor[rows] for tensor in self.tensors))

    def to(self, device: torch.device) -> "AugMixDraw":
        """The same choices on a device, but for the operations and their levels, which the host reads."""
        return AugMixDraw(
            self.operation, self.level, moved(self.weights, device), moved(self.strength, device)
        )


def draw(
    count: int, width: int, depth: int, severity: float, alpha: float, rule: Rule, generator: torch.Generator
) -> AugMixDraw:
    """Random choices for ``count`` images, drawn on the CPU.

    ``depth`` operations in each of ``width`` chains, or 1 to 3 by chance in each where it is 0; levels are
    uniform in [0.1, severity), or whole numbers below the severity by torchvision's rule; the weights of the
    chains come from Dirichlet(alpha), and their share in the mixed image from Beta(alpha, alpha).
    """
    _check(width, depth, severity, alpha, rule)
    chains = (count, width)
    places = (*chains, LONGEST if depth == RANDOM_DEPTH else depth)
    operation = torch.randint(Operation.NOTHING, places, generator=generator)
    if depth == RANDOM_DEPTH:
        lengths = torch.randint(1, LONGEST + 1, (*chains, 1), generator=generator)
        operation = operation.masked_fill(torch.arange(LONGEST) >= lengths, Operation.NOTHING)
    uniform = torch.rand(places, generator=generator, dtype=torch.float64)
    level = (
        LOWEST_LEVEL + (severity - LOWEST_LEVEL) * uniform
        if rule == "original"
        else (severity * uniform).floor()
    )
    negative = torch.rand(places, generator=generator) < 0.5
    weights, strength = dirichlet(alpha, chains, generator), beta(alpha, (count,), generator)
    return AugMixDraw(operation, torch.where(negative, -level, level), weights, strength)


def augmix(pixels: Tensor, draw: AugMixDraw, rule: Rule) -> Tensor:
    """Images mixed with chains of operations on them: (1 − m)·x + m·Σ_i w_i·chain_i(x).

    ``pixels``: uint8 or float [B, 3, H, W] with values 0 … 255; ``draw`` is for their device. Gives
    float32 [B, 3, H, W] in the same range. A chain starts from whole values, as Pillow's images have; by
    torchvision's rule the mixed image is cut off to whole values too.
    """
    clean = pixels.float()
    count, width, depth = draw.operation.shape
    whole = clean.clamp(0, 255).floor()
    chains = whole[:, None].expand(-1, width, -1, -1, -1).flatten(0, 1)
    for place in range(depth):
        chains = operate(
            chains, draw.operation[:, :, place].flatten(), draw.level[:, :, place].flatten(), rule
        )
    weights = draw.weights[:, :, None, None, None]
    mixed = (weights * chains.view(count, width, *clean.shape[1:])).sum(dim=1)
    strength = draw.strength[:, None, None, None]
    mixed = (1 - strength) * clean + strength * mixed
    return mixed if rule == "original" else mixed.floor()


def operate(images: Tensor, operation: Tensor, level: Tensor, rule: Rule) -> Tensor:
    """One operation on each image, which may be another one for every image.

    ``images``: whole values 0 … 255 as float32 [N, 3, H, W], which is also what comes out; ``operation``,
    int64 [N], and ``level``, float64 [N], on the CPU.
    """
    kinds = _KIND_OF[operation]
    # Numpy sorts single bytes by counting them, many times as fast as torch.
    order = torch.from_numpy(np.argsort(kinds.numpy(), kind="stable"))
    counts = torch.bincount(kinds, minlength=len(_KINDS)).tolist()
    meaning = _Meaning(rule, *images.shape[-2:])
    numbers = torch.zeros(_MOST_NUMBERS, len(order), dtype=torch.float64)
    groups = zip(torch.split(operation[order], counts), torch.split(level[order], counts), strict=True)
    for kind, (of_kind, levels), rows in zip(
        _KINDS, groups, torch.split(numbers, counts, dim=1), strict=True
    ):
        for row, values in zip(rows, kind.numbers(meaning, of_kind, levels), strict=False):
            row.copy_(values)
    places = moved(order, images.device)
    table = moved(numbers.to(widest(images.device)), images.device)
    parts = zip(_KINDS, torch.split(images[places], counts), torch.split(table, counts, dim=1), strict=True)
    found = [kind.computed(part, rows) for kind, part, rows in parts if len(part)]
    return torch.empty_like(images).index_copy_(0, places, torch.cat(found)) if found else images


@dataclass(frozen=True)
class _Meaning:
    """What levels mean, on the host; each method gives numbers of N images, float64 [N], for a function.

    By the reference a level is so many tenths of the largest value, which is rounded down where it must be
    whole, and sets the factor of blends between 0.1 and 1.9; by torchvision's rule it is so many ninths, and
    sets the factor from 1 on, up or down by its sign.
    """

    rule: Rule
    height: int
    width: int

    def nothing(self, _: Tensor, __: Tensor) -> tuple[Tensor, ...]:
        """Of functions that have no strength."""
        return ()

    def steps(self, _: Tensor, level: Tensor) -> tuple[Tensor, ...]:
        """Between the values that posterising leaves."""
        amount = level.abs()
        cleared = (amount * 4 / 10).floor() if self.rule == "original" else (amount * 4 / 9).round()
        return (torch.exp2(4 + cleared),)

    def thresholds(self, _: Tensor, level: Tensor) -> tuple[Tensor, ...]:
        """From which on solarising inverts."""
        amount = level.abs()
        if self.rule == "original":
            return (256 - (amount * 256 / 10).floor(),)
        return (255 - amount * 255 / 9,)

    def factors(self, _: Tensor, level: Tensor) -> tuple[Tensor, ...]:
        """Of blends."""
        return (level.abs() * 1.8 / 10 + 0.1 if self.rule == "original" else 1 + level * 0.9 / 9,)

    def maps(self, operation: Tensor, level: Tensor) -> tuple[Tensor, ...]:
        """Of warps, (x, y) → (scale·x + b·y + c, d·x + scale·y + f): scale, b, c, d and f."""
        steps = 10 if self.rule == "original" else 9
        degrees = (level * 30 / 10).trunc() if self.rule == "original" else level * 30 / 9
        angle = degrees.deg2rad() * (operation == Operation.ROTATE)
        cos, sin = angle.cos(), angle.sin()
        # Whole pixels, a third of the side at the highest level.
        shift_x = (level * (self.width / 3) / steps).trunc() * (operation == Operation.TRANSLATE_X)
        shift_y = (level * (self.height / 3) / steps).trunc() * (operation == Operation.TRANSLATE_Y)
        shear, middle_x, middle_y = level * 0.3 / steps, self.width / 2, self.height / 2
        return (
            cos,
            shear * (operation == Operation.SHEAR_X) - sin,
            middle_x - cos * middle_x + sin * middle_y + shift_x,
            shear * (operation == Operation.SHEAR_Y) + sin,
            middle_y - sin * middle_x - cos * middle_y + shift_y,
        )


def _check(width: int, depth: int, severity: float, alpha: float, rule: Rule) -> None:
    if width < 1:
        raise BadInput(f"AugMix's width = {width} is not allowed: it must be 1 or more")
    if depth < RANDOM_DEPTH:
        raise BadInput(
            f"AugMix's depth = {depth} is not allowed: it must be 1 or more, or {RANDOM_DEPTH} for chance"
        )
    if problem := refused_severity(severity, rule):
        raise BadInput(f"AugMix's {problem}")
    if not 0 < alpha < float("inf"):
        raise BadInput(f"AugMix's alpha = {alpha} is not allowed: it must be a number above 0")


def refused_severity(severity: float, rule: Rule) -> str:
    """What is wrong with a severity under a rule; empty where nothing is."""
    if rule == "torchvision" and severity not in range(1, int(FULL_LEVEL) + 1):
        return f"severity = {severity} is not allowed: torchvision's rule has 1, 2, … {FULL_LEVEL:g}"
    if not LOWEST_LEVEL <= severity <= FULL_LEVEL:
        return f"severity = {severity} is not allowed: it must be from {LOWEST_LEVEL} to {FULL_LEVEL:g}"
    return ""


# --- each channel by itself: autocontrast and equalize ------------------------------------------------------


def _stretched(images: Tensor, _: Tensor) -> Tensor:
    """Each channel's values over the whole range, unless it has but one.

    Pillow stretches in double precision; float32 would be cut off elsewhere.
    """
    ends = (images.amin(dim=(2, 3), keepdim=True), images.amax(dim=(2, 3), keepdim=True))
    low, high = (end.to(widest(images.device)) for end in ends)
    scale = torch.full_like(low, 255) / (high - low).clamp(min=1)  # 255 / … would multiply by a reciprocal
    stretched = (images * scale).sub_(low * scale).clamp_(0, 255).floor_().float()
    return torch.where(high > low, stretched, images)


def _equalized(images: Tensor, _: Tensor) -> Tensor:
    """Each channel's values by the share of pixels that are darker."""
    values = images.long().flatten(2)
    # Sums that need no order. Float32 counts exactly up to 2^24 pixels.
    histogram = torch.zeros(*values.shape[:2], 256, dtype=torch.int32, device=values.device)
    histogram.scatter_add_(2, values, histogram.new_ones(1).expand_as(values))
    below = histogram.cumsum(dim=2, dtype=torch.float32).sub_(histogram)
    step = (values.shape[2] - histogram.gather(2, values.amax(dim=2, keepdim=True))) // 255
    table = below.add_(step // 2).div_(step.clamp(min=1)).floor_().clamp_(max=255)
    return torch.where(step > 0, table.gather(2, values), images.flatten(2)).view_as(images)


# --- each value by itself: posterize and solarize -----------------------------------------------------------


def _posterized(images: Tensor, numbers: Tensor) -> Tensor:
    """Values without their last bits."""
    step = _each(numbers[0]).float()
    return (images / step).floor_().mul_(step)


def _solarized(images: Tensor, numbers: Tensor) -> Tensor:
    """Bright values inverted."""
    return torch.where(images >= _each(numbers[0]), 255 - images, images)


# --- warps: rotate, shear_x, shear_y, translate_x, translate_y ----------------------------------------------


def _warped(images: Tensor, numbers: Tensor) -> Tensor:
    """Each image seen through its affine map, bilinear, black outside.

    A map leads from the centre of a pixel of the result, half a pixel into it, to a place in the image:
    (x, y) → (a·x + b·y + c, d·x + e·y + f). Places are in double precision as Pillow's, since a place just
    left of a pixel's centre and one just right of it are cut off to different values.
    """
    height, width = images.shape[-2:]
    scale, b, c, d, f = numbers
    columns = torch.arange(width, device=images.device, dtype=widest(images.device)) + 0.5
    rows = torch.arange(height, device=images.device, dtype=widest(images.device)) + 0.5
    x = torch.outer(scale, columns)[:, None, :] + (torch.outer(b, rows) + c[:, None])[:, :, None]  # [N, H, W]
    y = torch.outer(d, columns)[:, None, :] + (torch.outer(scale, rows) + f[:, None])[:, :, None]
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    left, along = _before(x, width)
    top, down = _before(y, height)

    # With an image's border repeated, every place inside lies between four pixels; one index leads to all.
    around = F.pad(images, (1, 1, 1, 1), mode="replicate").flatten(2)
    line = width + 2
    place = top.add_(1).mul_(line).add_(left).add_(1).long().flatten(1)
    index = place[:, None].expand(-1, images.shape[1], -1)
    upper = around.gather(2, index).lerp_(around[..., 1:].gather(2, index), along)
    lower = around[..., line:].gather(2, index).lerp_(around[..., line + 1 :].gather(2, index), along)
    return upper.lerp_(lower, down).floor_().mul_(inside.flatten(1)[:, None]).view_as(images)


def _before(place: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The last pixel whose centre is not after a place, and the share of the way to the next, [N, 1, H·W]."""
    place = place - 0.5
    pixel = place.floor()
    share = place.sub_(pixel).float().flatten(1)[:, None]
    return pixel.clamp_(-1, size - 1), share  # only places outside the image are moved


# --- blends: color, contrast, brightness and sharpness -----------------------------------------------------


def _colored(images: Tensor, numbers: Tensor) -> Tensor:
    return _blend(_gray(images), images, numbers)


def _contrasted(images: Tensor, numbers: Tensor) -> Tensor:
    mean = _gray(images).mean(dim=(2, 3), keepdim=True, dtype=widest(images.device))
    return _blend((mean + 0.5).floor().float(), images, numbers)


def _brightened(images: Tensor, numbers: Tensor) -> Tensor:
    return _blend(images.new_zeros(()), images, numbers)


def _sharpened(images: Tensor, numbers: Tensor) -> Tensor:
    return _blend(_smooth(images), images, numbers)


def _blend(degenerate: Tensor, images: Tensor, numbers: Tensor) -> Tensor:
    """From the degenerate image (factor 0) to the image (factor 1) and beyond, to whole values 0 … 255."""
    factor = _each(numbers[0]).float()
    return (images - degenerate).mul_(factor).add_(degenerate).clamp_(0, 255).floor_()


def _each(numbers: Tensor) -> Tensor:
    """A number for each image, [N, 1, 1, 1]."""
    return numbers[:, None, None, None]


def _gray(images: Tensor) -> Tensor:
    """Luma [N, 1, H, W] by ITU-R 601-2 in 16-bit fractions: sums below 2^24, which float32 holds exactly."""
    red, green, blue = images.unbind(dim=1)
    return ((19595 * red + 38470 * green + 7471 * blue + 32768) / 65536).floor()[:, None]


def _smooth(images: Tensor) -> Tensor:
    """Pillow's SMOOTH: a mean of 3 × 3 pixels in which the middle counts five times; the border is left."""
    middle = images[:, :, 1:-1, 1:-1]
    columns = (images[:, :, :-2] + images[:, :, 1:-1]).add_(images[:, :, 2:])
    square = (columns[..., :-2] + columns[..., 1:-1]).add_(columns[..., 2:]).add_(middle, alpha=4)
    smooth = images.clone()
    smooth[:, :, 1:-1, 1:-1] = square.add_(6.5).div_(13).floor_()  # 6.5: to the nearest
    return smooth


@dataclass(frozen=True)
class _Kind:
    """Operations that are computed together: by which function, and what it is to know of their levels."""

    computed: Callable[[Tensor, Tensor], Tensor]  #: of images [N, 3, H, W] and numbers [_MOST_NUMBERS, N]
    numbers: Callable[[_Meaning, Tensor, Tensor], tuple[Tensor, ...]] = _Meaning.nothing


_MOST_NUMBERS = 5
_WARP = _Kind(_warped, _Meaning.maps)
_DONE_BY: dict[Operation, _Kind] = {
    Operation.AUTOCONTRAST: _Kind(_stretched),
    Operation.EQUALIZE: _Kind(_equalized),
    Operation.POSTERIZE: _Kind(_posterized, _Meaning.steps),
    Operation.ROTATE: _WARP,
    Operation.SOLARIZE: _Kind(_solarized, _Meaning.thresholds),
    Operation.SHEAR_X: _WARP,
    Operation.SHEAR_Y: _WARP,
    Operation.TRANSLATE_X: _WARP,
    Operation.TRANSLATE_Y: _WARP,
    Operation.COLOR: _Kind(_colored, _Meaning.factors),
    Operation.CONTRAST: _Kind(_contrasted, _Meaning.factors),
    Operation.BRIGHTNESS: _Kind(_brightened, _Meaning.factors),
    Operation.SHARPNESS: _Kind(_sharpened, _Meaning.factors),
    Operation.NOTHING: _Kind(lambda images, _: images),
}
_KINDS = list(dict.fromkeys(_DONE_BY.values()))
_KIND_OF = torch.tensor([_KINDS.index(_DONE_BY[operation]) for operation in Operation], dtype=torch.uint8)
