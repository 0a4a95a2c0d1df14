"""Read a folder of checkpoints as the models of a run's steps; files are read as data, never as code."""

import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from opencil.data.stream import Step
from opencil.errors import BadInput, nearest, one_line
from opencil.nets.published import load_weights
from opencil.plugins import load_plugin

#: Endings of files of weights.
ENDINGS = (".safetensors", ".pt", ".pth", ".pkl", ".bin", ".ckpt", ".tar")
_NEEDED = "make(classes) or make(path, classes) is needed"
_YOURSELF = "read the file in a factory of your own, make(path, classes)"


class ModelFiles:
    """The models in a folder's files, one for each step, in the order of the numbers in their names.

    ``factory`` is ``make(classes)``, a module for the weights of a file, or ``make(path, classes)``, which
    reads the file itself.
    """

    def __init__(self, folder: Path, factory: Callable[..., Any]) -> None:
        if not folder.is_dir():
            raise BadInput(f"there is no folder {folder}: a folder of checkpoints, one a step, is needed")
        files = [path for path in folder.iterdir() if path.suffix in ENDINGS]
        self.files = sorted(files, key=lambda path: _natural(path.name))
        if not files:
            raise BadInput(
                f"there are no checkpoints, one a step, in {folder}: their names end in {', '.join(ENDINGS)}"
            )
        parameters = inspect.signature(factory).parameters.values()
        needed = [p for p in parameters if p.default is p.empty and p.kind <= p.POSITIONAL_OR_KEYWORD]
        if len(needed) not in (1, 2):
            raise BadInput(f"the factory takes {len(needed)} arguments: {_NEEDED}")
        self._make, self._reads = factory, len(needed) == 2

    def __len__(self) -> int:
        return len(self.files)

    def __call__(self, step: Step) -> Any:
        """Return the model of a step."""
        path = self.files[step.number - 1]
        if self._reads:
            return self._make(path, step.seen)
        model, weights = self._make(step.seen), read_weights_file(path)
        if not isinstance(model, nn.Module):
            raise BadInput(f"the factory returns a {type(model).__name__}: a torch module is expected")
        # The weights are of the model, or of the part inside a wrapper.
        parts = (part for part in model.modules() if part.state_dict().keys() == weights.keys())
        try:
            load_weights(next(parts, model), weights)
        except RuntimeError as error:
            raise BadInput(f"{path} does not fit what the factory makes: {one_line(error)}") from None
        return model


def find_factory(place: str) -> Callable[..., Any]:
    """Return the function of the name in ``my_file.py:make``; without a name, ``make``."""
    file, colon, name = place.rpartition(":")
    if not colon or name.endswith(".py"):
        file, name = place, "make"
    known = vars(load_plugin(file))
    make: Callable[..., Any] | None = known.get(name)
    if not callable(make):
        hint = nearest(name, known)
        raise BadInput(f"--factory {place}: there is no function {name!r} in {file}: {_NEEDED}{hint}")
    return make


def read_weights_file(path: Path) -> dict[str, Tensor]:
    """Read the weights in a file of safetensors, or of torch; a mapping may hold other values as well.

    The prefix ``module.`` of DataParallel is removed.
    """
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError:
        why = "holds more than tensors and plain values, and reading that could run code"
        raise BadInput(f"{path} {why}: save model.state_dict(), or {_YOURSELF}") from None
    except Exception as error:  # other kinds of files raise many types of errors
        why = f"{type(error).__name__}: {one_line(error)}"
        raise BadInput(f"{path} is not a file of weights: {why}") from None
    parts = content if isinstance(content, Mapping) else {}
    mappings = [value for value in (content, *parts.values()) if isinstance(value, Mapping) and value]
    states = [value for value in mappings if all(map(_is_weight, value.items()))]
    if len(states) != 1:
        raise BadInput(f"{path} holds {len(states)} state_dicts: one is needed, or {_YOURSELF}")
    prefix = "module." if all(name.startswith("module.") for name in states[0]) else ""
    return {name.removeprefix(prefix): tensor for name, tensor in states[0].items()}


def _is_weight(item: tuple[Any, Any]) -> bool:
    return isinstance(item[0], str) and isinstance(item[1], Tensor)


def _natural(name: str) -> list[Any]:
    """Return a sorting key: task2 comes before task10."""
    return [int(part) if part.isdigit() else part.lower() for part in re.split(r"(\d+)", name)]
