"""How a GPU computes: roundings and the choice of algorithms."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch

from opencil.validation import Values


@dataclass(frozen=True)
class Arithmetic(Values):
    """The arithmetic of a training; on the CPU only ``bf16`` makes a difference.

    ``precision``: float32; float32 whose products are rounded to TF32, on a GPU that has it; bfloat16 where
    autocast allows. ``deterministic`` gives the same bits for the same seed, alone or packed with other runs;
    without it cuDNN looks for its fastest algorithms. ``compile`` fuses the backbones' small kernels: a third
    faster for one run, after half a minute for the compiler.
    """

    precision: Literal["fp32", "tf32", "bf16"] = "tf32"
    deterministic: bool = True
    compile: bool = False

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
        return torch.autocast(
            device.type, torch.bfloat16, enabled=self.precision == "bf16", cache_enabled=False
        )


#: Full float32, the same bits every time: what models are evaluated in.
FULL = Arithmetic("fp32")
