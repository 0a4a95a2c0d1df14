"""Arithmetic of a GPU: precision, and deterministic or fastest algorithms."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal

import torch

from opencil.validation import Values

Settings = list[tuple[Any, str, Any]]
_changing = Lock()
#: The settings before any block, and those of all open blocks.
_open: list[Settings] = []


def _apply(settings: Settings) -> None:
    for backend, name, value in settings:
        setattr(backend, name, value)


@dataclass(frozen=True)
class Arithmetic(Values):
    """The arithmetic of a training on a GPU; a CPU always computes in float32.

    ``precision``: ``fp32``; ``tf32`` rounds the factors of products, where the GPU can; ``bf16`` computes in
    bfloat16 where autocast and the GPU can, and in TF32 elsewhere. ``deterministic`` gives the same bits for
    the same seed, alone or packed with other runs; without it cuDNN chooses its fastest algorithms.
    ``compile`` fuses small kernels of backbones without kernels of ours; compiling takes half a minute.
    ``batch_norm``: with several ranks, statistics are of the whole batch or of each rank's share.
    """

    precision: Literal["fp32", "tf32", "bf16"] = "bf16"
    deterministic: bool = True
    compile: bool = False
    batch_norm: Literal["synchronised", "local"] = "synchronised"

    @contextmanager
    def active(self) -> Iterator[None]:
        """Use this arithmetic inside the block."""
        cudnn: Any = torch.backends.cudnn  # its attributes are created at run time
        rounding = "ieee" if self.precision == "fp32" else "tf32"
        settings = [
            (torch.backends.cuda.matmul, "fp32_precision", rounding),
            (cudnn.conv, "fp32_precision", rounding),
            (cudnn, "deterministic", self.deterministic),
            (cudnn, "benchmark", not self.deterministic),
        ]
        # Blocks of several threads can end in any order: the settings are those of the latest open one.
        with _changing:
            if not _open:
                _open.append([(backend, name, getattr(backend, name)) for backend, name, _ in settings])
            _open.append(settings)
            _apply(settings)
        try:
            # Disable a caller's autocast: in bf16, scores collapse to a few hundred values.
            with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
                yield
        finally:
            with _changing:
                _open[:] = [block for block in _open if block is not settings]
                _apply(_open[-1])
                if len(_open) == 1:
                    _open.clear()

    def autocast(self, device: torch.device) -> torch.autocast:
        """Return an autocast to bfloat16, enabled if this is the precision on the device."""
        enabled = self.on(device) == "bf16"
        # Without the cache of weights: it would outlive a capture.
        return torch.autocast(device.type, torch.bfloat16, enabled=enabled, cache_enabled=False)

    def on(self, device: torch.device) -> str:
        """Return the precision of computations on a device."""
        if self.precision == "bf16" and has_bfloat16(device):
            return "bf16"
        tf32 = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
        return "tf32" if self.precision != "fp32" and tf32 else "fp32"


def has_bfloat16(device: torch.device) -> bool:
    """Return whether the device is a GPU with native bfloat16; emulated, it is slower than float32."""
    if device.type != "cuda":
        return False
    with torch.cuda.device(device):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))


_OPERATION = re.compile(r"(\S+) does not have a deterministic implementation")
_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


@contextmanager
def only_deterministic(enabled: bool) -> Iterator[None]:
    """Let torch refuse operations without a deterministic implementation, inside the block."""
    memory: Any = torch.utils.deterministic  # its attributes are created at run time
    before = torch.get_deterministic_debug_mode(), memory.fill_uninitialized_memory
    if enabled:
        # Products of matrices on a GPU are refused without it; torch reads it at the first product.
        os.environ.setdefault(_CUBLAS, ":4096:8")
        torch.use_deterministic_algorithms(True)
        memory.fill_uninitialized_memory = False  # it takes time and changes no result
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before[0])
        memory.fill_uninitialized_memory = before[1]


def refused_operation(error: BaseException | None) -> str | None:
    """Return the operation refused by torch, according to an error or its causes, or None."""
    while error is not None:
        if isinstance(error, RuntimeError):
            if found := _OPERATION.search(str(error)):
                return found[1]
            if _CUBLAS in str(error):
                return f"a product of matrices ({_CUBLAS} is {os.environ.get(_CUBLAS)!r})"
        error = error.__cause__
    return None


#: Full float32 with the same bits every time: the arithmetic of evaluation.
FULL = Arithmetic("fp32")
