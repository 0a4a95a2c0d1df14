"""What a folder of runs holds, as a study: the rows of all runs with a record of each."""

import json
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from opencil.data.stream import StepSizes
from opencil.errors import BadInput, OpenCILError
from opencil.registry import DATASETS
from opencil.runs import file_formats
from opencil.runs.failures import in_words
from opencil.runs.plan import in_todays_terms
from opencil.runs.store import DATA, ENVIRONMENT, RunFolder, StepFolder, find_runs, folders_below
from opencil.study.records import IDENTITY, Identity, Made, RunRecord, one_line, setting_of, trouble
from opencil.study.rows import Table, plain_k, read_tables
from opencil.study.study import (
    ROWS,
    RUNS,
    Study,
    published_below,
    read_published,
    showable_rows,
    together,
    unusable,
)


def read_study(path: str | Path, *more: str | Path) -> Study:
    """The study of all runs below a folder, or of published ones; of several folders together.

    Runs that are not finished, or not even begun, are there with what they have. What is damaged or lost is
    left out, and the study says so; unless nothing else is there, which is an error.
    """
    paths = [Path(one) for one in (path, *more)]
    study = together([study for one in paths for study in _read(one)], ", ".join(map(str, paths)))
    if study.left_out and not study.runs:
        raise OpenCILError("; ".join(study.problems))
    return study


def study_so_far(folders: Iterable[Path], detectors: Iterable[str]) -> Study:
    """What the runs in some folders have of some detectors; those that have not begun are left out."""
    nothing = Study(read_tables([], file_formats.damaged))
    begun = [folder for folder in folders if any(folder.glob("step*")) or (folder / "config.yml").exists()]
    parts = [nothing, *(_read_folder(RunFolder(folder)) for folder in begun)]
    study = together(parts, ", ".join(map(str, begun)))
    wanted = ["", *detectors]
    runs: list[RunRecord] = [
        {**run, "detectors": {name: n for name, n in run["detectors"].items() if name in wanted}}
        for run in study.runs
    ]
    return replace(study, rows=study.rows[study.rows["detector"].isin(wanted)], runs=runs)


def _read(root: Path) -> list[Study]:
    found, unlisted = find_runs(root), _unlisted(root)
    studies = [_read_folder(folder) for folder in found]
    if not found:
        studies = [_read_published(folder) for folder in published_below(root)]
    if unlisted:
        studies.append(Study(read_tables([], file_formats.damaged), left_out=unlisted))
    if studies:
        return studies
    raise BadInput(
        f"there are no runs below {root}, nor published ones ({ROWS}, {RUNS}): 'opencil run' makes some"
    )


def _unlisted(root: Path) -> dict[str, str]:
    """The folders at or below one that cannot be looked into, and why: there may be runs in them."""
    errors: list[OSError] = []
    astray: dict[str, str] = {}
    for folder, names in folders_below(root, errors.append):
        # Names of files have endings.
        for path in (folder / name for name in sorted(names) if "." not in name):
            if path.is_symlink() and not path.exists():
                astray[str(path)] = f"it is a link to {path.readlink()}, where nothing is"
    closed = {_name(Path(error.filename)): f"it cannot be looked into ({error.strerror})" for error in errors}
    return closed | astray


def _read_published(folder: Path) -> Study:
    try:
        study = read_published(folder)
        return replace(study, runs=[_understood(run) for run in study.runs])
    except (OpenCILError, OSError) as error:
        return _without(folder, error)


def _read_folder(folder: RunFolder) -> Study:
    """The study of one run; one that cannot be read at all is named by it, as its folder is."""
    try:
        record, rows = _read_run(folder)
        return Study(rows, [record])
    except Exception as error:  # whatever lies in a folder: the others are shown all the same
        return _without(folder.path, error)


def _without(folder: Path, error: Exception) -> Study:
    why = _seen_from(folder, in_words(error))
    return Study(read_tables([], file_formats.damaged), left_out={_name(folder): why})


def _seen_from(folder: Path, text: str) -> str:
    """What is said of a run's files, by their places in its folder: where that lies is nobody's matter."""
    if (name := _name(folder)) != str(folder):
        text = text.replace(f"{folder}{os.sep}", "").replace(str(folder), name)
    return one_line(text)


def _name(path: Path) -> str:
    """The name of the run that a folder should have, or the folder as it was given."""
    parts = path.resolve().parts[-4:]
    return "/".join(parts) if len(parts) == 4 and setting_of("/".join(parts)) else str(path)


def _understood(run: RunRecord) -> RunRecord:
    """A published record in today's terms, as stored runs are read: so differences between them are seen."""
    config = run["config"]
    if not all(isinstance(config.get(section), dict) for section in ("benchmark", "detector")):
        return run  # of another hand
    return {**run, "config": in_todays_terms(config)}


def _read_run(folder: RunFolder) -> tuple[RunRecord, pd.DataFrame]:
    config, left_out = folder.stored(), _Lost(folder)
    named = folder.identity(config) if config else None
    steps = _steps(folder, named, config, left_out)
    infos = list(steps.values())
    tables = [table for step, info in steps.items() for table in step.placed(step.tables(), named, info)]
    rows = _rows(tables, left_out)
    of_rows = rows[list(IDENTITY)].drop_duplicates()
    if len(of_rows) > 1:
        raise file_formats.damaged(folder.path / "step01", "its rows are of several runs")
    if len(of_rows):
        benchmark, k, cil, seed = next(of_rows.itertuples(index=False, name=None))
        k, seed = plain_k(k), int(seed)
    else:
        benchmark, k, cil, seed = folder.identity(config)
    run = (benchmark, k, cil, seed)
    evaluated = [p.stem for step in steps for p in step.tables()[1:] if p not in left_out.paths]
    names = dict.fromkeys([*config.get("detector", {}), *evaluated])
    environment, data = (left_out.record(name, run) for name in (ENVIRONMENT, DATA))
    record = RunRecord(
        benchmark=benchmark,
        k=k,
        cil=cil,
        seed=seed,
        steps=infos[0]["steps"] if infos else expected_steps(config),
        trained=len(steps),
        seconds=[info.get("seconds", {}) for info in infos],
        detectors={name: evaluated.count(name) for name in names},
        config=config,
        # Where its files lie is nobody's matter: studies are published.
        environment={key: value for key, value in environment.items() if key != "command"},
        made=_made(list(steps), infos),
        data=data.get("datasets", []),
    )
    if failed := folder.failed():
        record["failed"] = _seen_from(folder.path, failed)
    if left_out.why:
        record["left_out"] = left_out.why
    if problem := trouble(record):
        raise unusable(folder.path, problem)
    return record, showable_rows(rows, folder.path)


class _Lost:
    """The files of a run that are damaged or lost, by their place in its folder, and why."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self.why: dict[str, str] = {}
        self.paths: set[Path] = set()

    def note(self, path: Path, error: object) -> None:
        """Note a file and what is wrong with it; places in the folder are told from there."""
        place = path.relative_to(self._folder.path)
        self.why[place.as_posix()] = _seen_from(self._folder.path, str(error)).removeprefix(f"{place} ")
        self.paths.add(path)

    def record(self, name: str, run: Identity) -> dict[str, Any]:
        """What a file of notes has: nothing where it is not there, or damaged."""
        try:
            return self._folder.record(name, run)
        except (OpenCILError, OSError) as error:
            self.note(self._folder.path / name, error)
            return {}


def _steps(
    folder: RunFolder, run: Identity | None, config: dict[str, Any], left_out: _Lost
) -> dict[StepFolder, dict[str, Any]]:
    """The trained steps with what is noted of each; a step that has lost its notes is left out."""
    trained: dict[StepFolder, dict[str, Any]] = {}
    for step in folder.trained():
        try:
            trained[step] = step.info(run, config)
        except (OpenCILError, OSError) as error:
            left_out.note(step.path / "step.json", error)
    for step in folder.lost():
        left_out.note(step.path / "step.json", "is missing")
    return trained


def _rows(tables: list[Table], left_out: _Lost) -> pd.DataFrame:
    """The rows of all tables that can be read."""
    try:
        return read_tables(tables, file_formats.damaged)
    except (OpenCILError, OSError):  # one by one, to know which: it takes longer
        whole = []
        for table in tables:
            try:
                whole.append(read_tables([table], file_formats.damaged))
            except (OpenCILError, OSError) as error:
                left_out.note(table.path, error)
        return pd.concat([read_tables([], file_formats.damaged), *whole], ignore_index=True)


def _made(steps: list[StepFolder], infos: list[dict[str, Any]]) -> list[Made]:
    """What made the rows: alike are together, in the order of their first."""
    alike: dict[str, Made] = {}
    for step, info in zip(steps, infos, strict=True):
        first, added = info.get("made", {}), info.get("added", {})
        names = ["", *(path.stem for path in step.tables()[1:])]
        for name, note in [(n, note) for n in names for note in (first.get(n), *added.get(n, ())) if note]:
            key = json.dumps({part: note[part] for part in note if part != "time"}, sort_keys=True)
            made = alike.setdefault(
                key,
                Made(
                    source=note["source"],
                    torch=note["torch"],
                    device=note["device"],
                    precision=note["precision"],
                    first=note["time"],
                    last=note["time"],
                    steps={},
                ),
            )
            if "plugins" in note:
                made["plugins"] = note["plugins"]
            made["first"], made["last"] = min(made["first"], note["time"]), max(made["last"], note["time"])
            if step.number not in (numbers := made["steps"].setdefault(name, [])):
                numbers.append(step.number)
    return list(alike.values())


def expected_steps(config: dict[str, Any]) -> int | None:
    """Steps of a run that has finished none, where its dataset says how many classes it has."""
    benchmark = config["benchmark"]
    name = benchmark.get("id")
    classes = getattr(DATASETS.entry(name).make, "classes", None) if name in DATASETS.names() else None
    return len(StepSizes.parse(benchmark["classes_per_step"][0]).of(classes)) if classes else None
