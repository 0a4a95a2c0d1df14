"""Define metrics as records: name, label, direction, definition and function."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from torch import Tensor

from opencil.arrays import listed
from opencil.errors import BadInput, unknown
from opencil.evaluation.reading import READABLE, Reading
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
class Metric:
    """The description of a metric, and its function.

    ``definition`` is a sentence without its subject: "area under the ROC curve." ``short`` is the head of a
    narrow column; ``standard`` metrics are always measured. Metrics that are not registered, such as those
    of an absent plugin or of a method's own predictions, have no function.
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
        for parameter in inspect.signature(function).parameters:
            if parameter not in READABLE:
                raise unknown(f"metric {name!r}: input", parameter, READABLE)
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
    for name in chosen:
        if name not in known:
            raise unknown("metric", name, known)
    standard = [name for name, metric in known.items() if metric.standard]
    return tuple(dict.fromkeys([*standard, *chosen]))


def metric_of(name: str) -> Metric:
    """Return the record of a metric in rows, registered or not.

    ``accuracy_NAME`` is the accuracy of a method's other predictions. The record of any other unregistered
    metric has its name alone, and larger values are better.
    """
    if (known := metrics().get(name)) is not None:
        return known
    if not name.startswith("accuracy_"):
        return Metric(name, name)
    guess = name.removeprefix("accuracy_").replace("_", " ")
    definition = f"share of test images of seen classes that the {guess} classifies correctly."
    return Metric(name, f"Accuracy ({guess})", definition)


def shares(rows: "pd.DataFrame") -> "pd.DataFrame":
    """Return the rows whose values are shares: all except bytes, which have no average in percent."""
    return rows[~rows["metric"].isin(KEPT)]
