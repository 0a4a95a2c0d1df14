"""Command line of the scripts that study the steps of stored runs, one by one."""

import argparse
from collections.abc import Callable

import pandas as pd

import opencil


def study_steps(
    about: str, study: Callable[[opencil.Run, opencil.Step], pd.DataFrame], steps: slice = slice(None)
) -> pd.DataFrame:
    """Return the rows that ``study`` makes of the steps of some runs, with columns cil and step.

    ``steps`` are the stored steps that are studied without ``--steps``. Rows are written step by step.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="folders of runs, such as runs/cifar100/k10/icarl/seed0")
    parser.add_argument("--data-root", help="folder of the datasets")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, nargs="+", help="such as 2 5 9; by default all that fit")
    parser.add_argument("--csv", help="file to write the rows to")
    flags = parser.parse_args()
    tables: list[pd.DataFrame] = []
    try:
        for path in flags.runs:
            run = opencil.open_run(path, flags.data_root, flags.device)
            stored = [step.number for step in run.trained_steps]
            if missing := set(flags.steps or ()) - set(stored):
                raise opencil.BadInput(f"{path} has steps {stored}, and not {sorted(missing)}")
            for number in flags.steps or stored[steps]:
                rows = study(run, run.stream[number - 1])
                tables.append(pd.DataFrame({"cil": run.spec.cil, "step": number}, rows.index).join(rows))
                print(f"{path}: step {number}", flush=True)
                if flags.csv:
                    pd.concat(tables).to_csv(flags.csv, index=False)
    except opencil.OpenCILError as error:
        parser.error(str(error))
    if not tables:
        parser.error(f"no steps to study in {', '.join(flags.runs)}")
    return pd.concat(tables)
