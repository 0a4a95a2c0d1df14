"""A study: the rows of some runs with what is known about the runs, from their folders or as published.

A published study is a folder with two files, ``rows.parquet`` and ``runs.json``; ``opencil report RUNS --out
FOLDER`` writes it. Everything that a report shows comes from these two.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from opencil.errors import BadInput
from opencil.seals import Damaged, read_json, read_sealed, write_json
from opencil.study.records import IDENTITY, RunRecord, identity, name_of, showable, trouble
from opencil.study.rows import Table, read_tables, write_rows

_FORMAT = 1
#: The two files of a published study.
ROWS, RUNS = "rows.parquet", "runs.json"
_NAMES = ["benchmark", "cil", "detector", "ood", "distance", "metric"]


@dataclass(frozen=True, eq=False)
class Study:
    """Rows, and a record of each run that they come from or will come from.

    ``left_out`` are those of which nothing could be read, by name or folder, and why; what of the others is
    damaged or lost, their records say.
    """

    rows: pd.DataFrame
    runs: list[RunRecord] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def problems(self) -> list[str]:
        """A sentence for all that is damaged or lost, so that no rows come of it."""
        whole = [f"{run}: {why}" for run, why in self.left_out.items()]
        parts = [
            f"{name_of(*identity(run))}: {file} {why}"
            for run in self.runs
            for file, why in run.get("left_out", {}).items()
        ]
        return [*whole, *parts]

    @property
    def finished(self) -> bool:
        """Whether every run has all its steps, and every detector all of theirs."""
        return all(
            run["trained"] == run["steps"] and all(n == run["steps"] for n in run["detectors"].values())
            for run in self.runs
        )


def together(studies: Iterable[Study], places: str) -> Study:
    """Several studies as one; a run may be in one of them only. ``places`` says where they come from."""
    parts = list(studies)
    runs = [run for study in parts for run in study.runs]
    counts = Counter(map(identity, runs))
    if twice := [run for run, count in counts.items() if count > 1]:
        raise BadInput(
            f"run {name_of(*twice[0])} is there {counts[twice[0]]} times below {places}: report such folders "
            "apart, or their rows would count as one run's"
        )
    left_out = {run: why for study in parts for run, why in study.left_out.items()}
    return Study(pd.concat([study.rows for study in parts], ignore_index=True), runs, left_out)


def write_study(study: Study, folder: Path) -> None:
    """Write a study so that ``read_study`` gives it back, each of its two files whole or absent."""
    sealed = write_rows(folder / ROWS, study.rows)
    left_out = {"left_out": study.left_out} if study.left_out else {}
    write_json(folder / RUNS, {"format": _FORMAT, "rows": sealed, "runs": study.runs, **left_out})


def published_below(root: Path) -> list[Path]:
    """Every folder at or below one that has a published study, or one of its two files."""
    return sorted({path.parent for name in (RUNS, ROWS) for path in root.rglob(name)})


def read_published(folder: Path) -> Study:
    """The study that is published in a folder."""
    rows = read_tables([Table(folder / ROWS)], unusable)
    path = folder / RUNS
    content = read_json(path, unusable)
    runs = content.get("runs")
    sealed = read_sealed(folder / ROWS, unusable)[1]
    if sealed and content.get("rows", sealed) != sealed:  # studies did not say it once
        raise unusable(path, f"it was written with other rows than those of {ROWS}")
    if content.get("format") != _FORMAT or not isinstance(runs, list):
        raise unusable(path, f"format {_FORMAT} with a list of runs is needed")
    for run in runs:
        if problem := trouble(run):
            raise unusable(path, problem)
    left_out = content.get("left_out", {})
    if not isinstance(left_out, dict) or not all(
        isinstance(text, str) and showable(text) for pair in left_out.items() for text in pair
    ):
        raise unusable(path, "what it says was left out is no mapping of texts")
    named = rows[list(IDENTITY)].drop_duplicates().itertuples(index=False, name=None)
    if strange := set(named) - set(map(identity, runs)):
        raise unusable(
            path, f"the rows have a run {name_of(*min(strange, key=str))} that is not among its runs"
        )
    return Study(showable_rows(rows, folder / ROWS), runs, left_out)


def showable_rows(rows: pd.DataFrame, source: Path) -> pd.DataFrame:
    """Rows whose names can be shown."""
    for column in _NAMES:
        if strange := [name for name in rows[column].unique() if not showable(name)]:
            raise unusable(source, f"its rows have a {column} named {strange[0]!r}, with control characters")
    return rows


def unusable(path: Path, error: object) -> Damaged:
    """The error for a file that cannot be used, and cannot be computed again by deleting it."""
    text = f"{path} cannot be used ({error}): bring it back, or make it again from the runs"
    return Damaged(text, error)
