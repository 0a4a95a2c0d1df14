"""The summary table: one line per CIL method and detector, to the terminal or as Markdown."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pandas as pd
from rich import box
from rich.table import Table

from opencil.evaluation.metrics import DEFINITIONS
from opencil.report.averages import continual, over_seeds

_METRICS = {"auc": "AUC↑", "fpr": "FPR↓", "ap": "AP↑"}
_FLIPPED = {"fpr_ood_positive": "FPR(OOD+)↓", "ap_id_positive": "AP(ID+)↑"}
_CONTINUAL = (
    "Percent. Average: mean over steps of the accuracy on all classes seen. Forgetting: best earlier "
    "accuracy on a task minus the last, mean over old tasks. Backward transfer: last minus first."
)
_SPLITS = ("near", "far", "all")


@dataclass(frozen=True)
class Summary:
    """One benchmark and k as text: ``lines`` has the cells of each CIL method and detector."""

    title: str
    columns: list[str]
    lines: list[list[str]]
    notes: list[str]
    labels: int = 2  #: leading columns that name the line

    def rich(self) -> Table:
        """The table for a terminal."""
        table = Table(title=self.title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=0)
        for i, column in enumerate(self.columns):
            justify: Literal["left", "right"] = "left" if i < self.labels else "right"
            table.add_column(column.replace(" ", "\n", 1), justify=justify, no_wrap=True)
        for i, line in enumerate(self.lines):
            ends = self.labels > 1 and i + 1 < len(self.lines) and self.lines[i + 1][0] != line[0]
            table.add_row(*line, end_section=ends)
        return table

    def markdown(self) -> str:
        """The table as Markdown."""
        rule = ["---" if i < self.labels else "---:" for i in range(len(self.columns))]
        lines = ["| " + " | ".join(cells) + " |" for cells in (self.columns, rule, *self.lines)]
        return "\n".join([f"## {self.title}", "", *lines, "", *[f"- {note}" for note in self.notes], ""])

    def fitting(self, fits: Callable[["Summary"], bool]) -> "list[Summary]":
        """The table, or where that does not fit, one for each metric."""
        if self.labels < 2 or fits(self):
            return [self]
        first, width = 3, len(_SPLITS)
        blocks = [slice(i, i + width) for i in range(first, len(self.columns), width)]
        return [
            Summary(
                self.title if i == 0 else "",
                self.columns[:first] + self.columns[block],
                [line[:first] + line[block] for line in self.lines],
                self.notes,
            )
            for i, block in enumerate(blocks)
        ]


def summaries(rows: pd.DataFrame, extra: bool = False) -> list[Summary]:
    """For each benchmark and k: the CIL models themselves, then the detectors on them.

    ``extra`` adds the flipped conventions of FPR and AP.
    """
    metrics = _METRICS | (_FLIPPED if extra else {})
    models = dict(list(continual(rows).groupby(["benchmark", "k"])))
    shown = rows[rows["metric"].isin(["accuracy", *metrics])]  # some others begin at step 2
    found = []
    for (name, k), part in over_seeds(shown).groupby(["benchmark", "k"]):
        title = f"{name}, {k} classes per step"
        found += [
            _models(f"{title}: accuracy", models[name, k]),
            _summary(f"{title}: OOD detection", part, metrics),
        ]
    return found


def _models(title: str, averages: pd.DataFrame) -> Summary:
    cells = {
        (row["cil"], row["metric"]): _cell(row["mean"], row["std"]) for row in averages.to_dict("records")
    }
    known = ["average accuracy", "last accuracy", "forgetting", "backward transfer"]
    others = sorted(m for m in averages["metric"].unique() if m not in known and m.startswith("average "))
    metrics = [metric for metric in [*known, *others] if metric in set(averages["metric"])]
    lines = [[cil, *(cells.get((cil, m), "–") for m in metrics)] for cil in averages["cil"].unique()]
    columns = [m.replace("average accuracy_", "average ").replace("_", " ") for m in metrics]
    return Summary(title, ["CIL", *columns], lines, [_CONTINUAL], labels=1)


def _summary(title: str, averages: pd.DataFrame, metrics: dict[str, str]) -> Summary:
    cells = {
        (row["cil"], row["detector"], row["metric"], row["split"]): _cell(row["mean"], row["std"])
        for row in averages.to_dict("records")
    }
    methods = averages.loc[averages["detector"] != "", ["cil", "detector"]].drop_duplicates()
    lines = [
        [cil, detector, cells.get((cil, "", "accuracy", ""), "–")]
        + [cells.get((cil, detector, metric, split), "–") for metric in metrics for split in _SPLITS]
        for cil, detector in methods.itertuples(index=False)
    ]
    columns = [
        "CIL",
        "detector",
        "acc↑",
        *(f"{label} {split}" for label in metrics.values() for split in _SPLITS),
    ]
    return Summary(title, columns, lines, [_basis(averages), *(DEFINITIONS[metric] for metric in metrics)])


def _basis(averages: pd.DataFrame) -> str:
    """What was averaged; and which methods have not come as far as others, so that they do not compare."""
    counts = averages.groupby(["cil", "detector"])[["steps", "seeds"]].min()
    steps, seeds = counts.max()
    text = (
        f"Percent: mean over the datasets of a split, then over {steps} step{'s' * (steps > 1)}, "
        f"then over {seeds} seed{'s' * (seeds > 1)}{' (± standard deviation)' * (seeds > 1)}."
    )
    behind = counts[(counts["steps"] < steps) | (counts["seeds"] < seeds)]
    if len(behind):
        parts = [
            f"{' '.join(filter(None, name))} ({row['steps']} steps, {row['seeds']} seeds)"
            for name, row in behind.iterrows()
        ]
        text += f" Unfinished, so not comparable: {', '.join(parts)}."
    return text


def _cell(mean: float, std: float) -> str:
    return f"{100 * mean:.2f}" if math.isnan(std) else f"{100 * mean:.2f} ± {100 * std:.2f}"
