"""Evaluate models trained elsewhere by the same protocol, store and reports; nothing is trained."""

import copy
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from operator import index
from typing import Any, Literal

import torch
from torch import Tensor, nn

from opencil.cil.learner import Learner, Setting, Task
from opencil.config import Config
from opencil.data.memory import Memory
from opencil.data.stream import Step, class_order
from opencil.engine.forward import forward
from opencil.engine.loop import Stage
from opencil.errors import BadInput, shown
from opencil.nets.model import Model
from opencil.nets.wrap import WRAP_HINT, LogitsAlone, as_classifier
from opencil.registry import LEARNERS
from opencil.runs.spec import RunSpec, seeds_of, spec_of
from opencil.runs.store import bytes_of

#: The source of the models: one for each step in order, or a function of the step.
Source = Iterable[Any] | Callable[[Step], Any]
#: The exemplars of a method: chosen by herding, none, or listed by index for each step.
Exemplars = Literal["herding", "none"] | Sequence[Any]
_NAME = "[a-z0-9][a-z0-9_-]*(@[a-z0-9][a-z0-9_-]*)?"
_PROBE = 16  #: test images for a fingerprint


class _Given(nn.Module):
    """A model from elsewhere in a run, which stores its fingerprint in place of its weights.

    The fingerprint is the logits of a few images, and a checksum of the weights.
    """

    columns: Tensor | None  #: columns of its logits: the classes seen, in the stream's order
    step: int
    fingerprint: dict[str, Tensor]
    notes: dict[str, str]  #: type and checksum, for the step's record

    def settle(self, setting: Setting, step: Step, kind: str) -> None:
        """Compute the fingerprint, and refuse a model unfit for the step."""
        model: Any = self
        self.step = step.number
        logits = forward(model, setting.test_images, setting.transform, step.test[:_PROBE]).logits.cpu()
        if logits.shape[1] != step.seen:
            raise BadInput(
                f"step {self.step}: the model returns {logits.shape[1]} logits, and {step.seen} classes are "
                "seen by then: one for each is expected, in the order of the classes; outputs='labels' "
                "selects them in a head whose columns are the dataset's labels"
            )
        self.fingerprint, self.notes = {"logits": logits}, {"type": kind}
        weights = {name: t for name, t in super().state_dict().items() if isinstance(t, Tensor)}
        digest = hashlib.sha256()
        for name, tensor in sorted(weights.items()):
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
            digest.update(bytes_of(tensor))
        if weights:
            self.fingerprint["sha256"] = torch.tensor(list(digest.digest()), dtype=torch.uint8)
            self.notes["sha256"] = digest.hexdigest()

    def select(self, logits: Tensor) -> Tensor:
        """Return the logits of the classes seen, in the stream's order."""
        if self.columns is None:
            return logits
        if logits.shape[1] <= (last := int(self.columns.max())):
            raise BadInput(
                f"the model returns {logits.shape[1]} logits: with outputs='labels' they are of the "
                f"dataset's labels from 0 on, and {last} is seen"
            )
        return logits[:, self.columns.to(logits.device)]

    def state_dict(self, *_: Any, **__: Any) -> Any:
        """Return the fingerprint, which a run stores."""
        return self.fingerprint

    def load_state_dict(self, state_dict: Mapping[str, Any], *_: Any, **__: Any) -> Any:
        """Refuse another fingerprint; logits may be rounded differently."""
        if state_dict.keys() != self.fingerprint.keys() or not all(
            stored.shape == self.fingerprint[name].shape
            and torch.allclose(stored.float(), self.fingerprint[name].float(), rtol=1e-3, atol=1e-3)
            for name, stored in state_dict.items()
        ):
            raise BadInput(
                f"the model of step {self.step} is not the model that the run has rows of: restore that "
                "model, choose another name or seed, or delete the run's folder to start again"
            )


class GivenModel(_Given):
    """A model with features and a head."""

    def __init__(self, given: Any, columns: Tensor | None) -> None:
        super().__init__()
        self.given, self.columns = given, columns
        # Optional methods. A copy of a head does not select columns.
        for name in ("maps", "last_stage", *["extra_head"] * (columns is None)):
            if callable(method := getattr(given, name, None)):
                setattr(self, name, method)

    def features(self, images: Tensor) -> Tensor:
        """Return pooled penultimate features f [B, D] of normalised images."""
        features: Tensor = self.given.features(images)
        return features

    def classify(self, features: Tensor) -> Tensor:
        """Return logits z [B, classes seen] of features."""
        return self.select(self.given.classify(features))

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of normalised images."""
        return self.classify(self.features(images))


class GivenFunction(_Given, LogitsAlone):
    """A function from images to logits."""

    def __init__(self, given: LogitsAlone, columns: Tensor | None) -> None:
        LogitsAlone.__init__(self, given.function)
        self.columns = columns

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of normalised images."""
        return self.select(LogitsAlone.forward(self, images))


class GivenModels:
    """The models of a run, one for each step, asked for in order.

    They are copied, so the loop that yields an original may train it further.
    """

    def __init__(self, source: Source) -> None:
        alone = isinstance(source, nn.Module) and not isinstance(source, nn.ModuleList)
        if alone or not (isinstance(source, Iterable) or callable(source)):
            raise BadInput(
                f"models is a {type(source).__name__}: a list with a model for each step is expected, an "
                "iterator over them, or a function of the step"
            )
        self._source = iter(source) if isinstance(source, Iterable) else source
        self._count = len(source) if isinstance(source, Sized) else None
        self._latest: GivenModel | GivenFunction | None = None

    def of(self, setting: Setting, step: Step, columns: Tensor | None) -> GivenModel | GivenFunction:
        """Return the model of a step, on the images' device; ``columns`` choose among its logits."""
        if self._latest is None or self._latest.step != step.number:
            try:
                given: Any = copy.deepcopy(as_classifier(self._next(step)))
            except BadInput as error:
                raise BadInput(f"step {step.number}: {error}") from None
            function = isinstance(given, LogitsAlone)
            latest = GivenFunction(given, columns) if function else GivenModel(given, columns)
            setting.move_to_device(latest).eval()  # type: ignore[arg-type]
            latest.settle(setting, step, type(given.function if function else given).__name__)
            self._latest = latest
        return self._latest

    def _next(self, step: Step) -> Any:
        """Return the next of the user's models, and check their number as early as it is known."""
        count: int | str = step.steps if self._count is None else self._count
        if count == step.steps:
            if not isinstance(self._source, Iterator):
                return self._source(step)
            model = next(self._source, None)
            if model is None:
                count = step.number - 1
            elif step.number < step.steps or next(self._source, None) is None:
                return model
            else:
                count = f"more than {step.steps}"
        raise BadInput(
            f"there are {count} models, and {step.steps} steps: one for each step is needed, and k says how "
            "many classes a step brings"
        )


@dataclass(frozen=True)
class Foreign(Learner):
    """A method with models from elsewhere: it trains nothing, and its memory is a value."""

    models: GivenModels | None  #: None in a reopened run
    memory: Literal["herding", "none"] | Sequence[Tensor]
    class_order: tuple[int, ...] | None  #: the dataset's labels as they were learned, if listed
    order_seed: int  #: of the class order, if it is not listed
    by_labels: bool  #: whether the models have a logit for each label, seen or not

    def stages(self, task: Task) -> Iterable[Stage]:
        """Return no stages."""
        return ()

    def load(self, setting: Setting, step: Step) -> Model:
        """Return a copy of a step's model; its memory layout may be changed."""
        if self.models is None:
            raise BadInput(
                "the run has rows of models that were trained elsewhere, and does not store the models: use "
                "the models that opencil.evaluate_steps was called with"
            )
        order = self.class_order or class_order(int(setting.images.labels.max()) + 1, self.order_seed)
        columns = torch.tensor(order[: step.seen]) if self.by_labels else None
        model: Any = copy.deepcopy(self.models.of(setting, step, columns))
        return model  # type: ignore[no-any-return]

    def begin(self, setting: Setting, step: Step, memory: Memory, previous: Model | None) -> Task:
        """Return a step's task with its final model."""
        return super().begin(setting, step, memory, None)

    def notes(self, task: Task) -> dict[str, Any]:
        """Return the model's type and checksum."""
        return {"foreign": task.model.notes}

    def remember(self, task: Task) -> Memory:
        """Return the memory after a step."""
        if self.memory == "none":
            return task.memory
        if self.memory != "herding":
            return _choose_listed(self.memory, task)
        if isinstance(task.model, GivenFunction):
            raise BadInput(
                f"the model returns logits alone, and herding chooses images by features: {WRAP_HINT}; or "
                "pass memory='none', or the indices of the exemplars"
            )
        return super().remember(task)


def foreign_learner(
    values: Mapping[str, Any], order_seed: int, models: GivenModels | None = None, memory: Exemplars = ()
) -> Foreign:
    """Return the learner of a run with these values; without models in a reopened run."""
    order = values.get("class_order")
    return Foreign(models, memory, order and tuple(order), order_seed, values.get("outputs") == "labels")


def plan_foreign(
    config: Config,
    name: str,
    models: GivenModels,
    memory: Exemplars = "herding",
    class_order: Sequence[int] | None = None,
    outputs: Literal["stream", "labels"] = "stream",
) -> list[RunSpec]:
    """Plan the single run of models from elsewhere, under a config of one k and one seed.

    ``outputs`` are the columns of the logits: classes seen, in the stream's order, or the dataset's labels.
    """
    taken = (*LEARNERS.groups(), *LEARNERS.names())
    if not isinstance(name, str) or not re.fullmatch(_NAME, name) or name.partition("@")[0] in taken:
        raise BadInput(
            f"name = {name!r} is not allowed: lower-case letters, digits, - and _ are, and the names of CIL "
            "methods that are trained here are taken"
        )
    if outputs not in ("stream", "labels"):
        raise BadInput(f"outputs = {outputs!r} is not allowed: stream and labels are")
    for key, several in (("k", config.benchmark.classes_per_step), ("seed", config.seed.runs)):
        if len(several) != 1:
            raise BadInput(f"{key} = {list(several)} is not allowed: one is, that of the models")
    try:
        order = None if class_order is None else [index(label) for label in class_order]
    except TypeError:
        raise BadInput(f"class_order = {class_order!r} is not allowed: the dataset's labels are") from None
    exemplars = _check_exemplars(memory)
    noted: Any = exemplars
    if not isinstance(exemplars, str):
        listed = json.dumps([indices.tolist() for indices in exemplars])
        noted = f"given {hashlib.sha256(listed.encode()).hexdigest()[:16]}"
    refused = left_out(config, memory)
    detectors = config.without(refused)
    if config.detector and not detectors:
        raise BadInput(f"{name} cannot have {', '.join(config.detector)}: {'; '.join(refused)}")
    (k,), (seed,) = config.benchmark.classes_per_step, config.seed.runs
    values = {"memory": noted, "class_order": order, "outputs": outputs}
    learner = foreign_learner(values, seeds_of(config, seed).class_order, models, exemplars)
    return [spec_of(config, k, seed, cil=name, values=values, detectors=detectors, foreign=learner)]


def left_out(config: Config, memory: Exemplars) -> dict[str, list[str]]:
    """Return the detectors unusable with models from elsewhere, by reason."""
    exemplars = _check_exemplars(memory)
    counts: Iterable[int]
    if exemplars == "herding":
        counts = map(config.benchmark.fewest_kept, config.benchmark.classes_per_step)
    else:  # where a step has no memory, detectors are set up on its training images
        counts = filter(None, map(len, () if exemplars == "none" else exemplars))
    kept = min(counts, default=None)
    return config.refused(kept, revisits=kept is not None)


def _check_exemplars(memory: Any) -> Literal["herding", "none"] | list[Tensor]:
    """Return exemplars as they are named, or the indices of each step as tensors."""
    if isinstance(memory, str) and memory in ("herding", "none"):
        return memory  # type: ignore[return-value]
    try:
        listed = [torch.as_tensor(indices).flatten() for indices in memory]
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(
            f"memory = {shown(memory)} is not allowed ({error}): herding, none, or for each step a list of "
            "indices is expected"
        ) from None
    for indices in listed:
        if len(indices) and (indices.is_floating_point() or indices.dtype == torch.bool):
            raise BadInput(f"memory has {indices.dtype}: indices of training images are needed")
    return [indices.long() for indices in listed]


def _choose_listed(memory: Sequence[Tensor], task: Task) -> Memory:
    """Return the memory after a step from the listed indices."""
    step, images = task.step, task.setting.images
    if len(memory) != step.steps:
        raise BadInput(
            f"memory has {len(memory)} lists of images: one for each of {step.steps} steps is needed"
        )
    indices, labels = memory[step.number - 1], images.labels.cpu()
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < len(images):
        raise BadInput(
            f"memory of step {step.number} has {int(indices.min())} to {int(indices.max())}: indices of the "
            f"training images of {images.name!r} are needed, 0 to {len(images) - 1}"
        )
    if len(later := indices[labels[indices] >= step.seen]):
        raise BadInput(
            f"memory of step {step.number} has image {int(later[0])}, whose class comes in a later step: "
            "indices of the training images in the dataset's order are needed"
        )
    per_class = tuple(indices[labels[indices] == label] for label in range(step.seen))
    return Memory(task.memory.size, per_class)
