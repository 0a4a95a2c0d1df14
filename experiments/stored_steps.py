"""The command line of the scripts here that study the steps of stored runs, one by one."""

import argparse
from collections.abc import Callable, Sequence

import pandas as pd

import opencil

Study = Callable[[opencil.Run, opencil.Step], pd.DataFrame]


def numbers(text: str) -> list[int]:
    """Of a list such as 2,5,9."""
    return [int(number) for number in text.split(",")]


def study_steps(
    about: str,
    study: Study,
    steps: slice = slice(None),
    parents: Sequence[argparse.ArgumentParser] = (),
) -> pd.DataFrame:
    """The rows that ``study`` finds at steps of the runs that the user names, with their method and step.

    ``steps`` are those of each run's stored ones that are studied unless the user says which. The rows are
    written as they come. ``parents`` have further flags, which the script reads itself.
    """
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter, parents=parents
    )
    parser.add_argument("runs", nargs="+", help="folders of runs, such as runs/cifar100/k10/icarl/seed0")
    parser.add_argument("--data-root", help="folder that the datasets lie in")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=numbers, help="such as 2,5,9; by default all that can be studied")
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
                found = study(run, run.stream[number - 1])
                found.insert(0, "cil", run.spec.cil)
                found.insert(1, "step", number)
                tables.append(found)
                print(f"{run.spec} step {number}", flush=True)
                if flags.csv:
                    pd.concat(tables).to_csv(flags.csv, index=False)
    except opencil.OpenCILError as error:
        parser.error(str(error))
    if not tables:
        parser.error(f"no steps to study in {', '.join(flags.runs)}")
    return pd.concat(tables)
