"""Define fine-tuning detectors: a loss trains an extra head f on frozen features to score samples."""

import copy
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from opencil.data.precision import copy_to_device
from opencil.detectors.detector import Detector
from opencil.detectors.finetune.views import Views, ViewSource, head_size
from opencil.detectors.moments import check_labels
from opencil.engine.arithmetic import FULL
from opencil.engine.device import SideStream, cpu_threads
from opencil.engine.feed import Feed
from opencil.engine.forward import Outputs, evaluating
from opencil.engine.loop import Checkpoint, Progress, Stage, optimise
from opencil.engine.schedule import Schedule
from opencil.engine.seeding import derive, generator, seeded
from opencil.errors import BadInput
from opencil.registry import DETECTORS
from opencil.validation import Count, Positive, plain


@dataclass(frozen=True)
class Batch:
    """One iteration's views, with the other inputs of a loss.

    ``memory`` is None at the first step. ``drawn`` is this iteration's result of the tuner's ``draw`` and
    ``prepare``; larger draws come from ``generator``, on the device.
    """

    current: Views
    memory: Views | None
    drawn: tuple[Tensor, ...]
    source: ViewSource
    generator: torch.Generator

    @property
    def parts(self) -> list[Views]:
        """Return the current views and, if there are any, the memory's."""
        return [self.current] if self.memory is None else [self.current, self.memory]


@dataclass
class Tuner(Detector):
    """A detector that trains an extra linear head f on the frozen model's features.

    A subclass is a dataclass whose fields are its config values, with a ``loss`` that trains f. The score is
    the energy T · logsumexp(f's logits / T), unless ``scored_by`` names a post-hoc detector, which then reads
    f as the head and f's logits. The model does not change.

    In a run, images of old classes are the memory's exemplars. Elsewhere ``Outputs.tasks`` determines the old
    classes; without it all classes are new.
    """

    differs = (
        "The OpenCIL paper prints a learning rate of 0.1, `@stated`; a compiled file in its repository has "
        "0.001, the default, which reproduces its results. The paper does not specify the initial f: here "
        "it is a copy of h."
    )

    schedule: Schedule = Schedule(epochs=10, lr=0.001, decay="cosine", weight_decay=5e-4)
    batch_size: Count = 128  #: current images, and equally many of the memory
    init: Literal["copy", "fresh"] = "copy"  #: copy the model's head, or draw new weights
    temperature: Positive = 1.0
    #: A post-hoc detector that scores by f: its name, or a mapping with its name and values.
    scored_by: str | dict[str, Any] | None = field(default=None, kw_only=True)
    #: The name, with its label, that f's random numbers follow from: see ``trained_as``.
    head_of: str | None = field(default=None, kw_only=True)

    family = "fine-tuning"
    reads = frozenset({"features"})
    setup_reads = frozenset({"images", "labels"})
    needs_setup = True
    needs_old = True
    changes_images: ClassVar[bool] = False  #: whether the loss reads mixed or further augmented images
    named = {"stated": {"schedule": {"lr": 0.1}}}

    def __post_init__(self) -> None:
        _ = self.post_hoc  # raises if it is not valid

    @property
    def needs_images(self) -> bool:
        """Return whether features of its views do not suffice: it or its scorer reads images."""
        return self.changes_images or bool({"images", "layers"} & self.reads_to_score)

    @cached_property
    def post_hoc(self) -> Detector | None:
        """Return the detector that scores by f in place of the energy, not fitted."""
        if self.scored_by is None:
            return None
        values = {"name": self.scored_by} if isinstance(self.scored_by, str) else self.scored_by
        if "name" not in values:
            raise BadInput("scored_by: the name of a post-hoc detector is needed")
        detector: Detector = DETECTORS.create(**values)
        if isinstance(detector, Tuner) or detector.by_task:
            raise BadInput(f"scored_by = {self.scored_by!r} is not allowed: by_task is a value of the tuner")
        return detector

    @property
    def scorer(self) -> Detector:
        """Return the detector that scores by f."""
        return self.post_hoc or self

    @property
    def trained_as(self) -> str:
        """Return the name that random numbers follow from: ``head_of``, or its own name with its label.

        Scored otherwise than by default, it has no label: tuners with equal training share one f.
        """
        own = self.registered_name
        return self.head_of or (own.partition("@")[0] if self.by_task or self.scored_by else own)

    @property
    def training_values(self) -> dict[str, Any]:
        """Return the values that determine f, as plain data."""
        return {k: v for k, v in plain(self).items() if k not in ("by_task", "scored_by", "head_of")}

    @property
    def fewest(self) -> int:
        """Return the smallest number of set-up samples for the post-hoc detector."""
        return super().fewest if self.post_hoc is None else self.post_hoc.fewest

    @abstractmethod
    def loss(self, extra: "Extra", batch: Batch) -> Tensor:
        """Return a scalar on a batch, in full float32; ``extra(features)`` are f's logits."""

    def draw(self, iterations: int, batch: int, parts: int, numbers: torch.Generator) -> tuple[Tensor, ...]:
        """Draw the random choices of an epoch on the CPU: tensors with a row for each iteration.

        An iteration has ``parts`` batches (current, memory) of ``batch`` images.
        """
        return ()

    def prepare(
        self, source: ViewSource, parts: list[Views], drawn: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """Return further inputs of some iterations on the device, by default their rows of ``draw``.

        ``parts`` are their views. On a GPU this is not captured, so the host can read the drawn values.
        """
        return tuple(copy_to_device(tensor, source.device) for tensor in drawn)

    def logits(self, extra: "Extra", features: Tensor) -> Tensor:
        """Return f's logits of features to score."""
        z: Tensor = extra(features)
        return z

    def head(self, source: ViewSource) -> nn.Module:
        """Return the initial f: a copy of the model's head, its first matrix [classes, D]."""
        return source.extra_head()

    def extra(self, source: ViewSource) -> "Extra":
        """Return the initial f, with a method's additional state."""
        head = self.head(source)
        check_labels(source.labels, head_size(head)[0])
        if self.init == "fresh":
            with seeded(*source.seed, "head"):
                for part in head.modules():
                    if reset := getattr(part.cpu(), "reset_parameters", None):
                        reset()  # on the CPU: equal on every device
        return Extra(head).to(source.device)

    def set_up(self, outputs: Outputs) -> None:
        """Train f on the set-up images."""
        inputs, labels, tasks = outputs.inputs, outputs.labels, outputs.tasks
        assert inputs is not None
        assert labels is not None
        old = None if tasks is None else (tasks < tasks.max())[check_labels(labels, len(tasks))]
        with torch.enable_grad(), evaluating(inputs.model), SideStream(inputs.images.device).active():
            tuning = Tuning(self, ViewSource(inputs, labels, old, tasks=tasks))
            for _ in tuning.advance():
                pass
        self.use(tuning.extra.head)

    def use(self, head: nn.Module) -> None:
        """Use a tuned head to score."""
        self._extra = Extra(head).eval().requires_grad_(False)
        self._widths = {"features": head_size(head)[1]}

    def _finish(self, outputs: Outputs, memory: Outputs | None) -> None:
        if self.post_hoc is not None:
            self.post_hoc.fit(self.by_head(outputs))
        super()._finish(outputs, memory)

    def _compute_scores(self, outputs: Outputs) -> Tensor:
        if self.post_hoc is None:
            return super()._compute_scores(outputs)
        return self.post_hoc.score(self.by_head(outputs))

    def by_head(self, outputs: Outputs) -> Outputs:
        """Return the outputs of the model with f as its head, for a post-hoc detector."""
        head, inputs = partial(self.logits, self._extra), outputs.inputs
        if inputs is not None:
            model = copy.copy(inputs.model)
            vars(model)["classify"] = head  # setattr refuses a function where classify is a layer
            inputs = replace(inputs, model=model)
        with FULL.active():
            logits = head(outputs.features)
        return replace(outputs, logits=logits, classify=head, inputs=inputs)

    def scores(self, outputs: Outputs) -> Tensor:
        """Return T · logsumexp(f's logits / T), [N]."""
        z = self.logits(self._extra, outputs.features)
        return self.temperature * torch.logsumexp(z / self.temperature, dim=1)


class Extra(nn.Module):
    """The extra head f, with a method's additional state, so that a checkpoint includes it."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head
        self.queue: nn.Module | None = None  #: of features
        self.model_head: nn.Module | None = None  #: the model's own, frozen

    def forward(self, features: Tensor) -> Tensor:
        """Return f's logits [B, classes]."""
        logits: Tensor = self.head(features)
        return logits


class Tuning(Feed):
    """The training of one tuner's head on a source, and its feed: views with the tuner's further inputs."""

    generator: torch.Generator

    def __init__(self, tuner: Tuner, source: ViewSource) -> None:
        self.tuner, self.source = tuner, source
        self.extra = tuner.extra(source)
        self._batch = min(tuner.batch_size, len(source.pools["current"]))  #: of each pool's images
        self.device, self.iterations = source.device, source.iterations(self._batch)
        self.generator = torch.Generator(source.device)

    def advance(self, checkpoint: Checkpoint | None = None) -> Iterator[Progress]:
        """Train from the start or from a checkpoint, yielding after each iteration."""
        if checkpoint:
            checkpoint.restore(self.extra)

        def loss(*tensors: Tensor) -> Tensor:
            views = [Views(*tensors[3 * i : 3 * i + 3]) for i in range(len(self.source.pools))]
            memory = views[1] if len(views) > 1 else None
            drawn = tensors[3 * len(views) :]
            return self.tuner.loss(self.extra, Batch(views[0], memory, drawn, self.source, self.generator))

        # Full float32: energies are squared, and everything except the backbone is small.
        name, images = f"tune {self.tuner.registered_name}".strip(), self.source.pools["current"]
        stage = Stage(name, self.extra, loss, self.tuner.schedule, images)
        yield from optimise(stage, loss, self, FULL, checkpoint)

    def epoch(self, number: int) -> Iterator[tuple[Tensor, ...]]:
        """Yield the views' tensors, then the tuner's."""
        tuner, source, batch = self.tuner, self.source, self._batch
        seed = (*source.seed, tuner.trained_as)
        # Too small to start several threads.
        with cpu_threads(1):
            drawn = tuner.draw(self.iterations, batch, len(source.pools), generator(*seed, "draw", number))
        self.generator.manual_seed(derive(*seed, "device", number))
        for first, parts in source.chunks(number, batch):
            count = len(parts[0].labels) // batch
            prepared = tuner.prepare(source, parts, tuple(t[first : first + count] for t in drawn))
            for i in range(count):
                rows = slice(i * batch, (i + 1) * batch)
                yield *(t[rows] for views in parts for t in views), *(t[i] for t in prepared)
