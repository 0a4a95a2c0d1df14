"""A folder of checkpoints as the models of a run's steps; files are read as data, never as code."""

import inspect
import pickle
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from opencil.data.stream import Step
from opencil.errors import BadInput, nearest
from opencil.plugins import load_plugin

#: What files of weights end in.
ENDINGS = (".safetensors", ".pt", ".pth", ".pkl", ".bin", ".ckpt", ".tar")


class ModelFiles:
    """The models in a folder's files, one for each step, in the order of the numbers in their names.

    ``factory`` is ``make(classes)``, a module that the weights of a file are then loaded into, or
    ``make(path, classes)``, which reads the file itself.
    """

    def __init__(self, folder: Path, factory: Callable[..., Any]) -> None:
        if not folder.is_dir():
            raise BadInput(f"there is no folder {folder}: one with a file of weights for each step is needed")
        self.files = sorted((p for p in folder.iterdir() if p.suffix in ENDINGS), key=_natural)
        if not self.files:
            raise BadInput(f"there are no files of weights in {folder}: they end in {', '.join(ENDINGS)}")
        self._make, self._reads = factory, _reads(factory)

    def __len__(self) -> int:
        return len(self.files)

    def __call__(self, step: Step) -> Any:
        """The model of a step."""
        path = self.files[step.number - 1]
        if self._reads:
            return self._make(path, step.seen)
        model = self._make(step.seen)
        if not isinstance(model, nn.Module):
            raise BadInput(
                f"the factory gives a {type(model).__name__}: a torch module is needed, for {path.name}"
            )
        load_weights(model, read_weights_file(path), path)
        return model


def find_factory(place: str) -> Callable[..., Any]:
    """The function that ``my_file.py:make`` names; without a name, ``make``."""
    file, colon, name = place.rpartition(":")
    file, name = (file, name) if colon and not name.endswith(".py") else (place, "make")
    module = load_plugin(file)
    found = getattr(module, name, None)
    if not callable(found):
        known = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise BadInput(
            f"--factory {place}: there is no function {name!r} in {file}: make(classes) or "
            f"make(path, classes) is needed{nearest(name, known)}"
        )
    factory: Callable[..., Any] = found
    return factory


def read_weights_file(path: Path) -> dict[str, Tensor]:
    """The weights in a file: safetensors, or what torch saved; a mapping that holds them may hold more."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise BadInput(
            f"{path} holds more than tensors and plain values, and reading that could run any code in it: "
            "save model.state_dict(), or read the file in a factory of your own, make(path, classes)"
        ) from None
    except Exception as error:  # whatever it is that a file of something else is taken for
        why = " ".join(str(error).split())[:300]
        raise BadInput(f"{path} is no file of weights: {type(error).__name__}: {why}") from None
    if isinstance(content, Mapping):
        for state in ([content], content.values()):
            found = [one for one in state if _is_state(one)]
            if len(found) == 1:
                return _unprefixed(found[0])
    held = type(content).__name__
    if isinstance(content, Mapping):
        held = f"a mapping of {', '.join(map(str, content)) or 'nothing'}"
    raise BadInput(
        f"{path} holds {held}: one state_dict is needed, or read the file in a factory of your own, "
        "make(path, classes)"
    )


def load_weights(model: nn.Module, weights: dict[str, Tensor], path: Path) -> None:
    """Put weights into the module that they are of: the model, or a part of it where that is wrapped."""
    parts = (part for part in model.modules() if part.state_dict().keys() == weights.keys())
    part = next(parts, model)
    try:
        part.load_state_dict(weights)
    except RuntimeError as error:
        lines = " ".join(str(error).split())
        raise BadInput(f"{path} does not fit what the factory makes: {lines[:300]}") from None


def _natural(path: Path) -> list[Any]:
    """Sorts task2 before task10."""
    return [int(part) if part.isdigit() else part.lower() for part in re.split(r"(\d+)", path.name)]


def _reads(factory: Callable[..., Any]) -> bool:
    """Whether a factory reads its file itself."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        taken = [p for p in inspect.signature(factory).parameters.values() if p.kind in kinds]
    except (TypeError, ValueError):
        taken = []
    needed = [p for p in taken if p.default is inspect.Parameter.empty]
    if len(needed) not in (1, 2):
        names = ", ".join(p.name for p in needed) or "nothing"
        raise BadInput(f"the factory takes {names}: make(classes) or make(path, classes) is needed")
    return len(needed) == 2


def _is_state(value: object) -> bool:
    return isinstance(value, Mapping) and bool(value) and all(isinstance(t, Tensor) for t in value.values())


def _unprefixed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights without the ``module.`` that training on several GPUs puts in front of their names."""
    wrapped = all(name.startswith("module.") for name in state)
    return {name.removeprefix("module.") if wrapped else name: tensor for name, tensor in state.items()}
