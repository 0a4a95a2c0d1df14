"""Which device a command computes on."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from opencil.data.precision import widest
from opencil.errors import BadInput, nearest


def resolve_device(name: str) -> torch.device:
    """``auto``, ``gpu``, or any device that torch knows and that is present.

    ``gpu`` is the accelerator that torch finds, whatever it is called; ``auto`` is that too where it has
    float64, as CUDA's have, and else the CPU: on Apple's MPS nothing of ours was ever measured.
    """
    accelerator = _accelerator()
    if name == "auto":
        return accelerator if accelerator and widest(accelerator) is torch.float64 else torch.device("cpu")
    if name == "gpu":
        if accelerator:
            return accelerator
        raise _refused(name, "torch finds no GPU")
    try:
        device = torch.device(name)
        torch.ones(1, device=device).sum().item()
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).split("\n")[0]
        kind = name.partition(":")[0]
        if (
            accelerator is None or kind != accelerator.type
        ):  # torch lists all that it could have been built for
            reason = f"torch has no {kind} here" if kind in _KINDS else "torch knows no such device"
        raise _refused(name, reason) from None
    return device


#: Devices that people ask for.
_KINDS = ("cuda", "mps", "xpu", "hpu", "hip", "xla")


def _accelerator() -> torch.device | None:
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None


def present_devices() -> list[str]:
    """The names that a device may have here."""
    accelerator = _accelerator()
    if accelerator is None:
        return ["auto", "cpu"]
    numbered = [f"{accelerator.type}:{i}" for i in range(torch.accelerator.device_count())]
    return ["auto", "cpu", "gpu", *numbered]


def _refused(name: str, reason: str) -> BadInput:
    present = present_devices()
    hint = "" if name.partition(":")[0] in ("gpu", *_KINDS) else nearest(name, [*present, *_KINDS])
    return BadInput(
        f"device {name!r} cannot be used ({reason}; 'opencil doctor' says more): allowed here are "
        f"{', '.join(present)}{hint}"
    )


class SideStream:
    """On a GPU a stream beside the current one, which has what that one was given so far; else nothing."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, None
        if device.type == "cuda":
            outer = torch.cuda.current_stream(device)
            self._stream = torch.cuda.Stream(device, outer.priority)  # type: ignore[no-untyped-call]
            self._stream.wait_stream(outer)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Inside the block work goes to it; what the stream around the block is given next waits for that."""
        if self._stream is None:
            yield
            return
        outer = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            yield
        outer.wait_stream(self._stream)

    def hand_over(self, *tensors: Tensor) -> None:
        """Let the current stream read tensors that were made here, which are kept until it has."""
        if self._stream is None:
            return
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._stream)
        for tensor in tensors:
            tensor.record_stream(current)


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """On a GPU a stream of its own inside the block: a captured step must not run on the default one."""
    with SideStream(device).active():
        yield


@contextmanager
def cpu_threads(number: int | None) -> Iterator[None]:
    """Inside the block a CPU computes with so many threads; None leaves it as it is."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def wait_for(device: torch.device) -> None:
    """Wait until a GPU has done what is launched so far: then other streams can use the results."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def free_unused(device: torch.device, share: float = 0.1) -> None:
    """Give memory back that torch holds and does not use, of graphs that are gone say, if it is much."""
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if unused > share * torch.cuda.get_device_properties(device).total_memory:
        torch.cuda.empty_cache()
