"""Float64, which not every device has."""

import torch
from torch import Tensor

#: Kinds of devices that compute in float32 at most: Apple's.
WITHOUT_FLOAT64 = ("mps",)


def widest(device: torch.device) -> torch.dtype:
    """The widest floating point numbers that a device computes in."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def reachable(tensor: Tensor) -> Tensor:
    """A tensor where float64 is: where it lies, or on the CPU."""
    return tensor if widest(tensor.device) is torch.float64 else tensor.cpu()


def widened(tensor: Tensor) -> Tensor:
    """A tensor in float64."""
    return reachable(tensor).double()


def placed(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device; float64 is float32 where there is none."""
    return tensor.to(widest(device) if tensor.dtype is torch.float64 else tensor.dtype).to(device)
