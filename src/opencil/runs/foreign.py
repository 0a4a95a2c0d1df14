"""Runs of models that were trained elsewhere: the same protocol, store and reports; nothing is trained."""

import copy
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, Literal

import torch
from torch import Tensor

from opencil.cil.learner import Learner, Setting, Task
from opencil.config import Config
from opencil.data.memory import Memory
from opencil.data.stream import Step, class_order
from opencil.engine.loop import Stage
from opencil.errors import BadInput
from opencil.nets.model import Model
from opencil.nets.wrap import WRAP_HINT
from opencil.registry import LEARNERS
from opencil.runs.given import GivenFunction, GivenModels
from opencil.runs.plan import RunSpec, seeds_of, spec_of

#: Which images count as those that a method has kept: chosen by our rule, none, or its own, after each step.
KeptImages = Literal["herding", "none"] | Sequence[Any]
#: What the columns of a model's logits are: the classes seen as the stream has them, or all of the dataset's.
Outputs = Literal["stream", "labels"]
_NAME = "[a-z0-9][a-z0-9_-]*(@[a-z0-9][a-z0-9_-]*)?"


@dataclass(frozen=True)
class Foreign(Learner):
    """A method whose models come from elsewhere: it trains nothing, and keeps the memory that it is told."""

    models: GivenModels | None  #: None in a stored run that is opened again: it has their rows, not them
    memory: KeptImages
    class_order: tuple[int, ...] | None  #: the dataset's labels as they were learned, if that is given
    order_seed: int  #: of the order that they were learned in, if not
    by_labels: bool  #: whether the models' logits are those of the dataset's labels, seen or not

    def stages(self, task: Task) -> Iterable[Stage]:
        """None."""
        return ()

    def load(self, setting: Setting, step: Step) -> Model:
        """The model that is given for a step."""
        if self.models is None:
            raise BadInput(
                "the run has rows of models that were trained elsewhere, and not the models: they are where "
                "opencil.evaluate_steps had them from"
            )
        columns = self._columns(setting, step) if self.by_labels else None
        # A copy: works that go on beside each other lay theirs out in memory each for itself.
        model: Model = copy.deepcopy(self.models.of(setting, step, columns))  # type: ignore[assignment]
        return model

    def _columns(self, setting: Setting, step: Step) -> Tensor:
        """The dataset's labels of the classes seen, in the order of the stream."""
        classes = int(setting.images.labels.max()) + 1
        return torch.tensor((self.class_order or class_order(classes, self.order_seed))[: step.seen])

    def begin(self, setting: Setting, step: Step, memory: Memory, previous: Model | None) -> Task:
        """A step's task, whose model is there."""
        model = self.load(setting, step)
        return Task(setting, step, memory, model, None, self.training_set(setting, step, memory))

    def notes(self, task: Task) -> dict[str, Any]:
        """Which model was given."""
        return {"foreign": task.model.notes}

    def remember(self, task: Task) -> Memory:
        """What counts as the memory after a step."""
        if self.memory == "none":
            return task.memory
        if self.memory != "herding":
            return kept_images(self.memory, task)
        if isinstance(task.model, GivenFunction):
            raise BadInput(
                f"the model gives logits alone, and herding chooses images by features: {WRAP_HINT}; or say "
                "memory='none', or which images were kept"
            )
        return super().remember(task)


def kept_images(memory: Sequence[Any], task: Task) -> Memory:
    """The images that a method says it has kept after a step, class by class."""
    step, images = task.step, task.setting.images
    if len(memory) != step.steps:
        raise BadInput(
            f"memory has {len(memory)} lists of images: one for each of {step.steps} steps is needed"
        )
    try:
        listed = torch.as_tensor(memory[step.number - 1]).flatten()
        if len(listed) and (listed.is_floating_point() or listed.dtype == torch.bool):
            raise TypeError(f"they are {listed.dtype}")
        indices = listed.long()
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"memory of step {step.number} is no list of whole numbers: {error}") from None
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < len(images):
        raise BadInput(
            f"memory of step {step.number} has {int(indices.min())} to {int(indices.max())}: indices of the "
            f"training images of {images.name!r} are needed, 0 to {len(images) - 1}"
        )
    labels = images.labels.cpu()[indices]
    if len(labels) and int(labels.max()) >= step.seen:
        raise BadInput(
            f"memory of step {step.number} has image {int(indices[labels.argmax()])}, whose class comes in a "
            "later step: indices are those of the training images as the dataset has them"
        )
    return Memory(task.memory.size, tuple(indices[labels == label] for label in range(step.seen)))


def plan_foreign(
    config: Config,
    name: str,
    models: GivenModels,
    memory: KeptImages = "herding",
    class_order: Sequence[int] | None = None,
    outputs: Outputs = "stream",
) -> RunSpec:
    """The run of models from elsewhere under a config of one k and one seed."""
    taken = (*LEARNERS.groups(), *LEARNERS.names())
    if not isinstance(name, str) or not re.fullmatch(_NAME, name) or name.partition("@")[0] in taken:
        raise BadInput(
            f"name = {name!r} is not allowed: lower-case letters, digits, - and _ are, and the names of CIL "
            "methods that are trained here are taken"
        )
    if isinstance(memory, str) and memory not in ("herding", "none"):
        raise BadInput(
            f"memory = {memory!r} is not allowed: herding and none are, or a list of indices for each step"
        )
    if outputs not in ("stream", "labels"):
        raise BadInput(f"outputs = {outputs!r} is not allowed: stream and labels are")
    for key, several in (("k", config.benchmark.classes_per_step), ("seed", config.seed.runs)):
        if len(several) != 1:
            raise BadInput(f"{key} = {list(several)} is not allowed: one is, that of the models")
    told = memory if isinstance(memory, str) else f"given {_digest(_listed(memory))}"
    try:
        order = None if class_order is None else [index(label) for label in class_order]
    except TypeError:
        raise BadInput(f"class_order = {class_order!r} is not allowed: the dataset's labels are") from None
    values = {"memory": told, "class_order": order, "outputs": outputs}
    (seed,) = config.seed.runs
    kept = memory if isinstance(memory, str) else tuple(memory)
    learner = foreign_learner(values, seeds_of(config, seed).class_order, models, kept)
    refused = left_out(config, memory)
    detectors = config.without(refused)
    if config.detector and not detectors:
        raise BadInput(f"{name} cannot have {', '.join(config.detector)}: {'; '.join(refused)}")
    return spec_of(config, config.benchmark.classes_per_step[0], seed, name, values, detectors, learner)


def left_out(config: Config, memory: KeptImages) -> dict[str, list[str]]:
    """The detectors of a config that models from elsewhere cannot have, by the reason for it."""
    if isinstance(memory, str):
        benchmark = config.benchmark
        kept = None if memory == "none" else min(map(benchmark.fewest_kept, benchmark.classes_per_step))
    else:  # where a step has no memory, detectors are set up on what it learned from
        kept = min((len(indices) for indices in _listed(memory) if indices), default=None)
    return config.refused(kept, revisits=kept is not None)


def foreign_learner(
    values: Mapping[str, Any], order_seed: int, models: GivenModels | None = None, memory: KeptImages = ()
) -> Foreign:
    """What stands for the method in a run with these values; without models in one that is opened again."""
    order = values.get("class_order")
    by_labels = values.get("outputs") == "labels"
    return Foreign(models, memory, order and tuple(order), order_seed, by_labels)


def _listed(memory: Sequence[Any]) -> list[list[Any]]:
    """The kept images of each step as plain lists."""
    try:
        return [torch.as_tensor(indices).flatten().tolist() for indices in memory]
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"memory is no list of indices for each step: {error}") from None


def _digest(listed: list[list[Any]]) -> str:
    """Tells one list of kept images for each step from another."""
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()[:16]
