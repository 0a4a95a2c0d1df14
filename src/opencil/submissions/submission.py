"""A submission: a folder of published rows with a description that follows from them.

::

    my-submission/
        submission.json      submitter, date, tier; of each run its order, seeds, source, device and digests
        rows.parquet, runs.json    rows and records, as ``opencil report --out`` writes them; here or below
        plugins/margin.py    text of each plugin behind the rows
        scores/              optional: scores of each run and step
        README.md            dataset card
        SHA256SUMS           checksums of all of these but the card
"""

import os
import re
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import Field
from typing_extensions import TypedDict  # as pydantic needs it before Python 3.12

from opencil._version import __version__
from opencil.data.roles import ALL, OOD_ROLES
from opencil.errors import BadInput, OpenCILError
from opencil.files import checksum, damaged, read_bytes, read_json, write_bytes, write_json, write_text
from opencil.plugins import list_imported
from opencil.report.averages import average_datasets, average_steps
from opencil.runs.reading import place_name, read_study
from opencil.runs.state import open_run
from opencil.runs.store import digest_values, find_runs
from opencil.study.records import IDENTITY, RunRecord, find_unshowable, identity, name_of
from opencil.study.study import ROWS, RUNS, Study, write_study
from opencil.submissions.card import dataset_card
from opencil.submissions.scores import recompute, store_scores
from opencil.submissions.track import find_departures
from opencil.validation import build

#: Version of the layout. Other versions are refused.
SCHEMA = 1
DESCRIPTION, SUMS = "submission.json", "SHA256SUMS"
_COVERED = (DESCRIPTION, f"**/{ROWS}", f"**/{RUNS}", "plugins/*", "scores/**/*.safetensors")
#: The metrics whose means over sets and steps a submission states.
_MEANS = ("accuracy", "auc", "fpr")
_MOST_BYTES = 2**30  # of a file: a submission may be anyone's
_ROW = ["step", "ood", "distance", "task", "metric"]
_NAME = r"^\w[\w .@+-]{0,59}$"


class Description(TypedDict):
    """The content of ``submission.json``."""

    schema: int
    opencil: str
    submitter: Annotated[str, Field(pattern=_NAME)]
    date: str
    tier: Literal["rows only", "recomputable"]
    other_data: list[str]  #: sets whose images are not the track's
    plugins: dict[str, str]  #: checksum of the text of each file in plugins/
    runs: dict[str, dict[str, Any]]


def describe_run(run: RunRecord, rows: pd.DataFrame) -> dict[str, Any]:
    """Return what a submission states of a run, all of it from its record and rows."""
    means = average_steps(average_datasets(rows[rows["metric"].isin(_MEANS)]))
    means = means[means["place"].isin(["", *OOD_ROLES, ALL])]
    figures: dict[str, dict[str, float]] = {}
    for name, metric, place, value in means[["detector", "metric", "place", "value"]].to_numpy().tolist():
        figures.setdefault(name, {})[f"{metric} {place}".strip()] = round(value, 6)
    made, config = run.get("made", []), run["config"]
    values = {key: value for key, value in config.items() if key not in ("place", "plugins")}
    return {
        "class_order": config["seed"]["class_order"],
        "seeds": config["seed"],
        "config": digest_values(values),
        "plugins": {
            Path(name).name: note for maker in made for name, note in maker.get("plugins", {}).items()
        },
        "source": sorted({maker["source"] for maker in made}),
        "device": sorted({f"{maker['device']} ({maker['precision']})" for maker in made}),
        "made": [min(m["first"] for m in made), max(m["last"] for m in made)] if made else [],
        "seconds": round(sum(sum(step.values()) for step in run["seconds"]), 1),
        "images": run.get("images", ""),
        "data": {f"{d['name']} {d['split']}": d.get("digest", "") for d in run["data"]},
        "means": figures,
        "rows": {str(name): _digest_rows(part) for name, part in rows.groupby("detector")},
    }


def _digest_rows(rows: pd.DataFrame) -> str:
    keys = rows[_ROW[0]].astype(str).str.cat(rows[_ROW[1:]].astype(str), sep="|")
    values = rows["value"].to_numpy("<f8").tobytes()
    return checksum("\n".join(keys).encode() + values)


def describe(study: Study) -> dict[str, dict[str, Any]]:
    """Return what a submission states of each of its runs."""
    parts = dict(iter(study.rows.groupby(list(IDENTITY), sort=False)))
    none = study.rows.iloc[:0]
    return {name_of(*identity(run)): describe_run(run, parts.get(identity(run), none)) for run in study.runs}


def select(study: Study, runs: dict[str, Collection[str]]) -> Study:
    """Return the part of a study with some runs and detectors, by the runs' names."""
    records = [run for run in study.runs if name_of(*identity(run)) in runs]
    wanted = {(*identity(run), name) for run in records for name in ["", *runs[name_of(*identity(run))]]}
    keys = pd.MultiIndex.from_frame(study.rows[[*IDENTITY, "detector"]])
    chosen = [
        run | {"detectors": {n: s for n, s in run["detectors"].items() if n in runs[name_of(*identity(run))]}}
        for run in records
    ]
    return replace(study, rows=study.rows[keys.isin(wanted)], runs=chosen)


def finished(study: Study) -> dict[str, Collection[str]]:
    """Return the finished runs of a study by name, each with its finished detectors."""
    done = [run for run in study.runs if run["trained"] == run["steps"]]
    return {
        name_of(*identity(run)): [n for n, steps in run["detectors"].items() if steps == run["steps"]]
        for run in done
    }


def write_submission(
    sources: Sequence[Path],
    folder: Path,
    submitter: str,
    *,
    only_finished: bool = False,
    other_data: Collection[str] = (),
    with_scores: bool = False,
    data_root: str | None = None,
    device: str = "cpu",
) -> Iterator[str]:
    """Write runs, or published rows, as a submission; yield sentences on the progress.

    Nothing is written unless all runs are as their track asks. Rows that lie in ``folder`` stay as they are.
    """
    if not re.fullmatch(_NAME, submitter):
        raise BadInput(
            f"submitter {submitter!r} is no name for a board: letters, digits, spaces and .@+-, at most 60, "
            "are expected, with a letter or digit first"
        )
    in_place = [*sources] == [folder]
    if in_place and (with_scores or any(find_runs(folder))):
        asked = "scores need models, and published rows have none" if with_scores else f"{folder} has runs"
        raise BadInput(f"{asked}: name the folder of runs, and another for the submission")
    study = read_study(*sources)
    if not in_place and folder.exists() and any(folder.iterdir()):
        raise BadInput(f"{folder} is not empty: name another folder for the submission")
    if only_finished:
        study = select(study, finished(study))
    departures = [*study.problems, *find_departures(study, other_data)]
    if departures or not study.runs:
        lines = _join_runs(departures) or ["there is no finished run"]
        hint = "--only-finished leaves unfinished runs out, --other-data says which sets have other images"
        raise BadInput("\n  ".join(["these runs cannot be submitted:", *lines, hint]))
    described = describe(study)
    if unknown := _find_unknown(other_data, described):
        raise BadInput(f"{unknown} is no set of these runs: --other-data takes sets of theirs")
    texts = dict(_plugin_texts({k: v for run in described.values() for k, v in run["plugins"].items()}))
    content = Description(
        schema=SCHEMA,
        opencil=__version__,
        submitter=submitter,
        date=datetime.now(UTC).date().isoformat(),
        tier="recomputable" if with_scores else "rows only",
        other_data=sorted(other_data),
        plugins={file: checksum(text) for file, text in texts.items()},
        runs=described,
    )
    build(Description, content, DESCRIPTION)
    if with_scores:
        try:
            yield from _add_scores(study, sources, folder, data_root, device)
        except BaseException:
            shutil.rmtree(folder / "scores", ignore_errors=True)
            raise
    if not in_place:
        write_study(study, folder)
    for file, text in texts.items():
        write_bytes(folder / "plugins" / file, text)
    write_json(folder / DESCRIPTION, dict(content))
    if not (folder / "README.md").exists():
        write_text(folder / "README.md", dataset_card(study, f"{submitter}'s results"))
    seal(folder)
    yield f"{len(study.runs)} runs, {len(study.rows):,} rows: {folder}"


def _find_unknown(other_data: Collection[str], described: dict[str, dict[str, Any]]) -> str:
    """Return the first set that is said to have other images and that no run has, or ''."""
    sets = {key.rpartition(" ")[0] for run in described.values() for key in run.get("data", {})}
    return next((name for name in sorted(other_data) if name not in sets), "")


def _join_runs(departures: Sequence[str]) -> list[str]:
    """Return a line for each way to depart from a track, with the first of the runs that do."""
    runs: dict[str, list[str]] = {}
    for name, _, reason in (text.partition(": ") for text in departures):
        runs.setdefault(reason, []).append(name)
    more = {reason: f" and {len(names) - 1} more" * (len(names) > 1) for reason, names in runs.items()}
    return [f"{names[0]}{more[reason]}: {reason}" for reason, names in runs.items()]


def _add_scores(
    study: Study, sources: Sequence[Path], folder: Path, data_root: str | None, device: str
) -> Iterator[str]:
    """Write the scores of all runs, which must lead to their rows; yield sentences on the progress."""
    paths = {place_name(run.path.resolve()): run.path for source in sources for run in find_runs(source)}
    for record in study.runs:
        name = name_of(*identity(record))
        if name not in paths:
            raise BadInput(f"scores need the models of {name}: name the folder of runs, not published rows")
        run = open_run(paths[name], data_root, device)
        for number in store_scores(folder, run, record):
            yield f"{name}: scores of step {number} of {record['steps']}"
        if problems := recompute(folder, record, rows_of(study, record)).problems:
            hint = "compute them on the device that made the rows, or submit rows alone"
            raise OpenCILError("\n  ".join([f"{name}: {hint}", *problems]))


def rows_of(study: Study, run: RunRecord) -> pd.DataFrame:
    """Return the rows of a run."""
    rows = study.rows
    for column, value in zip(IDENTITY, identity(run), strict=True):
        rows = rows[rows[column] == value]
    return rows


def _plugin_texts(noted: dict[str, str]) -> Iterator[tuple[str, bytes]]:
    """Yield name and text of each plugin behind some rows, which must be the text that made them."""
    here = {Path(plugin.name).name: plugin for plugin in list_imported()}
    for name, sha256 in noted.items():
        if name not in here:
            raise BadInput(f"plugin {name} is behind some rows: give it with --plugin, its text is submitted")
        text = Path(here[name].module.__file__ or "").read_bytes()
        if checksum(text) != sha256:
            raise BadInput(f"plugin {name} has changed since the rows were made: restore its text")
        yield (name if name.endswith(".py") else f"{name}.py"), text


# --- reading ---------------------------------------------------------------------------------------


def covered(folder: Path) -> list[Path]:
    """Return the files of a submission that its checksums cover."""
    found = {path for pattern in _COVERED for path in folder.glob(pattern) if path.is_file()}
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def seal(folder: Path) -> None:
    """Write ``SHA256SUMS``, which ``sha256sum --check`` understands."""
    lines = [
        f"{checksum(path.read_bytes())}  {path.relative_to(folder).as_posix()}" for path in covered(folder)
    ]
    write_text(folder / SUMS, "\n".join([*lines, ""]))


def find_links(folder: Path) -> list[str]:
    """Return the links below a folder, to files and to folders; none is followed."""
    below = [Path(place, name) for place, *names in os.walk(folder) for name in [*names[0], *names[1]]]
    return sorted(path.relative_to(folder).as_posix() for path in below if path.is_symlink())


def compare_checksums(folder: Path) -> Iterator[str]:
    """Yield the files of a submission that are missing, unlisted or changed; refuse links below it."""
    if links := find_links(folder):
        raise BadInput(f"{links[0]} is a link: a submission has plain files")
    listed = dict(line.split("  ", 1)[::-1] for line in _read_lines(folder / SUMS) if "  " in line)
    there = {path.relative_to(folder).as_posix(): path for path in covered(folder)}
    for name in sorted(listed.keys() | there.keys()):
        if name not in there:
            yield f"{name} is missing, and {SUMS} lists it"
        elif name not in listed:
            yield f"{name} is there, and {SUMS} does not list it"
        elif checksum(read_bytes(there[name], most=_MOST_BYTES)) != listed[name]:
            yield f"{name} has another checksum than in {SUMS}"


def _read_lines(path: Path) -> list[str]:
    return read_bytes(path, most=_MOST_BYTES).decode(errors="replace").splitlines()


def read_description(folder: Path) -> Description:
    """Read ``submission.json``, which may be anyone's."""
    path = folder / DESCRIPTION
    content = read_json(path)
    if content.get("schema") != SCHEMA:
        raise damaged(path, f"it is not of schema {SCHEMA}")
    if problem := find_unshowable(content):
        raise damaged(path, problem)
    stated = build(Description, content, DESCRIPTION)
    try:
        day = date.fromisoformat(stated["date"])
    except ValueError:
        day = date.max
    # Clocks differ by time zone and a little.
    if day.isoformat() != stated["date"] or day > datetime.now(UTC).date() + timedelta(days=1):
        raise damaged(path, f"date {stated['date']!r} is no day until today, such as 2026-01-31")
    if unknown := _find_unknown(stated["other_data"], stated["runs"]):
        raise damaged(path, f"other_data {unknown!r} is no set of its runs")
    return stated
