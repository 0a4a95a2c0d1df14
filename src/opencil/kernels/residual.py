"""Forward and backward pass of a narrow residual network, in the kernels of ``convolution``.

Activations are [N, H, W, C]. A layer is a 3 × 3 convolution, batch norm and ReLU; a layer that ``joins`` adds
the activation of two layers before, strided and padded to its shape, before its ReLU.
"""

import os
from collections.abc import Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from opencil.kernels import convolution as kernel


@dataclass(frozen=True)
class Layer:
    """A layer's tensors and values; ``weight`` is float32 [K, C, 3, 3]."""

    weight: Tensor
    gain: Tensor
    bias: Tensor
    mean: Tensor
    variance: Tensor
    batches: Tensor
    stride: int
    joins: bool
    momentum: float
    epsilon: float


class Tile(NamedTuple):
    """Pixels of a program, its warps, its pipeline stages, and how many taps are unrolled."""

    block: int
    warps: int
    stages: int = 3
    unrolled: int = 1

    @property
    def options(self) -> dict[str, int]:
        """Return the arguments of a launch."""
        options = {"block": self.block, "num_warps": self.warps, "num_stages": self.stages}
        return options | {"unrolled": self.unrolled}


class Chunks(NamedTuple):
    """Programs, each with a chunk of pixels; pixels of a block within it, warps and pipeline stages."""

    programs: int
    block: int
    warps: int
    stages: int = 3
    #: Taps of a program, for weight gradients.
    across: int = 1

    @property
    def options(self) -> dict[str, int]:
        """Return the arguments of a launch."""
        return {"block": self.block, "num_warps": self.warps, "num_stages": self.stages}

    def of(self, pixels: int) -> int:
        """Return the pixels of a chunk."""
        return -(-pixels // (self.programs * self.block)) * self.block


# By the channels of the wider side; benchmarks/kernel_tiles.py searches the fastest.
FORWARD = {16: Tile(256, 4, 1), 32: Tile(256, 4), 64: Tile(128, 4)}
EVALUATION = {16: Tile(256, 4, 1), 32: Tile(256, 8), 64: Tile(64, 4)}
BACKWARD = {16: Tile(256, 4), 32: Tile(256, 8), 64: Tile(128, 8)}
WEIGHTS = {16: Chunks(128, 64, 4, across=3), 32: Chunks(64, 64, 4), 64: Chunks(32, 64, 4)}
# As many programs as an H200 has multiprocessors: each first reads the sums of all programs.
POINTWISE = {16: Chunks(132, 256, 8), 32: Chunks(132, 128, 8), 64: Chunks(132, 64, 8)}


class Mode(NamedTuple):
    """Training or evaluation, and whether a backward pass follows, and includes the images."""

    training: bool
    back: bool
    of_images: bool


@dataclass
class Pass:
    """Results of a forward pass that the backward pass needs."""

    layers: Sequence[Layer]
    weights: list[Tensor]
    precision: str
    images: Tensor
    #: By layer; deleted when not needed any more.
    activations: dict[int, Tensor] = field(default_factory=dict)
    raw: list[Tensor] = field(default_factory=list)
    statistics: list[Tensor] = field(default_factory=list)

    def source(self, i: int) -> Tensor:
        """Return the input of layer ``i``."""
        return self.activations[i - 1] if i else self.images

    def aside(self, i: int) -> Tensor:
        """Return the shortcut's input of layer ``i``: the activation of two layers before, or the images."""
        return self.source(i - 1)


def begin(images: Tensor, layers: Sequence[Layer], dtype: torch.dtype, precision: str) -> Pass:
    """Return an empty pass; weights are cast at once to [K, 3, 3, C] in ``dtype``."""
    flat = torch.cat([layer.weight.permute(0, 2, 3, 1).reshape(-1) for layer in layers]).to(dtype)
    weights = list(torch.split(flat, [layer.weight.numel() for layer in layers]))
    return Pass(layers, weights, precision, images)


def train(done: Pass) -> None:
    """Compute the layers in training: batch norm uses and tracks the batch's statistics."""
    for i, layer in enumerate(done.layers):
        source, target = done.source(i), _target(done.source(i), layer, done.weights[i].dtype)
        channels, pixels, tile = target.shape[3], _pixels(target), FORWARD[max(layer.weight.shape[:2])]
        sums = _sums(target, programs := triton.cdiv(pixels, tile.block))
        statistics = torch.empty((3, channels), device=target.device)
        tensors = (source, done.weights[i], target, sums, layer.mean, statistics)
        values = {**_shape(source, layer), "precision": done.precision, **tile.options}
        _launch(kernel.convolve_and_measure, (programs,), *tensors, pixels, **values)
        active, chunks = torch.empty_like(target), POINTWISE[channels]
        norm = (layer.gain, layer.bias, layer.mean, layer.variance, layer.batches)
        more = (statistics, done.aside(i) if layer.joins else target, active)
        arguments = (sums, programs, *norm, layer.momentum, layer.epsilon, *more)
        values = {"channels": channels, **_joined(done, i), **chunks.options}
        chunk = chunks.of(pixels)
        _launch(kernel.normalise, (chunks.programs,), target, *arguments, pixels, chunk, **values)
        done.raw.append(target)
        done.statistics.append(statistics[1:])
        done.activations[i] = active


def evaluate(done: Pass, kept: Container[int]) -> None:
    """Compute the layers in evaluation, with running statistics.

    Only activations of the layers ``kept`` are kept: all together take 1.2 MB per image of 32 × 32 in
    float32.
    """
    for i, layer in enumerate(done.layers):
        source, target = done.source(i), _target(done.source(i), layer, done.weights[i].dtype)
        pixels, tile = _pixels(target), EVALUATION[max(layer.weight.shape[:2])]
        norm = (layer.gain, layer.bias, layer.mean, layer.variance, layer.epsilon)
        arguments = (source, done.weights[i], target, *norm, done.aside(i) if layer.joins else target, pixels)
        values = {**_shape(source, layer), **_joined(done, i), "precision": done.precision, **tile.options}
        _launch(kernel.convolve_and_normalise, (triton.cdiv(pixels, tile.block),), *arguments, **values)
        done.activations[i] = target
        if i - 2 not in kept:
            done.activations.pop(i - 2, None)


@dataclass(frozen=True)
class Gradients:
    """Gradients of weight [K, C, 3, 3], gain and bias of each layer in training, and of images if needed.

    Layers after the last with a given gradient are left out.
    """

    parameters: list[Tensor]
    images: Tensor | None


def backward(done: Pass, given: dict[int, Tensor], of_images: bool) -> Gradients:
    """Compute the backward pass from gradients of some layers' activations."""
    last = max(given)
    weights = _WeightSums(done, last + 1) if done.statistics else None
    of_norms: list[tuple[Tensor, Tensor]] = []
    # Gradients of the inputs of each layer's ReLU, with the sums for batch norm's gradient.
    rectified = {last: _rectify(done, last, given[last])}
    images = None
    for i in reversed(range(last + 1)):
        gradient, sums = rectified[i]
        if weights:
            assert sums is not None
            gradient, *of_norm = _normalise_back(done, i, gradient, sums)
            of_norms.insert(0, (of_norm[0], of_norm[1]))
            weights.add(i, gradient)
        # The shortcut around the block of this layer and the next, which joins.
        past = rectified.pop(i + 1)[0] if i < last and done.layers[i + 1].joins else None
        if i:
            rectified[i - 1] = _convolve_back(done, i, gradient, past, given.get(i - 1))
        elif of_images:
            images, _ = _convolve_back(done, i, gradient, past, None)
    if weights is None:
        return Gradients([], images)
    trios = zip(weights.total(), of_norms, strict=True)
    return Gradients([gradient for weight, of_norm in trios for gradient in (weight, *of_norm)], images)


#: A gradient, with the sums of its programs in training.
Summed = tuple[Tensor, Tensor | None]


def _rectify(done: Pass, i: int, gradient: Tensor) -> Summed:
    """Pass a given gradient through the ReLU of layer ``i``."""
    active, trained = done.activations[i], bool(done.statistics)
    target, chunks, pixels = torch.empty_like(active), POINTWISE[active.shape[3]], _pixels(active)
    programs = triton.cdiv(pixels, chunks.block)
    sums = _sums(active, programs) if trained else None
    raw, statistics = (done.raw[i], done.statistics[i]) if trained else (active, active)
    tensors = (gradient.contiguous(), target, active, raw, statistics, active if sums is None else sums)
    values = {"channels": active.shape[3], "measured": trained, **chunks.options}
    _launch(kernel.rectify_back, (programs,), *tensors, pixels, **values)
    return target, sums


def _normalise_back(done: Pass, i: int, gradient: Tensor, sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradients of the input of layer ``i``'s batch norm, of its gain and of its bias."""
    raw, chunks = done.raw[i], POINTWISE[gradient.shape[3]]
    target, (of_gain, of_bias) = torch.empty_like(raw), torch.empty((2, raw.shape[3]), device=raw.device)
    norm = (done.layers[i].gain, done.statistics[i], of_gain, of_bias)
    arguments = (gradient, raw, sums, len(sums), *norm, target, _pixels(raw), chunks.of(_pixels(raw)))
    values = {"channels": raw.shape[3], **chunks.options}
    _launch(kernel.normalise_back, (chunks.programs,), *arguments, **values)
    return target, of_gain, of_bias


def _convolve_back(done: Pass, i: int, gradient: Tensor, past: Tensor | None, given: Tensor | None) -> Summed:
    """Return the gradient of layer ``i``'s input, through the ReLU before it if it is no image.

    ``given`` is a further gradient of the same activation.
    """
    layer, source = done.layers[i], done.source(i)
    target, tile = torch.empty_like(source), BACKWARD[max(layer.weight.shape[:2])]
    # A strided layer has separate programs for even and odd rows and columns.
    pixels, kinds = _pixels(gradient), layer.stride**2
    programs = (triton.cdiv(pixels, tile.block), kinds)
    masked = i > 0 and given is None
    measured = masked and bool(done.statistics)
    sums = _sums(source, programs[0] * kinds) if measured else None
    norm = (layer.gain, layer.variance, layer.epsilon)
    raw, statistics = (done.raw[i - 1], done.statistics[i - 1]) if measured else (source, source)
    tensors = (gradient if past is None else past, source, raw, statistics, target if sums is None else sums)
    arguments = (gradient, done.weights[i], *norm, target, *tensors, pixels)
    values = {
        **_shape(source, layer),
        **{"has_past": past is not None, "past_outputs": 0 if past is None else past.shape[3]},
        **{"masked": masked, "measured": measured, "scaled": not done.statistics},
        **{"precision": done.precision, **tile.options},
    }
    _launch(kernel.convolve_back, programs, *arguments, **values)
    return (target, sums) if given is None else _rectify(done, i - 1, target + given)


class _WeightSums:
    """Weight gradients as sums of chunks, added up at the end for all layers with as many chunks.

    No other kernel of the backward pass waits for them, so a GPU computes them on a second stream.
    """

    def __init__(self, done: Pass, count: int) -> None:
        self._done, self._layers = done, done.layers[:count]
        self._plans = [WEIGHTS[max(layer.weight.shape[:2])] for layer in self._layers]
        sizes: dict[int, int] = {}
        self._starts: list[int] = []
        for plan, layer in zip(self._plans, self._layers, strict=True):
            self._starts.append(sizes.get(plan.programs, 0))
            sizes[plan.programs] = self._starts[-1] + layer.weight.numel()
        self._sums = {
            count: torch.empty((count, size), device=done.images.device) for count, size in sizes.items()
        }
        self._beside = _beside(done.images.device) if done.images.is_cuda else None
        # Held until the end: freed memory could be reused at once by the backward pass.
        self._read: list[Tensor] = []

    def add(self, i: int, gradient: Tensor) -> None:
        """Compute the chunks' sums of layer ``i``, given the gradient of its convolution's output."""
        plan, layer, source = self._plans[i], self._done.layers[i], self._done.source(i)
        sums, pixels = self._sums[plan.programs], _pixels(gradient)
        inputs = layer.weight.shape[1]
        across = plan.across if inputs > 3 else 3
        self._read.append(gradient)
        if self._beside:
            self._beside.wait_stream(torch.cuda.current_stream(gradient.device))
        with torch.cuda.stream(self._beside):
            place = (sums[:, self._starts[i] :], sums.shape[1], pixels, plan.of(pixels))
            together = max(16, triton.next_power_of_2(across * inputs))
            values = {"across": across, "together": together, "precision": self._done.precision}
            values |= _shape(source, layer) | plan.options
            programs = (plan.programs, 9 // across)
            _launch(kernel.weight_sums, programs, source, gradient, *place, **values)

    def total(self) -> list[Tensor]:
        """Return ∂L/∂w of each layer, float32 [K, C, 3, 3] in channels-last order."""
        if self._beside:
            torch.cuda.current_stream(self._done.images.device).wait_stream(self._beside)
        totals, gradients = {count: sums.sum(dim=0) for count, sums in self._sums.items()}, []
        for plan, start, layer in zip(self._plans, self._starts, self._layers, strict=True):
            outputs, inputs = layer.weight.shape[:2]
            total = totals[plan.programs][start : start + layer.weight.numel()]
            gradients.append(total.view(outputs, 3, 3, inputs).permute(0, 3, 1, 2))
        return gradients


@cache
def _beside(device: torch.device) -> torch.cuda.Stream:
    """Return the second stream, which all passes share."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _sums(of: Tensor, programs: int) -> Tensor:
    """Return an empty tensor for two sums over the pixels of each program."""
    return torch.empty((programs, 2, of.shape[3]), device=of.device)


def _shape(source: Tensor, layer: Layer) -> dict[str, Any]:
    outputs, inputs = layer.weight.shape[:2]
    _, height, width, _ = source.shape
    return {"height": height, "width": width, "stride": layer.stride, "inputs": inputs, "outputs": outputs}


def _joined(done: Pass, i: int) -> dict[str, Any]:
    """Return shape and stride of layer ``i``'s shortcut."""
    names = ("has_shortcut", "aside_height", "aside_width", "aside_inputs", "aside_stride")
    if not done.layers[i].joins:
        return dict.fromkeys(names, 0)
    _, height, width, channels = done.aside(i).shape
    return dict(zip(names, (1, height, width, channels, done.layers[i - 1].stride), strict=True))


def _target(source: Tensor, layer: Layer, dtype: torch.dtype) -> Tensor:
    images, height, width, _ = source.shape
    rows, columns = (height - 1) // layer.stride + 1, (width - 1) // layer.stride + 1
    return torch.empty((images, rows, columns, len(layer.weight)), device=source.device, dtype=dtype)


def _pixels(images: Tensor) -> int:
    return images.numel() // images.shape[3]


#: List that collects launches instead of making them.
_noted: ContextVar[list[tuple[Any, ...]] | None] = ContextVar("noted", default=None)


def _launch(which: Any, programs: tuple[int, ...], *arguments: Any, **values: Any) -> None:
    noted = _noted.get()
    if noted is None:
        which[programs](*arguments, **values)
    else:
        noted.append((which, arguments, values))


def compile_all(
    images: Tensor, layers: Sequence[Layer], dtype: torch.dtype, precision: str, mode: Mode
) -> None:
    """Compile the kernels of a pass on all cores, where one core takes half a minute.

    Triton caches compiled kernels on disk.
    """
    if not isinstance(kernel.normalise, triton.JITFunction):  # interpreted
        return
    launches: list[tuple[Any, ...]] = []
    token = _noted.set(launches)
    try:
        done = begin(images, layers, dtype, precision)
        last = len(layers) - 1
        if mode.training:
            train(done)
        else:
            evaluate(done, range(last) if mode.back else ())
        if mode.back:
            backward(done, {last: done.activations[last]}, mode.of_images)
    finally:
        _noted.reset(token)
    different = {
        (which, tuple(getattr(a, "dtype", type(a)) for a in arguments), tuple(values.items())): arguments
        for which, arguments, values in launches
    }
    with ThreadPoolExecutor(min(len(different), os.cpu_count() or 1)) as threads:
        list(threads.map(_compile, different.items()))


def _compile(launch: tuple[tuple[Any, ...], tuple[Any, ...]]) -> None:
    (which, _, values), arguments = launch
    which.warmup(*arguments, grid=(1,), **dict(values))


def try_out(device: torch.device) -> None:
    """Run a small kernel; raise if Triton has no compiler or does not support the GPU."""
    little = torch.zeros((1, 1, 1, 16), device=device)
    with torch.cuda.device_of(little):  # type: ignore[no-untyped-call]
        kernel.rectify_back[(1,)](little, little, little, little, little, little, 1, 16, False, 16)
