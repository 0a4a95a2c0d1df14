"""Time the report of a study: the whole command in a process of its own, several times.

    python benchmarks/report.py                        # of results/study
    python benchmarks/report.py RUNS --repeats 5

``opencil report FOLDER --out OUT`` reads the rows and writes all tables in all formats, the comparison with
the paper, the statistics, all figures in both formats, and the HTML page.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import opencil

STUDY = Path(__file__).parents[1] / "results" / "study"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=STUDY)
    parser.add_argument("--repeats", type=int, default=3)
    flags = parser.parse_args()
    study = opencil.read_study(flags.folder)
    print(f"{len(study.rows):,} rows of {len(study.runs)} runs")
    for _ in range(flags.repeats):
        with tempfile.TemporaryDirectory() as out:
            before = os.times()
            command = [sys.executable, "-m", "opencil", "report", str(flags.folder), "--out", out]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            after = os.times()
            processor = after.children_user + after.children_system
            processor -= before.children_user + before.children_system
            page = (Path(out) / "index.html").stat().st_size / 1e6
        wall = after.elapsed - before.elapsed
        print(f"{wall:.2f} s, {processor:.2f} s of processor time, a page of {page:.2f} MB", flush=True)


if __name__ == "__main__":
    main()
