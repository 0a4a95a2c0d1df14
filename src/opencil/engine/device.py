"""Devices: choose one by name, and streams, threads and memory of it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from opencil.data.precision import widest
from opencil.errors import BadInput, nearest


def resolve_device(name: str) -> torch.device:
    """Return the device of a name: ``auto``, ``gpu``, or the name of a device of this machine.

    ``gpu`` is torch's accelerator of any kind. ``auto`` is the accelerator if it has float64, as CUDA's do,
    else the CPU; nothing has been measured on Apple's MPS.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if name == "auto" and (accelerator is None or widest(accelerator) is not torch.float64):
        return torch.device("cpu")
    if accelerator and name in ("auto", "gpu"):
        return accelerator
    try:
        device = torch.device(name)
        torch.ones(1, device=device).sum().item()
    except (RuntimeError, AssertionError, ImportError) as error:
        # torch's own text is short for a kind of device of this machine, such as "invalid device ordinal".
        known = accelerator and name.startswith(accelerator.type)
        reason = str(error).split("\n")[0] if known else "torch has no such device here"
        present, kinds = present_devices(), ("gpu", "cuda", "mps", "xpu")
        hint = "" if name.startswith(kinds) else nearest(name, [*present, *kinds])
        problem = f"device {name!r} cannot be used ({reason}; see 'opencil doctor')"
        raise BadInput(f"{problem}: allowed here are {', '.join(present)}{hint}") from None
    return device


def present_devices() -> list[str]:
    """Return the names of devices for ``resolve_device`` on this machine."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return ["auto", "cpu"]
    numbered = [f"{accelerator.type}:{i}" for i in range(torch.accelerator.device_count())]
    return ["auto", "cpu", "gpu", *numbered]


class SideStream:
    """A stream beside the current one on a GPU, where a captured step must not run on the default one.

    It begins after the current one's work so far. On other devices it does nothing.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, None
        if device.type == "cuda":
            outer = torch.cuda.current_stream(device)
            self._stream = torch.cuda.Stream(device, outer.priority)  # type: ignore[no-untyped-call]
            self._stream.wait_stream(outer)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Launch work on this stream inside the block; the outer stream then waits for it."""
        if self._stream is None:
            yield
            return
        outer = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            yield
        outer.wait_stream(self._stream)

    def hand_over(self, *tensors: Tensor) -> None:
        """Let the current stream read tensors of this stream, and keep their memory until it has."""
        if self._stream is None:
            return
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._stream)
        for tensor in tensors:
            tensor.record_stream(current)


@contextmanager
def cpu_threads(number: int | None) -> Iterator[None]:
    """Compute with this number of CPU threads inside the block; None leaves it unchanged."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def free_unused(device: torch.device, share: float = 0.1) -> None:
    """Free GPU memory reserved by torch and unused, if it is more than a share of the total."""
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if unused > share * torch.cuda.get_device_properties(device).total_memory:
        torch.cuda.empty_cache()
