"""Heads of fine-tuning detectors in runs: tuned, shared, stored, resumed, damaged, refused."""

import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import opencil
from opencil.config import Config
from opencil.data.digits import Digits
from opencil.detectors.finetune.ber import BER
from opencil.detectors.finetune.views import ViewSource
from opencil.engine.arithmetic import Arithmetic
from opencil.errors import BadInput
from opencil.registry import DETECTORS
from opencil.runs import checkpoints
from opencil.runs.events import Event, Failed, Finished, Training
from opencil.runs.store import StepFolder
from opencil.runs.tuning import tune
from tests.stored import flip, results

Make = Callable[..., Config]
RunAll = Callable[[Config], list[Event]]
RUN = "digits/k4/icarl/seed0"
#: Epochs and, for VOS, few samples: a step has about 120 images of each class.
SEVEN = ["augmix", "ber", "logitnorm", "npos", "regmix", "t2fnorm", "vos"]


def epochs(names: list[str], count: int = 1) -> list[str]:
    settings = [f"detector.{name}.schedule.epochs={count}" for name in names]
    return settings + ["detector.vos.samples=50"] * ("vos" in names)


def stages(events: list[Event]) -> list[str]:
    """Return the stages of events, each once."""
    return list(dict.fromkeys(event.progress.stage for event in events if isinstance(event, Training)))


def pairs(runs: Path) -> set[tuple[int, str]]:
    """Return the steps and detectors that have rows."""
    rows = opencil.read_rows(runs)
    return {(int(t), str(d)) for t, d in zip(rows["step"], rows["detector"], strict=True) if d}


def head(runs: Path, name: str, step: int = 2) -> Path:
    return runs / RUN / f"step{step:02d}/heads/{name}.safetensors"


def forget_rows(runs: Path, name: str) -> None:
    for path in runs.rglob(f"detectors/{name}.parquet"):
        path.unlink()


# --- tuned -----------------------------------------------------------------------------------------


def test_all_detectors_of_the_paper_are_added_to_a_finished_run(
    done: Path, short: Make, run_all: RunAll
) -> None:
    before = results(done / RUN)
    names = opencil.list_detectors("paper")
    assert len(names) == 16
    events = run_all(short(done, *epochs(SEVEN), detector="paper"))
    assert isinstance(events[-1], Finished)
    assert set(stages(events)) == {f"tune {name}" for name in SEVEN if name != "ber"}
    assert {pair for pair in pairs(done) if pair[1] in names} == {(t, name) for t in (1, 2) for name in names}
    after = results(done / RUN)
    for name in before:
        if name.endswith((".safetensors", "model.parquet", "msp.parquet")):
            assert after[name] == before[name], "models, memories and rows stay"


def test_heads_do_not_depend_on_when_they_are_tuned(
    done: Path, tmp_path: Path, short: Make, run_all: RunAll
) -> None:
    """At once, step by step, beside others, or later."""
    run_all(short(tmp_path / "later", detector="msp"))
    run_all(short(tmp_path / "later", *epochs(["vos"]), detector=["vos", "ber"]))
    for name in ("heads/ber.safetensors", "detectors/ber.parquet", "model.safetensors"):
        ours, theirs = (runs / RUN / "step02" / name for runs in (done, tmp_path / "later"))
        assert ours.read_bytes() == theirs.read_bytes()


@pytest.mark.parametrize("cil", ["bic", "foster"])
def test_heads_of_models_with_more_than_a_backbone_and_a_head(
    tmp_path: Path, short: Make, run_all: RunAll, cil: str
) -> None:
    assert isinstance(run_all(short(tmp_path, cil=cil, detector=["ber"]))[-1], Finished)
    for step, classes in ((1, 4), (2, 8)):
        stored = load_file(tmp_path / f"digits/k4/{cil}/seed0/step0{step}/heads/ber.safetensors")
        (weight,) = [tensor for tensor in stored.values() if tensor.ndim == 2]
        assert weight.shape == (classes, 128 if cil == "foster" and step == 2 else 64)
        assert sum(tensor.ndim == 0 for tensor in stored.values()) == (classes // 2 if cil == "bic" else 0)


@pytest.mark.parametrize("name", ["logitnorm", "more"])
def test_rows_are_those_of_the_stored_head(done: Path, short: Make, run_all: RunAll, name: str) -> None:
    run_all(short(done, *epochs([name]), detector=[name]))
    run, rows = opencil.open_run(done / RUN), opencil.read_rows(done)
    step, noise = run.stream[1], run.data.ood["noise"].images
    outputs = [
        opencil.forward(run.model(2), images, run.data.transform, indices)
        for images, indices in ((run.stream.test, step.test), (noise, None))
    ]
    detector = run.detector(name, 2)
    inside, outside = (detector.score(part) for part in outputs)
    if name == "logitnorm":  # by hand: the energy of the head's logits
        weights = load_file(head(done, name))
        inside, outside = (
            torch.logsumexp(part.features @ weights["weight"].T + weights["bias"], dim=1) for part in outputs
        )
    wins = (inside[:, None] > outside).double() + (inside[:, None] == outside).double() / 2
    found = rows.query(f"detector == '{name}' and step == 2 and metric == 'auc'")["value"].item()
    assert found == pytest.approx(float(wins.mean()), abs=1e-4)


# --- stored heads ----------------------------------------------------------------------------------


def test_a_stored_head_is_not_tuned_again(done: Path, short: Make, run_all: RunAll) -> None:
    """Nor for a label that differs in its scores alone, or after a class is renamed."""
    before = opencil.read_rows(done)
    forget_rows(done, "ber")
    DETECTORS._entries.pop("ber")

    @opencil.register_detector("ber")
    @dataclass
    class Renamed(BER):
        """BER under another Python name."""

    gen, other = "detector.ber@gen.scored_by=gen", "detector.ber@other.alpha=0.5"
    events = run_all(short(done, gen, other, detector=["ber", "ber@gen", "ber@other"]))
    assert stages(events) == ["tune ber@other"]
    assert head(done, "ber@gen").read_bytes() == head(done, "ber").read_bytes()
    assert head(done, "ber@other").read_bytes() != head(done, "ber").read_bytes()
    after = opencil.read_rows(done)
    assert (
        after[after["detector"].isin(set(before["detector"]))]["value"].tolist() == before["value"].tolist()
    )


def test_a_head_of_other_values_is_not_used(done: Path, tmp_path: Path, short: Make, run_all: RunAll) -> None:
    forget_rows(done, "ber")
    assert stages(run_all(short(done, "detector.ber.alpha=0.4", detector=["ber"]))) == ["tune ber"]
    run_all(short(tmp_path / "new", "detector.ber.alpha=0.4", detector=["ber"]))
    assert head(done, "ber").read_bytes() == head(tmp_path / "new", "ber").read_bytes()


@pytest.mark.parametrize("change", ["model", "seed", "arithmetic"])
def test_a_head_is_of_its_model_seed_and_arithmetic(tmp_path: Path, change: str) -> None:
    digits, stored = Digits().load("train", 8, None), StepFolder(tmp_path / "step01")
    model = opencil.Model(opencil.create_backbone("resnet8"), 8).eval()
    transform = opencil.Transform((0.3, 0.3, 0.3), (0.4, 0.4, 0.4), crop=8)
    info: dict[str, Any] = {"files": {"model.safetensors": "a"}, "heads": {}}

    def tuned_anew(model_file: str = "a", seed: int = 0, precision: Any = "fp32") -> bool:
        info["files"]["model.safetensors"] = model_file
        tuner = opencil.create_detector("logitnorm", schedule={"epochs": 1})
        inputs = opencil.Inputs(model, digits, transform, torch.arange(20))
        source = ViewSource(inputs, digits.labels[:20], seed=(seed,), arithmetic=Arithmetic(precision))
        problems: dict[str, Exception] = {}
        rounds = list(tune([tuner], source, stored, info, 60.0, problems))
        assert tuner.ready
        assert not problems
        return bool(rounds)

    changed: dict[str, Any] = {
        "model": {"model_file": "b"},
        "seed": {"seed": 1},
        "arithmetic": {"precision": "bf16"},
    }
    assert tuned_anew()
    assert not tuned_anew()
    assert tuned_anew(**changed[change])
    assert not tuned_anew(**changed[change])


@pytest.mark.parametrize("lost", [False, True])
def test_a_damaged_head_is_tuned_again(
    done: Path, short: Make, run_all: RunAll, lost: bool, caplog: pytest.LogCaptureFixture
) -> None:
    before = {path: path.read_bytes() for name in ("ber*",) for path in done.rglob(name)}
    path = head(done, "ber")
    path.unlink() if lost else flip(path)
    events = run_all(short(done))
    assert {event.step for event in events if isinstance(event, Training)} == {2}
    assert stages(events) == ["tune ber"]
    assert str(path) in caplog.text
    assert {found: found.read_bytes() for found in before} == before


# --- resumed ---------------------------------------------------------------------------------------


def test_several_heads_are_resumed_and_one_that_was_not_begun_joins_them(
    done_once: Path, tmp_path: Path, short: Make, run_all: RunAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "COPY_EVERY", 0.0)
    never, runs = (Path(shutil.copytree(done_once, tmp_path / name)) for name in ("never", "runs"))
    names = ["logitnorm", "vos"]
    run_all(short(never, *epochs([*names, "t2fnorm"], 3), detector=[*names, "t2fnorm"]))
    with closing(opencil.execute(short(runs, *epochs(names, 3), detector=names))) as events:
        for event in events:
            if isinstance(event, Training) and (event.step, event.progress.epoch) == (2, 3):
                break
    assert not list(runs.rglob("step01/heads/*.checkpoint")), "stored heads need none"
    assert len(list(runs.rglob("step02/heads/*.checkpoint"))) == 2
    events = run_all(short(runs, *epochs([*names, "t2fnorm"], 3), detector=[*names, "t2fnorm"]))
    of_second = [e.progress for e in events if isinstance(e, Training) and e.step == 2]
    assert {(p.stage, p.epoch) for p in of_second if p.epoch < 3} == {
        ("tune t2fnorm", 1),
        ("tune t2fnorm", 2),
    }
    assert not list(runs.rglob("*.checkpoint"))
    for name in (*names, "t2fnorm"):
        assert head(runs, name).read_bytes() == head(never, name).read_bytes()


def test_a_checkpoint_of_other_values_is_left_out(done: Path, short: Make, run_all: RunAll) -> None:
    settings = [*epochs(["vos"], 2), "place.checkpoint_seconds=0"]
    with closing(opencil.execute(short(done, *settings, detector=["vos"]))) as events:
        for event in events:
            if isinstance(event, Training) and event.progress.epoch == 2:
                break
    assert (done / RUN / "step01/heads/vos.checkpoint").exists()
    first, *_, last = run_all(short(done, *settings, "detector.vos.schedule.lr=0.02", detector=["vos"]))
    assert isinstance(first, Training)
    assert first.progress.epoch == 1
    assert isinstance(last, Finished)


# --- refused, and alone in trouble -----------------------------------------------------------------


def test_a_method_without_memory_has_the_other_detectors(
    tmp_path: Path, short: Make, run_all: RunAll
) -> None:
    with pytest.raises(BadInput, match="finetune cannot have ber"):
        short(tmp_path, cil="finetune", detector=["ber"])
    config = short(tmp_path, cil="finetune", detector=["ber", "msp"])
    assert isinstance(run_all(config)[-1], Finished)
    assert pairs(tmp_path) == {(1, "msp"), (2, "msp")}
    assert len(run_all(config)) == 1, "nothing is left to do"
    run = opencil.open_run(tmp_path / "digits/k4/finetune/seed0")
    with pytest.raises(BadInput, match="finetune keeps no images of old classes"):
        run.source(run.stream[1], run.model(2))


@pytest.mark.parametrize(
    ("count", "lr", "size"), [(2, 1e30, 128), (1, 1e38, 100000)], ids=["loss", "weights"]
)
def test_a_tuner_that_diverges_fails_alone(
    done: Path, short: Make, run_all: RunAll, count: int, lr: float, size: int
) -> None:
    before = head(done, "ber").read_bytes()
    forget_rows(done, "ber")
    absurd = [f"detector.ber@absurd.schedule={{epochs: {count}, lr: {lr}}}", "place.checkpoint_seconds=0"]
    absurd += [f"detector.ber@absurd.batch_size={size}", "detector.ber@absurd.margins=fixed"]
    failed = run_all(short(done, *absurd, detector=["ber@absurd", "ber", "energy"]))[-1]
    assert isinstance(failed, Failed)
    assert "ber@absurd has no rows: step 1" in str(failed.error)
    assert pairs(done) == {(t, d) for t in (1, 2) for d in ("msp", "relation", "ber", "energy")}
    assert head(done, "ber").read_bytes() == before
