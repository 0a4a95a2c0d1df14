"""Use float64 where a device supports it."""

import torch
from torch import Tensor

#: Types of devices without float64: Apple's.
WITHOUT_FLOAT64 = ("mps",)


def widest(device: torch.device) -> torch.dtype:
    """Return the widest floating-point type of a device."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def to_float64_device(tensor: Tensor) -> Tensor:
    """Return a tensor on its device if that supports float64, otherwise on the CPU."""
    return tensor if widest(tensor.device) is torch.float64 else tensor.cpu()


def as_float64(tensor: Tensor) -> Tensor:
    """Convert a tensor to float64."""
    return to_float64_device(tensor).double()


def copy_to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device, as float32 if the device lacks float64."""
    return tensor.to(widest(device) if tensor.dtype is torch.float64 else tensor.dtype).to(device)
