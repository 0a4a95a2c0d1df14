"""Batch norm on several ranks: statistics of the whole batch or of each rank's share."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from opencil.engine.ranks import Ranks, Share
from opencil.nets.fused import without_kernels


@contextmanager
def synchronised(ranks: Ranks | None) -> Iterator[None]:
    """Compute batch norm in training mode from the rows of all ranks, inside the block.

    Fused kernels are off, since they compute statistics themselves.
    """
    if ranks is None:
        yield
        return
    with without_kernels(), _Synchronised(ranks):
        yield


class _Synchronised(TorchFunctionMode):
    """Replaces ``torch.nn.functional.batch_norm`` in training mode."""

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
        """Return (x − mean) / std · weight + bias; mean and std follow from float64 sums over the ranks."""
        if not training:
            return F.batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
        x = input.to(torch.float32 if weight is None else weight.dtype)
        channels, axes = x.shape[1], [axis for axis in range(x.ndim) if axis != 1]
        variance, mean = (moment.double() for moment in torch.var_mean(x, axes, correction=0))
        rows = mean.new_full((1,), x.numel() / channels)
        moments = torch.cat([rows, rows * mean, rows * (variance + mean.square())])
        sums: Tensor = _Sum.apply(moments, self._ranks)  # type: ignore[no-untyped-call]
        count, mean, squares = sums[0], sums[1 : 1 + channels] / sums[0], sums[1 + channels :] / sums[0]
        variance = (squares - mean.square()).clamp(min=0)
        if running_mean is not None and running_var is not None:
            unbiased = variance * (count / (count - 1))
            running_mean.lerp_(mean.detach().to(running_mean.dtype), momentum)
            running_var.lerp_(unbiased.detach().to(running_var.dtype), momentum)
        shape = [1, channels, *[1] * (x.ndim - 2)]
        centre, scale = (t.to(x.dtype).view(shape) for t in (mean, (variance + eps).rsqrt()))
        if weight is not None:
            scale = scale * weight.view(shape)
        output = (x - centre) * scale
        return (output if bias is None else output + bias.view(shape)).to(input.dtype)


class _Sum(Function):
    """The sum of all ranks' tensors. Its gradient on a rank is the sum of the gradients on all of them."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return ranks.sum_(tensor.clone())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.ranks.sum_(gradient.clone()), None


def average_statistics(module: nn.Module, ranks: Ranks, share: Share) -> None:
    """Replace running statistics of local batch norm by their mean over the ranks.

    They are linear in the batches, so averaging them once an epoch is enough. Frozen layers keep their bits.
    """
    norms = [part for part in module.modules() if isinstance(part, _BatchNorm) and part.training]
    statistics = [t for norm in norms for t in (norm.running_mean, norm.running_var) if t is not None]
    if statistics:
        torch._foreach_mul_(statistics, share.weight)
        ranks.sum_all_(statistics)
