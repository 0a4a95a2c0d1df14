"""Whether runs that are made again have the same rows: by other processes, on other days.

    python experiments/again.py results/study/k10-seed0 results/learners --again RUNS --csv FILE

Compares the rows that both have, by CIL model: how many there are, of how many detectors, how many are the
same, bit for bit, and how far apart the others are at most.
"""

import argparse

import pandas as pd

import opencil


def compared(then: opencil.Study, now: opencil.Study) -> pd.DataFrame:
    """A line for each CIL model that both have."""
    keys = [name for name in then.rows.columns if name != "value"]
    both = then.rows.merge(now.rows, on=keys)
    if both.empty:
        raise opencil.BadInput("they have no rows in common")
    apart = (both["value_x"] - both["value_y"]).abs()
    of_model = both.assign(same=both["value_x"] == both["value_y"], apart=apart).groupby("cil", sort=False)
    found = of_model.agg(rows=("same", "size"), same=("same", "sum"), apart=("apart", "max"))
    detectors = both[both["detector"] != ""].groupby("cil")["detector"].nunique()
    return pd.DataFrame(found.assign(detectors=detectors, then=made_by(then), now=made_by(now)).reset_index())


def made_by(study: opencil.Study) -> "pd.Series[str]":
    """The sources that made a model's rows, and the days, by CIL model."""
    made: dict[str, set[str]] = {}
    for run in study.runs:
        of_run = {f"{part['source'][:8]} on {part['first'][:10]}" for part in run["made"]}
        made.setdefault(run["cil"], set()).update(of_run)
    return pd.Series({cil: "; ".join(sorted(of)) for cil, of in made.items()})


def main() -> None:
    """Compare what is named on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("then", nargs="+", help="folders of runs, or of published rows")
    parser.add_argument("--again", nargs="+", required=True, help="those that were made again")
    parser.add_argument("--csv", help="file to write the table to")
    flags = parser.parse_args()
    try:
        found = compared(opencil.read_study(*flags.then), opencil.read_study(*flags.again))
    except opencil.OpenCILError as error:
        parser.error(str(error))
    print(found.to_string(index=False))
    if flags.csv:
        found.to_csv(flags.csv, index=False)


if __name__ == "__main__":
    main()
