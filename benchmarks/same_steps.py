"""Compute the first steps of a published run again, and compare their rows bit for bit.

    python benchmarks/same_steps.py results/study/k10-seed0 --cil icarl,foster --data ROOT

Benchmark and seeds are those of the run's record, the values of methods today's defaults and presets.
Detectors that had other values are left out. The same bits can be expected on the same kind of device with
the same version of torch alone. Exit code 1: a row differs.
"""

import argparse
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from same_rows import KEY

import opencil
from opencil.runs.events import Evaluated, Failed
from opencil.validation import flat


def first_steps(config: opencil.Config, last: int) -> None:
    """Do a config's run until all detectors have rows of the last step."""
    with closing(opencil.execute(config)) as events:
        for event in events:
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, Evaluated):
                print(f"{event.run}, step {event.step}: {event.detector}", flush=True)
                if event.step == last and event.detector == [*config.detector][-1]:
                    return


def config_of(stored: dict[str, Any], wanted: str, place: dict[str, Any]) -> opencil.Config:
    """Return the config of a published run, with some or all of its detectors under the same values."""
    seeds = {name: value for name, value in stored["seed"].items() if name != "run"}
    asked = {
        "benchmark": stored["benchmark"],
        "training": stored["training"],
        "seed": {**seeds, "runs": [stored["seed"]["run"]]},
        "place": place,
    }
    names = [name for name in stored["detector"] if not wanted or name in wanted.split(",")]
    config = opencil.resolve(asked, cil=list(stored["cil"]), detector=names)
    changed = [name for name in names if differ(stored["detector"][name], config.detector[name])]
    print(f"left out, since they have other values today: {', '.join(changed) or 'none'}")
    return opencil.resolve(asked, cil=list(stored["cil"]), detector=[n for n in names if n not in changed])


def differ(then: dict[str, Any], now: dict[str, Any]) -> bool:
    """Return whether a value differs among those in both."""
    then, now = flat(then), flat(now)
    return any(then[key] != now[key] for key in then.keys() & now.keys())


def main() -> None:
    """Compare the runs that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("study", type=Path, help="folder of a published study")
    parser.add_argument("--cil", default="icarl", help="A,B: its CIL methods to compute again")
    parser.add_argument("--detector", default="", help="A,B: its detectors; all")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--data", help="folder of the downloads")
    parser.add_argument("--device", default="auto")
    flags = parser.parse_args()
    study, differences = opencil.read_study(flags.study), 0
    for record in (record for record in study.runs if record["cil"] in flags.cil.split(",")):
        with tempfile.TemporaryDirectory() as runs:
            place = {"runs": runs, "data_root": flags.data, "device": flags.device}
            first_steps(config_of(record["config"], flags.detector, place), flags.steps)
            now = opencil.read_rows(runs)
        published = study.rows[(study.rows["cil"] == record["cil"]) & (study.rows["seed"] == record["seed"])]
        now = now[now["step"] <= flags.steps]
        both = now.merge(published, on=KEY, suffixes=("", "_published"))
        other = both[both["value"] != both["value_published"]]
        differences += len(other) + both.empty
        print(
            f"{record['cil']}: {len(both)} of {len(now)} rows are published, {len(other)} with another value"
        )
        print(other.head(10).to_string() if len(other) else "the same bits", flush=True)
    sys.exit(bool(differences))


if __name__ == "__main__":
    main()
