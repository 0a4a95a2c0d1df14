"""Run narrow residual networks in our own GPU kernels, where they fit.

ResNet-32's layers are so narrow that torch's kernels are mostly overhead, and cuDNN's weight gradients of
such layers are either fast or deterministic. Ours compute batch norm, ReLU and the shortcut in or beside the
convolutions, and are deterministic; see benchmarks/README.md for times.
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

if TYPE_CHECKING:  # it imports Triton, which may be missing
    from opencil.kernels import residual

#: Channels of the kernels, whose tiles are powers of two; cuDNN is good at wider layers.
NARROW = (16, 32, 64)
#: Maximal size of an activation, which has 32-bit indices.
MOST_NUMBERS = 2**31 - 1

#: A convolution, its batch norm, and whether the activation of two layers before is added.
Layer = tuple[nn.Conv2d, nn.BatchNorm2d, bool]

_unused: ContextVar[bool] = ContextVar("unused", default=False)


@contextmanager
def without_kernels() -> Iterator[None]:
    """Run networks in torch's own operations inside the block, for callers that replace some of them."""
    token = _unused.set(True)
    try:
        yield
    finally:
        _unused.reset(token)


def fits(layers: Sequence[Layer], images: Tensor) -> bool:
    """Return whether the kernels can compute the layers, in their current state, on these images."""
    return (
        not _unused.get()
        and images.ndim == 4
        and len(images) > 0
        and images.is_floating_point()
        and precision(images) is not None
        and all(map(_fits, layers))
        and _channels_match(layers, images.shape[1])
        and len({norm.training for _, norm, _ in layers}) == 1
        and images.numel() // images.shape[1] * max(NARROW) <= MOST_NUMBERS
        and _gradients_match(layers)
        and works_on(images.device)
    )


def precision(images: Tensor) -> tuple[torch.dtype, str] | None:
    """Return the dtype that the kernels store and the rounding of their products; None: unsupported."""
    if torch.is_autocast_enabled("cuda"):
        return (torch.bfloat16, "ieee") if torch.get_autocast_dtype("cuda") == torch.bfloat16 else None
    if images.dtype != torch.float32:
        return None
    conv: Any = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    # Products in full float32 are three TF32 products each, with float32's error.
    return torch.float32, "tf32" if conv.fp32_precision == "tf32" else "tf32x3"


def _fits(layer: Layer) -> bool:
    convolution, norm, _ = layer
    # Subclasses may compute anything.
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


def _channels_match(layers: Sequence[Layer], channels: int) -> bool:
    """Return whether each layer reads as many channels as the one before writes; kernels do not check."""
    outputs = [channels, *(len(convolution.weight) for convolution, _, _ in layers)]
    return outputs[:-1] == [convolution.weight.shape[1] for convolution, _, _ in layers]


def _gradients_match(layers: Sequence[Layer]) -> bool:
    """Return whether all weights need gradients in training, and none in evaluation, as in the kernels."""
    if not torch.is_grad_enabled():
        return True
    trained = [p.requires_grad for p in _parameters(layers)]
    return all(trained) if layers[0][1].training else not any(trained)


def _parameters(layers: Sequence[Layer]) -> list[Tensor]:
    return [p for convolution, norm, _ in layers for p in (convolution.weight, norm.weight, norm.bias)]


def activations(layers: Sequence[Layer], images: Tensor, wanted: Sequence[int]) -> list[Tensor]:
    """Return the activations of the ``wanted`` layers after ReLU: [B, C, H, W] in channels-last order."""
    # In a Function, needs_input_grad does not depend on is_grad_enabled: without gradients, pass none.
    parameters = _parameters(layers) if torch.is_grad_enabled() else []
    found: tuple[Tensor, ...] = _Layers.apply(images, layers, wanted, *parameters)  # type: ignore[no-untyped-call]
    return [activation.permute(0, 3, 1, 2) for activation in found]


def _kernel_layer(layer: Layer) -> "residual.Layer":
    from opencil.kernels.residual import Layer as KernelLayer

    convolution, joins = layer[0], layer[2]
    norm: Any = layer[1]  # with running statistics, as _fits has checked
    statistics = (norm.running_mean, norm.running_var, norm.num_batches_tracked)
    tensors = (convolution.weight, norm.weight, norm.bias, *statistics)
    return KernelLayer(*tensors, convolution.stride[0], joins, norm.momentum, norm.eps)


#: Shapes and modes that kernels are compiled for in this process.
_compiled: set[tuple[Any, ...]] = set()


class _Layers(Function):
    """All layers as one function, since the kernels of the backward pass cross the borders of blocks."""

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, layers: Sequence[Layer], wanted: Sequence[int], *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        from opencil.kernels import residual

        found = precision(images)
        assert found is not None
        dtype, rounding = found
        described = [_kernel_layer(layer) for layer in layers]
        training = layers[0][1].training
        mode = residual.Mode(training, any(ctx.needs_input_grad), ctx.needs_input_grad[0])
        laid_out = images.permute(0, 2, 3, 1).contiguous()
        sizes = tuple((convolution.weight.shape, convolution.stride) for convolution, _, _ in layers)
        key = (images.device, laid_out.shape[1:], images.dtype, dtype, rounding, mode, sizes)
        # Triton launches on the current GPU; in the backward pass autograd sets it.
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
        # Detached: the pass holds its activations, and must not hold itself through them.
        return tuple(done.activations[i].detach() for i in wanted)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        from opencil.kernels import residual

        parameters = ctx.saved_tensors  # raises if one was changed
        given = {i: g for i, g in zip(ctx.wanted, gradients, strict=True) if g is not None}
        found = residual.backward(ctx.done, given, ctx.needs_input_grad[0])
        images = None if found.images is None else found.images.permute(0, 3, 1, 2).to(ctx.dtype)
        none = [None] * (len(parameters) - len(found.parameters))
        return images, None, None, *found.parameters, *none


@cache
def works_on(device: torch.device) -> bool:
    """Return whether Triton, a C compiler and a GPU with bfloat16 are present; tried once."""
    if device.type != "cuda" or find_spec("triton") is None:
        return False
    if torch.cuda.get_device_capability(device) < (8, 0):
        return False
    try:
        from opencil.kernels.residual import try_out

        try_out(device)
    except Exception as error:  # torch's own operations serve on any failure of Triton
        why = f"{type(error).__name__}: {error}"
        warnings.warn(f"Triton does not work here, so training is slower ({why})", stacklevel=2)
        return False
    return True
