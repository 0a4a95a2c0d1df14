"""What a detector is: set up on training outputs (where it needs that), then a score for each sample."""

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self, overload

import numpy as np
import torch
from torch import Tensor

from opencil.arrays import dense, on_one_device, tensor_of
from opencil.detectors.task_standards import TaskStandards
from opencil.engine.arithmetic import FULL
from opencil.engine.forward import Inputs, Outputs
from opencil.errors import BadInput, nearest
from opencil.validation import QUIET, Values

Array = np.ndarray[Any, Any]
Reads = Literal["logits", "features", "head", "linear", "images", "layers", "labels"]
#: Images of a run that a detector is set up on: those that the step learned from, or the memory after it.
Setup = Literal["train+", "memory"]


@dataclass
class Detector(Values, ABC):
    """Scores samples; a larger score is more in-distribution, in every detector.

    A subclass is a dataclass whose fields are its config values. It says what it ``reads``, implements
    ``scores`` and, where it ``needs_setup``, ``set_up``. Users call ``fit`` and ``score``, which check what
    they are given. What can be read, each a field of ``Outputs``:

    - ``logits`` [N, C] and ``features`` [N, D]: one forward pass serves every detector;
    - ``head``: ``outputs.classify``, the function from features to logits. Plain-tensor users give it once,
      to ``fit`` or to ``score``: ``fit(features, classify=model.classify)``;
    - ``linear``: ``W, b = outputs.linear()``, the head as a matrix and a vector, given likewise and with the
      features; a head that is not linear is refused;
    - ``images``: ``outputs.inputs``, the model and its normalised images, for detectors that run the network
      again. Plain-tensor users give ``score(inputs=Inputs(model, images, transform))``;
    - ``layers``: ``for maps in outputs.layers()``, the maps [B, C, H, W] after each stage of the backbone,
      batch by batch in the samples' order, since those of all samples would take gigabytes. They are computed
      from ``inputs``. ``outputs.last_stage(maps)`` are the features of other maps before the last stage;
    - ``labels`` [N], in a set-up alone.

    A set-up reads the same, or what ``setup_reads`` says. ``family`` is the block of the tables it stands in.
    Every detector has the value ``by_task``: its scores less the mean of what the memory's images of the
    predicted task score, over their spread. So a score means the same whichever task an image is taken for.
    Nothing that is read may be changed: the model's parameters are the same before and after.
    """

    by_task: bool = field(default=False, kw_only=True, metadata=QUIET)

    family: ClassVar[str] = "post-hoc"
    reads: ClassVar[frozenset[Reads]]
    setup_reads: ClassVar[frozenset[Reads] | None] = None
    needs_setup: ClassVar[bool] = False
    #: Whether it draws on images of old classes, so that a CIL method which sees none cannot have it.
    needs_old: ClassVar[bool] = False
    #: For its page in the docs: the score, or the loss of a head, in LaTeX, lines ended by ``\\``; and where
    #: the paper, its authors' code and this differ. Neither is needed.
    equation: ClassVar[str] = ""
    differs: ClassVar[str] = ""
    #: What it is registered as, with the label it was created under; its seeds follow from it.
    registered_name: ClassVar[str] = ""
    #: Sets of values by label: ``create_detector("ber@stated")`` has those that BER names ``stated``.
    named: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    #: Values as they were before they could be chosen, where the default is another: for runs stored then,
    #: which have none of them.
    formerly: ClassVar[Mapping[str, Any]] = {}

    @abstractmethod
    def scores(self, outputs: Outputs) -> Tensor:
        """Score of each sample, float32 [N]."""

    def set_up(self, outputs: Outputs) -> None:
        """Learn from the outputs of training images; keep what is learned on ``self``."""

    @property
    def fewest(self) -> int:
        """Set-up samples that are needed at least."""
        return 1

    @property
    def scores_in_the_end(self) -> "Detector":
        """The detector that the score comes from: this one, or what a tuned head is ``scored_by``."""
        return self

    @property
    def reads_to_score(self) -> frozenset[Reads]:
        """What ``score`` must be given under its values: the predicted task is that of the largest logit."""
        return frozenset({*self.reads, "logits"}) if self.by_task else self.reads

    @property
    def reads_to_set_up(self) -> frozenset[Reads]:
        """What ``fit`` must be given: the head is not read before samples are scored."""
        reads = self.reads - {"head"} if self.setup_reads is None else self.setup_reads
        if not self.by_task:
            return reads
        return frozenset({*self.reads_to_score, "labels", *(reads if self.needs_setup else ())})

    @property
    def set_up_on(self) -> Setup:
        """The images of a run that it is set up on: its value ``setup`` where it has one."""
        setup: Setup = getattr(self, "setup", "train+" if self.needs_setup else "memory")
        return setup

    @property
    def learned(self) -> bool:
        """Whether it needs no set-up of its own, or has had it."""
        return not self.needs_setup or hasattr(self, "_widths")

    @property
    def ready(self) -> bool:
        """Whether it can score: it has learned, and by task knows what each task's images score."""
        return self.learned and (not self.by_task or hasattr(self, "_standards"))

    def widths(self, outputs: Outputs) -> dict[str, int]:
        """Columns of features and logits that it can score after a set-up on ``outputs``."""
        found = _widths(outputs)
        if "logits" not in found and "linear" in self.reads_to_set_up:
            found["logits"] = len(outputs.linear()[1])
        return found

    @torch.no_grad()
    def fit(
        self,
        features: Tensor | Array | Outputs | None = None,
        logits: Tensor | Array | None = None,
        labels: Tensor | Array | None = None,
        *,
        classify: Callable[[Tensor], Tensor] | None = None,
        inputs: Inputs | None = None,
        tasks: Tensor | Array | Sequence[int] | None = None,
        memory: Outputs | None = None,
    ) -> Self:
        """Set up on training samples: ``Outputs``, or features [N, D], logits [N, C] and labels [N].

        These are tensors or numpy arrays. One without a set-up keeps the head alone. ``tasks`` [C] are the
        tasks, counted from 1, that classes came with, for those that ask. By task, scores are compared with
        those of ``memory``, by default of the same samples.
        """
        if not self.needs_setup and not self.by_task:
            self._keep_head((features.classify if isinstance(features, Outputs) else None) or classify)
            return self
        outputs = self._checked(self.reads_to_set_up, features, logits, labels, classify, inputs, tasks)
        if len(outputs) < self.fewest:
            raise BadInput(
                f"{type(self).__name__} needs at least {self.fewest} samples to be set up on: "
                f"{len(outputs)} are not enough"
            )
        if self.by_task:
            self._known_tasks(outputs if memory is None else memory)
        try:
            self._forget()
            if self.needs_setup:
                with FULL.active():
                    self.set_up(outputs)
            self._widths = self.widths(outputs)
            self._keep_head(outputs.classify)
            self._follow_up(outputs, memory)
        except BaseException:  # half of a set-up would score, by what two models or sets of classes left
            self._forget()
            raise
        return self

    def _forget(self) -> None:
        for learned in ("_widths", "_standards"):
            self.__dict__.pop(learned, None)

    def _keep_head(self, classify: Callable[[Tensor], Tensor] | None) -> None:
        """Keep what it scores by; others do not need it, and it may be a whole network."""
        reads_head = not {"head", "linear"}.isdisjoint(self.reads_to_score)
        self._classify = classify if reads_head else None

    @torch.no_grad()
    def complete(self, setup: Outputs, memory: Outputs | None = None) -> Self:
        """Do what is left before it can score: all of ``fit``, or of one that has learned what follows."""
        if not self.learned:
            return self.fit(setup, memory=memory)
        reads = self.reads_to_set_up & (self.reads_to_score | {"labels"})
        self._keep_head(setup.classify)
        self._follow_up(self._checked(reads, setup, None, None, None, None), memory)
        return self

    def _follow_up(self, outputs: Outputs, memory: Outputs | None) -> None:
        """What a set-up is followed by: what each task's images score, where that is asked."""
        if not self.by_task:
            return
        if memory is not None:
            head = getattr(self, "_classify", None)
            outputs = self._checked(self.reads_to_score | {"labels"}, memory, None, None, head, None)
        assert outputs.labels is not None
        tasks, of_samples = self._known_tasks(outputs), self._finite_scores(outputs)
        self._standards = TaskStandards.of(of_samples, outputs.labels, tasks)
        self._widths = {**getattr(self, "_widths", {}), "logits": len(tasks)}

    def _known_tasks(self, outputs: Outputs) -> Tensor:
        """The task of each class [C], which some samples must tell."""
        if outputs.tasks is None:
            raise BadInput(
                f"{type(self).__name__} scores by task, and which task a class came with is not known: "
                "tasks=[1, 1, 2, …] says it, one for each class"
            )
        if len(outputs.tasks) != outputs.logits.shape[1]:
            raise BadInput(
                f"tasks are of {len(outputs.tasks)} classes: logits have {outputs.logits.shape[1]} columns"
            )
        return outputs.tasks

    @overload
    def score(
        self,
        features: Tensor | Outputs | None = None,
        logits: Tensor | None = None,
        *,
        classify: Callable[[Tensor], Tensor] | None = None,
        inputs: Inputs | None = None,
    ) -> Tensor: ...
    @overload
    def score(
        self,
        features: Array | None = None,
        logits: Array | None = None,
        *,
        classify: Callable[[Tensor], Tensor] | None = None,
        inputs: Inputs | None = None,
    ) -> Array: ...
    @torch.no_grad()
    def score(
        self,
        features: Tensor | Array | Outputs | None = None,
        logits: Tensor | Array | None = None,
        *,
        classify: Callable[[Tensor], Tensor] | None = None,
        inputs: Inputs | None = None,
    ) -> Tensor | Array:
        """Score of each sample, float32 [N]: ``Outputs``, or features [N, D] and logits [N, C].

        Of numpy arrays it is a numpy array, of tensors a tensor.
        """
        known: dict[str, int] = getattr(self, "_widths", {})
        if not self.ready:
            raise BadInput(f"{type(self).__name__} has not been set up: call fit on training samples first")
        classify = getattr(self, "_classify", None) if classify is None else classify
        plain = isinstance(features, np.ndarray) or isinstance(logits, np.ndarray)
        outputs = self._checked(self.reads_to_score, features, logits, None, classify, inputs)
        for name, width in _widths(outputs).items():
            if name in self.reads_to_score and width != known.get(name, width):
                raise BadInput(
                    f"{name} have {width} columns: {type(self).__name__} was set up on {known[name]}"
                )
        scores = self._finite_scores(outputs)
        if self.by_task:
            scores = self._standards.standardised(scores, outputs.logits)
        return scores.numpy(force=True) if plain else scores

    def _finite_scores(self, outputs: Outputs) -> Tensor:
        """Its own scores, before they are compared with those of a task; what is no score is refused."""
        with FULL.active():
            scores = self.scores(outputs).float().detach()
        if scores.shape != (len(outputs),):
            raise BadInput(
                f"{type(self).__name__} gives scores {list(scores.shape)}: one is needed for each of "
                f"{len(outputs)} samples"
            )
        if not torch.isfinite(scores).all():
            bad = int((~torch.isfinite(scores)).nonzero()[0])
            raise BadInput(
                f"{type(self).__name__} has no finite score for sample {bad}: {float(scores[bad])}"
            )
        return scores

    def _checked(
        self,
        reads: frozenset[Reads],
        features: Any,
        logits: Any,
        labels: Any,
        classify: Callable[[Tensor], Tensor] | None,
        inputs: Inputs | None,
        tasks: Any = None,
    ) -> Outputs:
        """What a user gave, as ``Outputs``: present where it is read, of fitting shapes, finite."""
        if isinstance(features, Outputs):
            given = features
            features, logits, labels, inputs = given.features, given.logits, given.labels, given.inputs
            # Those of a function that gives logits alone.
            if isinstance(features, Tensor) and features.ndim and not features.shape[-1]:
                features = None
            classify = classify if given.classify is None else given.classify
            tasks = given.tasks if tasks is None else tasks
        given_arrays = {"features": features, "logits": logits, "labels": labels}
        arrays = {name: None if one is None else dense(one, name) for name, one in given_arrays.items()}
        features, logits, labels = arrays.values()
        on_one_device(arrays)
        if inputs is not None and not isinstance(inputs, Inputs):
            raise BadInput(f"inputs are a {type(inputs).__name__}: opencil.Inputs(model, images) are needed")
        if classify is not None and (isinstance(classify, type) or not callable(classify)):
            raise BadInput(
                f"classify is a {type(classify).__name__}: a function from features to logits is needed"
            )
        present: dict[Reads, object] = {
            "features": features,
            "logits": logits,
            "head": classify,
            "linear": None if features is None else classify,
            "images": inputs,
            "layers": inputs,
            "labels": labels,
        }
        for read in sorted(reads):
            if read not in present:
                raise BadInput(
                    f"{type(self).__name__} reads {read!r}, which is unknown: allowed are "
                    f"{', '.join(present)}{nearest(read, present)}"
                )
            if present[read] is None:
                raise BadInput(f"{type(self).__name__} reads the {read}: missing here")
        matrices = {name: t for name, t in (("features", features), ("logits", logits)) if t is not None}
        if "labels" in reads:
            whole = not labels.is_floating_point() and labels.dtype != torch.bool
            if labels.ndim != 1 or not whole:
                shape = list(labels.shape)
                raise BadInput(f"labels are {labels.dtype} {shape}: whole numbers [N] are needed")
            if len(labels) and int(labels.min()) < 0:
                raise BadInput(f"labels reach down to {int(labels.min())}: classes are counted from 0")
        counted = [t for t in (*matrices.values(), labels) if t is not None and t.ndim]
        rows = {len(t) for t in counted} | ({len(inputs)} if inputs is not None else set())
        for name, tensor in matrices.items():
            shape = list(tensor.shape)
            if tensor.ndim != 2 or not tensor.is_floating_point() or 0 in shape or len(rows) > 1:
                raise BadInput(
                    f"{name} are {tensor.dtype} {shape}: a floating-point matrix is needed, "
                    f"with the same number of rows, at least 1, for features, logits, labels and images"
                )
            if name in reads and not torch.isfinite(tensor.float()).all():
                bad = int((~torch.isfinite(tensor.float())).any(dim=1).nonzero()[0])
                raise BadInput(
                    f"{name} of sample {bad} are not finite: {type(self).__name__} cannot score them"
                )
        if len(rows) > 1:  # of labels and images, where there is no matrix
            raise BadInput(
                f"{len(labels)} labels are given for {len(inputs or ())} images: one each is needed"
            )
        if features is not None and classify is not None and not {"head", "linear"}.isdisjoint(reads):
            _check_head(classify, features, logits if "logits" in reads else None)
        nothing = torch.empty(rows.pop(), 0)
        return Outputs(
            nothing if features is None else features.float(),
            nothing if logits is None else logits.float(),
            None if labels is None else labels.long(),  # a byte would index as a mask does
            classify,
            inputs,
            None if tasks is None else _tasks(tasks),
        )


def _check_head(classify: Callable[[Tensor], Tensor], features: Tensor, logits: Tensor | None) -> None:
    """Refuse a head that gives no logits of the features, by those of one sample."""
    try:
        found = classify(features[:1].float())
    except (RuntimeError, TypeError, ValueError) as error:  # a layer of another width, a function of two
        why = str(error).strip().partition("\n")[0]
        raise BadInput(f"classify fails on features {list(features.shape)}: {why}") from error
    wrong = not isinstance(found, Tensor) or found.ndim != 2 or len(found) != 1 or not found.shape[1]
    if wrong or (logits is not None and found.shape[1] != logits.shape[1]):
        what = f"{found.dtype} {list(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        classes = "classes" if logits is None else str(logits.shape[1])
        raise BadInput(f"classify gives {what} of one sample's features: logits [1, {classes}] are needed")
    dense(found, "what classify gives")


def _tasks(given: Tensor | Array | Sequence[int]) -> Tensor:
    """The task of each class [C] as a user says it."""
    try:
        tasks = dense(torch.as_tensor(tensor_of(given)), "tasks")
    except (TypeError, ValueError, RuntimeError, OverflowError):
        tasks = torch.empty(0)
    whole = tasks.ndim == 1 and len(tasks) and not (tasks.is_floating_point() or tasks.dtype == torch.bool)
    if not whole or int(tasks.min()) < 1:
        raise BadInput(
            f"tasks = {reprlib.repr(given)} is not allowed: a whole number from 1 on is needed for each class"
        )
    return tasks


def _widths(outputs: Outputs) -> dict[str, int]:
    """Columns of what was given."""
    columns = {"features": outputs.features.shape[1], "logits": outputs.logits.shape[1]}
    return {name: width for name, width in columns.items() if width}


@dataclass
class LogitDetector(Detector):
    """A detector that reads logits alone and needs no set-up."""

    reads: ClassVar[frozenset[Reads]] = frozenset({"logits"})


@dataclass
class SetUpDetector(Detector):
    """A detector that is set up on training samples, and reads features and logits unless it says otherwise.

    In a run, its value ``setup`` says which samples those are. The memory is the default: it has as many of
    every class, as the samples to score have, while most of train+ is new; and it is there when a detector is
    to be set up again, when a step's training images are gone. A subclass may have another default.
    """

    differs: ClassVar[str] = (
        "The OpenCIL paper sets up on train+; its code on the memory after the step and 100 validation "
        "images of the new classes; here it is the memory, and `@stated` is train+."
    )

    setup: Setup = field(default="memory", kw_only=True)

    named: ClassVar[Mapping[str, Mapping[str, Any]]] = {"stated": {"setup": "train+"}}
    formerly: ClassVar[Mapping[str, Any]] = {"setup": "train+"}

    reads: ClassVar[frozenset[Reads]] = frozenset({"features", "logits"})
    needs_setup: ClassVar[bool] = True
