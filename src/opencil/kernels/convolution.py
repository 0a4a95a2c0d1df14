"""Triton kernels for 3 × 3 convolutions of narrow layers, fused with batch norm, shortcut and ReLU.

Images are [N, H, W, C]. A program computes a block of output pixels with all their channels: for each of the
nine taps a product [pixels, from] · [from, to], summed in float32. The results are fused with further work:

- ``convolve_and_measure``: in training, sums for batch norm's statistics.
- ``convolve_and_normalise``: in evaluation, batch norm with known statistics, the shortcut, ReLU.
- ``convolve_back``: the gradient of a layer's input, through the ReLU before it, with sums for the gradient
  of the batch norm before that.

Each program stores its own sums over pixels. A kernel that needs the total adds these up in every program, in
the same order; so the total needs no launch and is deterministic.
"""

import triton
import triton.language as tl

# Kernels take some twenty arguments: those of a kind share a line, as in Triton's own tutorials.
# fmt: off


@triton.jit
def _scale(gain, variance, epsilon, channel):
    """Return the factor of batch norm in evaluation, for some channels."""
    return tl.load(gain + channel) * tl.rsqrt(tl.load(variance + channel) + epsilon)


@triton.jit
def _relu(value):
    """Return the ReLU; NaN stays NaN as in torch, to show that a training diverges."""
    return tl.maximum(value, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _with_product(a, b, total, precision: tl.constexpr):
    """Return ``total`` + a · b. Factors are rounded to TF32 here, since a GPU truncates them, which makes
    results too small by 0.05 % in every layer.
    """
    if precision == "tf32":
        a = _nearest_tf32(a)
        b = _nearest_tf32(b)
    return tl.dot(a, b, total, input_precision=precision)


@triton.jit
def _nearest_tf32(value):
    """Return the nearest number with a mantissa of ten bits; NaN stays NaN."""
    rounded = ((value.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return tl.where(value == value, rounded, value)


@triton.jit
def _pixels(
    pixels,
    height: tl.constexpr, width: tl.constexpr, stride: tl.constexpr, back: tl.constexpr, block: tl.constexpr,
):
    """Return row, column and image of this program's pixels, and a mask of existing pixels.

    They are pixels of a layer's output; with ``back``, of its input, where a strided layer has separate
    programs for even and odd rows and columns, which meet different taps.
    """
    rows_out: tl.constexpr = (height - 1) // stride + 1
    columns_out: tl.constexpr = (width - 1) // stride + 1
    m = tl.program_id(0) * block + tl.arange(0, block)
    inside = m < pixels
    x = m % columns_out
    y = m // columns_out % rows_out
    n = m // (columns_out * rows_out)
    if back and stride == 2:
        x = x * 2 + tl.program_id(1) % 2
        y = y * 2 + tl.program_id(1) // 2
        inside = inside & (x < width) & (y < height)
    return y, x, n, inside


@triton.jit
def _tap(
    total, source, weight, gain, variance, epsilon, y, x, n, inside, row, column,
    height: tl.constexpr, width: tl.constexpr, stride: tl.constexpr, inputs: tl.constexpr,
    outputs: tl.constexpr, back: tl.constexpr, scaled: tl.constexpr, precision: tl.constexpr,
):
    """Return ``total`` + the product of one tap."""
    # Products need 16 channels; only images have fewer.
    wide_inputs: tl.constexpr = inputs if inputs >= 16 else 16
    f = tl.arange(0, outputs if back else wide_inputs)
    t = tl.arange(0, wide_inputs if back else outputs)
    tap = row * 3 + column
    if back:
        rows_out: tl.constexpr = (height - 1) // stride + 1
        columns_out: tl.constexpr = (width - 1) // stride + 1
        up = (y + 1 - row) // stride
        left = (x + 1 - column) // stride
        there = inside & (up >= 0) & (up < rows_out) & (left >= 0) & (left < columns_out)
        place = ((n * rows_out + up) * columns_out + left) * outputs
        of_weight = (f[:, None] * 9 + tap) * inputs + t[None, :]
    else:
        up = y * stride + row - 1
        left = x * stride + column - 1
        there = inside & (up >= 0) & (up < height) & (left >= 0) & (left < width)
        place = ((n * height + up) * width + left) * inputs
        of_weight = (t[None, :] * 9 + tap) * inputs + f[:, None]
    if inputs >= 16:
        w = tl.load(weight + of_weight)
        given = tl.load(source + place[:, None] + f[None, :], mask=there[:, None], other=0.0)
    elif back:
        w = tl.load(weight + of_weight, mask=(t < inputs)[None, :], other=0.0)
        given = tl.load(source + place[:, None] + f[None, :], mask=there[:, None], other=0.0)
    else:
        known = f < inputs
        w = tl.load(weight + of_weight, mask=known[:, None], other=0.0)
        mask = there[:, None] & known[None, :]
        given = tl.load(source + place[:, None] + f[None, :], mask=mask, other=0.0)
    if scaled:
        w = (w * _scale(gain, variance, epsilon, f)[:, None]).to(weight.dtype.element_ty)
    return _with_product(given.to(w.dtype), w, total, precision)


@triton.jit
def _products(
    source, weight, gain, variance, epsilon, y, x, n, inside,
    height: tl.constexpr, width: tl.constexpr, stride: tl.constexpr, inputs: tl.constexpr,
    outputs: tl.constexpr, back: tl.constexpr, scaled: tl.constexpr, block: tl.constexpr,
    unrolled: tl.constexpr, precision: tl.constexpr,
):
    """Return the convolution at some pixels, float32 [block, to].

    ``height``, ``width`` and ``inputs`` describe the layer's input, in both directions; ``outputs`` are the
    channels of its output. With ``back``, ``source`` is the gradient of the output; ``scaled``: of the
    output after batch norm in evaluation. ``unrolled`` is the number of unrolled taps: 1, 3 or 9.
    """
    wide_inputs: tl.constexpr = inputs if inputs >= 16 else 16
    go: tl.constexpr = wide_inputs if back else outputs
    total = tl.zeros((block, go), dtype=tl.float32)
    if back and stride == 2:
        # An even row meets the middle row of the taps, an odd row the two others; the same for columns.
        odd_row = tl.program_id(1) // 2
        odd_column = tl.program_id(1) % 2
        for i in range((1 + odd_row) * (1 + odd_column)):
            row = 1 - odd_row + 2 * (i // (1 + odd_column))
            column = 1 - odd_column + 2 * (i % (1 + odd_column))
            total = _tap(
                total, source, weight, gain, variance, epsilon, y, x, n, inside, row, column, height, width,
                stride, inputs, outputs, back, scaled, precision,
            )
    else:
        for group in range(9 // unrolled):
            for i in tl.static_range(unrolled):
                tap = group * unrolled + i
                total = _tap(
                    total, source, weight, gain, variance, epsilon, y, x, n, inside, tap // 3, tap % 3,
                    height, width, stride, inputs, outputs, back, scaled, precision,
                )
    return total


@triton.jit
def _store_sums(sums, first, second, channels: tl.constexpr):
    """Store this program's two sums over its pixels [pixels, channels]."""
    c = tl.arange(0, channels)
    program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    place = program * 2 * channels + c
    tl.store(sums + place, tl.sum(first, axis=0))
    tl.store(sums + place + channels, tl.sum(second, axis=0))


@triton.jit
def _all(sums, programs, channels: tl.constexpr):
    """Return the two totals over all programs, float32 [channels] each."""
    together: tl.constexpr = 4096 // channels
    c = tl.arange(0, channels)
    first = tl.zeros((together, channels), dtype=tl.float32)
    second = tl.zeros((together, channels), dtype=tl.float32)
    for start in range(0, programs, together):
        p = start + tl.arange(0, together)
        place = p[:, None] * 2 * channels + c[None, :]
        mask = (p < programs)[:, None]
        first += tl.load(sums + place, mask=mask, other=0.0)
        second += tl.load(sums + place + channels, mask=mask, other=0.0)
    return tl.sum(first, axis=0), tl.sum(second, axis=0)


@triton.jit(do_not_specialize=["pixels"])
def convolve_and_measure(
    source, weight, target, sums, about, statistics, pixels,
    height: tl.constexpr, width: tl.constexpr, stride: tl.constexpr, inputs: tl.constexpr,
    outputs: tl.constexpr, block: tl.constexpr, unrolled: tl.constexpr, precision: tl.constexpr,
):
    """Compute a layer in training, with Σ d and Σ d² of d, its output minus ``about``, the running mean.

    The running mean is near the mean: far from it, a variance from squares loses digits. Its value is stored
    as the first row of ``statistics``, since ``normalise`` then updates it.
    """
    t = tl.arange(0, outputs)
    y, x, n, inside = _pixels(pixels, height, width, stride, False, block)
    total = _products(
        source, weight, about, about, 0.0, y, x, n, inside, height, width, stride, inputs, outputs, False,
        False, block, unrolled, precision,
    )
    rounded = total.to(target.dtype.element_ty)
    m = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(target + m[:, None] * outputs + t[None, :], rounded, mask=inside[:, None])
    centre = tl.load(about + t)
    off = tl.where(inside[:, None], rounded.to(tl.float32) - centre[None, :], 0.0)
    _store_sums(sums, off, off * off, outputs)
    if tl.program_id(0) == 0:
        tl.store(statistics + t, centre)


@triton.jit
def _shortcut(
    aside, m, inside,
    height: tl.constexpr, width: tl.constexpr, stride: tl.constexpr, inputs: tl.constexpr,
    outputs: tl.constexpr,
):
    """Return the values of a shortcut without parameters for pixels ``m`` of a layer's output, float32.

    They are every ``stride``-th pixel of ``aside`` [N, height, width, inputs], and zeros in further channels.
    """
    rows_out: tl.constexpr = (height - 1) // stride + 1
    columns_out: tl.constexpr = (width - 1) // stride + 1
    t = tl.arange(0, outputs)
    if stride == 1 and inputs == outputs:
        given = tl.load(aside + m[:, None] * outputs + t[None, :], mask=inside[:, None], other=0.0)
    else:
        x = m % columns_out * stride
        y = m // columns_out % rows_out * stride
        n = m // (columns_out * rows_out)
        place = ((n * height + y) * width + x) * inputs
        mask = inside[:, None] & (t < inputs)[None, :]
        given = tl.load(aside + place[:, None] + t[None, :], mask=mask, other=0.0)
    return given.to(tl.float32)


@triton.jit(do_not_specialize=["pixels"])
def convolve_and_normalise(
    source, weight, target, gain, bias, mean, variance, epsilon, aside, pixels,
    height: tl.constexpr, width: tl.constexpr, stride: tl.constexpr, inputs: tl.constexpr,
    outputs: tl.constexpr, has_shortcut: tl.constexpr, aside_height: tl.constexpr, aside_width: tl.constexpr,
    aside_inputs: tl.constexpr, aside_stride: tl.constexpr, block: tl.constexpr, unrolled: tl.constexpr,
    precision: tl.constexpr,
):
    """Compute a layer in evaluation: convolution, batch norm, an optional shortcut, ReLU."""
    t = tl.arange(0, outputs)
    y, x, n, inside = _pixels(pixels, height, width, stride, False, block)
    total = _products(
        source, weight, gain, variance, epsilon, y, x, n, inside, height, width, stride, inputs, outputs,
        False, False, block, unrolled, precision,
    )
    m = tl.program_id(0) * block + tl.arange(0, block)
    scale = _scale(gain, variance, epsilon, t)
    shift = tl.load(bias + t) - tl.load(mean + t) * scale
    total = total * scale[None, :] + shift[None, :]
    if has_shortcut:
        total += _shortcut(aside, m, inside, aside_height, aside_width, aside_stride, aside_inputs, outputs)
    tl.store(target + m[:, None] * outputs + t[None, :], _relu(total), mask=inside[:, None])


@triton.jit(do_not_specialize=["pixels"])
def convolve_back(
    gradient, weight, gain, variance, epsilon, target, past, activation, raw, statistics, sums, pixels,
    height: tl.constexpr, width: tl.constexpr, stride: tl.constexpr, inputs: tl.constexpr,
    outputs: tl.constexpr, has_past: tl.constexpr, past_outputs: tl.constexpr, masked: tl.constexpr,
    measured: tl.constexpr, scaled: tl.constexpr, block: tl.constexpr, unrolled: tl.constexpr,
    precision: tl.constexpr,
):
    """Compute the gradient of a layer's input, which is ``activation`` = ReLU(batch norm of ``raw`` …).

    ``past`` is the gradient through the shortcut around this layer's block. ``masked``: also through the
    ReLU. ``measured``: with Σ g and Σ g·x̂ for the gradient of that batch norm. ``scaled``: through the
    batch norm after this layer, in evaluation.
    """
    wide: tl.constexpr = inputs if inputs >= 16 else 16
    t = tl.arange(0, wide)
    y, x, n, inside = _pixels(pixels, height, width, stride, True, block)
    total = _products(
        gradient, weight, gain, variance, epsilon, y, x, n, inside, height, width, stride, inputs, outputs,
        True, scaled, block, unrolled, precision,
    )
    there = inside[:, None]
    if inputs < 16:
        there = there & (t < inputs)[None, :]
    place = ((n * height + y) * width + x)[:, None] * inputs + t[None, :]
    if has_past:
        rows_out: tl.constexpr = (height - 1) // stride + 1
        columns_out: tl.constexpr = (width - 1) // stride + 1
        came = ((n * rows_out + y // stride) * columns_out + x // stride) * past_outputs
        met = there & ((x % stride == 0) & (y % stride == 0))[:, None]
        total += tl.load(past + came[:, None] + t[None, :], mask=met, other=0.0).to(tl.float32)
    if masked:
        total = tl.where(tl.load(activation + place, mask=there, other=0.0) > 0, total, 0.0)
    rounded = total.to(target.dtype.element_ty)
    tl.store(target + place, rounded, mask=there)
    if measured:
        g = tl.where(there, rounded.to(tl.float32), 0.0)
        off = tl.load(raw + place, mask=there, other=0.0).to(tl.float32) - tl.load(statistics + t)[None, :]
        _store_sums(sums, g, g * off * tl.load(statistics + wide + t)[None, :], wide)


@triton.jit(do_not_specialize=["pixels"])
def rectify_back(
    gradient, target, activation, raw, statistics, sums, pixels,
    channels: tl.constexpr, measured: tl.constexpr, block: tl.constexpr,
):
    """Do the work of ``convolve_back`` after its products, for a given gradient."""
    m = tl.program_id(0) * block + tl.arange(0, block)
    t = tl.arange(0, channels)
    inside = (m < pixels)[:, None]
    place = m[:, None] * channels + t[None, :]
    active = tl.load(activation + place, mask=inside, other=0.0) > 0
    g = tl.where(active, tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32), 0.0)
    rounded = g.to(target.dtype.element_ty)
    tl.store(target + place, rounded, mask=inside)
    if measured:
        g = rounded.to(tl.float32)
        off = tl.load(raw + place, mask=inside, other=0.0).to(tl.float32) - tl.load(statistics + t)[None, :]
        _store_sums(sums, g, g * off * tl.load(statistics + channels + t)[None, :], channels)


@triton.jit(do_not_specialize=["pixels", "chunk", "programs"])
def normalise(
    raw, sums, programs, gain, bias, running_mean, running_variance, batches, momentum, epsilon, statistics,
    aside, target, pixels, chunk,
    channels: tl.constexpr, has_shortcut: tl.constexpr, aside_height: tl.constexpr, aside_width: tl.constexpr,
    aside_inputs: tl.constexpr, aside_stride: tl.constexpr, block: tl.constexpr,
):
    """Compute ReLU(batch norm of ``raw`` + shortcut) of a chunk, with the sums of ``convolve_and_measure``.

    ``statistics`` [3, channels] holds the centre of the sums; mean and 1/deviation are stored in it for the
    backward pass.
    """
    t = tl.arange(0, channels)
    first, second = _all(sums, programs, channels)
    off = first / pixels
    variance = _relu(second / pixels - off * off)
    mean = tl.load(statistics + t) + off
    deviation = tl.rsqrt(variance + epsilon)
    scale = tl.load(gain + t) * deviation
    shift = tl.load(bias + t) - mean * scale
    if tl.program_id(0) == 0:
        tl.store(statistics + channels + t, mean)
        tl.store(statistics + 2 * channels + t, deviation)
        before = tl.load(running_mean + t)
        tl.store(running_mean + t, before + momentum * (mean - before))
        before = tl.load(running_variance + t)
        unbiased = variance * (pixels / (pixels - 1.0))
        tl.store(running_variance + t, before + momentum * (unbiased - before))
        tl.store(batches, tl.load(batches) + 1)
    for start in range(0, chunk, block):
        m = tl.program_id(0) * chunk + start + tl.arange(0, block)
        inside = m < pixels
        place = m[:, None] * channels + t[None, :]
        value = tl.load(raw + place, mask=inside[:, None], other=0.0).to(tl.float32)
        value = value * scale[None, :] + shift[None, :]
        if has_shortcut:
            value += _shortcut(
                aside, m, inside, aside_height, aside_width, aside_stride, aside_inputs, channels
            )
        tl.store(target + place, _relu(value), mask=inside[:, None])


@triton.jit(do_not_specialize=["pixels", "chunk", "programs"])
def normalise_back(
    gradient, raw, sums, programs, gain, statistics, of_gain, of_bias, target, pixels, chunk,
    channels: tl.constexpr, block: tl.constexpr,
):
    """Compute the gradients of batch norm's input, for a chunk of pixels, and of its gain and bias.

    Given Σ g and Σ g·x̂, the former is for each pixel a sum of multiples of g and the input, and a constant.
    """
    t = tl.arange(0, channels)
    of_shift, of_scale = _all(sums, programs, channels)
    mean = tl.load(statistics + t)
    deviation = tl.load(statistics + channels + t)
    scale = tl.load(gain + t) * deviation
    slope = -scale * deviation * of_scale / pixels
    constant = -scale * of_shift / pixels - slope * mean
    if tl.program_id(0) == 0:
        tl.store(of_gain + t, of_scale)
        tl.store(of_bias + t, of_shift)
    for start in range(0, chunk, block):
        m = tl.program_id(0) * chunk + start + tl.arange(0, block)
        inside = (m < pixels)[:, None]
        place = m[:, None] * channels + t[None, :]
        g = tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32)
        x = tl.load(raw + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(target + place, g * scale[None, :] + x * slope[None, :] + constant[None, :], mask=inside)


@triton.jit(do_not_specialize=["pixels", "chunk"])
def weight_sums(
    images, gradient, sums, apart, pixels, chunk,
    height: tl.constexpr, width: tl.constexpr, stride: tl.constexpr, inputs: tl.constexpr,
    outputs: tl.constexpr, across: tl.constexpr, together: tl.constexpr, block: tl.constexpr,
    precision: tl.constexpr,
):
    """Compute the part of a chunk of pixels of the weight gradient [outputs, 3, 3, inputs].

    A program takes ``across`` (1 or 3) taps of one row of the weights, which meet adjacent pixels: across ·
    inputs contiguous numbers. So their sums are a product of matrices; it is ``together`` wide, a power of
    two, and masked beyond. ``apart`` is the stride between the sums of two chunks.
    """
    rows_out: tl.constexpr = (height - 1) // stride + 1
    columns_out: tl.constexpr = (width - 1) // stride + 1
    numbers: tl.constexpr = across * inputs
    tap = tl.program_id(1) * across
    k = tl.arange(0, outputs)
    j = tl.arange(0, together)
    total = tl.zeros((outputs, together), dtype=tl.float32)
    for start in range(0, chunk, block):
        m = tl.program_id(0) * chunk + start + tl.arange(0, block)
        inside = m < pixels
        x = m % columns_out * stride + tap % 3 - 1
        y = m // columns_out % rows_out * stride + tap // 3 - 1
        n = m // (columns_out * rows_out)
        left = ((n * height + y) * width + x) * inputs
        there = inside & (y >= 0) & (y < height)
        if across == 1 and inputs == together:
            mask = (there & (x >= 0) & (x < width))[:, None]
        else:
            column = x[:, None] + j[None, :] // inputs
            mask = there[:, None] & (column >= 0) & (column < width) & (j < numbers)[None, :]
        given = tl.load(images + left[:, None] + j[None, :], mask=mask, other=0.0)
        g = tl.load(gradient + m[None, :] * outputs + k[:, None], mask=inside[None, :], other=0.0)
        total = _with_product(g, given.to(g.dtype), total, precision)
    place = tl.program_id(0) * apart + (k[:, None] * 9 + tap) * inputs + j[None, :]
    tl.store(sums + place, total, mask=(j < numbers)[None, :])
