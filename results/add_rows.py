"""Rows of further runs into ``results/study``, which has a folder for each k and seed.

    python -m results.add_rows RUNS...              # folders of runs, or of rows that are published elsewhere
    python -m results.add_rows RUNS... --replace    # also where a run has less than the one that is there

Each run comes with its record: configs, seconds, memory, and which source made which detector's steps, where
and when. Runs that are there already are replaced whole, never mixed; one that is not finished may come too,
and counts on the pages when it is. ``python -m results.make_page`` and ``python -m results.make_readme`` then
make all that is shown anew.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from opencil import BadInput, OpenCILError, Study, read_study
from opencil.study.records import IDENTITY, RunRecord, identity, name_of
from opencil.study.study import write_study

STUDY = Path(__file__).parent / "study"
BENCHMARK = "cifar100"
_NAMED = 5  # of what a run lacks, so many are named


def merged(there: Study, new: Study, replace: bool = False) -> Study:
    """The runs of both; of a run that both have, the new one's, which must have all that the other has."""
    arriving = {identity(run): run for run in new.runs}
    for run in there.runs:
        lost = _lost(run, arriving.get(identity(run), run))
        if lost and not replace:
            raise BadInput(
                f"the new {name_of(*identity(run))} has fewer steps than the one in the study: {lost}; "
                "--replace takes it all the same"
            )
    kept = [run for run in there.runs if identity(run) not in arriving]
    rows = pd.concat([_of(there.rows, map(identity, kept)), new.rows], ignore_index=True)
    runs = sorted([*kept, *new.runs], key=lambda run: (str(run["k"]), run["seed"], run["cil"]))
    return Study(rows, runs)


def _lost(old: RunRecord, new: RunRecord) -> str:
    """What a run has and another of the same name has not: detectors with their steps, '' for none."""
    before, now = ({"model": run["trained"], **run["detectors"]} for run in (old, new))
    less = [f"{name} {now.get(name, 0)} of {n}" for name, n in before.items() if now.get(name, 0) < n]
    return ", ".join(less[:_NAMED]) + f" and {len(less) - _NAMED} more" * (len(less) > _NAMED)


def _of(rows: pd.DataFrame, runs: Iterable[tuple[str, int | str, str, int]]) -> pd.DataFrame:
    """The rows of some runs."""
    return rows[pd.MultiIndex.from_frame(rows[list(IDENTITY)]).isin(list(runs))]


def add(new: Study, folder: Path = STUDY, replace: bool = False) -> list[Path]:
    """Write each k and seed of a study into its folder below ``folder``; all that were written."""
    if new.problems:
        raise BadInput("\n  ".join(["some of it is damaged or lost:", *new.problems]))
    if others := {run["benchmark"] for run in new.runs} - {BENCHMARK}:
        raise BadInput(f"the study is of {BENCHMARK}, and some runs are of {', '.join(sorted(others))}")
    made = {}
    for k, seed in sorted({(run["k"], run["seed"]) for run in new.runs}, key=str):
        place = folder / f"k{k}-seed{seed}"
        runs = [run for run in new.runs if (run["k"], run["seed"]) == (k, seed)]
        part = Study(_of(new.rows, map(identity, runs)), runs)
        there = read_study(place) if place.exists() else Study(new.rows.iloc[:0])
        made[place] = merged(there, part, replace)
    for place, study in made.items():  # all or none: what is refused was refused above
        write_study(study, place)
    return list(made)


def main() -> None:
    """Add what is named on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs, or of published rows")
    parser.add_argument("--replace", action="store_true", help="also runs that have less than is there")
    given = parser.parse_args()
    try:
        for place in add(read_study(*given.runs), replace=given.replace):
            print(f"written: {place.relative_to(STUDY.parents[1]).as_posix()}")
    except OpenCILError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
