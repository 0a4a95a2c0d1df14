"""Fine-tuning detectors in runs: added to a finished one, killed and resumed, damaged, refused."""

import hashlib
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import opencil
from opencil.cli import app
from opencil.config import Config
from opencil.data.digits import Digits
from opencil.detectors.finetune.ber import BER
from opencil.detectors.finetune.tuner import Batch, Extra, Tuner
from opencil.detectors.finetune.views import Views, ViewSource
from opencil.engine.arithmetic import Arithmetic
from opencil.engine.checkpoint import Checkpoint
from opencil.errors import BadInput, OpenCILError
from opencil.registry import DETECTORS
from opencil.runs import checkpoints
from opencil.runs.events import Evaluated, Event, Failed, Finished, Training
from opencil.runs.file_formats import metadata, write_tensors
from opencil.runs.store import StepFolder
from opencil.runs.tuning import tune
from opencil.validation import plain
from tests import forks

Make = Callable[..., Config]
RunAll = Callable[[Config], list[Event]]
Results = Callable[[Path], dict[str, object]]

SEVEN = ["augmix", "ber", "logitnorm", "npos", "regmix", "t2fnorm", "vos"]
#: Two steps of four classes.
SETTINGS = ["benchmark.classes_per_step=4", "cil.*.epochs=1"]


def short(names: list[str], epochs: int = 2) -> list[str]:
    """Settings that make tunings short; a step has 400 current images or so, and a class about 120."""
    settings = [f"detector.{name}.schedule.epochs={epochs}" for name in names]
    return settings + (["detector.vos.samples=50"] if "vos" in names else [])


@pytest.fixture(scope="session")
def _trained_once(
    tiny: Make, run_all: RunAll, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def make(cil: str) -> Path:
        if cil not in made:
            made[cil] = tmp_path_factory.mktemp("trained") / "runs"
            assert isinstance(run_all(tiny(made[cil], *SETTINGS, cil=cil, detector="msp"))[-1], Finished)
        return made[cil]

    return make


@pytest.fixture
def trained(_trained_once: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
    """A folder of runs, the test's own, in which a method's run is complete, under MSP alone."""

    def copied(cil: str = "icarl", name: str = "runs") -> Path:
        return Path(shutil.copytree(_trained_once(cil), tmp_path / name))

    return copied


@pytest.fixture(scope="module")
def _tuned_once(
    tiny: Make,
    run_all: RunAll,
    _trained_once: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    runs = Path(shutil.copytree(_trained_once("icarl"), tmp_path_factory.mktemp("tuned") / "runs"))
    assert isinstance(run_all(tuned_config(tiny, runs))[-1], Finished)
    return runs


def tuned_config(tiny: Make, runs: Path, *settings: str) -> Config:
    return tiny(runs, *SETTINGS, *short(["ber"], 2), *settings, detector="ber")


@pytest.fixture
def tuned(_tuned_once: Path, tmp_path: Path) -> Path:
    """A folder of runs in which ``tuned_config``'s is complete."""
    return Path(shutil.copytree(_tuned_once, tmp_path / "tuned"))


def run_of(runs: Path, cil: str = "icarl") -> Path:
    return runs / "digits" / "k4" / cil / "seed0"


def settled(results: Results, folder: Path) -> dict[str, object]:
    """Results, less what tells which detectors were asked for."""
    return {name: content for name, content in results(folder).items() if name != "config.yml"}


def unevaluated(run: Path, *names: str) -> None:
    """Forget the rows of detectors, so that they are evaluated again."""
    for name in names:
        for path in run.glob(f"step*/detectors/{name}.parquet"):
            path.unlink()


def rows_of(runs: Path) -> set[tuple[int, str]]:
    """Steps and detectors that have rows."""
    rows = opencil.read_rows(runs)
    return {(int(t), str(d)) for t, d in zip(rows["step"], rows["detector"], strict=True) if d}


def tuning_of(events: list[Event]) -> list[Training]:
    return [e for e in events if isinstance(e, Training) and e.progress.stage.startswith("tune")]


# --- added to a finished run -------------------------------------------------------------------------------


@pytest.mark.parametrize("cil", ["icarl", "bic", "foster"])
def test_tuning_changes_nothing_of_the_model(
    trained: Callable[..., Path], tiny: Make, run_all: RunAll, results: Results, cil: str
) -> None:
    runs = trained(cil)
    run, before = run_of(runs, cil), settled(results, run_of(runs, cil))
    settings = [*SETTINGS, *short(["ber", "vos"], 1)]
    events = run_all(tiny(runs, *settings, cil=cil, detector=["msp", "ber", "vos"]))
    assert isinstance(events[-1], Finished)
    assert {e.progress.stage for e in events if isinstance(e, Training)} == {"tune ber", "tune vos"}
    after = settled(results, run)
    assert {name: after[name] for name in before} == before
    heads = {f"step{t:02d}/heads/{d}.safetensors" for t in (1, 2) for d in ("ber", "vos")}
    rows = {f"step{t:02d}/detectors/{d}.parquet" for t in (1, 2) for d in ("ber", "vos")}
    assert after.keys() - before.keys() == heads | rows
    for name in heads:
        head, classes = load_file(run / name), 4 if "step01" in name else 8
        (weight,) = [t for t in head.values() if t.ndim == 2]
        assert weight.shape == (classes, 128 if cil == "foster" and classes == 8 else 64)
        assert sum(t.ndim == 0 for t in head.values()) == (classes // 2 if cil == "bic" else 0)  # α, β
    assert json.loads((run / "step02" / "step.json").read_text())["seconds"]["tuning"] > 0


def test_steps_are_trained_as_if_those_before_had_not_been_tuned(
    tuned: Path, tmp_path: Path, tiny: Make, run_all: RunAll, results: Results
) -> None:
    """Tuned at once, step by step, or later: models, memories, heads and rows are the same bits."""
    at_once = tmp_path / "at-once"
    run_all(tiny(at_once, *SETTINGS, *short(["ber"], 2), detector=["msp", "ber"]))
    one, other = (settled(results, run_of(runs)) for runs in (at_once, tuned))
    assert one.keys() == other.keys()
    for name in one:
        assert one[name] == other[name], name


def test_all_sixteen_of_the_paper_have_rows(
    trained: Callable[..., Path], tiny: Make, run_all: RunAll
) -> None:
    runs, names = trained(), opencil.list_detectors("paper")
    assert len(names) == 16
    events = run_all(tiny(runs, *SETTINGS, *short(SEVEN, 1), detector="paper"))
    assert isinstance(events[-1], Finished)
    assert {e.progress.stage for e in events if isinstance(e, Training)} == {f"tune {name}" for name in SEVEN}
    assert [(e.step, e.detector) for e in events if isinstance(e, Evaluated)] == [
        (t, d) for t in (1, 2) for d in names if d != "msp"
    ]
    assert rows_of(runs) == {(t, name) for t in (1, 2) for name in names}
    assert bool(opencil.read_rows(runs)["value"].map(math.isfinite).all())


def test_the_command_adds_detectors_to_a_run(
    trained: Callable[..., Path], results: Results, contents: Callable[[Path], dict[str, bytes]]
) -> None:
    runs = trained()
    before = settled(results, run_of(runs))
    words = ["run", "--detector", "ber,vos", "--cil", "icarl", "--classes-per-step", "4", "--device", "cpu"]
    words += ["--runs", str(runs)]
    for setting in (SETTINGS[1], *short(["ber", "vos"], 1)):
        words += ["--set", setting]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    after = settled(results, run_of(runs))
    assert {name: after[name] for name in before} == before
    assert {"step01/heads/ber.safetensors", "step02/heads/vos.safetensors"} <= after.keys()
    again, whole = CliRunner().invoke(app, words), contents(runs)
    assert again.exit_code == 0, again.output
    assert contents(runs) == whole
    assert settled(results, run_of(runs)) == after


def test_a_head_of_another_shape_is_stored_and_read(
    trained: Callable[..., Path], tiny: Make, run_all: RunAll
) -> None:
    """MORE's has an output for each task beside the classes'; which class is whose is the stream's."""
    runs = trained()
    config = tiny(runs, *SETTINGS, *short(["more"], 1), detector="more")
    assert isinstance(run_all(config)[-1], Finished)
    stored = load_file(run_of(runs) / "step02" / "heads" / "more.safetensors")
    assert {name: list(t.shape) for name, t in stored.items()} == {
        "classes.weight": [8, 64],
        "classes.bias": [8],
        "other.weight": [2, 64],
        "other.bias": [2],
    }
    assert stored["other.weight"].any()
    rows = opencil.read_rows(runs)
    unevaluated(run_of(runs), "more")
    events = run_all(config)
    assert isinstance(events[-1], Finished)
    assert not [e for e in events if isinstance(e, Training)]
    again = opencil.read_rows(runs)
    assert again["value"].tolist() == rows["value"].tolist()
    detector = opencil.open_run(run_of(runs)).detector("more", 2)
    assert detector._extra.head.member.sum(dim=0).tolist() == [4, 4]


@pytest.mark.parametrize(("name", "tau"), [("logitnorm", 1.0), ("t2fnorm", 1.0), ("t2fnorm", 0.1)])
def test_rows_are_those_of_the_stored_head(
    trained: Callable[..., Path], tiny: Make, run_all: RunAll, name: str, tau: float
) -> None:
    """The energy of the head's logits, pair by pair: AUC with ties counted half."""
    runs = trained()
    scaled = ["detector.t2fnorm.scored=scaled"] if tau != 1 else []
    run_all(tiny(runs, *SETTINGS, *short([name]), *scaled, detector=name))
    data = opencil.benchmark("digits")
    step, folder = data.stream(4)[1], run_of(runs) / "step02"
    model = opencil.Model(opencil.create_backbone("resnet8"), 8)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    head = load_file(folder / "heads" / f"{name}.safetensors")

    def scores(images: opencil.ImageSet, indices: torch.Tensor | None = None) -> torch.Tensor:
        features = opencil.forward(model, images, data.transform, indices).features / tau
        return torch.logsumexp(features @ head["weight"].T + head["bias"], dim=1)

    inside = scores(data.stream(4).test, step.test)
    outside = scores(data.ood["digits-held-out"].images)  # all of them at the last step
    pairs = (inside[:, None] > outside).double() + (inside[:, None] == outside).double() / 2
    rows = opencil.read_rows(runs)
    rows = rows[(rows["detector"] == name) & (rows["step"] == 2) & (rows["ood"] == "digits-held-out")]
    assert float(rows[rows["metric"] == "auc"]["value"].item()) == pytest.approx(
        float(pairs.mean()), abs=1e-4
    )


def test_memory_is_the_exemplars_of_old_classes(
    trained: Callable[..., Path], tiny: Make, run_all: RunAll
) -> None:
    """And current images are those of the step's classes, as many an iteration as of the memory."""
    seen: list[Batch] = []

    @opencil.register_detector("watched")
    @dataclass
    class Watched(Tuner):
        """Cross-entropy, watched."""

        def loss(self, extra: Extra, batch: Batch) -> torch.Tensor:
            seen.append(batch)
            return F.cross_entropy(extra(batch.current.features), batch.current.labels)

    runs = trained()
    run_all(tiny(runs, *SETTINGS, *short(["watched"], 1), detector="watched"))
    data = opencil.benchmark("digits")
    stream = data.stream(4)
    exemplars = load_file(run_of(runs) / "step01" / "memory.safetensors")["indices"]

    def known(indices: torch.Tensor) -> set[bytes]:
        return {image.numpy().tobytes() for image in data.transform.test(stream.train.images[indices])}

    def served(views: list[Views]) -> set[bytes]:
        return {image.numpy().tobytes() for part in views for image in part.images}

    first, second = ([b for b in seen if (b.memory is not None) == old] for old in (False, True))
    assert served([b.current for b in first]) == known(stream[0].train)
    assert served([b.current for b in second]) == known(stream[1].train)
    assert served([b.memory for b in second]) == known(exemplars)
    for batch in second:
        assert int(batch.memory.labels.max()) < 4 <= int(batch.current.labels.min())
        assert len(batch.memory.labels) == len(batch.current.labels) == 128
    assert len(second) == -(-len(stream[1].train) // 128)


def test_ber_s_ablation_is_four_names_in_one_run(
    trained: Callable[..., Path], tiny: Make, run_all: RunAll
) -> None:
    """At step 1 OTER is absent, and what NTER draws is each name's own; at step 2 all four differ."""
    runs = trained()
    names = ["ber", "ber@nter", "ber@oter", "ber@none"]
    off = ["detector.ber@nter.oter=false", "detector.ber@oter.nter=false"]
    off += ["detector.ber@none.oter=false", "detector.ber@none.nter=false"]
    events = run_all(tiny(runs, *SETTINGS, *short(["ber"], 1), *off, detector=names))
    assert isinstance(events[-1], Finished)

    def weights(step: int) -> dict[str, bytes]:
        folder = run_of(runs) / f"step{step:02d}" / "heads"
        return {n: load_file(folder / f"{n}.safetensors")["weight"].numpy().tobytes() for n in names}

    first = weights(1)
    assert first["ber@oter"] == first["ber@none"]
    assert len(set(first.values())) == 3
    assert len(set(weights(2).values())) == 4
    rows = opencil.read_rows(runs)
    assert set(rows["detector"]) == {"", "msp", *names}


# --- stored heads ------------------------------------------------------------------------------------------


def test_a_stored_head_is_used_and_not_tuned_again(
    tuned: Path, tiny: Make, run_all: RunAll, results: Results
) -> None:
    whole = results(tuned)
    unevaluated(run_of(tuned), "ber")
    events = run_all(tuned_config(tiny, tuned))
    assert tuning_of(events) == []
    assert [e.step for e in events if isinstance(e, Evaluated)] == [1, 2]
    assert results(tuned) == whole


def test_a_label_that_only_scores_otherwise_takes_the_stored_head(
    tuned: Path, tiny: Make, run_all: RunAll
) -> None:
    heads = run_of(tuned) / "step02" / "heads"
    one, other = "detector.ber@gen.scored_by=gen", "detector.ber@other.scored_by=gen"
    settings = [*SETTINGS, *short(["ber"], 2), one, other, "detector.ber@other.alpha=0.5"]
    events = run_all(tiny(tuned, *settings, detector=["ber", "ber@gen", "ber@other"]))
    assert {e.progress.stage for e in tuning_of(events)} == {"tune ber@other"}, "it is trained under others"
    assert (heads / "ber@gen.safetensors").read_bytes() == (heads / "ber.safetensors").read_bytes()
    assert (heads / "ber@other.safetensors").read_bytes() != (heads / "ber.safetensors").read_bytes()
    assert rows_of(tuned) >= {(2, "ber@gen"), (2, "ber@other")}
    notes = metadata(heads / "ber.safetensors")
    # What identified a head before it could be scored otherwise: those that are stored are still found.
    values = {name: value for name, value in plain(BER()).items() if name not in ("scored_by", "by_task")}
    assert values == plain(BER())
    parts = ["ber", values | {"schedule": plain(BER().schedule) | {"epochs": 2}}, notes and notes["model"]]
    run = opencil.open_run(run_of(tuned))
    source = run.source(run.stream[1], run.model(2))
    parts += [source.seed, plain(source.arithmetic)]
    assert notes is not None
    assert notes["made_of"] == hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def test_a_head_stored_under_other_values_is_not_used(
    tuned: Path, trained: Callable[..., Path], tiny: Make, run_all: RunAll, results: Results
) -> None:
    fresh, before = trained(), settled(results, run_of(tuned))
    unevaluated(run_of(tuned), "ber")
    for runs in (tuned, fresh):
        assert tuning_of(run_all(tuned_config(tiny, runs, "detector.ber.alpha=0.4")))
    after = settled(results, run_of(tuned))
    assert after == settled(results, run_of(fresh))
    for name in ("step01/heads/ber.safetensors", "step02/heads/ber.safetensors"):
        assert after[name] != before[name]


def test_the_name_of_a_class_decides_nothing(
    tuned: Path, trained: Callable[..., Path], tiny: Make, run_all: RunAll
) -> None:
    """Neither the head that is tuned nor whether a stored one is used."""
    del DETECTORS._entries["ber"]

    @opencil.register_detector("ber")
    @dataclass
    class Renamed(BER):
        """BER under another Python name."""

    fresh = trained()
    run_all(tuned_config(tiny, fresh))
    for step in ("step01", "step02"):
        head = f"{step}/heads/ber.safetensors"
        found, expected = (load_file(run_of(runs) / head) for runs in (fresh, tuned))
        assert all(torch.equal(found[key], expected[key]) for key in expected)
    unevaluated(run_of(tuned), "ber")
    assert tuning_of(run_all(tuned_config(tiny, tuned))) == []


def test_a_head_from_before_names_gave_the_seeds_scores_and_is_not_taken_for_a_new_one(
    tuned: Path, tiny: Make, run_all: RunAll
) -> None:
    """A finished run of then opens; where rows are missing, the head is tuned anew."""
    data = opencil.benchmark("digits")
    images = torch.arange(20)

    def scores() -> torch.Tensor:
        run = opencil.open_run(run_of(tuned))
        outputs = opencil.forward(run.model(2), data.stream(4).test, data.transform, images)
        return run.detector("ber", 2).score(outputs)

    before = scores()
    for step in ("step01", "step02"):
        head = run_of(tuned) / step / "heads/ber.safetensors"
        save_file(load_file(head), head, {"made_of": "what BER, the class, was made of"})
    assert torch.equal(scores(), before)
    assert [type(event) for event in run_all(tuned_config(tiny, tuned))] == [Finished]
    unevaluated(run_of(tuned), "ber")
    assert tuning_of(run_all(tuned_config(tiny, tuned)))


def test_a_metric_is_added_by_the_head_that_made_the_rows(
    tuned: Path, tiny: Make, run_all: RunAll, plugin: Callable[[str], ModuleType]
) -> None:
    """Whatever that head was made of: another one's values beside the old ones would be nobody's."""
    aurc = plugin("aurc").aurc
    asked = replace(tuned_config(tiny, tuned), metric=("aurc",))
    head = run_of(tuned) / "step02/heads/ber.safetensors"
    weights = load_file(head)
    head.unlink()
    *_, last = run_all(asked)
    assert isinstance(last, Failed)
    assert "step 2: its head is gone; delete" in str(last.error)

    save_file({key: -tensor for key, tensor in weights.items()}, head, {"made_of": "what it was then"})
    before = head.read_bytes()
    assert [type(event) for event in run_all(asked)] == [Evaluated, Finished]
    assert head.read_bytes() == before
    run, rows = opencil.open_run(run_of(tuned)), opencil.read_rows(tuned)
    test = opencil.forward(run.model(2), run.stream.test, run.data.transform, run.stream[1].test)
    expected = aurc(run.detector("ber", 2).score(test), test.logits.argmax(dim=1) == test.labels)
    found = rows[(rows["metric"] == "aurc") & (rows["step"] == 2)]
    assert found["value"].item() == pytest.approx(float(expected))


@pytest.mark.parametrize("other", ["weights", "seed", "arithmetic"])
def test_a_head_is_of_its_model_seed_and_arithmetic(tmp_path: Path, other: str) -> None:
    digits, stored = Digits().load("train", 8, None), StepFolder(tmp_path)
    model = opencil.Model(opencil.create_backbone("resnet8"), 8).eval()
    transform = opencil.Transform((0.3, 0.3, 0.3), (0.4, 0.4, 0.4), crop=8)

    def tuned_anew(weights: str = "a", seed: int = 0, precision: Any = "fp32") -> bool:
        tuner = opencil.create_detector("logitnorm", schedule={"epochs": 1})
        inputs = opencil.Inputs(model, digits, transform, torch.arange(20))
        source = ViewSource(inputs, digits.labels[:20], seed=(seed,), arithmetic=Arithmetic(precision))
        rounds = list(tune({"logitnorm": tuner}, source, weights, stored, 60.0))
        assert tuner.ready
        return bool(rounds)

    changed: dict[str, Any] = {
        "weights": {"weights": "b"},
        "seed": {"seed": 1},
        "arithmetic": {"precision": "bf16"},
    }
    assert tuned_anew()
    assert not tuned_anew()
    assert tuned_anew(**changed[other])
    assert not tuned_anew(**changed[other])


@pytest.mark.parametrize("what", ["tuning", "evaluation"])
def test_seconds_of_work_that_was_left_early_count(
    tiny: Make, tmp_path: Path, run_all: RunAll, what: str
) -> None:
    def seconds() -> float:
        return float(json.loads((run_of(tmp_path) / "step01" / "step.json").read_text())["seconds"][what])

    config = tiny(tmp_path, *SETTINGS, *short(["ber"]), detector=["msp", "ber"])
    work = opencil.execute(config)
    for event in work:
        if what == "tuning" and isinstance(event, Training) and event.progress.stage.startswith("tune"):
            break
        if what == "evaluation" and isinstance(event, Evaluated):
            break
    work.close()
    first = seconds()
    assert first > 0
    run_all(config)
    assert seconds() > first


@pytest.mark.parametrize("damage", ["junk", "half", "other tensors", "not a number"])
def test_a_damaged_head_is_named_and_tuned_again(
    tuned: Path,
    tiny: Make,
    run_all: RunAll,
    results: Results,
    damage: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    whole, config = results(tuned), tuned_config(tiny, tuned)
    unevaluated(run_of(tuned), "ber")
    path = run_of(tuned) / "step02" / "heads" / "ber.safetensors"
    content, head, about = path.read_bytes(), load_file(path), metadata(path)
    if damage == "junk":
        path.write_bytes(b"junk")
    elif damage == "half":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "other tensors":
        save_file({"other": head["weight"]}, path, about)
    else:
        save_file(head | {"bias": head["bias"] * math.nan}, path, about)
    assert isinstance(run_all(config)[-1], Finished)
    assert str(path) in caplog.text
    path.with_name("ber.safetensors.damaged").unlink()
    assert results(tuned) == whole


def test_the_head_of_another_is_not_taken_for_its_own(tuned: Path, tiny: Make, run_all: RunAll) -> None:
    """Of another detector, or of another step's model; where rows are, none is tuned in its place."""
    path = run_of(tuned) / "step02" / "heads" / "ber.safetensors"
    write_tensors(path, load_file(path), metadata(path) | {"detector": "vos"})
    with pytest.raises(OpenCILError, match=r"ber\.safetensors .*head of vos.*delete it and .*ber\.parquet"):
        opencil.open_run(run_of(tuned)).detector("ber", 2)
    shutil.copy(run_of(tuned) / "step01" / "heads" / "ber.safetensors", path)
    with pytest.raises(OpenCILError, match=r"ber\.safetensors .*tuned on another model"):
        opencil.open_run(run_of(tuned)).detector("ber", 2)


# --- killed and resumed ------------------------------------------------------------------------------------

KILLED_BETWEEN_EPOCHS = """
for event in opencil.execute(config):
    if isinstance(event, Training) and event.step == 2:
        if (event.progress.epoch, event.progress.iteration) == (2, 1):
            die()
"""
TUNERS = ["ber", "vos"]


@pytest.fixture(scope="module")
def uninterrupted(
    tiny: Make,
    run_all: RunAll,
    _trained_once: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """Two heads, tuned for three epochs without a checkpoint."""
    runs = Path(shutil.copytree(_trained_once("icarl"), tmp_path_factory.mktemp("uninterrupted") / "runs"))
    settings = [*SETTINGS, *short(TUNERS, 3), "place.checkpoint_seconds=1000000"]
    assert isinstance(run_all(tiny(runs, *settings, detector=TUNERS))[-1], Finished)
    return runs


@pytest.fixture(scope="module")
def _killed_once(
    tiny: Make, _trained_once: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    runs = Path(shutil.copytree(_trained_once("icarl"), tmp_path_factory.mktemp("killed") / "runs"))
    with forks.code(with_checkpoints(tiny, runs), KILLED_BETWEEN_EPOCHS) as process:
        _, errors = process.communicate()
    assert process.returncode == -9, errors
    return runs


@pytest.fixture
def killed(_killed_once: Path, tmp_path: Path) -> Path:
    """A folder of runs in which step 2's tuning was killed when one of its epochs was done."""
    return Path(shutil.copytree(_killed_once, tmp_path / "killed"))


def with_checkpoints(tiny: Make, runs: Path, *settings: str) -> Config:
    """The same with a checkpoint after every epoch."""
    settings = (*SETTINGS, *short(TUNERS, 3), "place.checkpoint_seconds=0", *settings)
    return tiny(runs, *settings, detector=TUNERS)


def test_a_killed_tuning_goes_on_and_ends_with_the_same_heads(
    killed: Path, uninterrupted: Path, tiny: Make, run_all: RunAll, results: Results
) -> None:
    assert not list(killed.rglob("step01/heads/*checkpoint*")), "stored heads need none"
    for name in TUNERS:
        path = run_of(killed) / "step02" / "heads" / f"{name}.checkpoint.safetensors"
        assert load_file(path)["position"].tolist() == [0, 1]
    events = run_all(with_checkpoints(tiny, killed))
    first = events[0]
    assert isinstance(first, Training)
    assert (first.step, first.progress.epoch, first.progress.iteration) == (2, 2, 1)
    assert isinstance(events[-1], Finished)
    assert settled(results, run_of(killed)) == settled(results, run_of(uninterrupted))


def test_whoever_leaves_a_tuning_leaves_all_heads_as_they_were_after_an_epoch(
    uninterrupted: Path,
    trained: Callable[..., Path],
    tiny: Make,
    run_all: RunAll,
    results: Results,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoints, "KEPT_EVERY", 0.0)
    runs = trained()
    settings = [*SETTINGS, *short(TUNERS, 3), "place.checkpoint_seconds=1000000"]
    config = tiny(runs, *settings, detector=TUNERS)
    left = opencil.execute(config)
    for event in left:
        if isinstance(event, Training) and (event.progress.epoch, event.progress.iteration) == (2, 2):
            break
    left.close()
    for name in TUNERS:
        path = run_of(runs) / "step01" / "heads" / f"{name}.checkpoint.safetensors"
        assert load_file(path)["position"].tolist() == [0, 1]
    assert isinstance(run_all(config)[-1], Finished)
    assert settled(results, run_of(runs)) == settled(results, run_of(uninterrupted))


def test_a_head_that_is_not_begun_joins_one_in_the_middle(
    killed: Path, uninterrupted: Path, tiny: Make, run_all: RunAll, results: Results
) -> None:
    (run_of(killed) / "step02" / "heads" / "ber.checkpoint.safetensors").unlink()
    stages = [e.progress.stage for e in tuning_of(run_all(with_checkpoints(tiny, killed)))]
    assert sorted(stages) == ["tune ber"] * 3 * 4 + ["tune vos"] * 2 * 4
    assert stages[-4:] == ["tune ber"] * 4
    assert settled(results, run_of(killed)) == settled(results, run_of(uninterrupted))


def test_a_checkpoint_under_other_values_is_not_used(killed: Path, tiny: Make, run_all: RunAll) -> None:
    config = tiny(killed, *SETTINGS, *short(["ber"], 3), "detector.ber.schedule.lr=0.02", detector="ber")
    unevaluated(run_of(killed), *TUNERS)
    of_second = [e.progress for e in tuning_of(run_all(config)) if e.step == 2]
    assert (of_second[0].epoch, of_second[0].iteration) == (1, 1)
    assert {e.lr for e in of_second if e.epoch == 1} == {0.02}


@pytest.mark.parametrize("damage", ["junk", "another head's", "no position"])
def test_a_damaged_checkpoint_is_named_and_the_tuning_begins_anew(
    killed: Path,
    uninterrupted: Path,
    tiny: Make,
    run_all: RunAll,
    results: Results,
    damage: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = run_of(killed) / "step02" / "heads" / "vos.checkpoint.safetensors"
    if damage == "junk":
        path.write_bytes(b"junk")
    else:
        without = "queue" if damage == "another head's" else "position"
        save_file({n: t for n, t in load_file(path).items() if without not in n}, path, metadata(path))
    stages = [e.progress.stage for e in tuning_of(run_all(with_checkpoints(tiny, killed)))]
    assert sorted(stages) == ["tune ber"] * 2 * 4 + ["tune vos"] * 3 * 4
    assert str(path) in caplog.text
    path.with_name("vos.checkpoint.safetensors.damaged").unlink()
    assert settled(results, run_of(killed)) == settled(results, run_of(uninterrupted))


def test_a_checkpoint_of_numbers_that_are_not_finite_does_not_replace_a_good_one(
    killed: Path, tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [run_of(killed) / "step02" / "heads" / f"{name}.checkpoint.safetensors" for name in TUNERS]
    before = [path.read_bytes() for path in paths]
    take = Checkpoint.take.__func__  # type: ignore[attr-defined]

    def spoilt(*given: Any) -> Checkpoint:
        taken = take(Checkpoint, *given)
        return replace(taken, weights={name: tensor * math.nan for name, tensor in taken.weights.items()})

    monkeypatch.setattr(Checkpoint, "take", spoilt)
    for event in opencil.execute(with_checkpoints(tiny, killed)):
        if isinstance(event, Training) and event.progress.epoch == 3:
            break
    assert [path.read_bytes() for path in paths] == before


# --- refused, and alone in trouble -------------------------------------------------------------------------


def test_a_method_without_memory_gets_an_answer_and_the_other_detectors_their_rows(
    tmp_path: Path, tiny: Make, run_all: RunAll
) -> None:
    with pytest.raises(
        BadInput, match="finetune cannot have ber: no images of old classes are seen again, which tuned"
    ):
        tiny(tmp_path, *SETTINGS, cil="finetune", detector=["ber"])
    config = tiny(tmp_path, *SETTINGS, *short(["ber"], 1), cil="finetune", detector=["ber", "energy", "msp"])
    assert isinstance(run_all(config)[-1], Finished)
    assert rows_of(tmp_path) == {(t, d) for t in (1, 2) for d in ("energy", "msp")}
    assert len(run_all(config)) == 1, "nothing is left to do"
    opened = opencil.open_run(run_of(tmp_path, "finetune"))
    with pytest.raises(BadInput, match="finetune keeps no images of old classes"):
        opened.source(opened.stream[1], opened.model(2))


def test_a_method_that_sees_all_old_images_needs_no_memory(
    tmp_path: Path, tiny: Make, run_all: RunAll
) -> None:
    events = run_all(tiny(tmp_path, *SETTINGS, *short(["ber"], 1), cil="joint", detector="ber"))
    assert isinstance(events[-1], Finished)
    assert rows_of(tmp_path) == {(1, "ber"), (2, "ber")}
    rows = opencil.read_rows(tmp_path)
    kept = rows[rows["metric"] == "memory_bytes"].sort_values("step")["value"]
    stream = opencil.open_run(run_of(tmp_path, "joint")).stream
    seen = [sum(len(stream[i].train) for i in range(step)) for step in (1, 2)]
    assert kept.tolist() == [count * 3 * 8 * 8 for count in seen], "what it sees again is not free"


@pytest.mark.parametrize(
    ("epochs", "lr", "size"),
    [(2, 1e30, 128), (1, 1e38, 100000)],
    ids=["while it is tuned", "by the last update"],
)
def test_a_tuner_that_diverges_fails_alone(
    tuned: Path,
    trained: Callable[..., Path],
    tiny: Make,
    run_all: RunAll,
    results: Results,
    epochs: int,
    lr: float,
    size: int,
) -> None:
    """Its absurd learning rate is named; the head tuned beside it is as if it had not been there."""
    runs = trained()
    absurd = [f"detector.ber@absurd.schedule={{epochs: {epochs}, lr: {lr}}}"]
    absurd += [f"detector.ber@absurd.batch_size={size}", "place.checkpoint_seconds=0"]
    absurd += ["detector.ber@absurd.margins=fixed"]
    settings = [*SETTINGS, *short(["ber"], 2), *absurd]
    events = run_all(tiny(runs, *settings, detector=["ber@absurd", "energy", "ber"]))
    failed = events[-1]
    assert isinstance(failed, Failed)
    for part in ("ber@absurd has no rows: step 1", f"learning rate {lr:g}"):
        assert part in str(failed.error)
    assert rows_of(runs) == {(t, d) for t in (1, 2) for d in ("msp", "energy", "ber")}
    left = {n: c for n, c in settled(results, run_of(runs)).items() if "energy" not in n}
    assert left == settled(results, run_of(tuned))


def test_a_checkpoint_that_a_kill_left_beside_its_head_is_removed(
    tmp_path: Path, tiny: Make, run_all: RunAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(tmp_path, *SETTINGS, *short(["ber"], 2), "place.checkpoint_seconds=0", detector=["ber"])
    unlink = Path.unlink

    class Killed(BaseException):
        pass

    def dying(path: Path, missing_ok: bool = False) -> None:
        if path.name == "ber.checkpoint.safetensors":
            raise Killed
        unlink(path, missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", dying)
        with pytest.raises(Killed):
            run_all(config)
    assert list(tmp_path.rglob("ber.checkpoint.safetensors"))
    run_all(config)
    assert not list(tmp_path.rglob("ber.checkpoint.safetensors"))


def test_a_head_that_is_not_finite_never_replaces_a_good_checkpoint(
    trained: Callable[..., Path], tiny: Make, run_all: RunAll, results: Results
) -> None:
    """The last update of epoch 2 spoils it while the loss is still a number, so nothing has failed yet."""
    spoilt: list[bool] = []

    @opencil.register_detector("spoilt")
    @dataclass
    class Spoilt(Tuner):
        """Cross-entropy, and where asked for a 0 whose gradient is not finite."""

        def loss(self, extra: Extra, batch: Batch) -> torch.Tensor:
            z = extra(batch.current.features)
            return F.cross_entropy(z, batch.current.labels) + ((0 * z.sum()).sqrt() if spoilt else 0.0)

    def config(runs: Path) -> Config:
        settings = [*short(["spoilt"], 3), "detector.spoilt.batch_size=100000", "place.checkpoint_seconds=0"]
        return tiny(runs, *SETTINGS, *settings, detector="spoilt")

    runs, whole = trained(), trained(name="whole")
    for event in opencil.execute(config(runs)):
        if isinstance(event, Training) and event.step == 1:
            spoilt.append(True)
    assert isinstance(event, Failed)
    stored = load_file(StepFolder(run_of(runs) / "step01").head_checkpoint("spoilt"))
    assert stored["position"].tolist() == [0, 1]
    assert all(torch.isfinite(tensor).all() for tensor in stored.values())
    spoilt.clear()
    assert isinstance(run_all(config(runs))[-1], Finished)
    assert isinstance(run_all(config(whole))[-1], Finished)
    assert settled(results, run_of(runs)) == settled(results, run_of(whole))
