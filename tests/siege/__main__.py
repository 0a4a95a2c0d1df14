"""All harnesses into one log: ``python -m tests.siege --count 200 --seed 1``, which ``make siege`` calls."""

import argparse
import subprocess
import sys
from pathlib import Path

#: The trials of each harness for one kill.
HARNESSES = {
    **{"kills": 1.0, "writers": 0.3, "faults": 0.3, "crowd": 0.04, "workers": 0.01},
    **{"flips": 50.0, "damages": 50.0, "fuzz_configs": 50.0, "fuzz_readers": 50.0, "odd_calls": 50.0},
}


def main() -> None:
    """Run them, show what they print and keep it; 1 if a trial failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=200, help="kills; the other counts go with it")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", type=Path, default=Path("siege.log"))
    asked = parser.parse_args()
    failed = []
    with asked.log.open("a", encoding="utf-8") as log:
        for name, share in HARNESSES.items():
            count = max(1, round(share * asked.count))
            words = [
                sys.executable,
                "-m",
                f"tests.siege.{name}",
                "--count",
                str(count),
                "--seed",
                str(asked.seed),
            ]
            with subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            ) as harness:
                assert harness.stdout is not None
                for line in harness.stdout:
                    print(line, end="", flush=True)
                    log.write(line)
            if harness.returncode:
                failed.append(name)
    print(f"the log is in {asked.log}" + f"; failed: {', '.join(failed)}" * bool(failed))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
