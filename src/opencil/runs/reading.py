"""Read folders of runs as a study: the rows of all runs with a record of each."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from opencil.data.stream import StepSizes
from opencil.errors import BadInput, OpenCILError, one_line
from opencil.files import read_json
from opencil.registry import DATASETS
from opencil.runs.events import in_words
from opencil.runs.spec import training_values
from opencil.runs.store import Info, RunFolder, StepFolder, digest_values, find_runs, folders_below
from opencil.study.records import Made, RunRecord, find_problem, name_of, setting_of
from opencil.study.rows import read_tables
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
    """Read the study of all runs below a folder, or a published study; of several folders together.

    Unfinished runs are included. Damaged and missing files are left out, and named in ``problems``; raise an
    error where nothing else is there.
    """
    paths = [Path(one) for one in (path, *more)]
    study = together([study for one in paths for study in _read(one)], ", ".join(map(str, paths)))
    if study.left_out and not study.runs:
        raise OpenCILError("; ".join(study.problems))
    return study


def study_so_far(folders: Iterable[Path], detectors: Iterable[str]) -> Study:
    """Read the rows of some detectors in runs, as far as they are; leave out runs without files."""
    begun = [folder for folder in folders if any(folder.glob("step*")) or (folder / "config.yml").exists()]
    parts = [Study(), *(_read_folder(folder, _read_run) for folder in begun)]
    study = together(parts, ", ".join(map(str, begun)))
    wanted = ["", *detectors]
    runs: list[RunRecord] = [
        {**run, "detectors": {name: n for name, n in run["detectors"].items() if name in wanted}}
        for run in study.runs
    ]
    return replace(study, rows=study.rows[study.rows["detector"].isin(wanted)], runs=runs)


def _read(root: Path) -> list[Study]:
    studies = [_read_folder(folder.path, _read_run) for folder in find_runs(root)]
    if not studies:
        studies = [_read_folder(folder, read_published) for folder in published_below(root)]
    if unread := _unreadable_folders(root):
        studies.append(Study(left_out=unread))
    if studies:
        return studies
    raise BadInput(
        f"there are no runs below {root}, nor published runs ({ROWS}, {RUNS}): 'opencil run' makes some"
    )


def _unreadable_folders(root: Path) -> dict[str, str]:
    """Return the unreadable folders below ``root`` with the reason: runs may be in them."""
    errors: list[OSError] = []
    paths = [folder / name for folder, names in folders_below(root, errors.append) for name in sorted(names)]
    # Names of files have endings.
    broken = [path for path in paths if "." not in path.name and path.is_symlink() and not path.exists()]
    found = {str(path): f"it is a link to {path.readlink()}, which does not exist" for path in broken}
    return found | {_title(Path(e.filename)): f"it cannot be read ({e.strerror})" for e in errors}


def _read_folder(folder: Path, read: Callable[[Path], Study]) -> Study:
    """Read the study in a folder; if it fails, return a study with the folder in ``left_out``."""
    try:
        return read(folder)
    except Exception as error:  # the other folders are shown
        return Study(left_out={_title(folder): _relative(folder, in_words(error))})


def _title(folder: Path) -> str:
    """Return the name of the run for this folder, or the folder itself."""
    return place_name(folder.resolve()) or str(folder)


def _relative(folder: Path, text: str) -> str:
    """Make paths in a text relative to a run's folder: studies are published."""
    if name := place_name(folder.resolve()):
        text = text.replace(f"{folder}{os.sep}", "").replace(str(folder), name)
    return one_line(text, longest=10_000)


def place_name(folder: Path) -> str:
    """Return the name of the run for this folder; '' for a folder of any other name."""
    name = "/".join(folder.parts[-4:])
    return name if setting_of(name) else ""


def _read_run(path: Path) -> Study:
    folder = RunFolder(path)
    config = folder.stored()
    benchmark, k, cil, seed = folder.identity(config)
    steps, environment, wrong = read_records(folder, config)
    tables, evaluated = [], Counter[str]()
    for step, name in [(step, name) for step, info in steps.items() for name in info["rows"]]:
        if (file := step.path / step.table(name)) in wrong:
            continue
        try:
            tables.append(step.rows(name, steps[step]))
            evaluated[name] += 1
        except (OpenCILError, OSError) as error:
            wrong[file] = describe_damage(error)
    infos = list(steps.values())
    record = RunRecord(
        benchmark=benchmark,
        k=k,
        cil=cil,
        seed=seed,
        steps=infos[0]["steps"] if infos else expected_steps(config),
        trained=len(steps),
        seconds=[info["seconds"] for info in infos],
        detectors={name: evaluated[name] for name in [*config["detector"], *evaluated] if name},
        config=config,
        environment={k: v for k, v in environment.items() if k not in ("run", "command", "datasets")},
        made=_join_makers(infos),
        data=environment.get("datasets", []),
    )
    if failure := folder.failure():
        record["failed"] = _relative(path, failure)
    if wrong:
        record["left_out"] = {f.relative_to(path).as_posix(): _relative(path, w) for f, w in wrong.items()}
    if problem := find_problem(record):
        raise unusable(path, problem)
    rows = pd.concat([read_tables([]), *tables], ignore_index=True)
    return Study(showable_rows(rows, path), [record])


def read_records(
    folder: RunFolder, config: dict[str, Any]
) -> tuple[dict[StepFolder, Info], dict[str, Any], dict[Path, str]]:
    """Read the records of a run's trained steps and its environment.

    Return these, and the files to leave out with the reason: damage, another run, other values.
    """
    run, training = name_of(*folder.identity(config)), digest_values(training_values(config))
    steps: dict[StepFolder, Info] = {}
    environment: dict[str, Any] = {}
    models: dict[int, str] = {}
    wrong: dict[Path, str] = {}
    if folder.environment.exists():
        try:
            environment = read_json(folder.environment)
        except (OpenCILError, OSError) as error:
            wrong[folder.environment] = describe_damage(error)
    if environment.get("run", run) != run:
        wrong[folder.environment], environment = f"is of run {environment['run']}", {}
    for step in folder.trained():
        try:
            info = step.info()
        except (OpenCILError, OSError) as error:
            wrong[step.record] = describe_damage(error)
            continue
        if problem := check_record(info, run, training, models.get(step.number - 1)):
            wrong[step.record] = problem
            continue
        steps[step], models[step.number] = info, info["files"]["model.safetensors"]
        for name, note in info["rows"].items():
            if name and note["values"] != digest_values(config["detector"].get(name)):
                wrong[step.path / step.table(name)] = "was made with other values than the run's"
    for step in folder.lost():
        wrong[step.record] = "is missing, though rows or later steps are there"
    return steps, environment, wrong


def describe_damage(error: Exception) -> str:
    """Return the error of a file as a sentence without its subject, the file."""
    return f"cannot be used ({getattr(error, 'reason', error)})"


def check_record(info: Info, run: str, training: str, previous: str | None) -> str:
    """Return why a step's record does not belong to a run, '' where it does.

    ``previous`` is a model's checksum.
    """
    if info["run"] != run:
        return f"is of run {info['run']}"
    if info["training"] != training:
        return "is of a training with other values than the run's"
    if previous is not None and info["previous"] != previous:
        return "is of a training on another model than that of the step before"
    return ""


def _join_makers(infos: list[Info]) -> list[Made]:
    """Return the provenance of the rows: equal entries are joined, in the order of their first."""
    joined: dict[str, Any] = {}
    notes = [
        (i["step"], name, made) for i in infos for name, rows in i["rows"].items() for made in rows["made"]
    ]
    for step, name, note in notes:
        maker, time = {part: value for part, value in note.items() if part != "time"}, note["time"]
        key = json.dumps(maker, sort_keys=True)
        made = joined.setdefault(key, maker | {"first": time, "last": time, "steps": {}})
        made["first"], made["last"] = min(made["first"], time), max(made["last"], time)
        if step not in (numbers := made["steps"].setdefault(name, [])):
            numbers.append(step)
    return list(joined.values())


def expected_steps(config: dict[str, Any]) -> int | None:
    """Return the planned steps of a run; None for an unknown number of classes."""
    benchmark = config["benchmark"]
    name = benchmark.get("id")
    classes = getattr(DATASETS.entry(name).make, "classes", None) if name in DATASETS.names() else None
    return len(StepSizes.parse(benchmark["classes_per_step"][0]).of(classes)) if classes else None
