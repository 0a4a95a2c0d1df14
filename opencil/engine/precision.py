"""The arithmetic of training on a GPU, and of everything else."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

#: float32; float32 whose products are rounded to TF32 (on a GPU that has it); bfloat16 where autocast allows.
Precision = Literal["fp32", "tf32", "bf16"]


@contextmanager
def arithmetic(precision: Precision, search: bool = False) -> Iterator[None]:
    """Matrix products and convolutions of float32 tensors rounded as ``precision`` says, inside the block.

    ``search`` lets cuDNN try its algorithms on the first call of each shape: worth it where shapes repeat.
    """
    cudnn: Any = torch.backends.cudnn  # its parts are made at run time, out of the type checker's sight
    wanted = "ieee" if precision == "fp32" else "tf32"
    settings = [
        (torch.backends.cuda.matmul, "fp32_precision", wanted),
        (cudnn.conv, "fp32_precision", wanted),
        (cudnn, "benchmark", search),
    ]
    before = [getattr(backend, name) for backend, name, _ in settings]
    try:
        for backend, name, value in settings:
            setattr(backend, name, value)
        yield
    finally:
        for (backend, name, _), value in zip(settings, before, strict=True):
            setattr(backend, name, value)
