"""Later classes are unseen, candidates score as the library's detectors do, and nothing else chooses."""

import importlib
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
import torch

import opencil
from opencil.config import Config

SCRIPTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("later_classes")


@pytest.fixture(scope="module")
def stored(
    _finished_once: Path, tiny: Callable[..., Config], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run with a head at each step."""
    runs = Path(shutil.copytree(_finished_once, tmp_path_factory.mktemp("later") / "runs"))
    for _ in opencil.execute(tiny(runs, "detector.ber.schedule.epochs=1", detector=["ber"])):
        pass
    return runs / "digits" / "k2" / "icarl" / "seed0"


def table(**later: tuple[str, dict[str, list[float]]]) -> pd.DataFrame:
    """Rows of candidates by name: their kind, and AUC on later classes by model and step."""
    return pd.DataFrame(
        [
            {
                "cil": cil,
                "step": step,
                "candidate": name.replace("_", " "),
                "kind": kind,
                "later classes": auc,
            }
            for name, (kind, of_models) in later.items()
            for cil, aucs in of_models.items()
            for step, auc in enumerate(aucs, start=1)
        ]
    )


def test_the_best_mean_over_models_is_chosen(script: ModuleType) -> None:
    rows = table(
        energy=("post-hoc", {"icarl": [80, 80, 80], "wa": [60]}),  # 70, and 75 as a mean of all rows
        ber=("tuned", {"icarl": [70, 72, 74], "wa": [71]}),
    )
    assert script.choose(rows) == "ber"


@pytest.mark.parametrize(("lead", "expected"), [(0.09, "gen by task"), (0.11, "ber + gen by task")])
def test_of_two_as_good_the_simpler_is_chosen(script: ModuleType, lead: float, expected: str) -> None:
    rows = table(
        **{
            "ber + gen by task": ("both", {"icarl": [70 + lead], "wa": [70 + lead]}),
            "ber + gen": ("composition", {"icarl": [70 + lead], "wa": [69.5 + lead]}),
            "react by task": ("post-hoc by task", {"icarl": [69.99], "wa": [70.0]}),
            "gen by task": ("post-hoc by task", {"icarl": [70.0], "wa": [70.0]}),
            "gen": ("post-hoc", {"icarl": [69.0], "wa": [70.0]}),
        }
    )
    assert script.choose(rows) == expected
    assert script.choose(rows.iloc[::-1]) == expected


def test_ood_sets_and_steps_without_later_classes_do_not_choose(script: ModuleType) -> None:
    rows = table(
        energy=("post-hoc", {"icarl": [70, np.nan], "wa": [70, np.nan]}),
        ber=("tuned", {"icarl": [72, np.nan], "wa": [72, np.nan]}),
    )
    assert script.choose(rows) == "ber"
    liked = np.where(rows["candidate"] == "energy", 99.0, 1.0)
    told = rows.assign(svhn=liked, **{"FPR later classes": 100 - liked, "FPR svhn": 100 - liked})
    assert script.choose(told) == "ber"
    assert "Spearman correlation of the two over candidates: -1.00" in script.report(told)


def test_what_is_not_there_for_every_model_is_not_chosen(script: ModuleType) -> None:
    rows = table(
        energy=("post-hoc", {"icarl": [70, 70], "bic": [70, 70]}),
        vos=("tuned", {"bic": [90, 90]}),
        klm=("post-hoc", {"icarl": [80], "bic": [80, 80]}),
    )
    assert script.choose(rows) == "energy"


def test_later_classes_are_all_that_the_model_has_not_seen(script: ModuleType, stored: Path) -> None:
    run = opencil.open_run(stored)
    labels = run.stream.test.labels
    for step in run.stream:
        sets = script.image_sets(run, step, None)
        seen = set(labels[sets["seen"][1]].tolist())
        assert seen == set(range(step.seen))
        assert (script.LATER in sets) == (step.number < len(run.stream))
        later = sets[script.LATER][1] if script.LATER in sets else torch.empty(0, dtype=torch.int64)
        assert seen.isdisjoint(labels[later].tolist())
        assert len(sets["seen"][1]) + len(later) == len(labels)
        few = script.image_sets(run, step, 7)
        assert {len(indices) for _, indices in few.values()} == {7}
        assert set(few["seen"][1].tolist()) <= set(step.test.tolist())


def test_all_candidates_are_ranked_as_one_is(script: ModuleType) -> None:
    numbers = torch.Generator().manual_seed(0)
    scores = torch.randint(-9, 9, (4, 60), generator=numbers).float()  # many alike
    sizes = [31, 20, 9]
    found = list(script.ranked(scores, sizes))
    assert len(found) == 2
    for ood, (aucs, fprs) in zip((scores[:, 31:51], scores[:, 51:]), found, strict=True):
        for row, auc, fpr in zip(range(4), aucs, fprs, strict=True):
            expected = opencil.ood_metrics(scores[row, :31], ood[row])
            assert (float(auc), float(fpr)) == pytest.approx((100 * expected.auc, 100 * expected.fpr))


def test_candidates_score_as_the_library_does(script: ModuleType, stored: Path) -> None:
    run = opencil.open_run(stored)
    step = run.stream[1]
    found = script.study([], None, run, step).set_index("candidate")
    assert found.index.is_unique
    assert set(found["kind"]) == set(script.KINDS)
    assert "ber + energy" not in found.index, "its own score again"
    assert "ber + knn" not in found.index, "no head changes it"
    model, tasks = run.model(2), torch.tensor(step.task_of_class)

    def outputs(images: opencil.Images, indices: torch.Tensor) -> opencil.Outputs:
        return replace(opencil.forward(model, images, run.data.transform, indices), tasks=tasks)

    memory = outputs(run.stream.train, run.memory(2).indices)
    seen = outputs(run.stream.test, step.test)
    later = outputs(run.stream.test, (run.stream.test.labels >= step.seen).nonzero().flatten())
    head = run.detector("ber", 2)._extra.head
    values = run.spec.detectors["ber"]
    made = {
        "energy": opencil.create_detector("energy"),
        "relation by task": opencil.create_detector("relation", by_task=True),
        "ber by task": opencil.create_detector("ber", **values, by_task=True),
        "ber + react": opencil.create_detector("ber", **values, scored_by="react"),
        "ber + gen by task": opencil.create_detector("ber", **values, scored_by="gen", by_task=True),
    }
    for name, detector in made.items():
        if isinstance(detector, opencil.Tuner):
            detector.use(head)
        if not detector.ready:
            detector.complete(memory)
        expected = opencil.ood_metrics(detector.score(seen), detector.score(later))
        values_found = found.loc[name, [script.LATER, f"FPR {script.LATER}"]].tolist()
        assert values_found == pytest.approx([100 * expected.auc, 100 * expected.fpr], abs=2e-3), name
    rows = pd.read_parquet(stored / "step02" / "detectors" / "energy.parquet")
    for metric, prefix in (("auc", ""), ("fpr", "FPR ")):
        published = rows[(rows["metric"] == metric) & (rows["task"] == 0)].set_index("ood")["value"]
        for ood in run.data.ood:
            assert found.loc["energy", prefix + ood] == pytest.approx(100 * published[ood], abs=2e-3)


def test_the_report_is_that_of_the_rows(
    script: ModuleType,
    stored: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    csv, last = str(tmp_path / "found.csv"), len(opencil.open_run(stored).stream)
    command = [str(stored), "--steps", f"1,{last}", "--images", "40", "--also", "odin", "--csv", csv]
    monkeypatch.setattr(sys, "argv", ["later_classes.py", *command])
    script.main()
    printed = capsys.readouterr().out
    rows = pd.read_csv(csv)
    assert rows[rows["step"] == last][script.LATER].isna().all()
    assert {"odin", "odin by task"} < set(rows["candidate"])
    assert not any("+ odin" in name for name in rows["candidate"])
    monkeypatch.setattr(sys, "argv", ["later_classes.py", "--report", csv])
    script.main()
    told = capsys.readouterr().out
    assert printed.endswith(told)
    chosen = told.splitlines()[3]
    assert chosen.startswith(script.choose(rows))


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--also", "odin,odinn"], "there is no detector odinn"),
        (["--images", "0"], "--images 0: at least 1 is needed"),
        (["--report", __file__], "has no rows of this script"),
    ],
)
def test_bad_flags(
    script: ModuleType,
    flags: list[str],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["later_classes.py", *flags])
    with pytest.raises(SystemExit):
        script.main()
    assert complaint in capsys.readouterr().err
