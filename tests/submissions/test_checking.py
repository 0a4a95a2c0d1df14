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
from opencil.errors import BadInput, OpenCILError
from opencil.runs.reading import read_study
from opencil.study.study import Study, write_study
from opencil.submissions import checking, scores
from opencil.submissions.checking import check_submission, check_submissions
from opencil.submissions.submission import describe, seal, write_submission
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


def edit_mean(folder: Path) -> None:
    edit_json(folder / "submission.json", lambda d: d["runs"][RUN]["means"]["msp"].update({"auc all": 0.99}))


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
    "an edited mean": (edit_mean, "submission.json", "means.msp.auc all = 0.99"),
}
#: What only contradicts the description disappears with a new one.
DESCRIBED = {"an edited digest", "an edited mean"}


def test_a_whole_submission_has_its_tier_and_no_problems(submitted: Path) -> None:
    found = check_submission(submitted)
    assert found.problems == []
    assert found.tier == "recomputable"
    rows = read_study(submitted).rows
    beyond = rows["metric"].isin(["accuracy_nearest_mean", "model_bytes", "memory_bytes"])
    assert f"{int((~beyond).sum()):,} of {len(rows):,} values" in found.notes[-1]
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


@pytest.mark.parametrize("name", sorted(MANIPULATIONS.keys() - DESCRIBED))
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
        {name: tensor[:50] if name.startswith("corrupted/") else tensor for name, tensor in whole.items()},
        {name: tensor[:50] if name.startswith("future/") else tensor for name, tensor in whole.items()},
        {
            name: tensor * torch.nan if name == "noise/scores/msp" else tensor
            for name, tensor in whole.items()
        },
    ):
        save_file(changed, path)
        seal(submitted)
        assert any("step 2" in problem for problem in check_submission(submitted).problems)


def test_test_images_that_a_detector_was_set_up_on_are_left_out_again(
    tmp_path: Path, tiny: Callable[..., Any]
) -> None:
    for _ in opencil.execute(tiny(tmp_path / "runs", detector="klm@released")):
        pass
    folder = tmp_path / "ada"
    assert list(write_submission([tmp_path / "runs"], folder, "Ada", with_scores=True))
    assert check_submission(folder).problems == []
    path = folder / "scores" / RUN / "step02.safetensors"
    tensors = load_file(path)
    assert 0 < (~tensors["/scored/klm@released"]).sum() <= 20
    tensors["/scored/klm@released"][:] = False
    save_file(tensors, path)
    seal(folder)
    assert any("klm@released leaves out" in problem for problem in check_submission(folder).problems)


MARGIN = """
import dataclasses, opencil

@opencil.register_detector("margin")
@dataclasses.dataclass
class Margin(opencil.LogitDetector):
    \"\"\"Difference of the two largest logits.\"\"\"

    def scores(self, outputs):
        first, second = outputs.logits.topk(2, dim=1).values.T
        return first - second
"""


def test_the_text_of_a_plugin_is_submitted_and_compared(tmp_path: Path, tiny: Callable[..., Any]) -> None:
    file = tmp_path / "margin.py"
    file.write_text(MARGIN, encoding="utf-8")
    opencil.load_plugin(str(file))
    for _ in opencil.execute(tiny(tmp_path / "runs", detector="margin")):
        pass
    file.write_text(MARGIN + "# changed", encoding="utf-8")
    with pytest.raises(BadInput, match="has changed"):
        list(write_submission([tmp_path / "runs"], tmp_path / "ada", "Ada"))
    file.write_text(MARGIN, encoding="utf-8")
    assert list(write_submission([tmp_path / "runs"], tmp_path / "ada", "Ada"))
    text = tmp_path / "ada/plugins/margin.py"
    assert text.read_text(encoding="utf-8") == MARGIN
    assert check_submission(tmp_path / "ada").problems == []
    text.write_text("raise SystemExit(9)", encoding="utf-8")  # not run by the check
    seal(tmp_path / "ada")
    assert any("plugins/margin.py" in problem for problem in check_submission(tmp_path / "ada").problems)


def test_other_images_than_those_of_another_submission_are_noted(submitted: Path) -> None:
    other = Path(shutil.copytree(submitted, submitted.with_name("bob")))

    def change(content: dict[str, Any]) -> None:
        content["runs"][0]["data"][-1]["digest"] = "0" * 64

    edit_json(other / "runs.json", change)
    edit_json(
        other / "submission.json", lambda d: d.update(submitter="Bob", runs=describe(read_study(other)))
    )
    seal(other)
    first, second = check_submissions([submitted, other])
    assert not [note for note in first.notes if "other images" in note]
    assert [note for note in second.notes if "other images than those of Ada" in note]


def test_scores_that_do_not_lead_to_the_rows_are_refused_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, submitted: Path, finished: Path
) -> None:
    with pytest.raises(BadInput, match="published rows"):
        list(write_submission([submitted], tmp_path / "new", "Ada", with_scores=True))
    monkeypatch.setattr(scores, "TOLERANCE", -1.0)
    with pytest.raises(OpenCILError, match="not those of its scores"):
        list(write_submission([finished], tmp_path / "new", "Ada", with_scores=True))
    assert not any((tmp_path / "new").iterdir())


def test_a_refused_submission_in_place_leaves_all_files_as_they_were(submitted: Path, finished: Path) -> None:
    for folder, name, asked in (
        (submitted, "Ada", True),
        (submitted, "Ada <ada@example.org>", False),
        (finished, "Ada", False),
    ):
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        with pytest.raises(BadInput, match=r"name the folder of runs|letters, digits, spaces and \.@"):
            list(write_submission([folder], folder, name, with_scores=asked))
        assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert check_submission(submitted).tier == "recomputable"


@pytest.mark.parametrize("day", ["<b>2026-01-01</b>", "20260101", "2999-01-01", ""])
def test_a_date_is_a_day_until_today(submitted: Path, day: str) -> None:
    edit_json(submitted / "submission.json", lambda content: content.update(date=day))
    seal(submitted)
    (problem,) = check_submission(submitted).problems
    assert "no day until today" in problem


def test_links_in_a_submission_are_refused_and_not_followed(submitted: Path) -> None:
    shutil.move(submitted / "scores", outside := submitted.parent / "outside")
    (submitted / "scores").symlink_to(outside, target_is_directory=True)
    seal(submitted)
    assert check_submission(submitted).problems == ["scores is a link: a submission has plain files"]


def test_other_images_are_of_sets_that_the_runs_have(submitted: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="ghosts is no set"):
        list(write_submission([submitted], tmp_path / "new", "Ada", other_data=["noise", "ghosts"]))
    edit_json(submitted / "submission.json", lambda content: content.update(other_data=["ghosts"]))
    seal(submitted)
    (problem,) = check_submission(submitted).problems
    assert "'ghosts' is no set" in problem


def test_what_departs_from_the_track_is_listed_once_and_nothing_is_written(
    tmp_path: Path, tiny: Callable[..., Any]
) -> None:
    for _ in opencil.execute(tiny(tmp_path / "runs", "benchmark.memory=8", seed=[1, 2], detector="msp")):
        pass
    shutil.rmtree(tmp_path / "runs/digits/k2/icarl/seed2/step04")
    with pytest.raises(BadInput) as refused:
        list(write_submission([tmp_path / "runs"], tmp_path / "new", "Ada"))
    lines = str(refused.value).splitlines()
    assert any("its seeds are [1, 2], and the track asks for 0, 1" in line for line in lines)
    assert sum("benchmark.memory is 8" in line for line in lines) == 1
    assert any("seed2: unfinished, with 3 of 4 steps: training, msp" in line for line in lines)
    assert not (tmp_path / "new").exists()


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
    assert check_submission(submitted.parent / "nowhere").problems == [
        "SHA256SUMS cannot be used (it is missing)"
    ]


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


def described(folder: Path, **values: Any) -> Path:
    """Write a submission's description and checksums anew."""
    runs = describe(read_study(folder))
    edit_json(folder / "submission.json", lambda d: d.update(runs=runs, **values))
    seal(folder)
    return folder


def made_again(submitted: Path, name: str, *, first: str = "2040", last: str = "2041") -> Path:
    """Copy a submission as another submitter's, of a time, with a score of the last step changed."""
    folder = Path(shutil.copytree(submitted, submitted.with_name(name)))
    path = folder / "scores" / RUN / "step04.safetensors"
    tensors = load_file(path)
    tensors["noise/scores/msp"][0] += 0.5
    save_file(tensors, path)
    study = read_study(folder)
    (run,) = study.runs
    run["made"][0].update(first=f"{first}-01-01T00:00:00+00:00", last=f"{last}-01-01T00:00:00+00:00")
    wanted = study.rows.query("detector == 'msp'")["metric"].unique().tolist()
    again = {
        key: value
        for *key_, value in scores._measure_step(tensors, run, 4, {"msp": wanted})
        for key in [tuple(key_)]
    }
    rows = study.rows.copy()
    keys = rows[["detector", "ood", "task", "metric"]].itertuples(index=False, name=None)
    rows["value"] = [
        again.get(key, value) if step == 4 and key[0] == "msp" else value
        for key, step, value in zip(keys, rows["step"], rows["value"], strict=True)
    ]
    write_study(with_rows(study, rows), folder)
    return described(folder, submitter=name.title())


def test_later_rows_that_can_be_computed_again_reproduce_a_submission(submitted: Path) -> None:
    other = made_again(submitted, "bob")
    first, second = check_submissions([submitted, other])
    assert first.problems == second.problems == []
    assert (first.tier, second.tier) == ("reproduced", "recomputable")
    assert any("reproduced by Bob" in note for note in first.notes)
    assert any("reproduction of Ada" in note for note in second.notes)
    shutil.rmtree(other / "scores")
    described(other, tier="rows only")
    first, second = check_submissions([submitted, other])
    assert (first.tier, second.tier) == ("recomputable", "rows only")
    assert any("reproduction of Ada" in note for note in second.notes)
    described(other, submitter="Ada")
    assert not [
        note for one in check_submissions([submitted, other]) for note in one.notes if "reprod" in note
    ]


def test_a_copy_and_rows_of_the_same_time_or_other_configs_reproduce_nothing(submitted: Path) -> None:
    copy = described(Path(shutil.copytree(submitted, submitted.with_name("eve"))), submitter="Eve")
    overlapping = made_again(submitted, "bob", first="2020")
    other = made_again(submitted, "cyd")
    edit_json(other / "runs.json", lambda d: d["runs"][0]["config"]["cil"]["icarl"].update(temperature=3.0))
    described(other)
    for folder in (copy, overlapping, other):
        found = check_submissions([submitted, folder])
        assert {one.tier for one in found} == {"recomputable"}, folder
        assert not [note for one in found for note in one.notes if "reproduc" in note and "copy" not in note]
    assert any("the same values as Ada" in note for note in check_submissions([submitted, copy])[1].notes)


def add_rows(study: Study, **values: str) -> Study:
    rows = study.rows
    more = rows[(rows["metric"] == "oscr") & (rows["ood"] == "noise")].assign(**values)
    return with_rows(study, pd.concat([rows, more], ignore_index=True))


def fewer_images(study: Study) -> Study:
    study.runs[0]["data"][4].update(images=400, paper=400)
    return study


def other_shift(study: Study) -> Study:
    study.runs[0]["config"]["benchmark"]["shifted"] = {}
    return with_rows(study, study.rows[~study.rows["metric"].str.contains("shifted|full")])


def name_method(study: Study) -> Study:
    config = study.runs[0]["config"]
    config["cil"] = {"wa (Eve)": config["cil"]["icarl"]}
    return replace(study, rows=study.rows.assign(cil="wa (Eve)"), runs=[study.runs[0] | {"cil": "wa (Eve)"}])


def drop_cil(study: Study) -> Study:
    study.runs[0]["config"]["cil"] = {}
    return study


#: What a submitter can change, with words that name it, though description, rows and checksums agree.
DISGUISED: dict[str, tuple[Callable[[Study], Study], str]] = {
    "fewer images": (fewer_images, "noise test has 400 images, and the track's 500"),
    "no shifted set": (other_shift, "benchmark.shifted.corrupted is not the track's"),
    "no shifted rows": (
        lambda s: with_rows(s, s.rows[~s.rows["metric"].str.contains("shifted|full")]),
        "no rows of accuracy_shifted on corrupted",
    ),
    "no rows of tasks": (
        lambda s: with_rows(s, s.rows[(s.rows["task"] != 2) | (s.rows["metric"] != "auc_task")]),
        "step 3 of msp has no rows of auc_task on digits-held-out",
    ),
    "a metric of one detector": (
        lambda s: with_rows(s, s.rows[(s.rows["detector"] != "msp") | (s.rows["metric"] != "oscr")]),
        "of msp has no rows of oscr",
    ),
    "an unknown metric": (lambda s: add_rows(s, metric="superscore"), "unexpected rows of superscore"),
    "an unknown set": (lambda s: add_rows(s, ood="easy"), "unexpected rows of oscr on easy"),
    "a name for boards": (name_method, "'wa (Eve)' has a parenthesis"),
    "no values of the method": (drop_cil, "cil is ['icarl'] in the record and [] in the config"),
}


@pytest.mark.parametrize("name", DISGUISED)
def test_a_track_is_not_what_a_submission_says(submitted: Path, name: str) -> None:
    change, words = DISGUISED[name]
    shutil.rmtree(submitted / "scores")
    write_study(change(read_study(submitted)), submitted)
    described(submitted, tier="rows only")
    problems = check_submission(submitted).problems
    assert any(words in problem for problem in problems), problems


def test_a_metric_that_all_runs_lack_is_noted(submitted: Path) -> None:
    study = read_study(submitted)
    write_study(with_rows(study, study.rows[study.rows["metric"] != "oscr"]), submitted)
    found = check_submission(described(submitted))
    assert found.problems == []
    assert "none of its runs has rows of oscr" in found.notes


def test_only_published_rows_are_read_and_all_of_them_are_named(submitted: Path) -> None:
    edit_json(submitted / "submission.json", lambda d: d["runs"][RUN]["rows"].pop("msp"))
    seal(submitted)
    problems = check_submission(submitted).problems
    assert any("leaves out msp, which is finished" in one for one in problems)
    edit_json(submitted / "submission.json", lambda d: d.update(runs={}))
    seal(submitted)
    found = check_submission(submitted)
    assert {"submission.json names no run", "not one of its values follows from its scores"} <= {
        *found.problems
    }
    assert found.tier == "rows only"
    (submitted / "runs").mkdir()
    (submitted / "runs/config.yml").touch()
    assert any("runs is a folder of a run" in one for one in check_submission(submitted).problems)


def test_images_left_out_by_another_detector_or_draw_are_named(submitted: Path) -> None:
    path = submitted / "scores" / RUN / "step02.safetensors"
    tensors = load_file(path)
    scored = torch.ones(len(tensors["/labels"]), dtype=torch.bool)
    scored[(tensors["/labels"] == 3).nonzero()[:10]] = False
    save_file({**tensors, "/scored/msp": scored}, path)
    seal(submitted)
    assert any("msp leaves out other test images" in one for one in check_submission(submitted).problems)


def test_the_board_names_submitters_where_runs_are_there_twice(submitted: Path) -> None:
    copy = Path(shutil.copytree(submitted, submitted.with_name("copy")))
    edit_json(copy / "submission.json", lambda d: d.update(submitter="Bob"))
    seal(copy)
    study, table = checking.board(check_submissions([submitted, copy]))
    assert {run["cil"] for run in study.runs} == {*study.rows["cil"].unique()} == {"icarl", "icarl (Bob)"}
    assert [line[0].text for line in table.lines] == ["Ada", "Bob"]
    study, _ = checking.board(check_submissions([submitted]) * 3)
    assert {run["cil"] for run in study.runs} == {"icarl", "icarl (Ada)", "icarl (Ada 2)"}


def test_the_description_is_json_that_says_who_and_what(submitted: Path) -> None:
    content = json.loads((submitted / "submission.json").read_text())
    run = content["runs"][RUN]
    assert {"schema", "submitter", "date", "tier", "opencil", "plugins", "runs"} <= content.keys()
    assert {"source", "device", "seconds", "data", "images", "class_order", "seeds", "config"} <= run.keys()
    assert all(len(digest) == 64 for digest in run["data"].values())
    assert len(run["data"]) == 6
