"""What users give as numbers: tensors and numpy arrays, and a sentence for all that is neither."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from opencil.errors import BadInput

#: The kinds of numbers that torch computes with on every device.
_NUMBERS = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
_WIDER = (torch.uint16, torch.uint32)  # torch hardly computes with them; an int64 holds them all


def tensor_of(given: Any) -> Any:
    """A numpy array as a tensor, which shares its memory where it may be written; all else as it is."""
    if not isinstance(given, np.ndarray):
        return given
    if isinstance(given, np.ma.MaskedArray):
        raise BadInput("an array with a mask is given: numbers are needed, those that count alone")
    try:
        return torch.from_numpy(given if given.flags.writeable else given.copy())
    except (TypeError, ValueError):  # texts, objects, numbers of other bytes; strides below zero
        pass
    try:
        return torch.from_numpy(given.astype(given.dtype.newbyteorder("="), order="C"))
    except (TypeError, ValueError):
        raise BadInput(f"an array of {given.dtype} is given: numbers are needed") from None


def dense(given: Any, what: str) -> Tensor:
    """A tensor or an array, as a tensor whose real numbers lie in memory; ``what`` is its name in errors."""
    tensor = tensor_of(given)
    if not isinstance(tensor, Tensor):
        raise BadInput(f"{what} are a {type(given).__name__}: a tensor or a numpy array is needed")
    if odd := _odd(tensor):
        raise BadInput(f"{what} are {odd}: a tensor of real numbers that lie in memory is needed")
    return tensor.long() if tensor.dtype in _WIDER else tensor


def listed(given: Any, what: str) -> list[Any]:
    """The items of a list, or of what is like one; ``what`` says in errors what they should be."""
    if isinstance(given, Tensor) or not isinstance(given, Iterable) or getattr(given, "ndim", 1) != 1:
        raise BadInput(f"a {type(given).__name__} is given for {what}: a list of them is needed")
    return list(given)


def on_one_device(tensors: dict[str, Tensor | None]) -> None:
    """Refuse tensors that lie on several devices, by their names."""
    places = {name: str(tensor.device) for name, tensor in tensors.items() if tensor is not None}
    if len(set(places.values())) > 1:
        told = ", ".join(f"{name} on {device}" for name, device in places.items())
        raise BadInput(f"{told}: one device is needed for all")


def _odd(tensor: Tensor) -> str:
    """What keeps a tensor's numbers from being read; empty where nothing does."""
    if tensor.is_nested:
        return "nested"
    if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return f"a {type(tensor).__name__}"  # of a fake one, say, there are only shapes
    if tensor.layout is not torch.strided:
        return str(tensor.layout).removeprefix("torch.").lstrip("_")
    if tensor.device.type == "meta":
        return "on the device 'meta', which holds no numbers"
    if tensor.untyped_storage().nbytes() < _reach(tensor) * tensor.element_size():
        return "without their numbers, whose memory has been let go"  # to read them would end the process
    if tensor.is_quantized or tensor.dtype not in (*_NUMBERS, *_WIDER):
        return str(tensor.dtype)
    return ""


def _reach(tensor: Tensor) -> int:
    """How many numbers a tensor's memory must have for its last one to lie in it."""
    if not tensor.numel():
        return 0
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset() + steps) + 1
