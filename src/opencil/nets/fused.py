"""Narrow residual networks in kernels of our own, where there is a GPU for them.

ResNet-32's layers are so narrow that torch's kernels, made for wide ones, are mostly overhead, and cuDNN has
weight gradients of such layers that are fast, or the same every time, not both. Ours have batch norm, ReLU
and the shortcut in or beside the convolutions, and are deterministic; benchmarks/README.md has the figures.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:  # imports Triton, which not every machine has
    from opencil.kernels import residual

#: Channels that the kernels take: their tiles are powers of two, and cuDNN is good at wider layers.
NARROW = (16, 32, 64)
#: Numbers in an activation at most: places in it are counted in 32 bits.
MOST_NUMBERS = 2**31 - 1

#: A convolution with its batch norm, and whether the activation of two layers before is added to it.
Layer = tuple[nn.Conv2d, nn.BatchNorm2d, bool]

_unused: ContextVar[bool] = ContextVar("unused", default=False)


@contextmanager
def without_kernels() -> Iterator[None]:
    """Inside the block networks run in torch's own operations: somebody puts others in the place of some."""
    token = _unused.set(True)
    try:
        yield
    finally:
        _unused.reset(token)


def fits(layers: Sequence[Layer], images: Tensor) -> bool:
    """Whether the kernels can compute these layers of these images, as the layers now are."""
    return (
        not _unused.get()
        and images.ndim == 4
        and len(images) > 0
        and images.is_floating_point()
        and precision(images) is not None
        and all(map(_fits, layers))
        and _chained(layers, images.shape[1])
        and len({norm.training for _, norm, _ in layers}) == 1
        and images.numel() // images.shape[1] * max(NARROW) <= MOST_NUMBERS
        and _known_weights(layers)
        and works_on(images.device)
    )


def precision(images: Tensor) -> tuple[torch.dtype, str] | None:
    """Numbers that the kernels store, and how their products are rounded; None: not for them."""
    if torch.is_autocast_enabled("cuda"):
        return (torch.bfloat16, "ieee") if torch.get_autocast_dtype("cuda") == torch.bfloat16 else None
    if images.dtype != torch.float32:
        return None
    conv: Any = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    return torch.float32, "tf32" if conv.fp32_precision == "tf32" else FLOAT32


#: Products of full float32: as three of TF32 each, whose error is float32's own.
FLOAT32 = "tf32x3"


def _fits(layer: Layer) -> bool:
    convolution, norm, _ = layer
    # Of whatever else stands there nothing is known, a subclass included.
    if type(convolution) is not nn.Conv2d or type(norm) is not nn.BatchNorm2d:
        return False
    outputs, inputs = convolution.weight.shape[:2]
    return (
        convolution.kernel_size == (3, 3)
        and convolution.padding == (1, 1)
        and convolution.padding_mode == "zeros"
        and convolution.dilation == (1, 1)
        and convolution.groups == 1
        and convolution.stride in ((1, 1), (2, 2))
        and convolution.bias is None
        and outputs in NARROW
        and (inputs in NARROW or inputs <= 3)
        and convolution.weight.dtype == torch.float32
        and norm.num_features == outputs
        and norm.affine
        and norm.track_running_stats
        and norm.momentum is not None
    )


def _chained(layers: Sequence[Layer], channels: int) -> bool:
    """Whether each layer reads as many channels as it is given: the kernels would read on in memory."""
    given = [channels, *(len(convolution.weight) for convolution, _, _ in layers)]
    return all(
        convolution.weight.shape[1] == count
        for (convolution, _, _), count in zip(layers, given, strict=False)
    )


def _known_weights(layers: Sequence[Layer]) -> bool:
    """In evaluation the kernels have no gradients of weights; in training they have them all."""
    if not torch.is_grad_enabled():
        return True
    trained = [
        p.requires_grad
        for convolution, norm, _ in layers
        for p in (convolution.weight, norm.weight, norm.bias)
    ]
    return all(trained) if layers[0][1].training else not any(trained)


def activations(layers: Sequence[Layer], images: Tensor, wanted: Sequence[int]) -> list[Tensor]:
    """What some layers give, after their ReLU: [B, C, H, W] in channels-last order."""
    parameters = [p for c, norm, _ in layers for p in (c.weight, norm.weight, norm.bias)]
    if not torch.is_grad_enabled():  # a function is told which parameters train, not that nobody asks
        parameters = []
    found: tuple[Tensor, ...] = _Layers.apply(images, layers, wanted, *parameters)  # type: ignore[no-untyped-call]
    return [one.permute(0, 3, 1, 2) for one in found]


def _described(convolution: nn.Conv2d, norm: nn.BatchNorm2d, joins: bool) -> "residual.Layer":
    from opencil.kernels import residual

    mean, variance, batches = norm.running_mean, norm.running_var, norm.num_batches_tracked
    assert mean is not None
    assert variance is not None
    assert batches is not None
    assert norm.momentum is not None
    return residual.Layer(
        convolution.weight,
        norm.weight,
        norm.bias,
        mean,
        variance,
        batches,
        convolution.stride[0],
        joins,
        norm.momentum,
        norm.eps,
    )


#: What kernels have been compiled for in this process.
_compiled: set[tuple[Any, ...]] = set()


class _Layers(Function):
    """All layers as one function: the way back crosses the borders of the blocks, as the kernels do."""

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, layers: Sequence[Layer], wanted: Sequence[int], *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        from opencil.kernels import residual

        found = precision(images)
        assert found is not None
        dtype, rounding = found
        described = [_described(*layer) for layer in layers]
        training = layers[0][1].training
        mode = residual.Mode(training, any(ctx.needs_input_grad), ctx.needs_input_grad[0])
        laid_out = images.permute(0, 2, 3, 1).contiguous()
        sizes = tuple((convolution.weight.shape, convolution.stride) for convolution, _, _ in layers)
        key = (images.device, laid_out.shape[1:], images.dtype, dtype, rounding, mode, sizes)
        # Triton launches on the current GPU; on the way back autograd sees to it.
        with torch.cuda.device_of(images):  # type: ignore[no-untyped-call]
            if key not in _compiled:
                residual.compile_all(laid_out, described, dtype, rounding, mode)
                _compiled.add(key)
            done = residual.begin(laid_out, described, dtype, rounding)
            if training:
                residual.train(done)
            else:
                residual.evaluate(done, range(len(layers)) if mode.back else wanted)
        ctx.set_materialize_grads(False)
        if any(ctx.needs_input_grad):
            ctx.done, ctx.wanted, ctx.dtype = done, wanted, images.dtype
            ctx.save_for_backward(*parameters)
        # Not the tensors that the pass keeps, which would keep the pass in turn.
        return tuple(done.activations[i].detach() for i in wanted)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        from opencil.kernels import residual

        parameters = ctx.saved_tensors  # refuses where one was changed since
        given = {
            i: gradient for i, gradient in zip(ctx.wanted, gradients, strict=True) if gradient is not None
        }
        found = residual.back(ctx.done, given, ctx.needs_input_grad[0])
        images = None if found.images is None else found.images.permute(0, 3, 1, 2).to(ctx.dtype)
        none = [None] * (len(parameters) - len(found.parameters))
        return images, None, None, *found.parameters, *none


@cache
def works_on(device: torch.device) -> bool:
    """Whether there is Triton, a C compiler and a GPU that multiplies bfloat16; tried once."""
    if device.type != "cuda" or find_spec("triton") is None:
        return False
    if torch.cuda.get_device_capability(device) < (8, 0):
        return False
    try:
        from opencil.kernels.residual import try_out

        try_out(device)
    except Exception as error:  # whatever is wrong with Triton here, torch can do it
        warnings.warn(
            f"Triton does not work here, so training is slower ({type(error).__name__}: {error})",
            stacklevel=2,
        )
        return False
    return True
