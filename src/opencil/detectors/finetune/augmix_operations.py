"""AugMix's image operations (Hendrycks et al. 2020, arXiv 1912.02781), batched on the images' device.

The host groups a batch's images by operation, and each operation computes its group. Rounding is Pillow's:
values are integers between operations, and fractions are truncated. There are no matrix products or
convolutions, which autocast would round to bfloat16. Many steps work in place: on a CPU, allocating memory
for every intermediate result takes longer than the computation.

The rule determines the strength of an operation at a level. ``original`` is the authors' reference: at its
lowest severity colour, contrast, brightness and sharpness fall to a fifth. ``torchvision`` is that library's
AugMix: at its lowest severity only four operations change an image.
"""

from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from opencil.data.images import move_to
from opencil.data.precision import widest
from opencil.detectors.finetune.mixing import beta, dirichlet
from opencil.validation import Bound

#: The reference's operations with its additional ones; the last one pads shorter chains, and is never drawn.
Operation = IntEnum(
    "Operation",
    "AUTOCONTRAST EQUALIZE POSTERIZE ROTATE SOLARIZE SHEAR_X SHEAR_Y TRANSLATE_X TRANSLATE_Y "
    "COLOR CONTRAST BRIGHTNESS SHARPNESS NOTHING",
    start=0,
)

#: The longest chain of a random depth.
LONGEST = 3
#: The lowest level of the rule ``original``, and the severities, which are levels at most.
LOWEST_LEVEL = 0.1
Severity = Annotated[float, Bound(ge=LOWEST_LEVEL, le=10)]
Rule = Literal["torchvision", "original"]


class AugMixDraw(NamedTuple):
    """The random choices for N images, each mixed from ``width`` chains of ``depth`` operations.

    On the CPU: ``operation``, int64 [N, width, depth], values of ``Operation``; ``level``, float64 [N, width,
    depth], the strength, with a sign that rotations, shears and translations use. ``weights``, float32
    [N, width], of the chains, with sum 1; ``strength``, float32 [N], of the chains in the mixed image.
    """

    operation: Tensor
    level: Tensor
    weights: Tensor
    strength: Tensor

    def to(self, device: torch.device) -> "AugMixDraw":
        """Move weights and strengths to a device; the host reads operations and levels."""
        return self._replace(weights=move_to(self.weights, device), strength=move_to(self.strength, device))


def draw(
    count: int, width: int, depth: int, severity: float, alpha: float, rule: Rule, generator: torch.Generator
) -> AugMixDraw:
    """Draw random choices for ``count`` images on the CPU.

    Each of ``width`` chains has ``depth`` operations, or 1 to 3 at random for depth 0. Levels are uniform in
    [0.1, severity), or integers below the severity by torchvision's rule. The weights of the chains are from
    Dirichlet(alpha), and their strength in the mixed image from Beta(alpha, alpha).
    """
    chains = (count, width)
    places = (*chains, depth or LONGEST)
    operation = torch.randint(Operation.NOTHING, places, generator=generator)
    if depth == 0:
        lengths = torch.randint(1, LONGEST + 1, (*chains, 1), generator=generator)
        operation = operation.masked_fill(torch.arange(LONGEST) >= lengths, Operation.NOTHING)
    uniform = torch.rand(places, generator=generator, dtype=torch.float64)
    level = (severity * uniform).floor()
    if rule == "original":
        level = LOWEST_LEVEL + (severity - LOWEST_LEVEL) * uniform
    negative = torch.rand(places, generator=generator) < 0.5
    weights, strength = dirichlet(alpha, chains, generator), beta(alpha, (count,), generator)
    return AugMixDraw(operation, torch.where(negative, -level, level), weights, strength)


def augmix(pixels: Tensor, draw: AugMixDraw, rule: Rule) -> Tensor:
    """Mix images with chains of operations on them: (1 − m)·x + m·Σ_i w_i·chain_i(x).

    ``pixels`` are uint8 or float [B, 3, H, W] with values 0 … 255, on the device of ``draw``. The result is
    float32 [B, 3, H, W] in the same range. Chains start from integers, as in Pillow; by torchvision's rule
    the mixed image is truncated to integers too.
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
    """Apply to each image its own operation.

    ``images`` and the result are integers 0 … 255 as float32 [N, 3, H, W]; ``operation``, int64 [N], and
    ``level``, float64 [N], are on the CPU.
    """
    kinds = _KIND_OF[operation]
    # Numpy sorts bytes by counting, much faster than torch.
    order = torch.from_numpy(np.argsort(kinds.numpy(), kind="stable"))
    counts = torch.bincount(kinds, minlength=len(_KINDS)).tolist()
    numbers = _compute_parameters(operation[order], level[order], rule, *images.shape[-2:])
    table = move_to(numbers.to(widest(images.device)), images.device)
    places = move_to(order, images.device)
    parts = zip(_KINDS, torch.split(images[places], counts), torch.split(table, counts, dim=1), strict=True)
    found = [apply(part, rows) for (apply, _), part, rows in parts if len(part)]
    return torch.empty_like(images).index_copy_(0, places, torch.cat(found))


def _compute_parameters(operation: Tensor, level: Tensor, rule: Rule, height: int, width: int) -> Tensor:
    """Return each image's parameters at its level, float64 [5, N], on the host.

    The first row is the distance between posterised values, the smallest value that solarising inverts, or
    the factor of a blend. For warps (x, y) → (scale·x + b·y + c, d·x + scale·y + f) the rows are scale, b, c,
    d and f. By the reference's rule a level is in tenths of the largest value, rounded down to integers if
    necessary, and factors are between 0.1 and 1.9. By torchvision's rule it is in ninths, and factors start
    at 1, up or down by the sign.
    """
    amount, steps = level.abs(), 10 if rule == "original" else 9
    if rule == "original":
        cleared, threshold = (amount * 4 / 10).floor(), 256 - (amount * 256 / 10).floor()
        factor, degrees = amount * 1.8 / 10 + 0.1, (level * 30 / 10).trunc()
    else:
        cleared, threshold = (amount * 4 / 9).round(), 255 - amount * 255 / 9
        factor, degrees = 1 + level * 0.9 / 9, level * 30 / 9
    angle = degrees.deg2rad() * (operation == Operation.ROTATE)
    cos, sin = angle.cos(), angle.sin()
    # Integer pixels, a third of the side at the highest level.
    shift_x = (level * (width / 3) / steps).trunc() * (operation == Operation.TRANSLATE_X)
    shift_y = (level * (height / 3) / steps).trunc() * (operation == Operation.TRANSLATE_Y)
    shear, middle_x, middle_y = level * 0.3 / steps, width / 2, height / 2
    first = torch.where(operation >= Operation.COLOR, factor, cos)
    first = torch.where(operation == Operation.POSTERIZE, torch.exp2(4 + cleared), first)
    first = torch.where(operation == Operation.SOLARIZE, threshold, first)
    b = shear * (operation == Operation.SHEAR_X) - sin
    c = middle_x - cos * middle_x + sin * middle_y + shift_x
    d = shear * (operation == Operation.SHEAR_Y) + sin
    f = middle_y - sin * middle_x - cos * middle_y + shift_y
    return torch.stack([first, b, c, d, f])


def _stretch(images: Tensor, _: Tensor) -> Tensor:
    """Stretch each channel with several values to the whole range, in float64 as Pillow does."""
    ends = (images.amin(dim=(2, 3), keepdim=True), images.amax(dim=(2, 3), keepdim=True))
    low, high = (end.to(widest(images.device)) for end in ends)
    scale = torch.full_like(low, 255) / (high - low).clamp(min=1)  # 255 / … would multiply by a reciprocal
    stretched = (images * scale).sub_(low * scale).clamp_(0, 255).floor_().float()
    return torch.where(high > low, stretched, images)


def _equalize(images: Tensor, _: Tensor) -> Tensor:
    """Replace each channel's values by the share of darker pixels."""
    values = images.long().flatten(2)
    # Integer sums do not depend on their order. Float32 counts exactly up to 2^24 pixels.
    histogram = torch.zeros(*values.shape[:2], 256, dtype=torch.int32, device=values.device)
    histogram.scatter_add_(2, values, histogram.new_ones(1).expand_as(values))
    below = histogram.cumsum(dim=2, dtype=torch.float32).sub_(histogram)
    step = (values.shape[2] - histogram.gather(2, values.amax(dim=2, keepdim=True))) // 255
    table = below.add_(step // 2).div_(step.clamp(min=1)).floor_().clamp_(max=255)
    return torch.where(step > 0, table.gather(2, values), images.flatten(2)).view_as(images)


def _posterize(images: Tensor, numbers: Tensor) -> Tensor:
    """Clear the last bits of values."""
    step = _each(numbers[0]).float()
    return (images / step).floor_().mul_(step)


def _solarize(images: Tensor, numbers: Tensor) -> Tensor:
    """Invert bright values."""
    return torch.where(images >= _each(numbers[0]), 255 - images, images)


def _warp(images: Tensor, numbers: Tensor) -> Tensor:
    """Warp each image by its affine map, with bilinear interpolation, black outside.

    A map leads from the centre of a pixel of the result, at +0.5, to a position in the image:
    (x, y) → (a·x + b·y + c, d·x + e·y + f). Positions are in float64 as in Pillow: rounding across a pixel's
    centre would change the truncated result.
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

    # With a replicated border every position inside has four neighbours, reachable from one index.
    around = F.pad(images, (1, 1, 1, 1), mode="replicate").flatten(2)
    line = width + 2
    place = top.add_(1).mul_(line).add_(left).add_(1).long().flatten(1)
    index = place[:, None].expand(-1, images.shape[1], -1)
    upper = around.gather(2, index).lerp_(around[..., 1:].gather(2, index), along)
    lower = around[..., line:].gather(2, index).lerp_(around[..., line + 1 :].gather(2, index), along)
    return upper.lerp_(lower, down).floor_().mul_(inside.flatten(1)[:, None]).view_as(images)


def _before(place: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the last pixel whose centre is not after a position, and the distance from it, [N, 1, H·W]."""
    place = place - 0.5
    pixel = place.floor()
    share = place.sub_(pixel).float().flatten(1)[:, None]
    return pixel.clamp_(-1, size - 1), share  # only changes positions outside the image


def _mean_gray(images: Tensor) -> Tensor:
    """Return the mean luma of each image, rounded, [N, 1, 1, 1]."""
    mean = _gray(images).mean(dim=(2, 3), keepdim=True, dtype=widest(images.device))
    return (mean + 0.5).floor().float()


def _blend(degenerate: Callable[[Tensor], Tensor], images: Tensor, numbers: Tensor) -> Tensor:
    """Interpolate from a degenerate image (factor 0) to the image (factor 1), or extrapolate, to 0 … 255."""
    factor, origin = _each(numbers[0]).float(), degenerate(images)
    return (images - origin).mul_(factor).add_(origin).clamp_(0, 255).floor_()


def _each(numbers: Tensor) -> Tensor:
    """Return a number for each image as [N, 1, 1, 1]."""
    return numbers[:, None, None, None]


def _gray(images: Tensor) -> Tensor:
    """Return the luma [N, 1, H, W] by ITU-R 601-2 in 16-bit fractions, with sums exact in float32."""
    red, green, blue = images.unbind(dim=1)
    return ((19595 * red + 38470 * green + 7471 * blue + 32768) / 65536).floor()[:, None]


def _smooth(images: Tensor) -> Tensor:
    """Apply Pillow's SMOOTH: a mean of 3 × 3 pixels with weight 5 in the middle, except at the border."""
    middle = images[:, :, 1:-1, 1:-1]
    columns = (images[:, :, :-2] + images[:, :, 1:-1]).add_(images[:, :, 2:])
    square = (columns[..., :-2] + columns[..., 1:-1]).add_(columns[..., 2:]).add_(middle, alpha=4)
    smooth = images.clone()
    smooth[:, :, 1:-1, 1:-1] = square.add_(6.5).div_(13).floor_()  # + 6.5: round to nearest
    return smooth


_O = Operation
#: Operations with one implementation: a function of images [N, 3, H, W] and their parameters [5, N].
_KINDS: list[tuple[Callable[[Tensor, Tensor], Tensor], list[Operation]]] = [
    (_stretch, [_O.AUTOCONTRAST]),
    (_equalize, [_O.EQUALIZE]),
    (_posterize, [_O.POSTERIZE]),
    (_solarize, [_O.SOLARIZE]),
    (_warp, [_O.ROTATE, _O.SHEAR_X, _O.SHEAR_Y, _O.TRANSLATE_X, _O.TRANSLATE_Y]),
    (partial(_blend, _gray), [_O.COLOR]),
    (partial(_blend, _mean_gray), [_O.CONTRAST]),
    (partial(_blend, lambda images: images.new_zeros(())), [_O.BRIGHTNESS]),
    (partial(_blend, _smooth), [_O.SHARPNESS]),
    (lambda images, _: images, [_O.NOTHING]),
]
_KIND_OF = torch.tensor(
    [next(i for i, (_, same) in enumerate(_KINDS) if kind in same) for kind in Operation], dtype=torch.uint8
)
