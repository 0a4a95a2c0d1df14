"""Export graphs of images of any number and size to torch.export and ONNX."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram


def trace(module: nn.Module, images: Tensor, *others: Tensor) -> ExportedProgram:
    """Return the graph of a module of images [N, 3, H, W], of any number and size, and other tensors."""
    shapes = ({0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC}, *(None for _ in others))
    # Otherwise the graph would be for sizes like the example's alone, such as images that are not square.
    any_size = torch.fx.experimental._config.patch(backed_size_oblivious=True)  # type: ignore[attr-defined]
    with _quiet(), torch.no_grad(), any_size:
        return torch.export.export(module.eval(), (images, *others), dynamic_shapes=shapes)


def to_onnx(program: ExportedProgram, outputs: Sequence[str] = ("output",)) -> Any:
    """Return a graph as an ``onnx.ModelProto``; its inputs have the names of the module's arguments."""
    with _quiet():
        found = torch.onnx.export(program, output_names=list(outputs), verbose=False)
    assert found is not None
    return found.model_proto


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide what torch says about its own code and about packages that are not needed."""
    logger, level = logging.getLogger("torch.onnx"), logging.getLogger("torch.onnx").level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
