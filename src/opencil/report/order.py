"""Order methods as the paper does, detectors by family, and select the best of many for display."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Literal

import pandas as pd

from opencil.data.roles import OOD_ROLES
from opencil.errors import unknown
from opencil.evaluation.metric import metric_of, metrics, table_metrics
from opencil.published import OOD, published_results
from opencil.registry import DETECTORS, LEARNERS, Registry
from opencil.report.averages import is_ood

#: The blocks of a table, in the paper's order.
FAMILIES = ("post-hoc", "fine-tuning")
_OTHERS = "others"
_CELL = ["benchmark", "k", "cil", "seed", "step", "ood", "detector"]

Kind = Literal["detector", "cil"]


def method(name: str) -> str:
    """Return the method of a name that may carry a label: ``ber`` for ``ber@nter``."""
    return name.partition("@")[0]


def print_cil(text: str) -> str:
    """Return a text that begins with the name of a CIL method as papers write it: ``iCaRL FPR``."""
    return _print_name(LEARNERS, text)


def print_detector(text: str) -> str:
    """Return a text that begins with the name of a detector as papers write it: ``fDBD``."""
    return _print_name(DETECTORS, text)


def _print_name(registry: Registry[Any], text: str) -> str:
    name = re.split("[@ ]", text, maxsplit=1)[0]
    return registry.entry(name).title + text[len(name) :] if name in registry.names() else text


def is_labelled(name: str) -> bool:
    """Return whether a name carries a label: a method under other values."""
    return "@" in name


def is_upper_bound(name: str) -> bool:
    """Return whether a CIL method trains on all old images: it bounds the others and has no rank."""
    if method(name) not in LEARNERS.names():
        return False
    learner: Any = LEARNERS.entry(method(name)).make
    return bool(learner.revisits and not learner.remembers)


def sort_cil(names: Iterable[str]) -> list[str]:
    """Sort CIL methods as in the paper, then others by name; a labelled name follows the plain name."""
    return _sort(names, _paper_order()[0])


def sort_detectors(names: Iterable[str]) -> list[str]:
    """Sort detectors by family, each as in the paper, then others by name."""
    return [name for _, members in group_families(names) for name in members]


def group_families(names: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Group detectors by family; detectors that are not registered here are ``others``."""
    known, members = set(DETECTORS.names()), dict[str, list[str]]()
    for name in _sort(names, _paper_order()[1]):
        own = method(name)
        family = getattr(DETECTORS.entry(own).make, "family", FAMILIES[0]) if own in known else _OTHERS
        members.setdefault(family, []).append(name)
    families = [*FAMILIES, *sorted(members.keys() - set(FAMILIES))]
    return [(family, members[family]) for family in families if family in members]


def sort_datasets(benchmark: str, distances: Mapping[str, str]) -> dict[str, str]:
    """Sort OOD datasets, given with their distances: near first, as in the paper, then others by name."""
    paper = [name for names in OOD.get(benchmark, {}).values() for name in names]
    names = sorted(_sort(distances, paper), key=lambda name: distances[name] != OOD_ROLES[0])
    return {name: distances[name] for name in names}


def sort_metrics(names: Iterable[str]) -> list[str]:
    """Sort metrics in the order of their registration, then others by name."""
    return _sort(names, list(metrics()))


def _sort(names: Iterable[str], first: list[str]) -> list[str]:
    places = {name: place for place, name in enumerate(first)}
    return sorted(set(names), key=lambda name: (places.get(method(name), len(first)), name))


def select_names(kind: Kind, wanted: Iterable[str], rows: pd.DataFrame) -> list[str]:
    """Return the names of rows that are wanted by name, pattern (``ber*``) or group (``post-hoc``)."""
    present = sorted(set(rows[kind].unique()) - {""})
    registry, found = DETECTORS if kind == "detector" else LEARNERS, list[str]()
    for one in map(registry.translate, wanted):
        members = registry.groups().get(one, ())
        fitting = [name for name in present if fnmatchcase(name, one) or method(name) in members]
        if not fitting:
            raise unknown(f"{kind} in these rows", one, present)
        found += fitting
    return list(dict.fromkeys(found))


@cache
def _paper_order() -> tuple[list[str], list[str]]:
    """Return CIL methods and detectors in the order of the paper's tables."""
    table = published_results()
    return list(table["cil"].unique()), [name for name in table["detector"].unique() if name]


@dataclass(frozen=True)
class Top:
    """Number of methods to show, the best by mean AUC; None shows all. A label is shown with its method."""

    detector: int | None = 16
    cil: int | None = 8
    named: tuple[str, ...] = ()  #: shown in any case

    def check(self, rows: pd.DataFrame) -> None:
        """Refuse a name that no row has."""
        present = {*rows["detector"].unique(), *rows["cil"].unique()} - {""}
        for name in self.named:
            if name not in present | set(map(method, present)):
                raise unknown("method of --top", name, present)

    def select(self, rows: pd.DataFrame, kind: Kind) -> set[str]:
        """Return the detectors or CIL methods of some rows that are shown."""
        names, number = set(rows[kind].unique()) - {""}, getattr(self, kind)
        ranked = _rank(rows, kind) if number is not None else []
        if len(ranked) <= (number or 0):
            return names
        best = {*ranked[:number], *map(method, self.named)}
        return {name for name in names if method(name) in best}

    def describe(self, rows: pd.DataFrame, kinds: Iterable[Kind] = ("detector", "cil")) -> str:
        """Return the share of the methods that is shown, ``8 of 19 detectors``; empty where all are."""
        parts, nouns = [], {"detector": "detectors", "cil": "CIL methods"}
        for kind in kinds:
            shown = set(map(method, self.select(rows, kind)))
            every = set(map(method, rows[kind].unique())) - {""}
            if shown < every:
                parts.append(f"{len(shown)} of {len(every)} {nouns[kind]}")
        return " and ".join(parts)


ALL_SHOWN = Top(None, None)


def _rank(rows: pd.DataFrame, kind: Kind) -> list[str]:
    """Rank methods without labels, the best first, by how far they are above the mean of their cell.

    A cell is everything the methods share, so an unfinished method gains nothing from the steps it lacks.
    """
    metric = metric_of(table_metrics("all")[0])
    found = rows[is_ood(rows) & (rows["metric"] == metric.name)]
    cells = found.groupby([key for key in _CELL if key != kind])["value"]
    above = (found["value"] - cells.transform("mean")).groupby(found[kind]).mean()
    above = (-above if metric.lower_is_better else above).sort_values()
    scores = {str(name): score for name, score in above.items()}  # of variants alone, the best counts
    scores |= {method(name): score for name, score in scores.items() if method(name) not in scores}
    return sorted(sorted(name for name in scores if not is_labelled(name)), key=lambda name: -scores[name])
