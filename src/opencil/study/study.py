"""A study: the rows of some runs with a record of each run, from their folders or as published.

A published study is a folder with two files, ``rows.parquet`` and ``runs.json``; ``opencil report RUNS --out
FOLDER`` writes it. Reports show nothing else.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from opencil.errors import BadInput
from opencil.files import Damaged, damaged, read_json, write_json
from opencil.study.records import IDENTITY, RunRecord, check_published, find_unshowable, identity, name_of
from opencil.study.rows import find_wrong, read_tables, write_rows

_FORMAT = 2
#: The two files of a published study.
ROWS, RUNS = "rows.parquet", "runs.json"
_NAMES = ["benchmark", "cil", "detector", "ood", "distance", "metric"]


@dataclass(frozen=True, eq=False)
class Study:
    """Rows, and a record of each run, begun or still to come.

    ``left_out`` maps unreadable runs, by name or folder, to the reason. Records of the other runs name their
    damaged and missing files.
    """

    rows: pd.DataFrame = field(default_factory=lambda: read_tables([]))
    runs: list[RunRecord] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def problems(self) -> list[str]:
        """Return a sentence for each damaged or missing file or run."""
        whole = [f"{run}: {why}" for run, why in self.left_out.items()]
        parts = [
            f"{name_of(*identity(run))}: {file} {why}"
            for run in self.runs
            for file, why in run.get("left_out", {}).items()
        ]
        return [*whole, *parts]

    def select(self, cil: Collection[str] = (), detectors: Collection[str] = ()) -> "Study":
        """Return the rows and records of some CIL methods and detectors; empty: all of them."""
        rows, runs = self.rows, self.runs
        if cil:
            rows, runs = rows[rows["cil"].isin(cil)], [run for run in runs if run["cil"] in cil]
        if detectors:
            rows = rows[rows["detector"].isin(["", *detectors])]
            kept = [{n: steps for n, steps in run["detectors"].items() if n in detectors} for run in runs]
            runs = [{**run, "detectors": names} for run, names in zip(runs, kept, strict=True)]
        return replace(self, rows=rows, runs=runs)

    @property
    def finished(self) -> bool:
        """Return whether every run has all its steps, measured with every detector."""
        return all({run["trained"], *run["detectors"].values()} == {run["steps"]} for run in self.runs)


def together(parts: Sequence[Study]) -> Study:
    """Join studies, no two of which may have the same run."""
    runs = [run for study in parts for run in study.runs]
    for run, count in Counter(map(identity, runs)).most_common(1):
        if count > 1:
            raise BadInput(f"run {name_of(*run)} is there {count} times: report these folders apart")
    left_out = {run: why for study in parts for run, why in study.left_out.items()}
    return Study(pd.concat([study.rows for study in parts], ignore_index=True), runs, left_out)


def write_study(study: Study, folder: Path) -> None:
    """Write a study so that ``read_study`` returns it, each of its two files whole or absent."""
    sha256 = write_rows(folder / ROWS, study.rows)
    left_out = {"left_out": study.left_out} if study.left_out else {}
    write_json(folder / RUNS, {"format": _FORMAT, "rows": sha256, "runs": study.runs, **left_out})


def published_below(root: Path) -> list[Path]:
    """Return every folder at or below ``root`` with a published study, or one of its two files."""
    return sorted({path.parent for name in (RUNS, ROWS) for path in root.rglob(name)})


def read_published(folder: Path, shares: Iterable[str]) -> Study:
    """Read a published study, and refuse rows and records that cannot be of runs: files may be anyone's."""
    path = folder / RUNS
    try:
        content = read_json(path)
        if content.get("format") != _FORMAT:
            raise damaged(path, f"it is not of format {_FORMAT}")
        if problem := find_unshowable(content):
            raise damaged(path, problem)
        check_published(content)
        runs, left_out, path = content["runs"], content.get("left_out", {}), folder / ROWS
        rows = read_tables([(path, content["rows"])])
        names = [rows[name].unique().tolist() for name in _NAMES]
        if problem := find_unshowable(names) or find_wrong(rows, shares):
            raise damaged(path, problem)
        steps = {identity(run): run["steps"] or 0 for run in runs}
        last: dict[Any, int] = rows.groupby([*IDENTITY], sort=False)["step"].max().to_dict()
        if wrong := [run for run in last if last[run] > steps.get(run, 0)]:
            raise damaged(path, f"run {name_of(*wrong[0])} in it is not in {RUNS}, or has fewer steps")
    except (BadInput, Damaged) as error:  # a published study is not to be deleted, as a run's file is
        reason = getattr(error, "reason", str(error).partition("\n")[0])
        text = f"{path} cannot be used ({reason}): restore it, or make it again from the runs"
        raise Damaged(text, reason) from None
    return Study(rows, runs, left_out)
