"""Which method stands where: in the paper's order, detectors by family; what the paper lacks comes last."""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from opencil.data.roles import OOD_ROLES
from opencil.evaluation.metric import metrics
from opencil.published import OOD, published_results
from opencil.registry import DETECTORS, LEARNERS

#: The blocks of a table, in the paper's order.
FAMILIES = ("post-hoc", "fine-tuning")
_OTHERS = "others"


def method(name: str) -> str:
    """The method of a name that may carry a label: ``ber`` for ``ber@nter``."""
    return name.partition("@")[0]


def labelled(name: str) -> bool:
    """Whether a name is a method under values of its own."""
    return "@" in name


def upper_bound(name: str) -> bool:
    """Whether a CIL method keeps all images: it bounds the others' accuracy, and has no rank among them.

    It is one that sees old images again and chooses none to remember.
    """
    own = method(name)
    if own not in LEARNERS.names():
        return False
    learner: Any = LEARNERS.entry(own).make
    return bool(learner.revisits and not learner.remembers)


def sort_cil(names: Iterable[str]) -> list[str]:
    """CIL methods as in the paper, then others by name; a labelled one stands behind the plain one."""
    return _sorted(names, _paper()[0])


def sort_detectors(names: Iterable[str]) -> list[str]:
    """Detectors family by family, each as in the paper, then others by name."""
    return [name for _, members in families(names) for name in members]


def families(names: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Detectors by family; those that are not registered here are ``others``."""
    known, members = set(DETECTORS.names()), dict[str, list[str]]()
    for name in _sorted(names, _paper()[1]):
        own = method(name)
        family = getattr(DETECTORS.entry(own).make, "family", FAMILIES[0]) if own in known else _OTHERS
        members.setdefault(family, []).append(name)
    first = [family for family in FAMILIES if family in members]
    return [(family, members[family]) for family in [*first, *sorted(members.keys() - set(FAMILIES))]]


def sort_datasets(benchmark: str, distances: Mapping[str, str]) -> dict[str, str]:
    """OOD datasets with their distances: near ones first, as in the paper, then others by name."""
    paper = [name for names in OOD.get(benchmark, {}).values() for name in names]
    ordered = _sorted(distances, paper)
    return {
        name: distances[name] for name in sorted(ordered, key=lambda name: distances[name] != OOD_ROLES[0])
    }


def sort_metrics(names: Iterable[str]) -> list[str]:
    """Metrics in the order of their registration; those that are not registered here by name, behind."""
    known = list(metrics())
    return sorted(set(names), key=lambda name: (known.index(name) if name in known else len(known), name))


def _sorted(names: Iterable[str], paper: list[str]) -> list[str]:
    def place(name: str) -> tuple[int, str]:
        own = method(name)
        return (paper.index(own) if own in paper else len(paper)), name

    return sorted(set(names), key=place)


@cache
def _paper() -> tuple[list[str], list[str]]:
    """CIL methods and detectors in the order of the paper's tables."""
    table = published_results()
    return list(table["cil"].unique()), [name for name in table["detector"].unique() if name]
