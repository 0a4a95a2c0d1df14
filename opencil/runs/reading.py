"""What a folder of runs holds, as a study: the rows of all runs with a record of each."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from opencil.data.stream import StepSizes
from opencil.errors import BadInput
from opencil.registry import DATASETS
from opencil.runs import file_formats
from opencil.runs.plan import in_todays_terms
from opencil.runs.store import RunFolder, StepFolder, find_runs
from opencil.study.records import IDENTITY, USABLE, Identity, Made, RunRecord, trouble
from opencil.study.rows import plain_k, read_tables
from opencil.study.study import ROWS, RUNS, Study, read_published, showable_rows, together, unusable


def read_study(path: str | Path, *more: str | Path) -> Study:
    """The study of all runs below a folder, or of published ones; of several folders together.

    Runs that are not finished, or not even begun, are there with what they have.
    """
    paths = [Path(one) for one in (path, *more)]
    return together([study for one in paths for study in _read(one)], ", ".join(map(str, paths)))


def study_so_far(folders: Iterable[Path], detectors: Iterable[str]) -> Study:
    """What the runs in some folders have of some detectors; those that have finished no step are left out."""
    begun = [folder for folder in folders if any(folder.glob("step*/step.json"))]
    if not begun:
        return Study(read_tables([], file_formats.damaged))
    study = read_study(*begun)
    return replace(study, rows=study.rows[study.rows["detector"].isin(["", *detectors])])


def _read(root: Path) -> list[Study]:
    if found := find_runs(root):
        records, tables = zip(*(_read_run(folder) for folder in found), strict=True)
        return [Study(showable_rows(pd.concat(tables, ignore_index=True), root), list(records))]
    if published := read_published(root):
        return [replace(study, runs=[_understood(run) for run in study.runs]) for study in published]
    raise BadInput(
        f"there are no runs below {root}, nor published ones ({ROWS}, {RUNS}): 'opencil run' makes some"
    )


def _understood(run: RunRecord) -> RunRecord:
    """A published record in today's terms, as stored runs are read: so differences between them are seen."""
    config = run["config"]
    if not all(isinstance(config.get(section), dict) for section in ("benchmark", "detector")):
        return run  # of another hand
    return {**run, "config": in_todays_terms(config)}


def _read_run(folder: RunFolder) -> tuple[RunRecord, pd.DataFrame]:
    config, steps = folder.stored(), folder.trained()
    infos = [step.info() for step in steps]
    rows = read_tables([path for step in steps for path in step.tables()], file_formats.damaged)
    of_rows = rows[list(IDENTITY)].drop_duplicates()
    if len(of_rows) > 1:
        raise file_formats.damaged(folder.path / "step01", "its rows are of several runs")
    if len(of_rows):
        benchmark, k, cil, seed = next(of_rows.itertuples(index=False, name=None))
        k, seed = plain_k(k), int(seed)
    else:
        benchmark, k, cil, seed = _identity(config, folder.path)
    evaluated = [path.stem for step in steps for path in step.tables()[1:]]
    names = dict.fromkeys([*config.get("detector", {}), *evaluated])
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
        environment=_json(folder.path / "environment.json"),
        made=_made(steps, infos),
        data=_json(folder.path / "data.json").get("datasets", []),
    )
    if problem := trouble(record):
        raise unusable(folder.path, problem)
    return record, rows


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


def _identity(config: dict[str, Any], path: Path) -> Identity:
    """Which run a config is of, before there are rows that say it."""
    try:
        benchmark = config["benchmark"]
        k = benchmark["classes_per_step"][0]
        found = benchmark["name"], k, next(iter(config["cil"])), config["seed"]["run"]
    except (KeyError, IndexError, TypeError, StopIteration):
        found = (None,) * 4
    if not all(USABLE[key](value) for key, value in zip(IDENTITY, found, strict=True)):
        raise file_formats.damaged(path / "config.yml", "it does not say which run it is of")
    return found


def expected_steps(config: dict[str, Any]) -> int | None:
    """Steps of a run that has finished none, where its dataset says how many classes it has."""
    benchmark = config["benchmark"]
    name = benchmark.get("id")
    classes = getattr(DATASETS.entry(name).make, "classes", None) if name in DATASETS.names() else None
    return len(StepSizes.parse(benchmark["classes_per_step"][0]).of(classes)) if classes else None


def _json(path: Path) -> dict[str, Any]:
    return file_formats.read_json(path) if path.exists() else {}
