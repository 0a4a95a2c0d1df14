"""Which device a command computes on."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from opencil.errors import BadInput


def resolve_device(name: str) -> torch.device:
    """``auto`` (an accelerator where there is one), or any device that torch knows and that is present."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if name == "auto":
        return accelerator or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.ones(1, device=device).sum().item()
    except (RuntimeError, AssertionError, ImportError) as error:
        present = ["auto", "cpu"]
        if accelerator:
            present += [f"{accelerator.type}:{i}" for i in range(torch.accelerator.device_count())]
        reason = str(error).split("\n")[0]
        raise BadInput(
            f"device {name!r} cannot be used ({reason}): allowed here are {', '.join(present)}"
        ) from None
    return device


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """On a GPU a stream of its own inside the block: a captured step must not run on the default one."""
    if device.type != "cuda":
        yield
        return
    outer, inner = torch.cuda.current_stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    inner.wait_stream(outer)
    with torch.cuda.stream(inner):
        yield
    outer.wait_stream(inner)
