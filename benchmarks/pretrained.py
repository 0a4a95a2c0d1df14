"""Time a grid on a frozen network in one process, with the share of its features.

    python benchmarks/pretrained.py ~/downloads                      # ten methods × all post-hoc detectors
    python benchmarks/pretrained.py ~/downloads --side 128 --cil simplecil,slda,fecam,ranpac   # for a CPU

Features and runs are written into a new folder, so that nothing is taken from earlier ones; images are
prepared before the clock starts.
"""

import argparse
import tempfile
import time

from opencil import execute, resolve
from opencil.runs.events import Evaluated, Failed, Preparing, Trained
from opencil.runs.loading import load

TEN = "simplecil,slda,fecam,ranpac,acil,fetril,icarl,wa,bic,replay"


def main() -> None:
    """Run the grid and print seconds by kind of work."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data_root")
    parser.add_argument("--cil", default=TEN)
    parser.add_argument("--detector", default="post-hoc")
    parser.add_argument("--side", type=int, default=224, help="pixels that the network sees")
    parser.add_argument("--device", default="auto")
    flags = parser.parse_args()
    benchmark = {"name": "cifar100-pretrained", "transform": {"resize": flags.side}}
    with tempfile.TemporaryDirectory() as folder:
        place = {"data_root": flags.data_root, "device": flags.device}
        place |= {"cache": f"{folder}/cache", "runs": f"{folder}/runs"}
        methods = {"cil": flags.cil.split(","), "detector": flags.detector.split(",")}
        config = resolve({"benchmark": benchmark, "place": place}, **methods)
        load(config)  # prepares the images
        seconds, before = dict.fromkeys(("features", "training", "evaluation"), 0.0), time.perf_counter()
        for event in execute(config):
            now = time.perf_counter()
            kind = "features" if isinstance(event, Preparing) else "training"
            seconds["evaluation" if isinstance(event, Evaluated) else kind] += now - before
            before = now
            if isinstance(event, Trained):
                print(f"{event.run} step {event.step}: {event.values['accuracy']:.3f}", flush=True)
            elif isinstance(event, Failed):
                raise SystemExit(f"{event.run}: {event.error}")
    total = sum(seconds.values())
    print(", ".join(f"{kind} {value:.1f} s ({value / total:.0%})" for kind, value in seconds.items()))
    print(f"all {total:.1f} s")


if __name__ == "__main__":
    main()
