"""What a command is about to do, in words: one line before it begins, or all of it with ``--dry-run``."""

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:  # imported where they are used, so that --help and --version answer at once
    from opencil.runs.outlook import Outlook, Prospect

_FEW = 6  # names that a line has room for


def opening(outlook: "Outlook", folder: str) -> str:
    """Which runs, how many are done, on what device, stored where and, where like runs tell it, how long."""
    from opencil.engine.ranks import started  # torch

    count, specs = len(outlook.runs), [run.spec for run in outlook.runs]
    done = {0: "", count: ", all done"}.get(outlook.done, f", {outlook.done} done")
    (benchmark,) = {spec.benchmark.name for spec in specs}
    cil = _several([spec.cil for spec in specs], "CIL methods")
    k = _several([str(spec.classes_per_step) for spec in specs], "of them")
    seeds = list(dict.fromkeys(str(spec.seeds.run) for spec in specs))
    seed = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {_several(seeds, 'of them')}"
    detectors = [name for spec in specs for name in spec.detectors]
    parts = [f"{cil} on {benchmark} (k = {k}; {seed})"]
    parts += [_several(detectors, "detectors")] if detectors else []
    ranks, packed = started(), f", {outlook.at_once} runs at a time" * (outlook.at_once > 1)
    parts += [f"on {outlook.device}" + packed + f", on {ranks} ranks together" * (ranks > 1)]
    parts += [f"stored in {folder}"]
    if outlook.seconds:
        parts += [f"about {duration(outlook.seconds)}, as like runs took"]
    return f"{count} run{'s' * (count > 1)}{done}: {'; '.join(parts)}"


def dry_run_table(outlook: "Outlook") -> Table:
    """Each run: how far it has come, and what would be done."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("run", "so far", "to do"):
        table.add_column(heading, overflow="fold")
    for run in outlook.runs:
        took = f", about {duration(run.seconds)}" if run.seconds else ""
        table.add_row(*map(Text, (str(run.spec), _so_far(run), _to_do(run) + took)))
    return table


def _so_far(run: "Prospect") -> str:
    if run.done:
        return "done"
    of = f" of {run.steps}" if run.steps else ""
    return f"{run.trained}{of} steps" if run.trained else "nothing"


def _to_do(run: "Prospect") -> str:
    if run.done:
        return "nothing"
    todo, first = [], run.trained + 1
    if run.steps is None or first <= run.steps:
        last = f"steps {first} to {run.steps}" if first != run.steps else f"step {first}"
        which = last if run.steps else "all steps"
        detectors = f" with {_several(list(run.spec.detectors), 'detectors')}" if run.spec.detectors else ""
        todo.append(f"{which}{detectors}")
    if run.lacking:
        todo.append(f"{_several(list(run.lacking), 'detectors')} on steps that are trained")
    return "; ".join(todo) or "metrics that were not asked for before"


def _several(names: list[str], what: str) -> str:
    """Names, each once, or how many there are."""
    names = list(dict.fromkeys(names))
    return ", ".join(names) if len(names) <= _FEW else f"{len(names)} {what}"


def duration(seconds: float) -> str:
    """Seconds as people say them, to two digits or so."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
