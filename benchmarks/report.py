"""A report of the paper's whole study at full size: the command as a user waits for it, then its parts.

    python benchmarks/report.py [--cil 4] [--detectors 16] [--steps 10] [--datasets 6] [--seeds 3]

Made-up rows of every metric that a run stores, written as runs are (a Parquet file per step and detector).
``opencil report RUNS --out FOLDER`` reads them and writes all tables in all formats, the comparison with the
paper, the statistics, all figures in both formats, and the HTML page.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd

from opencil.published import published_results
from opencil.seals import write_json
from opencil.study.rows import COLUMNS, write_rows

OOD = {"cifar10": "near", "tin": "near", "mnist": "far", "texture": "far", "svhn": "far", "places365": "far"}
METRICS = ["auc", "fpr", "ap", "fpr_ood_positive", "ap_id_positive", "auc_new", "fpr_new", "oscr"]
METRICS += ["accuracy_with_rejection", "ood_as_new"]


def step_rows(head: tuple, detector: str, ood: list[str], quality: float, draw: np.random.Generator) -> list:
    """The rows of a detector at a step, as a run stores them."""
    step = head[-1]
    rows = [(*head, detector, "", "", t, "confidence", draw.random()) for t in range(1, step + 1)]
    for name in ood:
        place = (*head, detector, name, OOD[name])
        for metric in METRICS if step == 1 else [*METRICS, "auc_old", "fpr_old"]:
            level = 1.1 - quality if metric.startswith("fpr") else quality
            rows.append((*place, 0, metric, float(np.clip(draw.normal(level, 0.05), 0, 1))))
        rows += [(*place, t, "confidence", draw.random()) for t in range(1, step + 1)]
    return rows


def make_runs(root: Path, cil: int, detectors: int, steps: int, datasets: int, seeds: int) -> int:
    paper = published_results()
    methods = list(paper["cil"].unique())[:cil]
    names = [name for name in paper["detector"].unique() if name][:detectors]
    draw, count = np.random.default_rng(0), 0
    benchmark = {"name": "cifar100", "id": "cifar100", "classes_per_step": [10]}
    for method in methods:
        for seed in range(seeds):
            run = root / "cifar100" / "k10" / method / f"seed{seed}"
            config = {"benchmark": benchmark, "cil": {method: {}}, "seed": {"run": seed}}
            run.mkdir(parents=True)
            (run / "config.yml").write_text(json.dumps({**config, "detector": {n: {} for n in names}}))
            write_json(run / "environment.json", {})
            for step in range(1, steps + 1):
                folder, head = run / f"step{step:02d}", ("cifar100", 10, method, seed, step)
                accuracy = [(*head, "", "", "", t, "accuracy", draw.random()) for t in range(step + 1)]
                tables = {"accuracy": accuracy}
                for i, name in enumerate(names):
                    quality = 0.6 + 0.2 * i / len(names) - 0.02 * step
                    tables[f"detectors/{name}"] = step_rows(head, name, list(OOD)[:datasets], quality, draw)
                for name, rows in tables.items():
                    write_rows(folder / f"{name}.parquet", pd.DataFrame(rows, columns=COLUMNS))
                    count += len(rows)
                write_json(folder / "step.json", {"step": step, "steps": steps, "seconds": {"training": 1.0}})
    return count


@contextmanager
def timed(what: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    print(f"{what:<32}{time.perf_counter() - started:8.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    sizes = {"cil": 4, "detectors": 16, "steps": 10, "datasets": 6, "seeds": 3}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--keep", type=Path, help="make the runs in this folder and leave them there")
    parser.add_argument("--repeats", type=int, default=3, help="how often to run the command")
    arguments = vars(parser.parse_args())
    keep, repeats = arguments.pop("keep"), arguments.pop("repeats")
    with tempfile.TemporaryDirectory() as temporary:
        root = keep or Path(temporary) / "runs"
        count = make_runs(root, **arguments)
        print(f"{count:,} rows of {' × '.join(f'{n} {name}' for name, n in arguments.items())}")
        for i in range(repeats):
            command(root, Path(temporary) / f"report{i}")
        measure(root, Path(temporary) / "report")


def command(root: Path, out: Path) -> None:
    """The whole command in a process of its own: with its start and all imports."""
    words = [sys.executable, "-m", "opencil", "report", str(root), "--out", str(out)]
    before = os.times()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    processor = after.children_user + after.children_system - before.children_user - before.children_system
    wall = after.elapsed - before.elapsed
    print(f"{'opencil report --out':<32}{wall:8.2f} s, {processor:.2f} s of processor time")


def measure(root: Path, out: Path) -> None:
    from opencil.report.compare import COMPARED, comparison_tables
    from opencil.report.figures.drawing import figures
    from opencil.report.statistics import statistics_tables
    from opencil.report.tables import KINDS, tables
    from opencil.report.writing import write_page
    from opencil.runs.reading import read_study
    from opencil.study.study import write_study

    started = time.perf_counter()
    with timed("read the runs"):
        study = read_study(root)
    with timed("write rows.parquet, runs.json"):
        write_study(study, out)
    with timed("all tables, three formats"):
        made = [table for kind in KINDS for table in tables(kind, study)]
        for table in made:
            for kind in ("markdown", "csv", "latex"):
                table.text(kind)
    with timed("comparison with the paper"):
        made += comparison_tables(study, list(COMPARED))
    with timed("statistics"):
        made += statistics_tables(study)
    with timed("figures, PNG and SVG"):
        drawn = list(figures(study))
        for figure in drawn:
            figure.save(out / "figures")
    with timed("HTML page"):
        write_page(study, out / "index.html", drawn)
    size = (out / "index.html").stat().st_size
    print(f"{len(made)} tables, {len(drawn)} figures, a page of {size / 1e6:.2f} MB")
    print(f"{'together':<32}{time.perf_counter() - started:8.2f} s")


if __name__ == "__main__":
    main()
