"""A narrow residual network, layer after layer, in the kernels of ``convolution``: forwards and backwards.

Activations are [N, H, W, C]. A layer is a 3 × 3 convolution, batch norm and ReLU; one that ``joins`` adds, in
front of its ReLU, the activation of two layers before, or the pixels of it that it has room for.
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
    """Pixels of a program, its warps, how many loads are ahead, and how many taps are code of their own."""

    block: int
    warps: int
    stages: int = 3
    unrolled: int = 1

    @property
    def options(self) -> dict[str, int]:
        """What a launch is told."""
        options = {"block": self.block, "num_warps": self.warps, "num_stages": self.stages}
        return options | {"unrolled": self.unrolled}


class Chunks(NamedTuple):
    """Chunks of pixels, a program each; the pixels that it takes at a time, its warps, loads ahead."""

    programs: int
    block: int
    warps: int
    stages: int = 3
    #: Of a weight gradient: taps of a program.
    across: int = 1

    @property
    def options(self) -> dict[str, int]:
        """What a launch is told."""
        return {"block": self.block, "num_warps": self.warps, "num_stages": self.stages}

    def of(self, pixels: int) -> int:
        """Pixels of a chunk."""
        return -(-pixels // (self.programs * self.block)) * self.block


# By the channels of the wider side; benchmarks/kernel_tiles.py looks for the fastest.
FORWARD = {16: Tile(256, 4, 1), 32: Tile(256, 4), 64: Tile(128, 4)}
EVALUATION = {16: Tile(256, 4, 1), 32: Tile(256, 8), 64: Tile(64, 4)}
BACKWARD = {16: Tile(256, 4), 32: Tile(256, 8), 64: Tile(128, 8)}
WEIGHTS = {16: Chunks(128, 64, 4, across=3), 32: Chunks(64, 64, 4), 64: Chunks(32, 64, 4)}
# As many chunks as an H200 has processors: each reads all programs' sums first.
POINTWISE = {16: Chunks(132, 256, 8), 32: Chunks(132, 128, 8), 64: Chunks(132, 64, 8)}


class Mode(NamedTuple):
    """What a pass is for: training or evaluation, and whether the way back follows, to the images even."""

    training: bool
    back: bool
    of_images: bool


@dataclass
class Pass:
    """What the layers computed on their way forward, for the way back."""

    layers: Sequence[Layer]
    weights: list[Tensor]
    precision: str
    images: Tensor
    #: By layer: what is not needed any more is not kept.
    activations: dict[int, Tensor] = field(default_factory=dict)
    raw: list[Tensor] = field(default_factory=list)
    statistics: list[Tensor] = field(default_factory=list)

    def source(self, i: int) -> Tensor:
        """What layer ``i`` reads."""
        return self.activations[i - 1] if i else self.images

    def aside(self, i: int) -> Tensor:
        """What layer ``i`` adds, if it joins: the activation of two layers before, or what was given."""
        return self.source(i - 1)


def begin(images: Tensor, layers: Sequence[Layer], dtype: torch.dtype, precision: str) -> Pass:
    """A pass that has computed nothing yet; weights are [K, 3, 3, C] in ``dtype``, all cast at once."""
    flat = torch.cat([layer.weight.permute(0, 2, 3, 1).reshape(-1) for layer in layers]).to(dtype)
    weights = list(torch.split(flat, [layer.weight.numel() for layer in layers]))
    return Pass(layers, weights, precision, images)


def train(done: Pass) -> None:
    """The layers in training: batch norm by the batch's statistics, which the running ones follow."""
    for i, layer in enumerate(done.layers):
        source, target = done.source(i), _target(done.source(i), layer, done.weights[i].dtype)
        channels, pixels, tile = target.shape[3], _pixels(target), FORWARD[max(layer.weight.shape[:2])]
        sums = _sums(target, programs := triton.cdiv(pixels, tile.block))
        statistics = torch.empty((3, channels), device=target.device)
        _launch(
            kernel.convolve_and_measure,
            (programs,),
            source,
            done.weights[i],
            target,
            sums,
            layer.mean,
            statistics,
            pixels,
            **_shape(source, layer),
            precision=done.precision,
            **tile.options,
        )
        active, chunks = torch.empty_like(target), POINTWISE[channels]
        _launch(
            kernel.normalise,
            (chunks.programs,),
            target,
            sums,
            programs,
            layer.gain,
            layer.bias,
            layer.mean,
            layer.variance,
            layer.batches,
            layer.momentum,
            layer.epsilon,
            statistics,
            done.aside(i) if layer.joins else target,
            active,
            pixels,
            chunks.of(pixels),
            channels=channels,
            **_joined(done, i),
            **chunks.options,
        )
        done.raw.append(target)
        done.statistics.append(statistics[1:])
        done.activations[i] = active


def evaluate(done: Pass, kept: Container[int]) -> None:
    """The layers in evaluation: batch norm by its running statistics, part of the convolution's kernel.

    Activations of the layers ``kept`` stay, of others while a layer is to read them: those of all layers take
    1.2 MB an image of 32 × 32 in float32.
    """
    for i, layer in enumerate(done.layers):
        source, target = done.source(i), _target(done.source(i), layer, done.weights[i].dtype)
        pixels, tile = _pixels(target), EVALUATION[max(layer.weight.shape[:2])]
        _launch(
            kernel.convolve_and_normalise,
            (triton.cdiv(pixels, tile.block),),
            source,
            done.weights[i],
            target,
            layer.gain,
            layer.bias,
            layer.mean,
            layer.variance,
            layer.epsilon,
            done.aside(i) if layer.joins else target,
            pixels,
            **_shape(source, layer),
            **_joined(done, i),
            precision=done.precision,
            **tile.options,
        )
        done.activations[i] = target
        if i - 2 not in kept:
            done.activations.pop(i - 2, None)


@dataclass(frozen=True)
class Gradients:
    """Of weight [K, C, 3, 3], gain and bias of each layer in training, and of the images if that is asked.

    Layers behind the last that had a gradient are left out.
    """

    parameters: list[Tensor]
    images: Tensor | None


def back(done: Pass, given: dict[int, Tensor], of_images: bool) -> Gradients:
    """The way back from the gradients of some layers' activations."""
    last = max(given)
    weights = _WeightSums(done, last + 1) if done.statistics else None
    of_norms: list[tuple[Tensor, Tensor]] = []
    # Of what goes into the ReLU behind each layer, with the sums that batch norm's gradient needs.
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
    return Gradients([one for weight, of_norm in trios for one in (weight, *of_norm)], images)


#: A gradient, with the sums of its programs in training.
Summed = tuple[Tensor, Tensor | None]


def _rectify(done: Pass, i: int, gradient: Tensor) -> Summed:
    """Through the ReLU behind layer ``i``, of a gradient that comes from outside."""
    active, trained = done.activations[i], bool(done.statistics)
    target, chunks, pixels = torch.empty_like(active), POINTWISE[active.shape[3]], _pixels(active)
    programs = triton.cdiv(pixels, chunks.block)
    sums = _sums(active, programs) if trained else None
    _launch(
        kernel.rectify_back,
        (programs,),
        gradient.contiguous(),
        target,
        active,
        done.raw[i] if trained else active,
        done.statistics[i] if trained else active,
        active if sums is None else sums,
        pixels,
        channels=active.shape[3],
        measured=trained,
        **chunks.options,
    )
    return target, sums


def _normalise_back(done: Pass, i: int, gradient: Tensor, sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of what layer ``i``'s batch norm reads, of its gain and of its bias."""
    raw, chunks = done.raw[i], POINTWISE[gradient.shape[3]]
    target, (of_gain, of_bias) = torch.empty_like(raw), torch.empty((2, raw.shape[3]), device=raw.device)
    _launch(
        kernel.normalise_back,
        (chunks.programs,),
        gradient,
        raw,
        sums,
        len(sums),
        done.layers[i].gain,
        done.statistics[i],
        of_gain,
        of_bias,
        target,
        _pixels(raw),
        chunks.of(_pixels(raw)),
        channels=raw.shape[3],
        **chunks.options,
    )
    return target, of_gain, of_bias


def _convolve_back(done: Pass, i: int, gradient: Tensor, past: Tensor | None, given: Tensor | None) -> Summed:
    """The gradient of what layer ``i`` reads, through the ReLU before it; of the images, as it is.

    ``given`` is a gradient from outside, of the same activation.
    """
    layer, source = done.layers[i], done.source(i)
    target, tile = torch.empty_like(source), BACKWARD[max(layer.weight.shape[:2])]
    # A strided layer has programs of their own for even and odd rows and columns.
    pixels, kinds = _pixels(gradient), layer.stride**2
    programs = (triton.cdiv(pixels, tile.block), kinds)
    masked = i > 0 and given is None
    measured = masked and bool(done.statistics)
    sums = _sums(source, programs[0] * kinds) if measured else None
    _launch(
        kernel.convolve_back,
        programs,
        gradient,
        done.weights[i],
        layer.gain,
        layer.variance,
        layer.epsilon,
        target,
        gradient if past is None else past,
        source,
        done.raw[i - 1] if measured else source,
        done.statistics[i - 1] if measured else source,
        target if sums is None else sums,
        pixels,
        **_shape(source, layer),
        has_past=past is not None,
        past_outputs=0 if past is None else past.shape[3],
        masked=masked,
        measured=measured,
        scaled=not done.statistics,
        precision=done.precision,
        **tile.options,
    )
    return (target, sums) if given is None else _rectify(done, i - 1, target + given)


class _WeightSums:
    """Weight gradients as sums of chunks, added up at the end: once for all layers with as many chunks.

    Nothing on the way back waits for them, so on a GPU they are computed beside it.
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
        # Kept until all is done: memory that is freed may be used again on the way back at once.
        self._read: list[Tensor] = []

    def add(self, i: int, gradient: Tensor) -> None:
        """The chunks' sums of layer ``i``, of the gradient of what its convolution gives."""
        plan, layer, source = self._plans[i], self._done.layers[i], self._done.source(i)
        sums, pixels = self._sums[plan.programs], _pixels(gradient)
        inputs = layer.weight.shape[1]
        across = plan.across if inputs > 3 else 3
        self._read.append(gradient)
        if self._beside:
            self._beside.wait_stream(torch.cuda.current_stream(gradient.device))
        with torch.cuda.stream(self._beside):
            _launch(
                kernel.weight_sums,
                (plan.programs, 9 // across),
                source,
                gradient,
                sums[:, self._starts[i] :],
                sums.shape[1],
                pixels,
                plan.of(pixels),
                **_shape(source, layer),
                across=across,
                together=max(16, triton.next_power_of_2(across * inputs)),
                precision=self._done.precision,
                **plan.options,
            )

    def total(self) -> list[Tensor]:
        """∂L/∂w of each layer, float32 [K, C, 3, 3] in channels-last order."""
        if self._beside:
            torch.cuda.current_stream(self._done.images.device).wait_stream(self._beside)
        added, found = {count: sums.sum(dim=0) for count, sums in self._sums.items()}, []
        for plan, start, layer in zip(self._plans, self._starts, self._layers, strict=True):
            outputs, inputs = layer.weight.shape[:2]
            one = added[plan.programs][start : start + layer.weight.numel()]
            found.append(one.view(outputs, 3, 3, inputs).permute(0, 3, 1, 2))
        return found


@cache
def _beside(device: torch.device) -> torch.cuda.Stream:
    """A stream for what nothing waits for; all passes share it, and each waits for its own work there."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _sums(of: Tensor, programs: int) -> Tensor:
    """Room for two sums over the pixels of each program."""
    return torch.empty((programs, 2, of.shape[3]), device=of.device)


def _shape(source: Tensor, layer: Layer) -> dict[str, Any]:
    outputs, inputs = layer.weight.shape[:2]
    _, height, width, _ = source.shape
    return {"height": height, "width": width, "stride": layer.stride, "inputs": inputs, "outputs": outputs}


def _joined(done: Pass, i: int) -> dict[str, Any]:
    """The image that layer ``i`` gets by its shortcut, and of how many of its pixels it gets one."""
    layer = done.layers[i]
    if not layer.joins:
        names = ("has_shortcut", "aside_height", "aside_width", "aside_inputs", "aside_stride")
        return dict.fromkeys(names, 0)
    _, height, width, channels = done.aside(i).shape
    return {
        "has_shortcut": 1,
        "aside_height": height,
        "aside_width": width,
        "aside_inputs": channels,
        "aside_stride": done.layers[i - 1].stride,
    }


def _target(source: Tensor, layer: Layer, dtype: torch.dtype) -> Tensor:
    images, height, width, _ = source.shape
    rows, columns = (height - 1) // layer.stride + 1, (width - 1) // layer.stride + 1
    return torch.empty((images, rows, columns, len(layer.weight)), device=source.device, dtype=dtype)


def _pixels(images: Tensor) -> int:
    return images.numel() // images.shape[3]


#: Launches that are noted instead of made.
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
    """Compile the kernels of a pass at once, on all cores: one after the other takes half a minute.

    Triton keeps what it has compiled, so the next process only reads it.
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
            back(done, {last: done.activations[last]}, mode.of_images)
    finally:
        _noted.reset(token)
    different = {
        (which, tuple(getattr(a, "dtype", type(a)) for a in arguments), tuple(values.items())): arguments
        for which, arguments, values in launches
    }
    with ThreadPoolExecutor(min(len(different), os.cpu_count() or 1)) as threads:
        for made in [
            threads.submit(which.warmup, *arguments, grid=(1,), **dict(values))
            for (which, _, values), arguments in different.items()
        ]:
            made.result()


def try_out(device: torch.device) -> None:
    """Run one little kernel: raises where Triton has no compiler or no such GPU."""
    little = torch.zeros((1, 1, 1, 16), device=device)
    with torch.cuda.device_of(little):  # type: ignore[no-untyped-call]
        kernel.rectify_back[(1,)](little, little, little, little, little, little, 1, 16, False, 16)
