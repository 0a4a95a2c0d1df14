"""A metric is a record: one home for its name, label, direction, definition and what it reads."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from torch import Tensor

from opencil.arrays import listed
from opencil.errors import BadInput, nearest, unknown
from opencil.evaluation.reading import READABLE, Reading
from opencil.registry import METRICS

if TYPE_CHECKING:
    import pandas as pd

Function = TypeVar("Function", bound=Callable[..., Any])
#: A number; None where it has no value; numbers by task, counted from 1.
Value = float | Tensor | None | Mapping[int, float]
#: What a row of a metric is about: the ID test images, an OOD set, or a shifted set.
Subject = Literal["id", "ood", "shifted"]

_OOD = {"ood_scores", "ood_logits", "ood_tasks", "ranking", "full_ranking"}
_SHIFTED = {"shifted_scores", "shifted_logits", "shifted_labels", "shifted_correct"}
_ANY_SET = {"scores", "sample_tasks"}
_SCORES = {"id_scores", "ood_scores", "shifted_scores", "scores", "ranking", "full_ranking"}


@dataclass(frozen=True)
class Metric:
    """What there is to say about a metric, and how it is computed.

    ``definition`` is a sentence without its subject: "area under the ROC curve." ``short`` is what heads a
    narrow column, ``standard`` says that it is measured without being asked for. Metrics that are not
    registered here, of a plugin that is not installed or of a method's own predictions, have no function.
    """

    name: str
    label: str
    definition: str = ""
    lower_is_better: bool = False
    short: str = ""
    standard: bool = False
    function: Callable[..., Value] | None = field(default=None, repr=False)

    @property
    def column(self) -> str:
        """The head of a column: the label with an arrow to where good values are."""
        return f"{self.short or self.label}{'↓' if self.lower_is_better else '↑'}"

    @property
    def sentence(self) -> str:
        """The definition, with what it defines."""
        return f"{self.label}: {self.definition}"

    @property
    def reads(self) -> tuple[str, ...]:
        """The parameters of its function."""
        return tuple(inspect.signature(self.function).parameters) if self.function else ()

    @property
    def subjects(self) -> frozenset[Subject]:
        """What it is measured on, which follows from what it reads."""
        reads = set(self.reads)
        if reads & _OOD:
            return frozenset({"ood"})
        if reads & _SHIFTED:
            return frozenset({"shifted"})
        return frozenset({"id", "ood"} if reads & _ANY_SET else {"id"})

    @property
    def reads_shifted(self) -> bool:
        """Whether it needs a shifted set."""
        return not {*_SHIFTED, "full_ranking"}.isdisjoint(self.reads)

    @property
    def of_model(self) -> bool:
        """Whether it is of the CIL model itself, whatever the detector: it reads neither scores nor OOD."""
        return not (_SCORES | _OOD).intersection(self.reads)

    def measure(self, reading: Reading) -> Value:
        """Its value; None where something that it reads is not known."""
        values = {name: getattr(reading, name) for name in self.reads}
        if self.function is None or any(value is None for value in values.values()):
            return None
        return self.function(**values)


#: What a method keeps, of its model's tensors and of exemplars' pixels: every step has rows of both, whose
#: values are no shares, and which nobody asks for.
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
) -> Callable[[Function], Function]:
    """Function decorator that adds a metric; ``definition`` goes on after the label and a colon.

    The function's parameters say what it reads: those of ``Reading``. It returns a number (a float or a
    tensor of one), None where it has no value, or numbers by task.
    """

    def add(function: Function) -> Function:
        for parameter in inspect.signature(function).parameters:
            if parameter not in READABLE:
                raise BadInput(
                    f"metric {name!r} reads {parameter!r}, which is unknown: allowed are "
                    f"{', '.join(READABLE)}{nearest(parameter, READABLE)}"
                )
        if name in KEPT:
            raise BadInput(f"metric {name!r} is taken: rows have what a method keeps under it")
        METRICS.register(name)(function)
        _records[name] = Metric(name, label, definition, lower_is_better, short, standard, function)
        return function

    return add


def metrics() -> dict[str, Metric]:
    """All registered metrics by name, ours first, in the order of their definition."""
    known = set(METRICS.names())  # a plugin that is imported again may have fewer than before
    return {name: record for name, record in _records.items() if name in known}


def standard_metrics() -> tuple[str, ...]:
    """The metrics that are measured without being asked for."""
    return tuple(name for name, metric in metrics().items() if metric.standard)


def chosen_metrics(more: Iterable[str] = ()) -> tuple[str, ...]:
    """The standard metrics, and some more by name."""
    chosen, known = [more] if isinstance(more, str) else listed(more, "names of metrics"), metrics()
    for name in chosen:
        if not isinstance(name, str):
            raise BadInput(f"metrics have a {type(name).__name__} among them: names of metrics are needed")
        if name not in known:
            raise unknown("metric", name, known)
    return tuple(dict.fromkeys([*standard_metrics(), *chosen]))


def metric_of(name: str) -> Metric:
    """The record of a metric that rows have, registered here or not.

    ``accuracy_NAME`` is the accuracy of a method's other predictions; of anything else only the name is
    known, and that more of it is better.
    """
    if (known := metrics().get(name)) is not None:
        return known
    if name.startswith("accuracy_"):
        what = name.removeprefix("accuracy_").replace("_", " ")
        return Metric(
            name, f"Accuracy ({what})", f"share of test images of seen classes that the {what} gets right."
        )
    return Metric(name, name)


def shares(rows: "pd.DataFrame") -> "pd.DataFrame":
    """The rows whose values are shares: all but those of bytes, which no average in percent may take in."""
    return rows[~rows["metric"].isin(KEPT)]
