"""``opencil open-world``: classifiers on a stream in which unknown images arrive."""

import warnings
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from opencil.cli.flags import option, takes_config
from opencil.cli.screen import borderless_table, print_line, print_table, problems
from opencil.errors import BadInput
from opencil.files import write_bytes

if TYPE_CHECKING:  # imported where it is used, so that --help answers at once
    from rich.table import Table

    from opencil.config import Config

_WITHOUT = ("metric", "preset", "runs", "log", "tensorboard", "pack", "jobs", "launcher", "address")
#: Columns of the table, and whether they are in percent.
_COLUMNS = {
    "found": ("found", True),
    "false_alarms": ("false alarms", True),
    "labels": ("labels", False),
    "classes_found": ("classes found", False),
    "labels_per_class": ("labels per class", False),
    "accuracy": ("accuracy", True),
}


def _open_world(
    config: "Config",
    reject: float = option("SHARE", "Share of known images that may be rejected.", 0.05),
    start: int = option("N", "Labelled images of each class of the first step.", 100),
    rounds: int = option("N", "Rounds of each later step.", 2),
    arrivals: int = option("N", "Images that arrive in a round.", 500),
    new: float = option("SHARE", "Share of them of the step's own classes.", 0.5),
    budget: int = option("N", "Rejected images that are labelled in a round.", 100),
    out: Path | None = option("FILE.csv", "Write all rows here."),
) -> None:
    """Play a stream in which unknown images arrive, and rejected ones are labelled and learned.

    The benchmark has a frozen backbone, as cifar100-pretrained. Each CIL method with each detector is a
    classifier, for each seed. The table has means over rounds and seeds, and the state after the last round.
    """
    from opencil.openworld.classifier import OpenWorldClassifier
    from opencil.openworld.stream import OpenWorld, play
    from opencil.runs.loading import load
    from opencil.validation import build

    given = {"start": start, "rounds": rounds, "arrivals": arrivals, "new": new, "budget": budget}
    data = load(config, ood=False)
    if data.features is None:
        raise BadInput(f"benchmark {config.benchmark.name!r} has no frozen backbone: cifar100-pretrained has")
    rows = []
    with problems.status("reading images") as status, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few images in the first rounds
        computing = data.features()
        while True:
            try:
                status.update(str(next(computing)))
            except StopIteration as end:
                data = end.value
                break
        for cil, detector, seed in product(config.cil, config.detector, config.seed.runs):
            order = seed if config.seed.class_order == "run" else config.seed.class_order
            stream = data.stream(config.benchmark.classes_per_step[0], order)
            values = build(OpenWorld, {**given, "seed": seed}, where="open-world")
            classifier = OpenWorldClassifier(
                reject,
                learner={"name": cil, **config.cil[cil]},
                detector={"name": detector, **config.detector[detector]},
                seed=seed,
            )
            for row in play(classifier, stream, values):
                rows.append({"cil": cil, "detector": detector, "seed": seed, **row})
                status.update(f"{cil}, {detector}, seed {seed}: step {row['step']} of {len(stream)}")
    table = pd.DataFrame(rows)
    if out is not None:
        write_bytes(out, table.to_csv(index=False).encode())
        print_line(f"rows: {out}")
    print_table(_summarise(table))


def _summarise(rows: pd.DataFrame) -> "Table":
    """Return a line for each classifier: shares as means over rounds, the rest after the last round."""
    table = borderless_table("CIL", "detector", *(heading for heading, _ in _COLUMNS.values()))
    for (cil, detector), played in rows.groupby(["cil", "detector"], sort=False):
        last = played.groupby("seed").tail(1)
        of = {name: played if name in ("found", "false_alarms") else last for name in _COLUMNS}
        means = [(of[name][name].mean(), percent) for name, (_, percent) in _COLUMNS.items()]
        table.add_row(str(cil), str(detector), *(f"{100 * v:.1f} %" if p else f"{v:.1f}" for v, p in means))
    return table


open_world = takes_config(_open_world, without=_WITHOUT)
