"""Batch norm on several ranks: statistics of the whole batch, of which each rank has a share."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.modules._functions import SyncBatchNorm
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from opencil.engine.ranks import Ranks, Share
from opencil.nets.fused import without_kernels


@contextmanager
def synchronised(ranks: Ranks | None) -> Iterator[None]:
    """Inside the block batch norm in training mode takes the statistics of all ranks' rows together.

    Whatever module calls it: networks stay as they are. Kernels of our own, which have statistics of their
    own, give way to torch's operations.
    """
    if ranks is None:
        yield
        return
    with without_kernels(), _Synchronised(ranks):
        yield


class _Synchronised(TorchFunctionMode):
    """Takes the place of ``torch.nn.functional.batch_norm``."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self._ranks = ranks

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = self._batch_norm if func is F.batch_norm else func
        return call(*args, **(kwargs or {}))

    def _batch_norm(
        self,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if not training:
            return F.batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
        if input.is_cuda:  # torch's own kernels for it, which it has for nothing else
            ranks = self._ranks
            given = (input, weight, bias, running_mean, running_var, eps, momentum, ranks.group, ranks.size)
            made: Tensor = _OnGPU.apply(*given, ranks)  # type: ignore[no-untyped-call]
            return made
        scale = input.new_ones(input.shape[1], dtype=torch.float32) if weight is None else weight
        shift = torch.zeros_like(scale) if bias is None else bias
        found: tuple[Tensor, ...] = _Normalised.apply(input, scale, shift, eps, self._ranks)  # type: ignore[no-untyped-call]
        output, mean, variance, count = found
        if running_mean is not None and running_var is not None:
            with torch.no_grad():
                unbiased = variance * (count / (count - 1))
                running_mean.lerp_(mean.to(running_mean.dtype), momentum)
                running_var.lerp_(unbiased.to(running_var.dtype), momentum)
        return output


class _OnGPU(SyncBatchNorm):
    """Torch's own, which talks to the other ranks by itself: one that is lost is told as anywhere else."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        *of_torch, ctx.ranks = given
        with ctx.ranks.reachable():
            made: Tensor = SyncBatchNorm.forward(ctx, *of_torch)  # type: ignore[no-untyped-call]
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        with ctx.ranks.reachable():
            return *SyncBatchNorm.backward(ctx, gradient), None  # type: ignore[no-untyped-call]


class _Normalised(Function):
    """(x − mean) / std · weight + bias, mean and std over the rows of all ranks; with the gradient of that.

    The gradients of weight and bias are those of this rank's rows, as every parameter's are until all ranks'
    are summed. Sums are float64: of several means, the mean is that of all rows but for rounding.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, ranks: Ranks
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        wide, channels = x.to(weight.dtype), x.shape[1]
        axes = [axis for axis in range(x.ndim) if axis != 1]
        variance, mean = (one.double() for one in torch.var_mean(wide, axes, correction=0))
        rows = mean.new_full((1,), x.numel() / channels)
        sums = ranks.sum_(torch.cat([rows, rows * mean, rows * (variance + mean.square())]))
        count, mean, squares = sums[0], sums[1 : 1 + channels] / sums[0], sums[1 + channels :] / sums[0]
        variance = (squares - mean.square()).clamp(min=0)
        shape = [1, channels, *[1] * (x.ndim - 2)]
        centre, spread = (t.to(wide.dtype).view(shape) for t in (mean, (variance + eps).rsqrt()))
        ctx.save_for_backward(x, centre, spread, weight, count)
        ctx.axes, ctx.ranks = axes, ranks
        ctx.mark_non_differentiable(mean, variance, count)
        scale = spread * weight.view(shape)
        made = torch.addcmul(bias.view(shape) - centre * scale, wide, scale)
        return made.to(x.dtype), mean, variance, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, centre, spread, weight, count = ctx.saved_tensors
        gradient, apart = gradient.to(weight.dtype), x.to(weight.dtype) - centre
        of_bias, of_weight = gradient.sum(ctx.axes), (gradient * apart).sum(ctx.axes) * spread.flatten()
        of_input = None
        if ctx.needs_input_grad[0]:
            means = ctx.ranks.sum_(torch.cat([of_bias, of_weight]).double()) / count
            mean, along = (half.to(weight.dtype).view(spread.shape) for half in means.chunk(2))
            of_input = torch.addcmul(gradient - mean, apart, -along * spread)
            of_input = (of_input * (spread * weight.view(spread.shape))).to(x.dtype)
        return of_input, of_weight, of_bias, None, None


def average_statistics(module: nn.Module, ranks: Ranks, share: Share) -> None:
    """Give all ranks the mean of their running statistics: each has seen its own share's alone.

    These change by a share of what a batch has, so the mean at an epoch's end is the mean of every batch's.
    Those of parts that are not trained are the same everywhere, and stay so to the last bit.
    """
    norms = [part for part in module.modules() if isinstance(part, _BatchNorm) and part.training]
    kept = [t for norm in norms for t in (norm.running_mean, norm.running_var) if t is not None]
    if kept:
        summed = ranks.sum_(torch.cat([tensor.flatten() for tensor in kept]) * share.weight)
        for tensor, mean in zip(kept, torch.split(summed, [t.numel() for t in kept]), strict=True):
            tensor.copy_(mean)
