"""Turn a user's numbers, tensors or numpy arrays, into tensors, or refuse them in a sentence."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from opencil.errors import BadInput

_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)  # torch hardly computes with them


def tensor_of(value: Any) -> Any:
    """Return a numpy array as a tensor, sharing its memory if possible; other values unchanged."""
    if not isinstance(value, np.ndarray):
        return value
    if np.ma.is_masked(value):
        raise BadInput("an array with masked values is given: choose the numbers to use, as by compressed()")
    try:
        array = np.require(value, value.dtype.newbyteorder("="), ["C", "W"])
        # For numpy any strides of a single number are in order.
        return torch.from_numpy(array if min(array.strides, default=0) >= 0 else array.copy())
    except TypeError:
        raise BadInput(f"an array of {value.dtype} is given: numbers are needed") from None


def dense(value: Any, what: str) -> Tensor:
    """Return a tensor or an array as a dense tensor of real numbers; ``what`` is its name in errors."""
    tensor = tensor_of(value)
    if not isinstance(tensor, Tensor):
        raise BadInput(f"{what} are a {type(value).__name__}: a tensor or a numpy array is needed")
    without_values = tensor.layout is not torch.strided or tensor.is_nested or tensor.is_meta
    if without_values or tensor.is_complex() or tensor.is_quantized:
        raise BadInput(f"{what} are {tensor.dtype}, {tensor.layout}: dense real numbers are needed")
    if tensor.dtype in _UNSIGNED and ((tensor := tensor.long()) < 0).any():
        raise BadInput(f"{what} have numbers from 2^63 on: smaller numbers are needed")
    return tensor


def whole_numbers(values: Any, what: str, least: int | None = None) -> Tensor:
    """Return a user's whole numbers as int64 [N]; ``what`` is their name in errors."""
    try:
        if hasattr(values, "__array__") and not isinstance(values, Tensor):
            values = np.asanyarray(values)  # torch would read a Series by its index
        found = dense(torch.as_tensor(tensor_of(values)), what)
        whole = found.ndim == 1 and not found.is_floating_point() and found.dtype != torch.bool
        if whole and (least is None or not (found < least).any()):
            return found.long()
        wrong = f"{found.dtype} {list(found.shape)}"
    except (TypeError, ValueError, RuntimeError, OverflowError):
        wrong = "no numbers"
    bound = "" if least is None else f" from {least} on"
    raise BadInput(f"{what} are {wrong}: whole numbers [N]{bound} are needed")


def listed(value: Any, what: str) -> list[Any]:
    """Return the items of a list or another iterable; ``what`` is their name in errors."""
    if isinstance(value, Tensor) or not isinstance(value, Iterable) or getattr(value, "ndim", 1) != 1:
        raise BadInput(f"a {type(value).__name__} is given for {what}: a list of them is needed")
    return list(value)
