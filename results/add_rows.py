"""Add rows of further runs to ``results/study``, which has a folder for each k and seed.

    python -m results.add_rows RUNS...              # folders of runs, or of published rows
    python -m results.add_rows RUNS... --replace    # also runs that have fewer steps than the stored ones

A run that is already there is replaced whole. ``python -m results.make_page`` and ``python -m
results.make_tables`` then make tables and the page anew.
"""

import argparse
from pathlib import Path

import pandas as pd

from opencil import BadInput, OpenCILError, Study, read_study
from opencil.study.study import write_study

STUDY = Path(__file__).parent / "study"
BENCHMARK = "cifar100"


def add(new: Study, folder: Path = STUDY, replace: bool = False) -> list[Path]:
    """Write the runs of a study into folders by k and seed; return these folders."""
    if new.problems:
        raise BadInput("\n  ".join(["some rows are damaged or lost:", *new.problems]))
    if others := {run["benchmark"] for run in new.runs} - {BENCHMARK}:
        raise BadInput(f"the study is of {BENCHMARK}, and some runs are of {', '.join(sorted(others))}")
    changed = {}
    for k, seed in sorted({(int(run["k"]), run["seed"]) for run in new.runs}):
        place = folder / f"k{k}-seed{seed}"
        old = read_study(place) if place.exists() else Study(new.rows.iloc[:0])
        runs = {run["cil"]: run for run in new.runs if (run["k"], run["seed"]) == (k, seed)}
        for run in old.runs:
            before, now = ({"": r["trained"], **r["detectors"]} for r in (run, runs.get(run["cil"], run)))
            if not replace and any(now.get(name, 0) < steps for name, steps in before.items()):
                raise BadInput(f"k = {k}, seed {seed}: the new {run['cil']} has fewer steps; see --replace")
        rows = [
            old.rows[~old.rows["cil"].isin(runs)],
            new.rows[(new.rows["k"] == k) & (new.rows["seed"] == seed)],
        ]
        records = {run["cil"]: run for run in old.runs} | runs
        together = pd.concat([part for part in rows if len(part)], ignore_index=True)
        changed[place] = Study(together, [records[cil] for cil in sorted(records)])
    for place, study in changed.items():  # all or none
        write_study(study, place)
    return list(changed)


def main() -> None:
    """Add the runs that are named on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs, or of published rows")
    parser.add_argument("--replace", action="store_true", help="also runs that have fewer steps")
    flags = parser.parse_args()
    try:
        for place in add(read_study(*flags.runs), replace=flags.replace):
            print(f"written: {place.relative_to(STUDY.parents[1]).as_posix()}")
    except OpenCILError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
