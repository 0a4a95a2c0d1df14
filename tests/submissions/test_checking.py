"""What contradicts itself in a submission is named, from its files alone."""

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

import opencil
from opencil.errors import OpenCILError
from opencil.runs.reading import read_study
from opencil.study.study import Study, write_study
from opencil.submissions import checking
from opencil.submissions.checking import check_submission, check_submissions
from opencil.submissions.submission import describe, seal
from tests.stored import edit_json
from tests.submissions.conftest import RUN


def edited(change: Callable[[Study], Study]) -> Callable[[Path], None]:
    """Return a manipulation of rows and records that renews their own checksums."""

    def manipulate(folder: Path) -> None:
        write_study(change(read_study(folder)), folder)

    return manipulate


def with_rows(study: Study, rows: pd.DataFrame) -> Study:
    return replace(study, rows=rows.reset_index(drop=True))


def change_value(study: Study) -> Study:
    rows = study.rows.copy()
    (at,) = rows.query("detector == 'msp' and ood == 'noise' and metric == 'auc' and step == 2").index
    rows.loc[at, "value"] += 0.001
    return with_rows(study, rows)


def change_seed(study: Study) -> Study:
    return replace(study, rows=study.rows.assign(seed=1), runs=[study.runs[0] | {"seed": 1}])


def drop_step(study: Study) -> Study:
    rows = study.rows
    return with_rows(study, rows[(rows["step"] != 3) | (rows["detector"] != "energy")])


def change_order(study: Study) -> Study:
    study.runs[0]["config"]["seed"]["class_order"] = 7
    return study


def swap_methods(study: Study) -> Study:
    return with_rows(
        study, study.rows.assign(detector=study.rows["detector"].replace({"msp": "energy", "energy": "msp"}))
    )


def take_others_rows(study: Study) -> Study:
    rows = study.rows.copy()
    chosen = (rows["detector"] == "relation") & (rows["metric"] == "auc")
    rows.loc[chosen, "value"] = np.linspace(0.6, 0.7, int(chosen.sum()))
    study.runs[0]["made"][0]["source"] = "0123456789abcdef"
    return with_rows(study, rows)


def remove_set(study: Study) -> Study:
    return with_rows(study, study.rows[study.rows["ood"] != "noise"])


def change_k(study: Study) -> Study:
    return replace(study, rows=study.rows.assign(k=4), runs=[study.runs[0] | {"k": 4}])


def round_scores(folder: Path) -> None:
    for path in folder.rglob("*.safetensors"):
        tensors = load_file(path)
        save_file({n: t.half().float() if t.is_floating_point() else t for n, t in tensors.items()}, path)


def edit_digest(folder: Path) -> None:
    edit_json(folder / "submission.json", lambda d: d["runs"][RUN]["data"].update({"noise test": "0" * 64}))


#: Each with the file it changes, and with words that name it.
MANIPULATIONS: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "a value": (edited(change_value), "rows.parquet", "rows.msp"),
    "a seed": (edited(change_seed), "rows.parquet", "seed is 1 in the record and 0 in the config"),
    "a missing step": (edited(drop_step), "rows.parquet", "step 3 of energy has no rows"),
    "another order": (edited(change_order), "runs.json", "seed.class_order is 7"),
    "a swapped method": (edited(swap_methods), "rows.parquet", "rows.energy"),
    "rows of another source": (edited(take_others_rows), "runs.json", "source"),
    "a removed set": (edited(remove_set), "rows.parquet", "auc on noise"),
    "rounded scores": (round_scores, "step01.safetensors", "not those of its scores"),
    "another k": (edited(change_k), "rows.parquet", "k is [4] in the record and [2] in the config"),
    "an edited digest": (edit_digest, "submission.json", "data.noise test"),
}


def test_a_whole_submission_has_its_tier_and_no_problems(submitted: Path) -> None:
    found = check_submission(submitted)
    assert found.problems == []
    assert found.tier == "recomputable"
    shutil.rmtree(submitted / "scores")
    edit_json(submitted / "submission.json", lambda d: d.update(tier="rows only"))
    seal(submitted)
    assert check_submission(submitted).problems == []
    assert check_submission(submitted).tier == "rows only"


@pytest.mark.parametrize("name", MANIPULATIONS)
def test_a_manipulation_is_named_by_its_file(submitted: Path, name: str) -> None:
    manipulate, file, _ = MANIPULATIONS[name]
    manipulate(submitted)
    assert any(
        file in problem and "SHA256SUMS" in problem for problem in check_submission(submitted).problems
    )


@pytest.mark.parametrize("name", MANIPULATIONS)
def test_a_manipulation_under_new_checksums_is_named_by_what_it_changes(submitted: Path, name: str) -> None:
    manipulate, _, words = MANIPULATIONS[name]
    manipulate(submitted)
    seal(submitted)
    problems = check_submission(submitted).problems
    assert any(words in problem for problem in problems), problems
    assert not any("SHA256SUMS" in problem for problem in problems)


#: Who edits a digest of images in all places leaves no trace: a rerun alone would show it.
@pytest.mark.parametrize("name", [name for name in MANIPULATIONS if name != "an edited digest"])
def test_scores_contradict_a_manipulation_that_is_described_anew(submitted: Path, name: str) -> None:
    MANIPULATIONS[name][0](submitted)
    study = read_study(submitted)
    edit_json(submitted / "submission.json", lambda d: d.update(runs=describe(study)))
    seal(submitted)
    problems = check_submission(submitted).problems
    assert problems
    assert not any("submission.json" in problem or "SHA256SUMS" in problem for problem in problems)


@pytest.mark.parametrize("edit", ["lost", "added", "linked"])
def test_files_that_the_checksums_do_not_fit_are_named(submitted: Path, edit: str) -> None:
    scores = submitted / "scores" / RUN / "step02.safetensors"
    if edit == "lost":
        scores.unlink()
    elif edit == "added":
        shutil.copy(scores, scores.with_name("step09.safetensors"))
    else:
        shutil.move(scores, submitted.parent / "elsewhere")
        scores.symlink_to(submitted.parent / "elsewhere")
    assert any(f"step0{9 if edit == 'added' else 2}" in one for one in check_submission(submitted).problems)


def test_scores_without_a_set_or_with_fewer_images_are_named(submitted: Path) -> None:
    path = submitted / "scores" / RUN / "step02.safetensors"
    whole = load_file(path)
    for changed in (
        {name: tensor for name, tensor in whole.items() if name != "noise/scores/msp"},
        {name: tensor[:50] if name.startswith("noise/") else tensor for name, tensor in whole.items()},
        {
            name: tensor * torch.nan if name == "noise/scores/msp" else tensor
            for name, tensor in whole.items()
        },
    ):
        save_file(changed, path)
        seal(submitted)
        assert any("step 2" in problem for problem in check_submission(submitted).problems)


def test_files_of_anyone_end_in_sentences(submitted: Path) -> None:
    numbers = random.Random(0)
    files = sorted(path for path in submitted.rglob("*") if path.is_file() and path.suffix != ".md")
    kept = {path: path.read_bytes() for path in files}
    for path in files:
        content = bytearray(kept[path])
        content[numbers.randrange(len(content))] ^= 1 << numbers.randrange(8)
        path.write_bytes(content)
        assert check_submission(submitted).problems, path
        seal(submitted)
        check_submission(submitted)  # the last bit of a score may be of no consequence
        for changed, before in kept.items():
            changed.write_bytes(before)
    for config in ({}, {"benchmark": {}, "seed": {}, "cil": {}}):
        study = read_study(submitted)
        study.runs[0]["config"] = config
        write_study(study, submitted)
        seal(submitted)
        assert check_submission(submitted).problems
    assert check_submission(submitted.parent / "nowhere").problems


def test_numbers_in_a_submission_decide_neither_time_nor_memory(submitted: Path) -> None:
    """Each of these would fill the memory: 10^10 rows to expect, 2^40 bytes, a table of 2^62 classes."""
    path = next(submitted.rglob("step01.safetensors"))
    tensors = load_file(path)
    save_file({**tensors, "/labels": torch.full((len(tensors["/labels"]),), 2**62)}, path)
    seal(submitted)
    assert any("more images and classes" in problem for problem in check_submission(submitted).problems)
    save_file(tensors, path)
    edit_json(submitted / "runs.json", lambda d: d["runs"][0].update(steps=100_000, trained=100_000))
    seal(submitted)
    assert any("rows of 4 of 100000 steps" in problem for problem in check_submission(submitted).problems)
    with path.open("wb") as file:
        file.truncate(2**40)  # takes no room on the disk
    assert any("larger than" in problem for problem in check_submission(submitted).problems)


def rerun(submitted: Path, runs: Path, tiny: Callable[..., Any], *settings: str) -> Path:
    from opencil.submissions.submission import write_submission

    for _ in opencil.execute(tiny(runs, *settings)):
        pass
    folder = submitted.with_name("bob")
    assert list(write_submission([runs], folder, "Bob"))
    edit_json(
        folder / "runs.json", lambda d: d["runs"][0]["made"][0].update(first="2030-01-01T00:00:00+00:00")
    )
    edit_json(folder / "submission.json", lambda d: d.update(runs=describe(read_study(folder))))
    seal(folder)
    return folder


def test_another_submitters_rows_reproduce_a_submission(
    submitted: Path, tmp_path: Path, tiny: Callable[..., Any]
) -> None:
    other = rerun(submitted, tmp_path / "again", tiny)
    first, second = check_submissions([submitted, other])
    assert (first.tier, second.tier) == ("reproduced", "reproduced")
    assert any("Bob" in note and "0.00 points" in note for note in first.notes)
    edit_json(other / "submission.json", lambda d: d.update(submitter="Ada"))
    seal(other)
    assert [one.tier for one in check_submissions([submitted, other])] == ["recomputable", "rows only"]


def test_a_copy_and_other_values_reproduce_nothing(
    submitted: Path, tmp_path: Path, tiny: Callable[..., Any]
) -> None:
    copy = Path(shutil.copytree(submitted, tmp_path / "copy"))
    edit_json(copy / "submission.json", lambda d: d.update(submitter="Bob"))
    seal(copy)
    other = rerun(submitted, tmp_path / "again", tiny, "cil.icarl.epochs=1")
    tiers = [one.tier for one in check_submissions([submitted, copy, other])]
    assert tiers == ["recomputable", "recomputable", "rows only"]


def test_the_board_names_submitters_where_runs_are_there_twice(submitted: Path) -> None:
    copy = Path(shutil.copytree(submitted, submitted.with_name("copy")))
    edit_json(copy / "submission.json", lambda d: d.update(submitter="Bob"))
    seal(copy)
    study, table = checking.board(check_submissions([submitted, copy]))
    assert {run["cil"] for run in study.runs} == {*study.rows["cil"].unique()} == {"icarl", "icarl (Bob)"}
    assert [line[0].text for line in table.lines] == ["Ada", "Bob"]
    with pytest.raises(OpenCILError):
        checking.board([*check_submissions([submitted])] * 2 + check_submissions([submitted]))


def test_the_description_is_json_that_says_who_and_what(submitted: Path) -> None:
    content = json.loads((submitted / "submission.json").read_text())
    run = content["runs"][RUN]
    assert {"schema", "submitter", "date", "tier", "opencil", "plugins", "runs"} <= content.keys()
    assert {"source", "device", "seconds", "data", "images", "class_order", "seeds", "config"} <= run.keys()
    assert all(len(digest) == 64 for digest in run["data"].values())
    assert len(run["data"]) == 6
