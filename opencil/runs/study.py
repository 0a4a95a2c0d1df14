"""A study: the rows of some runs with what is known about the runs, read from their folders or as published.

A published study is a folder with two files, ``rows.parquet`` and ``runs.json``; ``opencil report RUNS --out
FOLDER`` writes it. Everything that a report shows comes from these two.
"""

import math
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import pandas as pd

from opencil.errors import BadInput, OpenCILError
from opencil.registry import DATASETS
from opencil.runs import files
from opencil.runs.store import RunFolder, find_runs, read_tables

_FORMAT = 1
_ROWS, _RUNS = "rows.parquet", "runs.json"
_IDENTITY = ["benchmark", "k", "cil", "seed"]
_NAMES = ["benchmark", "cil", "detector", "ood", "distance", "metric"]


class RunRecord(TypedDict):
    """One run: which it is, how far it has come, and what it was made with."""

    benchmark: str
    k: int
    cil: str
    seed: int
    steps: int | None  #: in all; None where no step is finished and the number of classes is not known
    trained: int  #: steps whose models are stored
    seconds: list[dict[str, float]]  #: of work on each of them, by its kind: training, tuning, evaluation
    detectors: dict[str, int]  #: steps that each detector has been evaluated on; 0 where it is still to come
    config: dict[str, Any]  #: as in the run's config.yml
    environment: dict[str, Any]  #: versions and device
    data: list[dict[str, Any]]  #: what images it read; empty where the run did not note that


@dataclass(frozen=True)
class Study:
    """Rows, and a record of each run that they come from or will come from."""

    rows: pd.DataFrame
    runs: list[RunRecord]

    @property
    def finished(self) -> bool:
        """Whether every run has all its steps, and every detector all of theirs."""
        return all(
            run["trained"] == run["steps"] and all(n == run["steps"] for n in run["detectors"].values())
            for run in self.runs
        )


def read_study(path: str | Path, *more: str | Path) -> Study:
    """The study of all runs below a folder, or of published ones; of several folders together.

    Runs that are not finished, or not even begun, are there with what they have.
    """
    paths = [path, *more]
    studies = [_read(Path(path)) for path in paths]
    runs = [run for study in studies for run in study.runs]
    names: dict[tuple[Any, ...], int] = {}
    for run in runs:
        identity = tuple(run[key] for key in _IDENTITY)  # type: ignore[literal-required]
        names[identity] = names.get(identity, 0) + 1
    if twice := [identity for identity, count in names.items() if count > 1]:
        benchmark, k, cil, seed = twice[0]
        raise BadInput(
            f"run {benchmark}/k{k}/{cil}/seed{seed} is there {names[twice[0]]} times below "
            f"{', '.join(map(str, paths))}: report such folders apart, or their rows would count as one run's"
        )
    return Study(pd.concat([study.rows for study in studies], ignore_index=True), runs)


def write_study(study: Study, folder: Path) -> None:
    """Write a study so that ``read_study`` gives it back, each of its two files whole or absent."""
    files.write_rows(folder / _ROWS, study.rows)
    files.write_json(folder / _RUNS, {"format": _FORMAT, "runs": study.runs})


def _read(root: Path) -> Study:
    if found := find_runs(root):
        records, tables = zip(*(_read_run(folder) for folder in found), strict=True)
        return Study(_checked(pd.concat(tables, ignore_index=True), root), list(records))
    published = sorted(path.parent for path in root.rglob(_RUNS) if (path.parent / _ROWS).exists())
    if not published:
        raise BadInput(
            f"there are no runs below {root}, nor published ones ({_ROWS}, {_RUNS}): 'opencil run' makes some"
        )
    studies = [_read_published(folder) for folder in published]
    rows = pd.concat([study.rows for study in studies], ignore_index=True)
    return Study(rows, [run for study in studies for run in study.runs])


def _read_run(folder: RunFolder) -> tuple[RunRecord, pd.DataFrame]:
    config, steps = folder.stored(), folder.trained()
    infos = [step.info() for step in steps]
    rows = read_tables([path for step in steps for path in step.tables()])
    of_rows = rows[_IDENTITY].drop_duplicates()
    if len(of_rows) > 1:
        raise files.damaged(folder.path / "step01", "its rows are of several runs")
    if len(of_rows):
        benchmark, k, cil, seed = next(of_rows.itertuples(index=False, name=None))
        k, seed = int(k), int(seed)
    else:
        benchmark, k, cil, seed = _identity(config, folder.path)
    evaluated = [path.stem for step in steps for path in step.tables()[1:]]
    names = dict.fromkeys([*config.get("detector", {}), *evaluated])
    record = RunRecord(
        benchmark=benchmark,
        k=k,
        cil=cil,
        seed=seed,
        steps=infos[0]["steps"] if infos else _expected_steps(config),
        trained=len(steps),
        seconds=[info.get("seconds", {}) for info in infos],
        detectors={name: evaluated.count(name) for name in names},
        config=config,
        environment=_json(folder.path / "environment.json"),
        data=_json(folder.path / "data.json").get("datasets", []),
    )
    _check_record(record, folder.path)
    return record, rows


def _identity(config: dict[str, Any], path: Path) -> tuple[str, int, str, int]:
    """Which run a config is of, before there are rows that say it."""
    try:
        benchmark = config["benchmark"]
        k = benchmark["classes_per_step"][0]
        found = benchmark["name"], k, next(iter(config["cil"])), config["seed"]["run"]
    except (KeyError, IndexError, TypeError, StopIteration):
        found = (None,) * 4
    if not all(_USABLE[key](value) for key, value in zip(_IDENTITY, found, strict=True)):
        raise files.damaged(path / "config.yml", "it does not say which run it is of")
    return found


def _expected_steps(config: dict[str, Any]) -> int | None:
    """Steps of a run that has finished none, where its dataset says how many classes it has."""
    benchmark = config["benchmark"]
    name = benchmark.get("id")
    classes = getattr(DATASETS.entry(name).make, "classes", None) if name in DATASETS.names() else None
    return -(-classes // benchmark["classes_per_step"][0]) if classes else None


def _json(path: Path) -> dict[str, Any]:
    return files.read_json(path) if path.exists() else {}


def _read_published(folder: Path) -> Study:
    rows = read_tables([folder / _ROWS], _unusable)
    path = folder / _RUNS
    content = files.read_json(path, _unusable)
    runs = content.get("runs")
    if content.get("format") != _FORMAT or not isinstance(runs, list):
        raise _unusable(path, f"format {_FORMAT} with a list of runs is needed")
    for run in runs:
        _check_record(run, path)
    known = {tuple(run[key] for key in _IDENTITY) for run in runs}
    strange = set(rows[_IDENTITY].drop_duplicates().itertuples(index=False, name=None)) - known
    if strange:
        benchmark, k, cil, seed = min(strange)
        raise _unusable(
            path, f"the rows have a run {benchmark}/k{k}/{cil}/seed{seed} that is not among its runs"
        )
    return Study(_checked(rows, folder / _ROWS), runs)


def _check_record(run: object, path: Path) -> None:
    """Refuse a record that reports could not show, down to its innermost values."""
    for key, usable in _USABLE.items():
        if not isinstance(run, dict) or not usable(run.get(key, ...)):
            raise _unusable(path, f"a run in it has no usable {key!r}")
    for leaf in _leaves(run):
        if isinstance(leaf, str) and not _showable(leaf):
            raise _unusable(path, f"a run in it has {leaf!r}, with control characters")


def _text(value: object) -> bool:
    return isinstance(value, str)


def _whole(value: object, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _mapping(value: object, of: Callable[[object], bool] = lambda _: True) -> bool:
    return isinstance(value, dict) and all(map(of, value.values()))


def _list(value: object, of: Callable[[object], bool]) -> bool:
    return isinstance(value, list) and all(map(of, value))


def _environment(value: object) -> bool:
    """Whether a value is a mapping that has no infinite numbers, which JSON does not know."""
    return isinstance(value, dict) and not any(
        isinstance(leaf, float) and not math.isfinite(leaf) for leaf in _leaves(value)
    )


def _dataset(value: object) -> bool:
    """Whether a value notes which images of a dataset were read."""
    return (
        isinstance(value, dict)
        and all(_text(value.get(key)) for key in ("name", "role", "split", "files"))
        and _whole(value.get("images"))
        and (value.get("paper", ...) is None or _whole(value.get("paper")))
    )


#: What each value of a record must be.
_USABLE: dict[str, Callable[[Any], bool]] = {
    "benchmark": _text,
    "k": lambda value: _whole(value, 1),
    "cil": _text,
    "seed": _whole,
    "steps": lambda value: value is None or _whole(value, 1),
    "trained": _whole,
    "seconds": lambda value: _list(value, lambda of_step: _mapping(of_step, _number)),
    "detectors": lambda value: _mapping(value, _whole),
    "config": lambda value: _mapping(value) and _mapping(value.get("detector", {}), _mapping),
    "environment": _environment,
    "data": lambda value: _list(value, _dataset),
}


def _leaves(value: object) -> Iterator[object]:
    """Every key and every value that has no parts, however deep."""
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _leaves(part)
    else:
        yield value


def _showable(text: str) -> bool:
    """Whether nothing in a text would command a terminal, or has no encoding; blanks may be of any width."""
    return all(c.isprintable() or unicodedata.category(c) == "Zs" for c in text)


def _checked(rows: pd.DataFrame, source: Path) -> pd.DataFrame:
    """Rows whose names can be shown."""
    for column in _NAMES:
        if strange := [name for name in rows[column].unique() if not _showable(name)]:
            raise _unusable(source, f"its rows have a {column} named {strange[0]!r}, with control characters")
    return rows


def _unusable(path: Path, error: object) -> OpenCILError:
    return OpenCILError(f"{path} cannot be used ({error}): bring it back, or make it again from the runs")
