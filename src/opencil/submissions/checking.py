"""Check submissions from their files alone: no images, no models, and nothing in them is run."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any, Literal

from opencil.errors import BadInput, OpenCILError
from opencil.evaluation.metric import table_metrics
from opencil.files import Damaged, checksum, read_bytes
from opencil.report.averages import RUN, average_datasets, average_steps
from opencil.report.layout import Block, Cell, Column, Table, words
from opencil.runs.spec import training_values
from opencil.study.records import IDENTITY, RunRecord, identity, name_of
from opencil.study.study import Study, published_below, read_published, together
from opencil.submissions.scores import TOLERANCE, recompute
from opencil.submissions.submission import (
    Description,
    compare_checksums,
    describe,
    finished,
    read_description,
    rows_of,
    select,
)
from opencil.submissions.track import find_departures, find_unmeasured
from opencil.validation import flat

#: Largest difference of a mean, in percent points, between a submission and one that reproduces it.
AGREEMENT = 3.0
Tier = Literal["rows only", "recomputable", "reproduced"]


@dataclass
class Checked:
    """A submission with its tier, what contradicts itself in it, and what is good to know."""

    folder: Path
    description: Description | None = None
    study: Study = field(default_factory=Study)
    tier: Tier = "rows only"
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check_submissions(folders: Sequence[Path]) -> list[Checked]:
    """Check submissions one by one, and name those that another submitter's rows reproduce."""
    found = [check_submission(folder) for folder in folders]
    first: dict[str, tuple[set[str], str]] = {}
    for one in found:
        if one.description is None or one.problems:
            continue
        who = one.description["submitter"]
        for images, digests in _digests(one.description["runs"]).items():
            others, whose = first.setdefault(images, (digests, who)) if digests else (digests, who)
            if others != digests:
                one.notes.append(f"{images}: other images than those of {whose}")
    for one in found:
        for other in found:
            if not one.problems and not other.problems:
                _compare(one, other)
    return found


def check_submission(folder: Path) -> Checked:
    """Compute again all that follows from a submission's rows and scores, and compare."""
    found = Checked(folder)
    try:
        found.problems += compare_checksums(folder)
        found.description = stated = read_description(folder)
        study = _read_published(found)
        found.problems += study.problems
        there = {name_of(*identity(run)) for run in study.runs}
        if lacking := sorted(stated["runs"].keys() - there):
            others = sorted(there - stated["runs"].keys()) or ["none"]
            found.problems.append(
                f"there are no records of {', '.join(lacking)}; not submitted are {', '.join(others)}"
            )
            found.problems += find_departures(study, stated["other_data"])
        _compare_runs(found, study, stated)
        found.study = select(study, {name: run["rows"] for name, run in stated["runs"].items()})
        _compare_description(found, stated)
        found.problems += find_departures(found.study, stated["other_data"])
        if unmeasured := find_unmeasured(found.study):
            found.notes.append(f"none of its runs has rows of {', '.join(unmeasured)}")
        _compare_scores(found, stated)
    except Damaged as error:  # without the advice to run again
        file = Path(str(error).partition(" cannot be used")[0]).name
        found.problems.append(f"{file} cannot be used ({error.reason})")
    except OpenCILError as error:
        found.problems.append(str(error))
    except Exception as error:  # a file may be anyone's; the other submissions are checked all the same
        found.problems.append(f"its files are not as 'opencil submit' writes them ({error!r})")
    return found


def _read_published(found: Checked) -> Study:
    """Read the published rows of a submission, which are what its checksums cover; name anything else."""
    folder = found.folder
    strange = {
        p.parent for name in ("config.yml", "environment.json", "step.json") for p in folder.rglob(name)
    }
    for name in sorted(path.relative_to(folder).as_posix() for path in strange):
        found.problems.append(f"{name} is a folder of a run: a submission has published rows")
    if not (places := published_below(folder)):
        raise BadInput("there are no published rows: 'opencil submit' writes rows.parquet and runs.json")
    shares = ["accuracy", *table_metrics("all", "near-far", "extra")]
    return together([read_published(place, shares) for place in places])


def _compare_runs(found: Checked, study: Study, stated: Description) -> None:
    """Name finished runs and detectors that the description leaves out, and times that cannot be."""
    if not stated["runs"]:
        found.problems.append("submission.json names no run")
    done, named = finished(study), stated["runs"]
    for run in study.runs:
        name = name_of(*identity(run))
        if name not in done:
            if name not in named:
                found.notes.append(f"{name} is unfinished, and not submitted")
            continue
        rows = named[name]["rows"] if name in named else {}
        if left_out := sorted({*done[name]} - rows.keys()) if name in named else ["the run"]:
            found.problems.append(
                f"{name}: submission.json leaves out {', '.join(left_out)}, which is finished"
            )
        for maker in run.get("made", ()):
            first, last = map(datetime.fromisoformat, (maker["first"], maker["last"]))
            if first.tzinfo is None or last.tzinfo is None or first > last:
                found.problems.append(f"{name}: its rows cannot be made from {first} to {last}")


def _compare_description(found: Checked, stated: Description) -> None:
    """Note what the description states otherwise than the rows and records say, by key."""
    described = describe(found.study)
    then, now = flat({name: stated["runs"][name] for name in described}), flat(described)
    found.problems += [
        f"submission.json says {key} = {_shorten(then.get(key, 'nothing'))}, its rows and records say "
        f"{_shorten(now.get(key, 'nothing'))}"
        for key in sorted(then.keys() | now.keys())
        if then.get(key, ...) != now.get(key, ...)
    ]
    for file, sha256 in stated["plugins"].items():
        if Path(file).name != file or checksum(read_bytes(found.folder / "plugins" / file)) != sha256:
            found.problems.append(f"plugins/{file} is not the text that submission.json names")
    texts = {sha256 for run in described.values() for sha256 in run["plugins"].values()}
    if lacking := texts - {*stated["plugins"].values()}:
        found.problems.append(
            f"there is no text of the plugin behind some rows, {', '.join(sorted(lacking))}"
        )
    read = {split["name"] for run in found.study.runs for split in run["data"]}
    if strange := sorted({*stated["other_data"]} - read):
        found.problems.append(f"other_data names {', '.join(strange)}, which no run read")
    if stated["other_data"]:
        found.notes.append(f"its images are not the track's: {', '.join(stated['other_data'])}")
    sources = sorted({source for run in described.values() for source in run["source"]})
    if len(sources) > 1:
        found.notes.append(
            f"its rows were made by {len(sources)} versions of the source: {', '.join(sources)}"
        )
    digests = _digests(described)
    found.problems += [
        f"{key}: runs have other images" for key, several in digests.items() if len(several) > 1
    ]
    if unknown := sorted(key for key, several in digests.items() if not several):
        found.notes.append(f"its records have no checksum of {len(unknown)} sets of images")


def _shorten(value: object) -> str:
    """Return a value as text, of a checksum its beginning."""
    text = str(value)
    return f"{text[:12]}…" if len(text) == 64 else text


def _digests(described: dict[str, dict[str, Any]]) -> dict[str, set[str]]:
    """Return the known checksums of each set of images, by benchmark and set."""
    digests: dict[str, set[str]] = {}
    for name, run in described.items():
        benchmark = name.partition("/")[0]
        of_sets = {f"{benchmark}, {key}": digest for key, digest in run["data"].items()}
        for key, digest in {f"{benchmark}, images to train": run["images"], **of_sets}.items():
            digests.setdefault(key, set()).update({digest} - {""})
    return digests


def _compare_scores(found: Checked, stated: Description) -> None:
    """Compute the rows again where there are scores; all runs need them for the tier."""
    if stated["tier"] != "recomputable":
        return
    compared = rows = 0
    for run in found.study.runs:
        again = recompute(found.folder, run, rows_of(found.study, run))
        found.problems += [f"{name_of(*identity(run))}: {problem}" for problem in again.problems]
        compared, rows = compared + again.compared, rows + again.rows
    if not compared:
        found.problems.append("not one of its values follows from its scores")
        return
    found.tier = "recomputable"
    found.notes.append(f"{compared:,} of {rows:,} values follow from its scores, and were computed again")


def _compare(one: Checked, other: Checked) -> None:
    """Note that another submitter's later rows, of the same configs, agree with those of ``one``."""
    first, second = one.description, other.description
    if not first or not second or first["submitter"] == second["submitter"]:
        return
    theirs, later = {identity(run): run for run in other.study.runs}, True
    for run in one.study.runs:
        again = theirs.get(identity(run))
        if again is None:
            return
        detectors = [
            [each["config"]["detector"].get(name) for name in run["detectors"]] for each in (run, again)
        ]
        values = [training_values(each["config"]) for each in (run, again)]
        if detectors[0] != detectors[1] or values[0] != values[1]:
            return
        later &= _made(run)[1] < _made(again)[0]
    rows = [each.study.rows[each.study.rows["metric"].isin(["accuracy", "auc"])] for each in (one, other)]
    keys = [*IDENTITY, "step", "detector", "ood", "task", "metric"]
    both = rows[0].merge(rows[1], on=keys, suffixes=("", "_again"))
    if len(both) < len(rows[0]):
        return
    if not ((both["value"] - both["value_again"]).abs() > TOLERANCE).any():
        other.notes.append(f"the same values as {first['submitter']}'s: a copy, which reproduces nothing")
        return
    means = [average_steps(average_datasets(part)) for part in rows]
    both = means[0].merge(means[1], on=[*RUN, "detector", "place", "metric"], suffixes=("", "_again"))
    largest = 100 * (both["value"] - both["value_again"]).abs().max()
    if later and len(both) == len(means[0]) and largest <= AGREEMENT:
        by = f"means differ by at most {largest:.2f} points"
        other.notes.append(f"reproduction of {first['submitter']}'s: {by}")
        if other.tier != "rows only":
            one.tier = "reproduced"
            one.notes.append(f"reproduced by {second['submitter']}: {by}")


def _made(run: RunRecord) -> tuple[datetime, datetime]:
    """Return when the first and the last row of a run were made."""
    made = run["made"]
    times = [[datetime.fromisoformat(time) for time in (maker["first"], maker["last"])] for maker in made]
    return min(times)[0], max(last for _, last in times)


def board(checked: Sequence[Checked]) -> tuple[Study, Table]:
    """Return the rows of submissions together, and a table of the submissions.

    A run that another submission has too is named with its submitter: ``icarl (Ada)``, ``icarl (Ada 2)``.
    """
    parts, taken, lines = list[Study](), set[Any](), []
    for one in checked:
        assert one.description is not None
        who, study = one.description["submitter"], one.study
        mine = {identity(run)[:3] for run in study.runs}
        renamed = dict[str, str]()
        for method in sorted({key[2] for key in mine & taken}):
            names = (f"{method} ({who}{f' {n}' * (n > 1)})" for n in count(1))
            renamed[method] = next(name for name in names if all(key[2] != name for key in taken))
        taken |= {(*key[:2], renamed.get(key[2], key[2])) for key in mine}
        runs = [run | {"cil": renamed.get(run["cil"], run["cil"])} for run in study.runs]
        names_of_rows = study.rows["cil"].replace(renamed)
        parts.append(Study(study.rows.assign(cil=names_of_rows), runs, study.left_out))
        devices = {device for run in one.description["runs"].values() for device in run["device"]}
        hours = sum(run["seconds"] for run in one.description["runs"].values()) / 3600
        tracks = {f"{benchmark} k = {k}" for benchmark, k, _, _ in map(identity, study.runs)}
        cells = [who, one.description["date"], one.tier, ", ".join(sorted(tracks))]
        shown = [*map(words, cells), Cell(len(study.runs), digits=0), Cell(hours, digits=1)]
        lines.append([*shown, words(", ".join(sorted(devices))), words("; ".join(one.notes))])
    heads = ("submitter", "date", "tier", "tracks", "runs", "hours", "device", "notes")
    columns = [Column(head, label=head not in ("runs", "hours")) for head in heads]
    note = (
        "Rows only: no scores were submitted; recomputable: the rows follow from the scores that were; "
        "reproduced: means of another submitter, made later and recomputable, differ by at most "
        f"{AGREEMENT:g} points."
    )
    return together(parts), Table("submissions", "Submissions", columns, [Block(lines)], [note])
