"""The 3 × 3 convolution of residual networks, with a weight gradient of its own for narrow layers on a GPU.

cuDNN's deterministic weight gradients of layers with 16 to 64 channels take a third of a training step of
ResNet-32 in bfloat16; its fast ones add in any order, so that a run differs from itself. Ours adds in a fixed
order, in float32, and is as fast: benchmarks/README.md has the figures.
"""

import warnings
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

#: Channels, in and out, that the kernel takes: its tiles are powers of two; cuDNN is good at wider layers.
NARROW = (16, 32, 64)
#: Output pixels of a batch that it takes at most; it was made for CIFAR's 128 images of 32 × 32.
MOST_PIXELS = 2**18


class Convolution(nn.Conv2d):
    """3 × 3, padded by 1, without a bias.

    A narrow one that trains on a GPU has a weight gradient of our own, of which torch takes no second one.
    """

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__(inputs, outputs, 3, stride, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, inputs, H, W] to [B, outputs, H / stride, W / stride]."""
        # In eval mode nobody asks for the weight's gradient; ODIN asks for the images', and pays for no more.
        trains = self.training and torch.is_grad_enabled() and self.weight.requires_grad
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
        if trains and fits(x.device.type, x.ndim, dtype, self.in_channels, self.out_channels):
            return _Convolve.apply(x, self.weight, self.stride[0], dtype)  # type: ignore[no-any-return, no-untyped-call]
        return super().forward(x)


def fits(device: str, dimensions: int, dtype: torch.dtype, inputs: int, outputs: int) -> bool:
    """Whether a layer's weight gradient is one for the kernel; TF32 is decided on when it is computed."""
    narrow = inputs in NARROW and outputs in NARROW
    return device == "cuda" and dimensions == 4 and dtype in (torch.bfloat16, torch.float32) and narrow


class _Convolve(Function):
    """A convolution in ``dtype``, as autocast makes it; the gradient of its weight stays float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int, dtype: torch.dtype) -> Tensor:
        cast_x, cast_weight = x.to(dtype), weight.to(dtype)
        ctx.save_for_backward(cast_x, cast_weight)
        ctx.stride = stride
        return F.conv2d(cast_x, cast_weight, stride=stride, padding=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        x, weight = ctx.saved_tensors
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = _torchs(x, weight, gradient, ctx.stride, (True, False))[0]
        return of_x, weight_gradient(x, gradient, ctx.stride), None, None


@torch.library.custom_op("opencil::weight_gradient", mutates_args=())
def weight_gradient(x: Tensor, gradient: Tensor, stride: int) -> Tensor:
    """∂L/∂w, float32 [K, C, 3, 3], of x [B, C, H, W] and ∂L/∂y [B, K, H / stride, W / stride]."""
    pixels = gradient.numel() // gradient.shape[1]
    if 0 < pixels <= MOST_PIXELS and (x.dtype == torch.bfloat16 or _rounds_to_tf32()):
        kernel = _kernel(x.device)
        if kernel is not None:
            return kernel(x, gradient, stride)
    # Processors without bfloat16 of their own add it up in bfloat16: 2 % of the largest entry at 128 images.
    if x.device.type == "cpu":
        x, gradient = x.float(), gradient.float()
    weight = x.new_empty((gradient.shape[1], x.shape[1], 3, 3))  # its values do not matter here
    of_weight: Tensor = _torchs(x, weight, gradient, stride, (False, True))[1]
    return of_weight.float().contiguous(memory_format=torch.channels_last)


@weight_gradient.register_fake
def _(x: Tensor, gradient: Tensor, stride: int) -> Tensor:  # noqa: ARG001
    empty = torch.empty((gradient.shape[1], x.shape[1], 3, 3), device=x.device)
    return empty.contiguous(memory_format=torch.channels_last)


def _torchs(x: Tensor, weight: Tensor, gradient: Tensor, stride: int, wanted: tuple[bool, bool]) -> Any:
    """Gradients of the images and of the weight, those that are wanted, as torch computes them."""
    return torch.ops.aten.convolution_backward(
        gradient, x, weight, None, [stride] * 2, [1, 1], [1, 1], False, [0, 0], 1, [*wanted, False]
    )


@cache
def _kernel(device: torch.device) -> Callable[[Tensor, Tensor, int], Tensor] | None:
    """The kernel where it works, tried once: with Triton, a C compiler and a GPU that multiplies bfloat16."""
    if device.type != "cuda" or find_spec("triton") is None:
        return None
    if torch.cuda.get_device_capability(device) < (8, 0):
        return None
    try:
        from opencil.kernels.weight_gradient import launch  # imports Triton, which not every machine has

        little = torch.zeros((1, 16, 4, 4), device=device, dtype=torch.bfloat16)
        launch(little, little, 1)
    except Exception as error:  # whatever is wrong with Triton here, torch can do it
        warnings.warn(
            f"Triton does not work here, so training is slower ({type(error).__name__}: {error})",
            stacklevel=2,
        )
        return None
    return launch


def _rounds_to_tf32() -> bool:
    conv: Any = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    return bool(conv.fp32_precision == "tf32")
