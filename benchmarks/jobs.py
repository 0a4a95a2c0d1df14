"""Time the demo's runs one after the other, and at once in processes of one thread each.

    python benchmarks/jobs.py [--jobs 2] [--times 1] [-- MORE FLAGS OF opencil run]

In turn, in fresh folders, as a user would start them: the import of torch is counted. The machine must be
idle. Rows must be the same, bit for bit.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import opencil

DEMO = ["--benchmark", "digits", "--cil", "icarl,bic,wa,foster", "--detector", "paper", "--device", "cpu"]


def seconds(runs: Path, *flags: str) -> float:
    started = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "opencil", "run", *DEMO, "--runs", str(runs), "--quiet", *flags], check=True
    )
    return time.monotonic() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", default="2")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("more", nargs="*")
    flags = parser.parse_args()
    for number in range(flags.times):
        with tempfile.TemporaryDirectory() as folder:
            one, many = Path(folder) / "one", Path(folder) / "many"
            load = os.getloadavg()[0]
            alone = seconds(one, *flags.more)
            together = seconds(many, "--jobs", flags.jobs, *flags.more)
            same = opencil.read_rows(one).equals(opencil.read_rows(many))
        print(
            f"{number + 1}: {alone:.1f} s one after the other, {together:.1f} s with --jobs {flags.jobs}: "
            f"{together / alone:.2f}; rows {'are the same' if same else 'DIFFER'}; load before {load:.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
