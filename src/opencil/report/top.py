"""The best of many methods: what people are shown where there are more than they can look at."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from opencil.errors import unknown
from opencil.report.averages import of_datasets
from opencil.report.layout import Table
from opencil.report.order import method

Kind = Literal["detector", "cil"]
#: What tables call the two in the heads of their lines, and sentences.
_HEADS: dict[Kind, str] = {"detector": "detector", "cil": "CIL"}
_WORDS: dict[Kind, str] = {"detector": "detectors", "cil": "CIL methods"}
_CELL = ["benchmark", "k", "cil", "seed", "step", "ood", "detector"]


@dataclass(frozen=True)
class Top:
    """How many methods are shown, the best by mean AUC; those that are ``named`` are in any case.

    None is all of them. The paper's sixteen detectors and four CIL methods with their bounds fit. A name with
    a label goes with its method.
    """

    detector: int | None = 16
    cil: int | None = 8
    named: tuple[str, ...] = ()

    def check(self, rows: pd.DataFrame) -> None:
        """Refuse a name that no row has."""
        present = {*rows["detector"].unique(), *rows["cil"].unique()} - {""}
        for name in self.named:
            if name not in present | set(map(method, present)):
                raise unknown("method of --top", name, present)

    def kept(self, rows: pd.DataFrame, kind: Kind) -> set[str]:
        """The detectors or CIL methods of some rows that are shown."""
        names = set(rows[kind].unique()) - {""}
        number = getattr(self, kind)
        ranked = _ranked(rows, kind) if number is not None else []
        if len(ranked) <= (number or 0):
            return names
        best = {*ranked[:number], *map(method, self.named)}
        return {name for name in names if method(name) in best}

    def told(self, rows: pd.DataFrame, kinds: Iterable[Kind] = ("detector", "cil")) -> str:
        """Which share of what rows have is shown, in words: of 19, the best 8; empty where all of it is."""
        every = {kind: {method(name) for name in rows[kind].unique() if name} for kind in kinds}
        shown = {kind: {method(name) for name in self.kept(rows, kind)} for kind in kinds}
        parts = [
            f"{len(shown[kind])} of {len(every[kind])} {_WORDS[kind]}"
            for kind in kinds
            if len(shown[kind]) < len(every[kind])
        ]
        return " and ".join(parts)


ALL = Top(None, None)


def shortened(tables: Sequence[Table], rows: pd.DataFrame, top: Top) -> list[Table]:
    """Tables with the lines and columns of what is shown; their averages, marks and ranks are over all.

    A table of CIL methods alone has few lines, and an order of its own: it stays as it is.
    """
    hidden = {_HEADS[kind]: set(rows[kind].unique()) - {""} - top.kept(rows, kind) for kind in _HEADS}
    if not any(hidden.values()):
        return list(tables)
    note = (
        f"Shown are the best by mean AUC: {top.told(rows)}; averages and marks are over all. opencil report "
        "--top all shows all, --top 20 more, --top 20,NAME some by name; CSV has all."
    )
    shown = [table for table in tables if table.cil not in hidden["CIL"]]
    detected = [any(column.name == _HEADS["detector"] for column in table.columns) for table in shown]
    return [table.without(hidden, note) if so else table for table, so in zip(shown, detected, strict=True)]


def _ranked(rows: pd.DataFrame, kind: Kind) -> list[str]:
    """Methods without labels, the best first: by how far their AUC is above the mean of its cell.

    A cell is what all of them meet: for detectors the same model and images. So one that is not finished, or
    that some models cannot have, gains nothing by what it lacks.
    """
    found = of_datasets(rows)
    found = found[found["metric"] == "auc"]
    cells = found.groupby([key for key in _CELL if key != kind])["value"]
    above = (found["value"] - cells.transform("mean")).groupby(found[kind]).mean()
    scores = {name: above[name] for name in above.sort_values().index}  # of variants alone, the best counts
    scores |= {method(name): score for name, score in scores.items() if method(name) not in scores}
    plain = sorted(name for name in scores if method(name) == name)
    return sorted(plain, key=lambda name: -scores[name])
