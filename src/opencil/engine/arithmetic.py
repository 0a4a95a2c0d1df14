"""How a GPU computes: roundings and the choice of algorithms."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from opencil.validation import QUIET, Values


@dataclass(frozen=True)
class Arithmetic(Values):
    """The arithmetic of a training; a CPU computes in float32 whatever it says.

    ``precision``: float32; float32 whose products are rounded to TF32, on a GPU that has it; bfloat16 where
    autocast allows, on a GPU that has it, and TF32 elsewhere. ``deterministic`` gives the same bits for the
    same seed, alone or packed with other runs; without it cuDNN looks for its fastest algorithms. ``compile``
    fuses small kernels of backbones that have none of our own, after half a minute for the compiler.
    ``batch_norm``: on several ranks the statistics are the whole batch's, as on one, or each share's own.
    """

    precision: Literal["fp32", "tf32", "bf16"] = "bf16"
    deterministic: bool = True
    compile: bool = False
    batch_norm: Literal["synchronised", "local"] = field(default="synchronised", metadata=QUIET)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Compute so inside the block; nothing is changed outside it."""
        cudnn: Any = torch.backends.cudnn  # its parts are made at run time, out of the type checker's sight
        rounding = "ieee" if self.precision == "fp32" else "tf32"
        settings = [
            (torch.backends.cuda.matmul, "fp32_precision", rounding),
            (cudnn.conv, "fp32_precision", rounding),
            (cudnn, "deterministic", self.deterministic),
            (cudnn, "benchmark", not self.deterministic),
        ]
        before = [getattr(backend, name) for backend, name, _ in settings]
        try:
            for backend, name, value in settings:
                setattr(backend, name, value)
            # A caller's autocast must not reach in here: bf16 scores collapse to a few hundred values.
            with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
                yield
        finally:
            for (backend, name, _), value in zip(settings, before, strict=True):
                setattr(backend, name, value)

    def autocast(self, device: torch.device) -> torch.autocast:
        """Autocast to bfloat16, where that is the precision; its cache of weights would outlive a capture."""
        enabled = self.on(device) == "bf16"
        return torch.autocast(device.type, torch.bfloat16, enabled=enabled, cache_enabled=False)

    def on(self, device: torch.device) -> str:
        """The precision that a device computes in."""
        if self.precision == "bf16" and has_bfloat16(device):
            return "bf16"
        return "tf32" if self.precision != "fp32" and has_tf32(device) else "fp32"


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device is a GPU with bfloat16 of its own; emulated, it is slower than float32."""
    if device.type != "cuda":
        return False
    with torch.cuda.device(device):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))


def has_tf32(device: torch.device) -> bool:
    """Whether the device is a GPU that can round products to TF32."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


#: Full float32, the same bits every time: what models are evaluated in.
FULL = Arithmetic("fp32")
