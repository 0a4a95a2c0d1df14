"""Evaluate models trained elsewhere by the same protocol, store and reports; nothing is trained."""

import copy
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from operator import index
from typing import Any, Literal

import torch
from torch import Tensor, nn

from opencil.arrays import listed
from opencil.cil.learner import Learner, Setting, Task
from opencil.config import Config
from opencil.data.memory import Memory
from opencil.data.stream import Step, class_order
from opencil.engine.forward import forward
from opencil.engine.loop import Stage
from opencil.errors import BadInput, not_allowed
from opencil.nets.model import Model
from opencil.nets.wrap import WRAP_HINT, LogitsAlone, as_classifier
from opencil.registry import LEARNERS
from opencil.runs.spec import RunSpec, seeds_of, spec_of
from opencil.runs.store import bytes_of, digest_values

#: The source of the models: one for each step in order, or a function of the step.
Source = Iterable[Any] | Callable[[Step], Any]
#: The exemplars of a method: chosen by herding, none, or listed by index for each step.
Exemplars = Literal["herding", "none"] | Sequence[Any]
_NAME = "[a-z0-9][a-z0-9_-]*(@[a-z0-9][a-z0-9_-]*)?"
_PROBE = 16  #: test images for a fingerprint


class GivenModel(nn.Module):
    """A model from elsewhere in a run, which stores its fingerprint in place of its weights.

    The fingerprint is the logits of a few images, and a checksum of the weights. ``columns`` are those of
    its logits that are of the classes seen, in the stream's order; None for all.
    """

    def __init__(self, given: Any, setting: Setting, step: Step, columns: Tensor | None) -> None:
        nn.Module.__init__(self)
        self.given, self.step, self.columns = given, step.number, columns
        # Optional methods. A copy of a head does not select columns.
        for name in ("maps", "last_stage", *["extra_head"] * (columns is None)):
            if callable(method := getattr(given, name, None)):
                setattr(self, name, method)
        setting.move_to_device(self).eval()  # type: ignore[arg-type]
        logits = forward(given, setting.test_images, setting.transform, step.test[:_PROBE]).logits.cpu()
        count = logits.shape[1]
        enough = count == step.seen if columns is None else count > columns.max()
        if not enough:
            needed = f"one for each of {step.seen} classes seen is needed, or outputs='labels'"
            raise BadInput(f"step {step.number}: the model returns {count} logits: {needed}")
        self.fingerprint = {"logits": self.select(logits)}
        if not self.fingerprint["logits"].isfinite().all():
            raise BadInput(f"step {step.number}: the model's logits are not finite")
        weights = {name: t for name, t in super().state_dict().items() if isinstance(t, Tensor)}
        digest = hashlib.sha256()
        for name, tensor in sorted(weights.items()):
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
            digest.update(bytes_of(tensor))
        if weights:
            self.fingerprint["sha256"] = torch.tensor(list(digest.digest()), dtype=torch.uint8)

    def features(self, images: Tensor) -> Any:
        """Return pooled penultimate features f [B, D] of normalised images."""
        return self.given.features(images)

    def classify(self, features: Tensor) -> Tensor:
        """Return logits z [B, classes seen] of features."""
        return self.select(self.given.classify(features))

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of normalised images."""
        return self.classify(self.features(images))

    def select(self, logits: Tensor) -> Tensor:
        """Return the logits of the classes seen, in the stream's order."""
        return logits if self.columns is None else logits[:, self.columns.to(logits.device)]

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
            why = "is not that of its rows: restore that model, or choose another name or seed"
            raise BadInput(f"the model of step {self.step} {why}")


class GivenFunction(GivenModel, LogitsAlone):
    """A function from images to logits."""

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of normalised images."""
        return self.select(self.given(images))


class GivenModels:
    """The models of a run, one for each step, asked for in order.

    They are copied, so the loop that yields an original may train it further.
    """

    def __init__(self, source: Source) -> None:
        alone = isinstance(source, nn.Module) and not isinstance(source, nn.ModuleList)
        if alone or not (isinstance(source, Iterable) or callable(source)):
            needed = "a list or an iterator, with a model for each step, or a function of the step, is needed"
            raise BadInput(f"models is a {type(source).__name__}: {needed}")
        self._source = iter(source) if isinstance(source, Iterable) else source
        self._count = len(source) if isinstance(source, Sized) else None
        self._latest: GivenModel | None = None

    def of(self, setting: Setting, step: Step, columns: Tensor | None) -> GivenModel:
        """Return the model of a step, on the images' device; ``columns`` choose among its logits."""
        if self._latest is None or self._latest.step != step.number:
            try:
                given: Any = copy.deepcopy(as_classifier(self._next(step)))
            except BadInput as error:
                raise BadInput(f"step {step.number}: {error}") from None
            kind = GivenFunction if isinstance(given, LogitsAlone) else GivenModel
            self._latest = kind(given, setting, step, columns)
        return self._latest

    def _next(self, step: Step) -> Any:
        """Return the next of the user's models, and check their number as early as it is known."""
        if self._count in (None, step.steps):
            if not isinstance(self._source, Iterator):
                return self._source(step)
            model = next(self._source, None)
            more = step.number == step.steps and next(self._source, None) is not None
            if model is not None and not more:
                return model
        count = "more or fewer" if self._count is None else self._count
        raise BadInput(f"there are {count} models for {step.steps} steps: one for each is needed")


@dataclass(frozen=True)
class Foreign(Learner):
    """A method with models from elsewhere: it trains nothing, and its memory is a value.

    A reopened run has one without models, which are not stored.
    """

    needs_images = True

    models: GivenModels | None = None
    memory: Literal["herding", "none"] | Sequence[Tensor] = "none"
    class_order: Sequence[int] | None = None  #: the dataset's labels as they were learned, if listed
    order_seed: int = 0  #: of the class order, if it is not listed
    by_labels: bool = False  #: whether the models have a logit for each label, seen or not

    def stages(self, task: Task) -> Iterable[Stage]:
        """Return no stages."""
        return ()

    def load(self, setting: Setting, step: Step) -> Model:
        """Return a copy of a step's model; its memory layout may be changed."""
        if self.models is None:
            raise BadInput("the run's models were trained elsewhere, and are not stored: use the originals")
        order = self.class_order or class_order(int(setting.images.labels.max()) + 1, self.order_seed)
        columns = torch.tensor(order[: step.seen]) if self.by_labels else None
        model: Any = copy.deepcopy(self.models.of(setting, step, columns))
        return model  # type: ignore[no-any-return]

    def begin(self, setting: Setting, step: Step, memory: Memory, previous: Model | None) -> Task:
        """Return a step's task with its final model."""
        return super().begin(setting, step, memory, None)

    def notes(self, task: Task) -> dict[str, Any]:
        """Return the model's type and checksum."""
        given, fingerprint = task.model.given, task.model.fingerprint
        kind = type(given.function if isinstance(given, LogitsAlone) else given).__name__
        sha256 = {"sha256": bytes(fingerprint["sha256"].tolist()).hex()} if "sha256" in fingerprint else {}
        return {"foreign": {"type": kind, **sha256}}

    def remember(self, task: Task) -> Memory:
        """Return the memory after a step."""
        if self.memory == "none":
            return task.memory
        if self.memory != "herding":
            return _choose_listed(self.memory, task)
        if isinstance(task.model, GivenFunction):
            raise BadInput(f"herding needs features, not logits alone: {WRAP_HINT}; or pass memory='none'")
        return super().remember(task)


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
        allowed = "lower-case letters, digits, - and _ are, and no name of a CIL method that is trained here"
        raise not_allowed("name", name, allowed)
    if outputs not in ("stream", "labels"):
        raise not_allowed("outputs", outputs, "stream and labels are")
    for key, several in (("k", config.benchmark.classes_per_step), ("seed", config.seed.runs)):
        if len(several) != 1:
            raise not_allowed(key, list(several), "one is, that of the models")
    order = None if class_order is None else _whole_numbers("class_order", class_order)
    exemplars = _check_exemplars(memory)
    noted: Any = exemplars
    if not isinstance(exemplars, str):
        noted = f"given {digest_values([indices.tolist() for indices in exemplars])[:16]}"
    refused = left_out(config, memory)
    detectors = config.without(refused)
    if config.detector and not detectors:
        raise BadInput(f"{name} cannot have {', '.join(config.detector)}: {'; '.join(refused)}")
    (k,), (seed,) = config.benchmark.classes_per_step, config.seed.runs
    values = {"memory": noted, "class_order": order, "outputs": outputs}
    learner = Foreign(models, exemplars, order, seeds_of(config, seed).class_order, outputs == "labels")
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
    return [torch.tensor(_whole_numbers("memory", of), dtype=torch.int64) for of in listed(memory, "memory")]


def _whole_numbers(key: str, values: Any) -> list[int]:
    try:
        found: list[int] = torch.tensor([index(value) for value in values], dtype=torch.int64).tolist()
        return found
    except (TypeError, ValueError, RuntimeError):
        raise not_allowed(key, values, "a list of whole numbers is") from None


def _choose_listed(memory: Sequence[Tensor], task: Task) -> Memory:
    """Return the memory after a step from the listed indices."""
    step, labels = task.step, task.setting.images.labels.cpu()
    if len(memory) != step.steps:
        raise BadInput(f"memory has {len(memory)} lists: one for each of {step.steps} steps is needed")
    indices = memory[step.number - 1]
    known = indices[(indices >= 0) & (indices < len(labels))]
    if len(known) < len(indices) or (labels[known] >= step.seen).any():
        raise BadInput(f"memory of step {step.number} should be indices of images of the classes seen")
    per_class = tuple(indices[labels[indices] == label] for label in range(step.seen))
    return replace(task.memory, per_class=per_class)
