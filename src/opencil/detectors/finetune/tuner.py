"""What a fine-tuning detector is: a loss that trains an extra head f on frozen features, and its energy."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from opencil.data.precision import placed
from opencil.detectors.detector import Detector, Reads, Setup
from opencil.detectors.finetune.views import Views, ViewSource, head_size
from opencil.engine.arithmetic import FULL
from opencil.engine.checkpoint import Checkpoint
from opencil.engine.device import cpu_threads, own_stream
from opencil.engine.feed import Feed
from opencil.engine.forward import Outputs, evaluating
from opencil.engine.loop import Progress, optimise
from opencil.engine.schedule import Schedule
from opencil.engine.seeding import derive, generator, seeded
from opencil.errors import BadInput, nearest
from opencil.nets.model import Classifier
from opencil.registry import DETECTORS
from opencil.validation import QUIET, Count, Positive, plain


@dataclass(frozen=True)
class Batch:
    """One iteration's views, and what a loss may need beside them.

    ``memory`` is None at the first step. ``drawn`` is what the tuner's ``draw`` gave for this iteration, or
    what its ``prepared`` made of that; larger draws come from ``generator``, on the device.
    """

    current: Views
    memory: Views | None
    drawn: tuple[Tensor, ...]
    source: ViewSource
    generator: torch.Generator

    @property
    def parts(self) -> list[Views]:
        """The current views and, where there are any, those of the memory."""
        return [self.current] if self.memory is None else [self.current, self.memory]


@dataclass
class Tuner(Detector):
    """A detector that trains an extra linear head f on the frozen model's features.

    A subclass is a dataclass whose fields are its config values, and says in ``loss`` what f is trained for.
    The score of all of them is the energy T · logsumexp(f's logits / T), unless ``scored_by`` names a
    post-hoc detector: that then has f for the head, and f's logits for the logits. The model is not changed.

    In a run, the images of old classes are the memory's exemplars. Elsewhere the set-up images tell by
    ``Outputs.tasks`` which classes are old; where they do not, all are new.
    """

    differs: ClassVar[str] = (
        "The OpenCIL paper prints a learning rate of 0.1, `@stated`; a compiled file in its code's "
        "repository has 0.001, with which its figures come out: the default. How f begins it does not say: "
        "here as a copy of h."
    )

    schedule: Schedule = Schedule(epochs=10, lr=0.001, decay="cosine", weight_decay=5e-4)
    batch_size: Count = 128  #: of current images, and as many again of the memory
    init: Literal["copy", "fresh"] = "copy"  #: of the model's head, or new weights
    temperature: Positive = 1.0
    #: A post-hoc detector by name, or by a mapping with its name and values, which scores by f.
    scored_by: str | dict[str, Any] | None = field(default=None, kw_only=True, metadata=QUIET)
    #: The name, with its label, as which f is trained: see ``trained_as``.
    head_of: str | None = field(default=None, kw_only=True, metadata=QUIET)

    family: ClassVar[str] = "fine-tuning"
    reads: ClassVar[frozenset[Reads]] = frozenset({"features"})
    setup_reads: ClassVar[frozenset[Reads]] = frozenset({"images", "labels"})
    needs_setup: ClassVar[bool] = True
    needs_old: ClassVar[bool] = True
    #: As the paper prints it; its figures come out with the default, a hundredth of that.
    named: ClassVar[Mapping[str, Mapping[str, Any]]] = {"stated": {"schedule": {"lr": 0.1}}}

    def __post_init__(self) -> None:
        own = self.registered_name.partition("@")[0]
        if self.head_of is not None and self.head_of.partition("@")[0] != own:
            raise ValueError(
                f"head_of = {self.head_of!r} is not allowed: it should be {own or 'its own name'}, with a "
                "label or without"
            )
        try:
            _ = self.scorer
        except BadInput as error:
            raise ValueError(f"scored_by: {error}") from None

    @cached_property
    def scorer(self) -> Detector | None:
        """What scores by f in place of its energy, not yet set up."""
        if self.scored_by is None:
            return None
        values = {"name": self.scored_by} if isinstance(self.scored_by, str) else dict(self.scored_by)
        name = values.pop("name", None)
        if not isinstance(name, str):
            raise BadInput("the name of a post-hoc detector is needed, or a mapping with its name and values")
        kind, known = name.partition("@")[0], DETECTORS.names()
        if kind not in known:
            makers = {n: DETECTORS.entry(n).make for n in known}
            others = [
                n for n, make in makers.items() if not (isinstance(make, type) and issubclass(make, Tuner))
            ]
            raise BadInput(
                f"detector {name!r} is unknown: allowed are {', '.join(others)}{nearest(kind, others)}"
            )
        made: Detector = DETECTORS.create(name, **values)
        if isinstance(made, Tuner) or made.by_task:
            what = "by_task is a value of the tuner" if made.by_task else f"{name} has a head of its own"
            raise BadInput(f"{what}: a post-hoc detector is needed, which scores by this one's")
        return made

    @property
    def scores_in_the_end(self) -> Detector:
        """What scores by f."""
        return self.scorer or self

    @property
    def trained_as(self) -> str:
        """The name that its random numbers follow from: its own, with its label, or what ``head_of`` says.

        One that is scored otherwise than by default has those of the method without a label. So labels under
        which f is trained alike, and scored differently, have one f.
        """
        if self.head_of is not None:
            return self.head_of
        scored_otherwise = self.by_task or self.scored_by is not None
        return self.registered_name.partition("@")[0] if scored_otherwise else self.registered_name

    @property
    def training_values(self) -> dict[str, Any]:
        """Its values, plain, less those that only say how f is used or called."""
        used = ("by_task", "scored_by", "head_of")
        return {name: value for name, value in plain(self).items() if name not in used}

    @property
    def reads_to_score(self) -> frozenset[Reads]:
        """Features, and what the detector that scores by f reads beside its head."""
        images = frozenset() if self.scorer is None else self.scorer.reads & {"images", "layers"}
        return frozenset({*super().reads_to_score, *images})

    @property
    def reads_to_set_up(self) -> frozenset[Reads]:
        """What f is trained on, and what is scored by it where that is needed too."""
        return frozenset({*super().reads_to_set_up, *(self.reads_to_score if self.scorer else ())})

    @property
    def set_up_on(self) -> Setup:
        """The images of a run that the detector is set up on which scores by f; f is tuned on train+."""
        return super().set_up_on if self.scorer is None else self.scorer.set_up_on

    @property
    def ready(self) -> bool:
        """Whether it has f, and whatever scores by f is ready too."""
        return super().ready and (self.scorer is None or self.scorer.ready)

    @property
    def fewest(self) -> int:
        """As many as what scores by f is set up on."""
        return super().fewest if self.scorer is None else self.scorer.fewest

    @abstractmethod
    def loss(self, extra: "Extra", batch: Batch) -> Tensor:
        """A scalar on a batch; ``extra(features)`` are f's logits. It is run in full float32."""

    def draw(self, iterations: int, batch: int, parts: int, numbers: torch.Generator) -> tuple[Tensor, ...]:
        """Random choices of an epoch, drawn on the CPU: tensors with a row for each iteration.

        An iteration has ``parts`` batches (current, memory) of ``batch`` images.
        """
        return ()

    def prepared(
        self, source: ViewSource, parts: list[Views], drawn: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """What some iterations need beside their views, on the device: tensors with a row for each iteration.

        ``parts`` are the views of all of them, ``drawn`` their rows of what ``draw`` gave, which is the
        default. On a GPU this is not captured, so the host may look at what it has drawn.
        """
        return tuple(placed(tensor, source.device) for tensor in drawn)

    def logits(self, extra: "Extra", features: Tensor) -> Tensor:
        """f's logits of features that are to be scored."""
        z: Tensor = extra(features)
        return z

    def head(self, source: ViewSource) -> nn.Module:
        """f as it is before it is trained: a copy of the model's head, its first matrix [classes, D]."""
        return source.extra_head()

    def extra(self, source: ViewSource) -> "Extra":
        """What is trained: f, and whatever the method keeps beside it."""
        head = self.head(source)
        classes, _ = head_size(head)
        if source.labels.max() >= classes:
            raise BadInput(f"labels reach {int(source.labels.max())}: the model knows 0 to {classes - 1}")
        if self.init == "fresh":
            with seeded(*source.seed, "head"):
                for part in head.modules():
                    if reset := getattr(part.cpu(), "reset_parameters", None):
                        reset()  # drawn on the CPU: the same everywhere
        return Extra(head).to(source.device)

    def set_up(self, outputs: Outputs) -> None:
        """Train f on the set-up images."""
        inputs, labels = outputs.inputs, outputs.labels
        assert inputs is not None
        assert labels is not None
        tasks = outputs.tasks
        if tasks is not None and labels.max() >= len(tasks):
            raise BadInput(f"tasks are of {len(tasks)} classes: labels reach {int(labels.max())}")
        old = None if tasks is None else (tasks < tasks.max())[labels]
        with torch.enable_grad(), evaluating(inputs.model), own_stream(inputs.images.device):
            tuning = Tuning(self, ViewSource(inputs, labels, old, tasks=tasks))
            for _ in tuning.advance():
                pass
        self.use(tuning.extra.head)

    def use(self, head: nn.Module) -> None:
        """Score by a head that has been trained."""
        self._extra = Extra(head).eval().requires_grad_(False)
        self._widths = self.widths()

    def widths(self, outputs: Outputs | None = None) -> dict[str, int]:
        """Columns that the head reads."""
        return {"features": self._extra.width}

    def _follow_up(self, outputs: Outputs, memory: Outputs | None) -> None:
        if self.scorer is not None:
            self.scorer.fit(self.by_head(outputs))
        super()._follow_up(outputs, memory)

    def _finite_scores(self, outputs: Outputs) -> Tensor:
        if self.scorer is None:
            return super()._finite_scores(outputs)
        return self.scorer.score(self.by_head(outputs))

    def by_head(self, outputs: Outputs) -> Outputs:
        """Outputs as they are of the model with f for its head: what ``scored_by`` scores."""
        if not self.learned:
            raise BadInput(f"{type(self).__name__} has no head yet: call fit on training samples first")
        head, inputs = partial(self.logits, self._extra), outputs.inputs
        if inputs is not None:
            inputs = replace(inputs, model=_WithHead(inputs.model, head))
        with FULL.active():
            logits = head(outputs.features)
        return replace(outputs, logits=logits, classify=head, inputs=inputs)

    def scores(self, outputs: Outputs) -> Tensor:
        """T · logsumexp(f's logits / T), [N]."""
        z = self.logits(self._extra, outputs.features)
        return self.temperature * torch.logsumexp(z / self.temperature, dim=1)


class _WithHead(nn.Module):
    """A model with another head."""

    def __init__(self, model: Classifier, head: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.features, self.classify = model, model.features, head
        for name in ("maps", "last_stage"):
            if method := getattr(model, name, None):
                setattr(self, name, method)


class Extra(nn.Module):
    """The extra head f; what a method keeps has its place beside it, so that a checkpoint holds it too."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head
        self.queue: nn.Module | None = None  #: of features
        self.model_head: nn.Module | None = None  #: the model's own, frozen

    @property
    def width(self) -> int:
        """Columns of the features that the head reads."""
        return head_size(self.head)[1]

    @property
    def linear(self) -> nn.Module:
        """The head's linear layer, without what may come after it, as BiC's corrections do."""
        return next((part for part in self.head.modules() if isinstance(part, nn.Linear)), self.head)

    def forward(self, features: Tensor) -> Tensor:
        """f's logits [B, classes]."""
        logits: Tensor = self.head(features)
        return logits


class Tuning:
    """The training of one tuner's head on a source, from its beginning or from a checkpoint."""

    def __init__(self, tuner: Tuner, source: ViewSource) -> None:
        self.tuner, self.source = tuner, source
        self.extra = tuner.extra(source)
        self._feed = _TuningFeed(tuner, source)

    def advance(self, checkpoint: Checkpoint | None = None) -> Iterator[Progress]:
        """Train, yielding after each iteration."""
        schedule = self.tuner.schedule
        resume = checkpoint.restore(self.extra, self.extra, schedule) if checkpoint else None

        def loss(*tensors: Tensor) -> Tensor:
            views, drawn = [], tensors
            for _ in self.source.pools:
                views.append(Views(*drawn[:3]))
                drawn = drawn[3:]
            memory = views[1] if len(views) > 1 else None
            assert self._feed.generator is not None
            return self.tuner.loss(
                self.extra, Batch(views[0], memory, drawn, self.source, self._feed.generator)
            )

        # Full float32: energies are squared, and all but the backbone, which rounds as it did in training, is
        # too small to be worth less.
        name = f"tune {self.tuner.registered_name}".strip()
        yield from optimise(name, self.extra, loss, schedule, self._feed, FULL, resume)


class _TuningFeed(Feed):
    """A source's views with what a tuner prepares beside them."""

    def __init__(self, tuner: Tuner, source: ViewSource) -> None:
        self._tuner, self._source = tuner, source
        self._batch = source.batch_of(tuner.batch_size)
        self.device, self.iterations = source.device, source.iterations(self._batch)
        self.generator = torch.Generator(source.device)

    def epoch(self, number: int) -> Iterator[tuple[Tensor, ...]]:
        """The views' tensors, then the tuner's."""
        tuner, source, batch = self._tuner, self._source, self._batch
        seed = (*source.seed, tuner.trained_as)
        # Too small for several threads, which would take longer to begin.
        with cpu_threads(1):
            drawn = tuner.draw(self.iterations, batch, len(source.pools), generator(*seed, "draw", number))
        assert self.generator is not None
        self.generator.manual_seed(derive(*seed, "device", number))
        for first, parts in source.chunks(number, batch):
            count = len(parts[0].labels) // batch
            prepared = tuner.prepared(source, parts, tuple(t[first : first + count] for t in drawn))
            for i in range(count):
                views = (part[i * batch : (i + 1) * batch] for part in parts)
                yield (*(t for one in views for t in one.tensors), *(tensor[i] for tensor in prepared))
