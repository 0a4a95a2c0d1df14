"""Define detectors: an optional set-up on training outputs, then a score for each sample."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from opencil.arrays import dense, whole_numbers
from opencil.detectors.moments import TaskStandards
from opencil.engine.arithmetic import FULL
from opencil.engine.forward import Inputs, Outputs, Statistics
from opencil.errors import BadInput
from opencil.validation import Values

Array = np.ndarray[Any, Any]
AnyArray = TypeVar("AnyArray", Tensor, Array)
Reads = Literal["logits", "features", "head", "linear", "images", "layers", "labels"]
#: The images of a run for the set-up: those that the step learned from, or the memory after it. As in the
#: OpenCIL paper's code: the memory and ten test images of each new class, which are not scored; or one random
#: batch of augmented training images.
Setup = Literal["train+", "memory", "memory+test", "batch"]
#: Or the new classes' images, with statistics of older classes as each class's own step computed them.
CarryingSetup = Setup | Literal["statistics"]
#: Values by label.
Labels = Mapping[str, Mapping[str, Any]]


@dataclass
class Detector(Values, ABC):
    """Score samples; in every detector a larger score is more in-distribution.

    A subclass is a dataclass whose fields are its config values. It declares what it ``reads``, implements
    ``scores`` and, where it ``needs_setup``, ``set_up``. Users call ``fit`` and ``score``, which check their
    arguments. A detector can read these fields of ``Outputs``:

    - ``logits`` [N, C] and ``features`` [N, D]: one forward pass serves every detector;
    - ``head``: ``outputs.classify``, the function from features to logits. Users of plain tensors give it
      once, to ``fit`` or to ``score``: ``fit(features, classify=model.classify)``;
    - ``linear``: ``W, b = outputs.linear()``, the head as a matrix and a vector, if it is linear;
    - ``images``: ``outputs.inputs``, the model and its normalised images, for detectors that run the network
      again. Users of plain tensors give ``score(inputs=Inputs(model, images, transform))``;
    - ``layers``: ``for maps in outputs.layers()``, the maps [B, C, H, W] after each stage of the backbone,
      batch by batch, from ``inputs``. ``outputs.last_stage(maps)`` computes features from changed maps;
    - ``labels`` [N], in a set-up alone.

    A set-up reads the same, or ``setup_reads``. ``family`` is the block of the tables that it belongs to.
    With the value ``by_task`` of every detector, scores are standardised by the mean and the spread that
    the memory's images of the predicted task have. A detector changes nothing that it reads.
    """

    by_task: bool = field(default=False, kw_only=True)

    family: ClassVar[str] = "post-hoc"
    reads: ClassVar[frozenset[Reads]]
    setup_reads: ClassVar[frozenset[Reads] | None] = None
    needs_setup: ClassVar[bool] = False
    #: Whether it needs images of old classes, which some CIL methods do not keep.
    needs_old: ClassVar[bool] = False
    #: For the docs, both optional: the score, or a head's loss, in LaTeX with lines ended by ``\\``; and
    #: the differences between the paper, its authors' code and this implementation.
    equation: ClassVar[str] = ""
    differs: ClassVar[str] = ""
    #: The registered name, with the label that it was created under; seeds follow from it.
    registered_name: ClassVar[str] = ""
    #: Sets of values by label: ``create_detector("ber@stated")`` has the values that BER names ``stated``.
    named: ClassVar[Labels] = {}

    @abstractmethod
    def scores(self, outputs: Outputs) -> Tensor:
        """Return the score of each sample, float32 [N]."""

    def set_up(self, outputs: Outputs) -> None:
        """Learn from the outputs of training images, and store the result on ``self``.

        It runs without gradients: ``with torch.enable_grad():`` goes around what needs them.
        """

    @property
    def fewest(self) -> int:
        """Return the smallest number of set-up samples."""
        return 1

    @property
    def scorer(self) -> "Detector":
        """Return the detector that computes the score: this one, or the one that scores by a tuned head."""
        return self

    @property
    def reads_to_score(self) -> frozenset[Reads]:
        """Return what ``score`` reads: also the logits by task, and images where its scorer reads them."""
        reads = (self.reads - {"labels"}) | (self.scorer.reads & {"images", "layers"})
        return frozenset({*reads, "logits"}) if self.by_task else reads

    @property
    def reads_to_set_up(self) -> frozenset[Reads]:
        """Return what ``fit`` reads, also to score by task or to fit its scorer; the head only scores."""
        reads = self.reads - {"head"} if self.setup_reads is None else self.setup_reads
        if self.by_task:
            reads = frozenset({*self.reads_to_score, "labels", *(reads if self.needs_setup else ())})
        return reads if self.scorer is self else reads | self.reads_to_score

    @property
    def needs_images(self) -> bool:
        """Return whether features do not suffice: it reads images, or the network's stages."""
        return bool({"images", "layers"} & (self.reads_to_score | self.reads_to_set_up))

    @property
    def set_up_on(self) -> CarryingSetup:
        """Return which images of a run the set-up uses: the value ``setup`` where there is one."""
        setup: CarryingSetup = getattr(
            self.scorer, "setup", "train+" if self.scorer.needs_setup else "memory"
        )
        return setup

    @property
    def learned(self) -> bool:
        """Return whether its own set-up is done, or unnecessary."""
        return not self.needs_setup or hasattr(self, "_widths")

    @property
    def ready(self) -> bool:
        """Return whether it can score: its set-up is done and, by task, its standards are computed."""
        return self.learned and self.scorer.learned and (not self.by_task or hasattr(self, "_standards"))

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
        carried: Sequence[Statistics] = (),
    ) -> Self:
        """Fit on training samples: ``Outputs``, or features [N, D], logits [N, C] and labels [N].

        Arguments are tensors or numpy arrays. A detector without a set-up stores the head alone. ``tasks``
        [C] gives the task of each class, counted from 1. By task, scores are standardised by those of
        ``memory``, by default by those of the same samples. ``carried`` are the ``statistics`` of earlier
        fits, in place of their samples, for a ``CarryingDetector``.
        """
        given = _gather(features, logits, labels, classify, inputs, tasks)
        given = replace(given, carried=given.carried or tuple(carried))
        if given.carried and not isinstance(self.scorer, CarryingDetector):
            raise BadInput(f"{type(self).__name__} needs samples: it cannot be fitted on carried statistics")
        if not self.needs_setup and not self.by_task:
            self._store_head(given.classify)
            return self
        outputs, name = self._check(self.reads_to_set_up, given), type(self).__name__
        if len(outputs) < self.fewest:
            raise BadInput(f"{name} needs {self.fewest} set-up samples, and has {len(outputs)}")
        try:
            self._reset()
            if self.needs_setup:
                with FULL.active(), _explain_gradients(name):
                    self.set_up(outputs)
            self._finish(outputs, memory)
        except BaseException:  # an incomplete set-up would mix two models or two sets of classes
            self._reset()
            raise
        return self

    def _reset(self) -> None:
        for learned in ("_widths", "_standards"):
            vars(self).pop(learned, None)

    @torch.no_grad()
    def complete(self, setup: Outputs, memory: Outputs | None = None) -> Self:
        """Do what is missing before it can score: all of ``fit``, or the part after its own set-up."""
        if not self.learned:
            return self.fit(setup, memory=memory)
        self._finish(self._check(self.reads_to_set_up, setup), memory)
        return self

    def _finish(self, outputs: Outputs, memory: Outputs | None) -> None:
        """Store the head and, by task, the scores' mean and spread for the images of each task."""
        self._store_head(outputs.classify)
        self._widths: dict[str, int] = getattr(self, "_widths", _widths(outputs))
        if "logits" not in self._widths and "linear" in self.reads_to_set_up:
            self._widths["logits"] = len(outputs.linear()[1])
        if not self.by_task:
            return
        if memory is not None:
            memory = replace(memory, classify=memory.classify or self._classify)
            outputs = self._check(self.reads_to_score | {"labels"}, memory)
        if outputs.tasks is None:
            raise BadInput(f"{type(self).__name__} scores by task: give tasks=[1, 1, 2, …], for each class")
        assert outputs.labels is not None
        self._standards = TaskStandards.of(self._compute_scores(outputs), outputs.labels, outputs.tasks)
        self._widths["logits"] = len(outputs.tasks)

    def _store_head(self, classify: Callable[[Tensor], Tensor] | None) -> None:
        """Store the head if it is read to score: it may be a whole network."""
        self._classify = classify if self.reads_to_score & {"head", "linear"} else None

    @torch.no_grad()
    def score(
        self,
        features: AnyArray | Outputs | None = None,
        logits: AnyArray | None = None,
        *,
        classify: Callable[[Tensor], Tensor] | None = None,
        inputs: Inputs | None = None,
    ) -> AnyArray:
        """Return the score of each sample, float32 [N], of ``Outputs`` or features [N, D] and logits [N, C].

        It is a numpy array if features or logits are, else a tensor.
        """
        if not self.ready:
            raise BadInput(f"{type(self).__name__} has not been set up: call fit on training samples first")
        classify = getattr(self, "_classify", None) if classify is None else classify
        plain = isinstance(features, np.ndarray) or isinstance(logits, np.ndarray)
        outputs = self._check(self.reads_to_score, _gather(features, logits, None, classify, inputs, None))
        known: dict[str, int] = getattr(self, "_widths", {})
        for name, width in _widths(outputs).items():
            if name in self.reads_to_score and width != known.get(name, width):
                raise BadInput(f"{name} have {width} columns: the set-up had {known[name]}")
        scores = self._compute_scores(outputs)
        if self.by_task:
            scores = self._standards.standardise(scores, outputs.logits)
        return scores.numpy(force=True) if plain else scores  # type: ignore[return-value]

    def score_unchecked(self, outputs: Outputs) -> Tensor:
        """Return the score of each sample of complete outputs, as a graph that can be exported."""
        scores = self.scores(outputs).float()
        return self._standards.standardise(scores, outputs.logits) if self.by_task else scores

    def _compute_scores(self, outputs: Outputs) -> Tensor:
        """Return the scores before any standardisation, finite and one for each sample."""
        with FULL.active():
            scores = dense(self.scores(outputs), f"scores of {type(self).__name__}").float().detach()
        if scores.shape != (len(outputs),):
            shape = list(scores.shape)
            raise BadInput(f"{type(self).__name__} gives scores {shape} for {len(outputs)} samples")
        if len(bad := (~torch.isfinite(scores)).nonzero()):
            raise BadInput(f"{type(self).__name__} has no finite score for sample {int(bad[0])}")
        return scores

    def _check(self, reads: frozenset[Reads], given: Outputs) -> Outputs:
        """Return outputs with all that is read present, finite and of one size."""
        name, classify, inputs = type(self).__name__, given.classify, given.inputs
        arrays: dict[str, Any] = {"features": given.features, "logits": given.logits}
        for key, value in arrays.items():  # without columns: not there
            found = None if value is None else dense(value, key)
            arrays[key] = None if found is None or found.shape[-1:] == (0,) else found
        arrays["labels"] = None if given.labels is None else whole_numbers(given.labels, "labels", least=0)
        present = {**arrays, "head": classify, "linear": classify, "images": inputs, "layers": inputs}
        for read in sorted(reads):
            if present[read] is None:
                raise BadInput(f"{name} reads the {read}: missing here")
        for key in ("features", "logits"):
            if (tensor := arrays[key]) is None:
                continue
            if tensor.ndim != 2 or not tensor.is_floating_point() or not tensor.numel():
                shape = list(tensor.shape)
                raise BadInput(f"{key} are {tensor.dtype} {shape}: a floating-point matrix is needed")
            arrays[key] = tensor.float()
            if key in reads and len(bad := (~torch.isfinite(tensor.float())).nonzero()):
                raise BadInput(f"{key} of sample {int(bad[0, 0])} are not finite: {name} cannot score them")
        if not type(self).__module__.startswith("opencil."):  # it may change them in place
            arrays = {key: None if tensor is None else tensor.clone() for key, tensor in arrays.items()}
        rows = {len(part) for part in (*arrays.values(), inputs) if part is not None}
        if len(rows) > 1:
            raise BadInput(f"features, logits, labels and images have {rows} rows: give one for each sample")
        nothing = torch.empty(rows.pop(), 0)
        features, logits = (nothing if arrays[key] is None else arrays[key] for key in ("features", "logits"))
        tasks = None if given.tasks is None else check_tasks(given.tasks, logits.shape[1]).clone()
        return Outputs(features, logits, arrays["labels"], classify, inputs, tasks, given.carried)


@contextmanager
def _explain_gradients(name: str) -> Iterator[None]:
    """Say what to do where a set-up needs the gradients that are off."""
    try:
        yield
    except RuntimeError as error:
        if "does not require grad" not in str(error):
            raise
        way = "put 'with torch.enable_grad():' around what needs gradients"
        raise BadInput(f"set_up of {name} runs under torch.no_grad: {way}") from error


def _gather(features: Any, logits: Any, labels: Any, classify: Any, inputs: Any, tasks: Any) -> Outputs:
    """Return a user's arguments as ``Outputs``, unchecked; of ``Outputs``, their own head comes first."""
    given = features if isinstance(features, Outputs) else Outputs(features, logits, labels, None, inputs)
    return replace(given, classify=given.classify or classify, tasks=given.tasks if tasks is None else tasks)


def check_tasks(given: Any, classes: int) -> Tensor:
    """Return a user's task of each class, from 1 on, as a tensor [C]; 0 classes: their number is unknown."""
    tasks = whole_numbers(given, "tasks", least=1)
    if len(tasks) != (classes or len(tasks)):
        raise BadInput(f"tasks are given for {len(tasks)} classes: there are logits of {classes}")
    return tasks


def _widths(outputs: Outputs) -> dict[str, int]:
    """Return the columns of the features and logits that are present."""
    columns = {"features": outputs.features.shape[1], "logits": outputs.logits.shape[1]}
    return {name: width for name, width in columns.items() if width}


@dataclass
class LogitDetector(Detector):
    """A detector that reads logits alone and needs no set-up."""

    reads: ClassVar[frozenset[Reads]] = frozenset({"logits"})


@dataclass
class SetUpDetector(Detector):
    """A detector with a set-up on training samples that reads, by default, features and logits.

    In a run, the value ``setup`` chooses these samples. The default is the memory: it has equally many
    samples of every class, as the scored samples have, and is also available after a step.
    """

    differs: ClassVar[str] = (
        "The OpenCIL paper sets up on train+; its code on the memory after the step and 100 validation "
        "images of the new classes, `setup: memory+test`; here it is the memory, and `@stated` is train+."
    )

    setup: Setup = field(default="memory", kw_only=True)

    named: ClassVar[Labels] = {"stated": {"setup": "train+"}}

    reads: ClassVar[frozenset[Reads]] = frozenset({"features", "logits"})
    needs_setup: ClassVar[bool] = True


@dataclass
class CarryingDetector(SetUpDetector):
    """A detector set up on statistics of classes, which can be carried on in place of their images.

    A subclass implements ``summarise`` and ``combine``. In a run with ``setup: statistics``, each step's
    statistics are stored with the step. If a method trains its backbone again on images of old classes, these
    statistics would be of another network: there the memory is used.
    """

    setup: CarryingSetup = field(default="statistics", kw_only=True)  # type: ignore[assignment]  # a choice more than its base

    differs: ClassVar[str] = ""
    named: ClassVar[Labels] = {}

    @property
    @abstractmethod
    def summary(self) -> str:
        """Return the name of the kind of statistics; detectors share stored ones of a kind."""

    @abstractmethod
    def summarise(self, outputs: Outputs) -> Statistics:
        """Return statistics of the samples' classes, by name."""

    @abstractmethod
    def combine(self, parts: Sequence[Statistics], outputs: Outputs) -> None:
        """Learn from the statistics of all classes; the last part is of ``outputs``."""

    def set_up(self, outputs: Outputs) -> None:
        """Learn from carried statistics, and from those of the samples, which ``statistics`` has then."""
        #: Statistics of the latest samples, to be carried on.
        self.statistics = self.summarise(outputs)
        parts = []
        for part in (*outputs.carried, self.statistics):
            if part.keys() != self.statistics.keys():
                raise BadInput(f"carried statistics are not those of {type(self).__name__}")
            parts.append({key: part[key].to(own.device) for key, own in self.statistics.items()})
        if len(widths := {part["means"].shape[1] for part in parts}) > 1:
            raise BadInput(f"carried statistics and new features have {sorted(widths)} columns: not the same")
        self.combine(parts, outputs)
