"""The arithmetic of training on a GPU, and of everything else."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

#: float32; float32 whose products are rounded to TF32 (on a GPU that has it); bfloat16 where autocast allows.
Precision = Literal["fp32", "tf32", "bf16"]


@contextmanager
def arithmetic(precision: Precision) -> Iterator[None]:
    """Matrix products and convolutions of float32 tensors rounded as ``precision`` says, inside the block."""
    rounded = "ieee" if precision == "fp32" else "tf32"
    cudnn: Any = torch.backends.cudnn  # its parts are made at run time, out of the type checker's sight
    backends = (torch.backends.cuda.matmul, cudnn.conv)
    before = [backend.fp32_precision for backend in backends]
    try:
        for backend in backends:
            backend.fp32_precision = rounded
        yield
    finally:
        for backend, value in zip(backends, before, strict=True):
            backend.fp32_precision = value
