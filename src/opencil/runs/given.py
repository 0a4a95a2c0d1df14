"""Models that were trained elsewhere, one for each step, each with a mark that tells it from others."""

import copy
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from opencil.cil.learner import Setting
from opencil.data.stream import Step
from opencil.engine.forward import forward
from opencil.errors import BadInput
from opencil.nets.wrap import LogitsAlone, as_classifier
from opencil.runs import file_formats

#: What gives the models: one for each step in order, or a function of the step.
Source = Iterable[Any] | Callable[[Step], Any]
_KEPT = 4  #: models in memory: those of the steps that may be under work together
_PROBE = 16  #: test images that a model is tried on


class GivenModels:
    """One model for each step, asked for in order: a list, an iterator, or a function of the step.

    They are copied: what becomes of an original, which the loop that gives it may train on, does not reach
    the copy. An iterator gives each model once, so the latest are kept.
    """

    def __init__(self, source: Source) -> None:
        alone = isinstance(source, nn.Module) and not isinstance(source, nn.ModuleList)
        if alone or not (isinstance(source, Iterable) or callable(source)):
            raise BadInput(
                f"models is one {type(source).__name__}: a list with a model for each step is needed, an "
                "iterator over them, or a function of the step"
            )
        self._source = source
        self._iterator = iter(source) if isinstance(source, Iterable) else None
        self._taken = 0  # of the iterator
        self._kept: dict[int, GivenModel | GivenFunction] = {}

    def of(self, setting: Setting, step: Step, columns: Tensor | None) -> "GivenModel | GivenFunction":
        """The model of a step, on the images' device; ``columns`` choose among its logits."""
        if step.number not in self._kept:
            try:
                classifier = copy.deepcopy(as_classifier(self._take(step)))
            except BadInput as error:
                raise BadInput(f"step {step.number}: {error}") from None
            made: GivenModel | GivenFunction
            if isinstance(classifier, LogitsAlone):
                made = GivenFunction(classifier.function, columns)
            else:
                made = GivenModel(classifier, columns)
            setting.placed(made).eval()  # type: ignore[arg-type]
            made.settle(setting, step)
            self._kept = {n: kept for n, kept in self._kept.items() if n > step.number - _KEPT}
            self._kept[step.number] = made
        return self._kept[step.number]

    def _take(self, step: Step) -> Any:
        source, number = self._source, step.number
        length = getattr(source, "__len__", None)
        if length is not None and length() != step.steps:
            raise _wrong_count(length(), step.steps)
        if self._iterator is None:
            assert callable(source)
            return source(step)
        if isinstance(source, Sequence | nn.ModuleList):
            return source[number - 1]
        if number <= self._taken:
            raise BadInput("its model is gone: an iterator gives each of them once")
        given = None
        while self._taken < number:
            try:
                given = next(self._iterator)
            except StopIteration:
                raise _wrong_count(self._taken, step.steps) from None
            self._taken += 1
        if number == step.steps and next(self._iterator, None) is not None:
            raise _wrong_count(f"more than {number}", step.steps)
        return given


def _wrong_count(models: int | str, steps: int) -> BadInput:
    return BadInput(
        f"there are {models} models, and {steps} steps: one for each step is needed, and k says how many "
        "classes a step brings"
    )


class _Given(nn.Module):
    """A model from elsewhere in a run, whose weights stay where they are: a run stores its mark alone.

    That is the logits of a few images, which its code decides too, and a checksum of the weights it has.
    """

    kind: str  #: the type of what was given
    step: int  #: that it is given for
    columns: Tensor | None  #: of its logits: those of the classes seen, in the stream's order
    mark: dict[str, Tensor]  #: what tells it from others

    def settle(self, setting: Setting, step: Step) -> None:
        """Try the model where it computes: refuse one that does not fit the step, and mark it."""
        model: Any = self
        self.step = step.number
        logits = forward(model, setting.test_images, setting.transform, step.test[:_PROBE]).logits.cpu()
        if logits.shape[1] != step.seen:
            raise BadInput(
                f"step {self.step}: the model gives {logits.shape[1]} logits, and {step.seen} classes are "
                "seen by then: one for each is needed, in the order that they came in; outputs='labels' "
                "takes them out of a head whose columns are the dataset's labels"
            )
        weights = {name: t for name, t in super().state_dict().items() if isinstance(t, Tensor)}
        digest = hashlib.sha256()
        for name, tensor in sorted(weights.items()):
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
            digest.update(file_formats.bytes_of(tensor))
        self.mark = {"logits": logits}
        if weights:
            self.mark["sha256"] = torch.tensor(list(digest.digest()), dtype=torch.uint8)

    @property
    def notes(self) -> dict[str, str]:
        """What is noted of it for people."""
        digest = self.mark.get("sha256")
        return {"type": self.kind} | ({} if digest is None else {"sha256": bytes(digest.tolist()).hex()})

    def chosen(self, logits: Tensor) -> Tensor:
        """The logits of the classes seen, in the stream's order."""
        if self.columns is None:
            return logits
        if logits.shape[1] <= int(self.columns.max()):
            raise BadInput(
                f"the model gives {logits.shape[1]} logits: with outputs='labels' they are of the dataset's "
                f"labels from 0 on, and {int(self.columns.max())} is seen"
            )
        return logits[:, self.columns.to(logits.device)]

    def state_dict(self, *_: Any, **__: Any) -> Any:
        """What a run stores: the mark."""
        return self.mark

    def load_state_dict(self, state_dict: Mapping[str, Any], *_: Any, **__: Any) -> Any:
        """Refuse to stand for a model that had another mark; logits may be rounded otherwise."""
        if state_dict.keys() != self.mark.keys() or not all(
            stored.shape == self.mark[name].shape
            and torch.allclose(stored.float(), self.mark[name].float(), rtol=1e-3, atol=1e-3)
            for name, stored in state_dict.items()
        ):
            raise BadInput(
                f"the model given for step {self.step} is another than the one that the run has rows of: "
                "bring that one back, choose another name or seed, or delete the run's folder to begin anew"
            )


class GivenModel(_Given):
    """A model with features and a head."""

    def __init__(self, given: Any, columns: Tensor | None) -> None:
        super().__init__()
        self.given, self.columns, self.kind = given, columns, type(given).__name__
        # What not every model has. The copy of a head whose logits are chosen from would not give those.
        for name in ("maps", "last_stage", *["extra_head"] * (columns is None)):
            if callable(method := getattr(given, name, None)):
                setattr(self, name, method)

    def features(self, images: Tensor) -> Tensor:
        """Pooled penultimate features f [B, D] of normalised images."""
        features: Tensor = self.given.features(images)
        return features

    def classify(self, features: Tensor) -> Tensor:
        """Logits z [B, classes seen] of features."""
        return self.chosen(self.given.classify(features))

    def forward(self, images: Tensor) -> Tensor:
        """Logits of normalised images."""
        return self.classify(self.features(images))


class GivenFunction(_Given, LogitsAlone):
    """A function from images to logits."""

    def __init__(self, function: Callable[[Tensor], Any], columns: Tensor | None) -> None:
        LogitsAlone.__init__(self, function)
        self.columns, self.kind = columns, type(function).__name__

    def forward(self, images: Tensor) -> Tensor:
        """Logits of normalised images."""
        return self.chosen(LogitsAlone.forward(self, images))
