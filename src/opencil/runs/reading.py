"""Read folders of runs as a study: the rows of all runs with a record of each."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from opencil.data.stream import StepSizes
from opencil.errors import BadInput, OpenCILError, one_line
from opencil.evaluation.metric import table_metrics
from opencil.files import damaged, read_json
from opencil.registry import DATASETS
from opencil.runs.events import in_words
from opencil.runs.spec import training_values
from opencil.runs.store import Info, RunFolder, StepFolder, check_record, digest_values, find_runs
from opencil.study.records import RunRecord, find_unshowable, name_of, setting_of
from opencil.study.rows import join_tables, read_table
from opencil.study.study import Study, published_below, read_published, together


def read_study(path: str | Path, *more: str | Path) -> Study:
    """Read the study of all runs below a folder, or a published study; of several folders together.

    Unfinished runs are included. Damaged and missing files are left out, and named in ``problems``; raise an
    error where nothing else is there.
    """
    study = together([study for one in (path, *more) for study in _read(Path(one))])
    if study.left_out and not study.runs:
        raise OpenCILError("; ".join(study.problems))
    return study


def read_rows(root: str | Path) -> pd.DataFrame:
    """Read all rows of all runs below a folder; refuse damaged, missing and misplaced files."""
    study = read_study(root)
    if study.problems:
        raise OpenCILError("; ".join(study.problems))
    if study.rows.empty:
        raise BadInput(f"there are no finished steps below {root}: 'opencil run' makes some")
    return study.rows


def study_so_far(folders: Iterable[Path], detectors: Iterable[str]) -> Study:
    """Read the rows of some detectors in runs, as far as they are; leave out runs without files."""
    begun = [folder for folder in folders if any(folder.glob("step*")) or (folder / "config.yml").exists()]
    study = together([Study(), *(_read_folder(folder, _read_run) for folder in begun)])
    wanted = {"", *detectors}
    for run in study.runs:
        run["detectors"] = {name: steps for name, steps in run["detectors"].items() if name in wanted}
    return replace(study, rows=study.rows[study.rows["detector"].isin(wanted)])


def _read(root: Path) -> list[Study]:
    refused: list[OSError] = []
    studies = [_read_folder(folder.path, _read_run) for folder in find_runs(root, refused.append)]
    if not studies:
        read = partial(read_published, shares=["accuracy", *table_metrics("all", "near-far", "extra")])
        studies = [_read_folder(folder, read) for folder in published_below(root)]
    if refused:  # runs may be in these folders
        why = {_title(Path(e.filename)): f"it cannot be read ({e.strerror})" for e in refused}
        studies.append(Study(left_out=why))
    if not studies:
        raise BadInput(f"there are no runs below {root}, nor published ones: 'opencil run' makes some")
    return studies


def _read_folder(folder: Path, read: Callable[[Path], Study]) -> Study:
    """Read the study in a folder; if it fails, return a study with the folder in ``left_out``."""
    try:
        return read(folder)
    except Exception as error:  # the other folders are shown
        return Study(left_out={_title(folder): _relative(folder, in_words(error))})


def _title(folder: Path) -> str:
    """Return the name of the run for this folder, or the folder itself."""
    return place_name(Path(os.path.realpath(folder))) or str(folder)  # resolve() fails on a loop of links


def _relative(folder: Path, text: str) -> str:
    """Make paths in a text relative to a run's folder: studies are published."""
    return one_line(text.replace(f"{folder}{os.sep}", "").replace(str(folder), _title(folder)), 10_000)


def place_name(folder: Path) -> str:
    """Return the name of the run for this folder; '' for a folder of any other name."""
    name = "/".join(folder.parts[-4:])
    return name if setting_of(name) else ""


def _read_run(path: Path) -> Study:
    folder = RunFolder(path)
    config = folder.stored()
    benchmark, k, cil, seed = folder.identity(config)
    steps, environment, wrong = read_records(folder, config)
    tables, evaluated = list[Any](), Counter[str]()
    for step, name in [(step, name) for step, info in steps.items() for name in info["rows"]]:
        if (file := step.path / step.table(name)) not in wrong:
            with note_damage(wrong, file):
                tables.append(read_table(file, step.listed(step.table(name), steps[step])))
                evaluated[name] += 1
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
    if infos:
        record["images"] = infos[0]["images"]
    if failure := folder.failure():
        record["failed"] = _relative(path, failure)
    if wrong:
        record["left_out"] = {f.relative_to(path).as_posix(): _relative(path, w) for f, w in wrong.items()}
    if problem := find_unshowable(record):
        raise OpenCILError(f"{path} cannot be used: {problem}")
    return Study(join_tables(tables), [record])


def read_records(
    folder: RunFolder, config: dict[str, Any]
) -> tuple[dict[StepFolder, Info], dict[str, Any], dict[Path, str]]:
    """Read the records of a run's trained steps and its environment.

    Return these, and the files to leave out with the reason: damage, another run, other values.
    """
    run, training = name_of(*folder.identity(config)), digest_values(training_values(config))
    steps: dict[StepFolder, Info] = {}
    environment: dict[str, Any] = {}
    wrong: dict[Path, str] = {}
    if folder.environment.exists() or folder.trained():
        with note_damage(wrong, folder.environment):
            found = read_json(folder.environment)
            if found["run"] != run:
                raise damaged(folder.environment, f"it is of run {found['run']}")
            environment = found
    for step in folder.trained():
        with note_damage(wrong, step.record):
            info, before = step.info(), steps.get(folder.step(step.number - 1))
            previous = before["files"]["model.safetensors"] if before else None
            check_record(step, info, run, training, previous)
            steps[step] = info
            for name in info["rows"]:
                if why := step.misfit(name, config["detector"].get(name), info):
                    wrong[step.path / step.table(name)] = why
    for step in folder.lost():
        wrong[step.record] = "is missing, though rows or later steps are there"
    return steps, environment, wrong


@contextmanager
def note_damage(wrong: dict[Path, str], file: Path) -> Iterator[None]:
    """Note why a file cannot be used, as a sentence without its subject, if the block raises that."""
    try:
        yield
    except OpenCILError as error:
        wrong[file] = f"cannot be used ({getattr(error, 'reason', error)})"


def _join_makers(infos: list[Info]) -> list[Any]:
    """Return the provenance of the rows: equal entries are joined, in the order of their first."""
    joined: dict[str, Any] = {}
    for info in infos:
        for name, note in [(name, note) for name, rows in info["rows"].items() for note in rows["made"]]:
            maker, time = {part: value for part, value in note.items() if part != "time"}, note["time"]
            key = json.dumps(maker, sort_keys=True)
            made = joined.setdefault(key, maker | {"first": time, "last": time, "steps": {}})
            made["first"], made["last"] = min(made["first"], time), max(made["last"], time)
            made["steps"][name] = sorted({*made["steps"].get(name, []), info["step"]})
    return list(joined.values())


def expected_steps(config: dict[str, Any]) -> int | None:
    """Return the planned steps of a run; None for an unknown number of classes."""
    benchmark = config["benchmark"]
    name = benchmark.get("id")
    classes = getattr(DATASETS.entry(name).make, "classes", None) if name in DATASETS.names() else None
    return len(StepSizes.parse(benchmark["classes_per_step"][0]).of(classes)) if classes else None
