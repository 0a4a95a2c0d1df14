"""Define metrics as records with a function, and its inputs: the samples of one comparison."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import Tensor

from opencil.arrays import listed
from opencil.errors import BadInput, check_known
from opencil.evaluation.ranking import Ranking
from opencil.registry import METRICS

if TYPE_CHECKING:
    import pandas as pd

Function = TypeVar("Function", bound=Callable[..., Any])
#: A number, None for no value, or numbers by task, counted from 1.
Value = float | Tensor | None | Mapping[int, float]
#: The subject of a metric's row: the ID test images, an OOD set, or a shifted set.
Subject = Literal["id", "ood", "shifted"]
#: The tables that show a metric unasked: all of them, those of near and far OOD, those with ``--extra``.
Tables = Literal["all", "near-far", "extra", "none"]

_OOD = {"ood_scores", "ood_logits", "ood_tasks", "ranking", "full_ranking"}
_SHIFTED = {"shifted_scores", "shifted_logits", "shifted_labels", "shifted_correct"}
_ANY_SET = {"scores", "sample_tasks"}
_SCORES = {"id_scores", "ood_scores", "shifted_scores", "scores", "ranking", "full_ranking"}


@dataclass(frozen=True)
class Samples:
    """Logits [N, C], labels and scores [N] of samples, and each class's task [C], from 1; None: unknown."""

    logits: Tensor | None = None
    labels: Tensor | None = None
    scores: Tensor | None = None
    tasks: Tensor | None = None

    @cached_property
    def predicted(self) -> Tensor | None:
        """Return the class with the largest logit [N]."""
        return None if self.logits is None else self.logits.argmax(dim=1)

    @property
    def correct(self) -> Tensor | None:
        """Return which samples are classified correctly."""
        return None if self.predicted is None or self.labels is None else self.predicted == self.labels

    @property
    def own_tasks(self) -> Tensor | None:
        """Return the task of each sample's class."""
        return None if self.labels is None or self.tasks is None else self.tasks[self.labels]

    @property
    def predicted_tasks(self) -> Tensor | None:
        """Return the task of each sample's predicted class."""
        return None if self.tasks is None else self.tasks[self.predicted]


def concatenate(sets: list[Samples]) -> Samples:
    """Concatenate sets, with labels and scores if all have them."""
    columns = zip(*((samples.logits, samples.labels, samples.scores) for samples in sets), strict=True)
    joined = (None if any(part is None for part in parts) else torch.cat(parts) for parts in columns)
    return Samples(*joined)


def _part(path: str, about: str) -> property:
    """Create a property for an attribute of one of a reading's sets."""
    return property(attrgetter(path), doc=about)


@dataclass(frozen=True)
class Reading:
    """ID samples, alone or with the samples of an OOD set or of shifted sets.

    Its properties are the possible parameters of a metric's function; None if unknown.
    """

    test: Samples
    ood: Samples = Samples()
    shifted: Samples = Samples()

    id_scores = _part("test.scores", "Scores of the ID test images [N], larger for ID.")
    id_logits = _part("test.logits", "Logits of the ID test images [N, C].")
    labels = _part("test.labels", "Labels of the ID test images [N].")
    correct = _part("test.correct", "Which ID test images are classified correctly, bool [N].")
    id_tasks = _part("test.own_tasks", "The task of each ID test image [N], counted from 1.")

    @property
    def old(self) -> Tensor | None:
        """Which ID test images are of old classes, bool [N]."""
        return None if self.id_tasks is None else self.id_tasks != self.tasks.max()

    @property
    def new(self) -> Tensor | None:
        """Which ID test images are of new classes, bool [N]."""
        return None if self.id_tasks is None else self.id_tasks == self.tasks.max()

    tasks = _part("test.tasks", "The task of each class [C], counted from 1; the highest is the new one.")
    ood_scores = _part("ood.scores", "Scores of the OOD images [M].")
    ood_logits = _part("ood.logits", "Logits of the OOD images [M, C].")
    ood_tasks = _part("ood.predicted_tasks", "The task of each OOD image's predicted class [M].")

    @cached_property
    def ranking(self) -> Ranking | None:
        """ID and OOD scores sorted together: counts for every threshold."""
        known = self.id_scores is not None and self.ood_scores is not None
        return Ranking(self.id_scores, self.ood_scores) if known else None

    shifted_scores = _part(
        "shifted.scores", "Scores of the shifted ID images [S]; with an OOD set, of all shifted sets."
    )
    shifted_logits = _part("shifted.logits", "Logits of the shifted ID images [S, C].")
    shifted_labels = _part("shifted.labels", "Labels of the shifted ID images [S].")
    shifted_correct = _part("shifted.correct", "Which shifted ID images are classified correctly, bool [S].")

    @cached_property
    def full_ranking(self) -> Ranking | None:
        """Scores of ID and shifted ID together, and of OOD, sorted."""
        if self.ranking is None or self.shifted_scores is None:
            return None
        return Ranking(torch.cat([self.id_scores, self.shifted_scores]), self.ood_scores)

    @property
    def scores(self) -> Any:
        """Scores of the OOD set or, without one, of the ID test images."""
        return self.id_scores if self.ood_scores is None else self.ood_scores

    @property
    def sample_tasks(self) -> Any:
        """The tasks of these images; for OOD images the tasks of their predicted classes."""
        return self.id_tasks if self.ood_tasks is None else self.ood_tasks


#: All inputs of metrics, with their descriptions.
READABLE = {
    name: member.__doc__ or ""
    for name, member in vars(Reading).items()
    if isinstance(member, property | cached_property)
}


@dataclass(frozen=True)
class Metric:
    """The description of a metric, and its function if it is registered.

    ``definition`` is a sentence without its subject: "area under the ROC curve." ``short`` is the head of a
    narrow column; ``standard`` metrics are always measured.
    """

    name: str
    label: str
    definition: str = ""
    lower_is_better: bool = False
    short: str = ""
    standard: bool = False
    tables: Tables = "none"
    function: Callable[..., Value] | None = field(default=None, repr=False)

    @property
    def column(self) -> str:
        """Return the head of a column: the label with an arrow towards better values."""
        return f"{self.short or self.label}{'↓' if self.lower_is_better else '↑'}"

    @property
    def sentence(self) -> str:
        """Return the label with the definition."""
        return f"{self.label}: {self.definition}"

    @property
    def reads(self) -> tuple[str, ...]:
        """Return the parameters of its function."""
        return tuple(inspect.signature(self.function).parameters) if self.function else ()

    @property
    def subjects(self) -> frozenset[Subject]:
        """Return its subjects, which follow from its inputs."""
        reads = set(self.reads)
        if reads & _OOD:
            return frozenset({"ood"})
        if reads & _SHIFTED:
            return frozenset({"shifted"})
        return frozenset({"id", "ood"} if reads & _ANY_SET else {"id"})

    @property
    def reads_shifted(self) -> bool:
        """Return whether it needs a shifted set."""
        return not {*_SHIFTED, "full_ranking"}.isdisjoint(self.reads)

    @property
    def of_model(self) -> bool:
        """Return whether it measures the model itself: it reads neither scores nor OOD samples."""
        return not (_SCORES | _OOD).intersection(self.reads)

    def measure(self, reading: Reading) -> Value:
        """Return its value; None if an input is unknown."""
        values = {name: getattr(reading, name) for name in self.reads}
        if self.function is None or any(value is None for value in values.values()):
            return None
        return self.function(**values)


#: Bytes of a method's model and exemplars, in the rows of every step; their values are no shares.
KEPT = ("model_bytes", "memory_bytes")
_records: dict[str, Metric] = {}
#: Of a run over its steps, computed by reports: mean AUC of tasks over all OOD sets.
OVER_STEPS = {
    "auc_average": Metric("auc_average", "AUC (average)", "mean AUC (task) after the last step."),
    "auc_forgetting": Metric(
        "auc_forgetting",
        "AUC (forgetting)",
        "largest AUC (task) at any step minus that after the last, mean over old tasks.",
        lower_is_better=True,
    ),
}


def register_metric(
    name: str,
    *,
    label: str,
    definition: str,
    lower_is_better: bool = False,
    short: str = "",
    standard: bool = False,
    tables: Tables = "none",
) -> Callable[[Function], Function]:
    """Register a metric by a function decorator; ``definition`` continues the label and a colon.

    The function's parameters are its inputs: properties of ``Reading``. It returns a number (a float or a
    tensor of one element), None for no value, or numbers by task.
    """

    def add(function: Function) -> Function:
        check_known(f"metric {name!r}: input", inspect.signature(function).parameters, READABLE)
        if name in KEPT:
            raise BadInput(f"metric {name!r} is reserved for the bytes that a method stores")
        METRICS.register(name)(function)
        _records[name] = Metric(name, label, definition, lower_is_better, short, standard, tables, function)
        return function

    return add


def metrics() -> dict[str, Metric]:
    """Return all registered metrics by name, in the order of their definition."""
    known = set(METRICS.names())  # a plugin that is imported again can have fewer
    return {name: record for name, record in _records.items() if name in known}


def table_metrics(*tables: Tables) -> list[str]:
    """Return the metrics shown in some tables of reports, in the order of their definition."""
    return [name for name, metric in metrics().items() if metric.tables in tables]


def chosen_metrics(more: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the names of the metrics measured by default, and of more."""
    chosen, known = [more] if isinstance(more, str) else listed(more, "names of metrics"), metrics()
    check_known("metric", chosen, known)
    standard = [name for name, metric in known.items() if metric.standard]
    return tuple(dict.fromkeys([*standard, *chosen]))


def metric_of(name: str) -> Metric:
    """Return the record of a metric in rows, with its name alone if it is not registered.

    ``accuracy_NAME`` is the accuracy of a method's other predictions.
    """
    if (known := (metrics() | OVER_STEPS).get(name)) is not None:
        return known
    if not name.startswith("accuracy_"):
        return Metric(name, name)
    guess = name.removeprefix("accuracy_").replace("_", " ")
    definition = f"share of test images of seen classes that the {guess} classifies correctly."
    return Metric(name, f"Accuracy ({guess})", definition)


def shares(rows: "pd.DataFrame") -> "pd.DataFrame":
    """Return the rows whose values are shares: all except bytes, which have no average in percent."""
    return rows[~rows["metric"].isin(KEPT)]
