"""The files of a store, and what of them is the same, bit for bit, in two runs of one config."""

import json
from pathlib import Path

from opencil.evaluation.metric import KEPT, shares
from opencil.runs import file_formats
from opencil.runs.store import StepFolder
from opencil.study.rows import Table, measured_metrics, noted, read_tables, write_rows

_FAILED = "error.txt"
_MEASURED = {"step.json", "environment.json"}
#: What of these says when, how long and by which command; the seal is of all of it.
_MEASURES = {"seconds", "peak_memory_mib", "time", "command", "seal"}


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder by its path; why an attempt has failed is no part of what is stored."""
    return {name: path.read_bytes() for name, path in _files(folder).items() if path.name != _FAILED}


def results(folder: Path, *, history: bool = True) -> dict[str, object]:
    """What must be the same in two runs of one config: all files, less what is measured.

    Without ``history`` also less what tells in how many calls it was made: by what each detector's rows were,
    and why an attempt has failed.
    """
    files, left_out = _files(folder).items(), _MEASURES if history else {*_MEASURES, "made"}
    return {name: _less(left_out, path) for name, path in files if history or path.name != _FAILED}


def differences(found: dict[str, object], expected: dict[str, object], kept: bool = True) -> list[str]:
    """Names of files that only one of two stores has, or that differ.

    Without ``kept`` the cache of outputs may lack entries: a disk may have had no room for them.
    """
    names = found.keys() | {name for name in expected if kept or not name.startswith(".outputs/")}
    return sorted(name for name in names if found.get(name, ...) != expected.get(name, ...))


def without_bytes(run: Path) -> None:
    """Make a run's steps what they were when they did not say how much they keep."""
    for step in (StepFolder(path.parent) for path in run.glob("step*/step.json")):
        table = Table(step.model_rows)
        rows = read_tables([table], file_formats.damaged)
        metrics = measured_metrics(table, file_formats.damaged)
        write_rows(table.path, noted(shares(rows), metrics - set(KEPT), step.info()["weights_sha256"]))


def _files(folder: Path) -> dict[str, Path]:
    """All but locks, by their paths."""
    found = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".held")
    return {path.relative_to(folder).as_posix(): path for path in found}


def _less(left_out: set[str], path: Path) -> object:
    def less(value: object) -> object:
        if isinstance(value, dict):
            return {key: less(kept) for key, kept in value.items() if key not in left_out}
        return value

    try:
        return less(json.loads(path.read_bytes())) if path.name in _MEASURED else path.read_bytes()
    except (OSError, ValueError) as error:
        return f"damaged: {error}"
