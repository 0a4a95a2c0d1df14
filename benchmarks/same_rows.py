"""Compare the rows of two folders of runs, or of two published studies, bit for bit.

    python benchmarks/same_rows.py runs-of-one-commit runs-of-another [--only "cil in ['icarl']"]

It reads the Parquet files themselves, so that the folders may be of different formats.
Exit code 1: they differ. With --more the second folder may have further rows: of new metrics, detectors or
evaluation sets.
"""

import argparse
import sys
from pathlib import Path

import pandas as pd

KEY = ["benchmark", "k", "cil", "seed", "step", "detector", "ood", "distance", "task", "metric"]


def read(root: Path) -> pd.DataFrame:
    """Read all rows below a folder."""
    rows = pd.concat([pd.read_parquet(path) for path in sorted(root.rglob("*.parquet"))], ignore_index=True)
    return rows.astype({"k": str})


def main() -> None:
    """Print how many rows are equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("one", type=Path)
    parser.add_argument("other", type=Path)
    parser.add_argument("--only", help="rows to compare, as pandas' DataFrame.query takes it")
    parser.add_argument("--more", action="store_true", help="allow further rows in the second folder")
    flags = parser.parse_args()
    one, other = read(flags.one), read(flags.other)
    if flags.only:
        one, other = one.query(flags.only), other.query(flags.only)
    both = one.merge(other, on=KEY, how="outer", suffixes=("", "_other"), indicator=True)
    further = both["_merge"] == "right_only"
    unmatched = both[(both["_merge"] != "both") & ~(further & flags.more)]
    differ = both[(both["_merge"] == "both") & (both["value"] != both["value_other"])]
    allowed = f" ({further.sum()} further rows allowed)" if flags.more else ""
    print(f"{len(one)} and {len(other)} rows: {len(unmatched)} in one only{allowed}, ", end="")
    print(f"{len(differ)} of different value")
    for row in pd.concat([unmatched, differ]).head(10).to_dict("records"):
        print(row)
    sys.exit(bool(len(unmatched) or len(differ) or one.empty))


if __name__ == "__main__":
    main()
