"""The run loop: its rows, what it skips, exact resume, and failures that leave the rest alone."""

import asyncio
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest
import torch
from torch import Tensor

import opencil
from opencil.cil.icarl import ICaRL
from opencil.cil.learner import Setting, Task
from opencil.config import Config
from opencil.detectors.finetune.ber import BER
from opencil.detectors.posthoc.msp import MSP
from opencil.detectors.posthoc.relation import Relation
from opencil.engine.forward import Outputs, forward
from opencil.engine.loop import Progress
from opencil.evaluation.protocol import Measurement, measure
from opencil.nets.resnet import ResNet
from opencil.runs import checkpoints, launch
from opencil.runs.events import Evaluated, Event, Failed, Finished, Training
from opencil.runs.loading import load
from opencil.runs.protocol import Protocol
from opencil.runs.run import add_seconds
from opencil.runs.run import run as run_loop
from opencil.runs.spec import plan
from opencil.runs.state import Run
from opencil.runs.store import RunFolder, StepFolder
from tests.stored import contents, results

Make = Callable[..., Config]
RunAll = Callable[[Config], list[Event]]
RUN = "digits/k4/icarl/seed0"
THREE = ["cil.*.epochs=3", "detector.ber.schedule.epochs=3"]
KEY = ["step", "detector", "ood", "task", "metric"]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that receives the sizes of all batches that a network in evaluation mode sees."""
    sizes: list[int] = []
    inner = ResNet.forward

    def count(self: ResNet, images: Tensor) -> Tensor:
        sizes.extend([len(images)] * (not self.training))
        return inner(self, images)

    monkeypatch.setattr(ResNet, "forward", count)
    return sizes


def interrupt(config: Config, at: Callable[[Event], bool]) -> Event:
    """Close a run's generator after the first event that ``at`` accepts, and return that event."""
    with closing(opencil.execute(config)) as events:
        return next(event for event in events if at(event))


def in_stage(name: str, step: int, epoch: int, iteration: int = 1) -> Callable[[Event], bool]:
    """Return a condition: an iteration of a training's stage."""

    def at(event: Event) -> bool:
        if not isinstance(event, Training) or event.step != step or event.progress.stage != name:
            return False
        return (event.progress.epoch, event.progress.iteration) == (epoch, iteration)

    return at


def trained(events: Iterable[Event], step: int, stage: str) -> list[int]:
    """Return the epochs of a stage in which events report iterations."""
    found = [e.progress for e in events if isinstance(e, Training) and e.step == step]
    return sorted({progress.epoch for progress in found if progress.stage == stage})


# --- rows ------------------------------------------------------------------------------------------


def plain_loop(config: Config) -> pd.DataFrame:
    """Return the detector rows of a config's run, by a loop over the library's parts."""
    data, b = load(config), config.benchmark
    ((cil, values),) = config.cil.items()
    (seed,) = config.seed.runs
    stream = data.stream(b.classes_per_step[0])
    learner = opencil.create_learner(cil, **values)
    setting = Setting(
        stream.train, stream.test, data.transform, b.backbone, b.batch_size, seed, seed, config.training
    )
    shifted = {name: replace(images, labels=stream.test.labels) for name, images in data.shifted.items()}
    memory, model, rows = b.empty_memory, None, []
    (spec,) = plan(config)
    for step in stream:
        task = learner.begin(setting, step, memory, model)
        for _ in learner.learn(task):
            pass
        model = setting.move_to_device(task.model.eval(), evaluate=True)

        def outputs(images: opencil.Images, indices: Tensor, model: opencil.Model = model) -> Outputs:
            return forward(model, images, data.transform, indices)

        task.computed = outputs(stream.train, task.train_plus)
        memory = learner.remember(task)
        test = outputs(stream.test, step.test)
        ood = {
            name: outputs(o.images, spec.ood_seen(name, len(o.images), step)) for name, o in data.ood.items()
        }
        moved = {name: outputs(images, step.test) for name, images in shifted.items()}
        for name, values in config.detector.items():
            detector = opencil.create_detector(name, **values)
            indices = memory.indices if detector.set_up_on == "memory" else task.train_plus
            setup = None if detector.ready else task.outputs(indices)
            for m in measure(detector, setup, test, ood, torch.tensor(step.task_of_class), moved):
                rows.append((step.number, name, m.ood, m.task, m.metric, m.value))
    return pd.DataFrame(rows, columns=[*KEY, "value"])


def test_detector_rows_are_those_of_a_plain_loop(tmp_path: Path, tiny: Make) -> None:
    config = tiny(tmp_path, "benchmark.classes_per_step=4", "cil.*.epochs=1", detector=["msp", "knn", "vim"])
    found = opencil.run(config).rows
    expected = plain_loop(config).sort_values(KEY).reset_index(drop=True)
    found = (
        found[(found["detector"] != "") & (found["ood"] != "future")][[*KEY, "value"]]
        .sort_values(KEY)
        .reset_index(drop=True)
    )
    pd.testing.assert_frame_equal(found, expected, check_exact=True)


def test_accuracy_rows_are_those_of_the_stored_models(done_once: Path) -> None:
    run, rows = opencil.open_run(done_once / RUN), opencil.read_rows(done_once)
    found = rows[rows["metric"] == "accuracy"].set_index(["step", "task"])["value"]
    for step in run.stream:
        outputs = opencil.forward(run.model(step.number), run.stream.test, run.data.transform, step.test)
        right = outputs.logits.argmax(dim=1) == run.stream.test.labels[step.test]
        assert found[step.number, 0] == pytest.approx(float(right.double().mean()), abs=1e-12)
        for task in range(1, step.number + 1):
            of_task = run.stream.test.labels[step.test] // 4 + 1 == task
            assert found[step.number, task] == pytest.approx(float(right[of_task].double().mean()), abs=1e-12)


def test_rows_do_not_depend_on_other_runs_and_detectors(
    done_once: Path, tmp_path: Path, short: Make, run_all: RunAll
) -> None:
    run_all(short(tmp_path, detector="msp", seed=[1, 0]))
    whole, fewer = results(done_once / RUN), results(tmp_path / RUN)
    for name in ("model.safetensors", "memory.safetensors", "model.parquet", "detectors/msp.parquet"):
        assert fewer[f"step02/{name}"] == whole[f"step02/{name}"]
    other = results(tmp_path / "digits/k4/icarl/seed1")
    assert other["step01/model.safetensors"] != whole["step01/model.safetensors"]


def test_events_report_each_iteration_and_detector(tmp_path: Path, short: Make, run_all: RunAll) -> None:
    events = run_all(short(tmp_path, "cil.*.epochs=2", detector=["msp", "relation"]))
    for step in (1, 2):
        found = [e.progress for e in events if isinstance(e, Training) and e.step == step]
        every = [(epoch, i) for epoch in (1, 2) for i in range(1, found[0].iterations + 1)]
        assert [(p.epoch, p.iteration) for p in found] == every
    measured = [(e.step, e.detector) for e in events if isinstance(e, Evaluated)]
    assert measured == [(step, name) for step in (1, 2) for name in ("msp", "relation")]
    assert events[-1] == Finished(events[0].run, already=False)


# --- nothing twice ---------------------------------------------------------------------------------


def test_a_finished_run_needs_no_data(
    done: Path, short: Make, run_all: RunAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(done)
    monkeypatch.setattr(launch, "load", lambda config: pytest.fail("data are loaded"))
    (event,) = run_all(short(done))
    assert event == Finished(event.run, already=True)
    assert contents(done) == before


def test_each_image_passes_the_trained_network_once(
    tmp_path: Path, short: Make, run_all: RunAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Herding, set-ups and test sets of all detectors share outputs; one step has no teacher."""
    sizes = counted(monkeypatch)
    config = short(tmp_path, "benchmark.classes_per_step=8", detector=["msp", "relation", "knn", "react"])
    assert isinstance(run_all(config)[-1], Finished)
    (step,) = opencil.benchmark("digits").stream(8)
    assert sum(sizes) == len(step.train) + len(step.test) + 500


def test_a_detector_that_is_added_later_trains_nothing(
    done: Path, tmp_path: Path, short: Make, run_all: RunAll
) -> None:
    before = contents(done)
    events = run_all(short(done, detector=["msp", "knn"]))
    assert not [event for event in events if isinstance(event, Training)]
    assert [(e.step, e.detector) for e in events if isinstance(e, Evaluated)] == [(1, "knn"), (2, "knn")]
    after = contents(done)
    changed = {name.rpartition("/")[2] for name in before if after[name] != before[name]}
    assert changed <= {"step.json", "config.yml", "environment.json"}
    run_all(short(tmp_path / "new", detector=["knn"]))
    table = "step02/detectors/knn.parquet"
    assert contents(tmp_path / "new" / RUN)[table] == after[f"{RUN}/{table}"]


def test_a_metric_that_is_added_later_leaves_other_rows_unchanged(
    done: Path, short: Make, run_all: RunAll, plugin: Callable[[str], ModuleType]
) -> None:
    plugin("aurc")
    before = opencil.read_rows(done)
    events = run_all(replace(short(done), metric=("aurc",)))
    assert not [event for event in events if isinstance(event, Training)]
    after = opencil.read_rows(done)
    pd.testing.assert_frame_equal(after[after["metric"] != "aurc"].reset_index(drop=True), before)
    assert set(after.loc[after["metric"] == "aurc", "detector"]) == {"msp", "relation", "ber"}
    makers = opencil.open_run(done / RUN).info(1)["rows"]["msp"]["made"]
    assert len(makers) == 2, "of the old rows and of the new"
    assert isinstance(run_all(replace(short(done), metric=("aurc",)))[0], Finished)


def test_the_seconds_of_several_calls_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 10.0)
    info = {"seconds": {"training": 3.0, "evaluation": 5.0}}
    add_seconds(info, "evaluation", 7.0)
    add_seconds(info, "tuning", 9.0)
    assert info["seconds"] == {"training": 3.0, "evaluation": 8.0, "tuning": 1.0}


@pytest.mark.parametrize("lost", ["step02", "step02/detectors/relation.parquet", "step01/model.parquet"])
def test_only_what_is_missing_is_done(done: Path, short: Make, run_all: RunAll, lost: str) -> None:
    before, path = results(done), done / RUN / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    events = run_all(short(done))
    steps = {event.step for event in events if isinstance(event, Training | Evaluated)}
    assert steps == ({2} if lost != "step01/model.parquet" else set())
    assert isinstance(events[-1], Finished)
    without_makers(found := results(done))
    without_makers(before)
    assert found == before


def without_makers(stored: dict[str, object]) -> None:
    """Leave out in how many calls rows were made."""
    for info in (info for name, info in stored.items() if name.endswith("step.json")):
        for note in info["rows"].values():  # type: ignore[index]
            note.pop("made")


# --- interruption ----------------------------------------------------------------------------------


@pytest.fixture
def every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies are taken at the end of each epoch, however short."""
    monkeypatch.setattr(checkpoints, "COPY_EVERY", 0.0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, short: Make, run_all: RunAll) -> Callable[[str], Path]:
    """Return a folder in which a method's run of three epochs is complete."""

    @cache
    def make(cil: str) -> Path:
        runs = tmp_path_factory.mktemp(cil)
        run_all(short(runs, *THREE, cil=cil, detector=["msp", "ber"]))
        return runs

    return make


@pytest.mark.usefixtures("every_epoch")
@pytest.mark.parametrize(
    ("cil", "at", "seconds", "stage", "epochs"),
    [
        ("icarl", in_stage("train", 2, 3), 0, "train", [3]),
        ("icarl", in_stage("train", 2, 2), 1000, "train", [2, 3]),
        ("bic", in_stage("correct", 2, 2), 1000, "correct", [3]),
        ("icarl", in_stage("tune ber", 2, 3), 1000, "tune ber", [3]),
        ("icarl", lambda event: isinstance(event, Evaluated), 0, "tune ber", []),
    ],
    ids=["in a training", "on leaving", "in a second stage", "in a tuning", "between detectors"],
)
def test_an_interrupted_run_is_resumed_to_the_same_bits(
    tmp_path: Path,
    short: Make,
    run_all: RunAll,
    whole: Callable[[str], Path],
    cil: str,
    at: Callable[[Event], bool],
    seconds: int,
    stage: str,
    epochs: list[int],
) -> None:
    config = short(tmp_path, *THREE, f"place.checkpoint_seconds={seconds}", cil=cil, detector=["msp", "ber"])
    event = interrupt(config, at)
    assert isinstance(event, Training | Evaluated)
    again = run_all(config)
    assert trained(again, event.step, stage) == epochs
    assert not trained(again, event.step - 1, "train")
    found, expected = results(tmp_path), results(whole(cil))
    assert found == expected, [name for name in expected if found.get(name) != expected[name]]


def test_a_checkpoint_that_a_kill_left_beside_its_step_is_removed(
    tmp_path: Path, short: Make, run_all: RunAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    config = short(tmp_path, "place.checkpoint_seconds=0")
    with monkeypatch.context() as patched:
        patched.setattr(StepFolder, "remove_checkpoint", die)
        with pytest.raises(KeyboardInterrupt):
            run_all(config)
    assert list(tmp_path.rglob("*checkpoint"))
    run_all(config)
    assert not list(tmp_path.rglob("*checkpoint"))


# --- protocols -------------------------------------------------------------------------------------


class EveryThird(Protocol):
    """Measure the model in training after every third iteration as well."""

    def during(self, run: Run, task: Task, progress: Progress) -> Iterable[Measurement]:
        if progress.iteration % 3 == 0:
            number = 100 * progress.epoch + progress.iteration
            weights = next(task.model.parameters()).detach()
            yield Measurement("", f"online_{number}", float(weights.double().sum()))


@pytest.mark.usefixtures("every_epoch")
@pytest.mark.parametrize("seconds", [0.0, 1000.0], ids=["stored at once", "stored on leaving"])
def test_a_protocol_that_measures_during_the_training_has_its_rows_also_after_a_resume(
    tmp_path: Path, short: Make, seconds: float
) -> None:
    config = short(tmp_path, "cil.*.epochs=2", "benchmark.classes_per_step=8", detector="msp")
    ((spec,), data) = plan(config), load(config)

    def online(name: str, events: int | None = None) -> dict[str, float]:
        folder = RunFolder(tmp_path / name)
        with (
            folder.opened(spec, {}),
            closing(run_loop(spec, data, folder, EveryThird(), seconds)) as happening,
        ):
            for _, _ in zip(happening, range(events or 10**6), strict=False):
                pass
        if events:
            return {}
        rows = opencil.read_rows(folder.path)
        rows = rows[rows["metric"].str.startswith("online")]
        assert not rows["metric"].duplicated().any()
        assert set(rows["detector"]) == {""}
        return dict(zip(rows["metric"], rows["value"], strict=True))

    whole = online("whole")
    assert {"online_103", "online_203"} <= set(whole)
    iterations = len(load(config).train) // config.benchmark.batch_size + 1
    online("resumed", iterations + 4)
    assert (tmp_path / "resumed/step01/checkpoint").exists()
    assert online("resumed") == whole


# --- failures --------------------------------------------------------------------------------------


def test_a_detector_that_fails_leaves_the_others(tmp_path: Path, short: Make, run_all: RunAll) -> None:
    config = short(tmp_path, "detector.nnguide.neighbours=1000", detector=["nnguide", "msp", "relation"])
    config = replace(config, detector=config.detector | {"nnguide": {"neighbours": 1000, "setup": "train+"}})
    events = run_all(config)
    assert isinstance(events[-1], Failed)
    assert "nnguide has no rows: step 1" in str(events[-1].error)
    rows = opencil.read_rows(tmp_path)
    assert set(rows["detector"]) == {"", "msp", "relation"}
    assert set(rows.loc[rows["detector"] == "relation", "step"]) == {1, 2}


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        (SystemExit, (MSP, "scores")),
        (GeneratorExit, (Relation, "set_up")),
        (GeneratorExit, (BER, "loss")),
        (asyncio.CancelledError, (ICaRL, "stages")),
    ],
)
def test_what_would_end_the_process_fails_a_run(
    tmp_path: Path,
    short: Make,
    run_all: RunAll,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[BaseException],
    place: tuple[type, str],
) -> None:
    def leave(*_: object) -> None:
        raise kind(0)

    monkeypatch.setattr(*place, leave)
    *_, last = run_all(short(tmp_path))
    assert isinstance(last, Failed)
    assert f"{kind.__name__}(0)" in str(last.error)
    assert "in leave" in last.own_code
    if place[0] is not ICaRL:
        rows = opencil.read_rows(tmp_path)
        others = {MSP: "msp", Relation: "relation", BER: "ber"}
        assert set(rows["detector"]) == {"", *others.values()} - {others[place[0]]}


@pytest.mark.parametrize("leaves", [False, True])
def test_a_detector_that_changes_the_model_ends_the_run(
    tmp_path: Path, short: Make, run_all: RunAll, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    def change(_: Relation, outputs: Outputs) -> Tensor:
        assert outputs.inputs is not None
        with torch.no_grad():
            next(outputs.inputs.model.parameters()).mul_(2)  # type: ignore[attr-defined]
        if leaves:
            raise ValueError("and fails")
        return outputs.logits[:, 0]

    monkeypatch.setattr(Relation, "scores", change)
    *_, last = run_all(short(tmp_path, detector=["msp", "relation", "vim"]))
    assert isinstance(last, Failed)
    assert "relation changes the model" in str(last.error)
    assert {*opencil.read_rows(tmp_path)["detector"]} == {"", "msp"}


@pytest.mark.parametrize(
    "settings",
    [["cil.icarl.later.lr=1e30"], ["benchmark.batch_size=10000", "cil.icarl.later.lr=1e38"]],
    ids=["loss", "weights"],
)
def test_a_training_that_diverges_fails_alone_and_again(
    tmp_path: Path, short: Make, run_all: RunAll, settings: list[str]
) -> None:
    every = ["benchmark.classes_per_step=[4, 8]", "place.checkpoint_seconds=0"]
    config = short(tmp_path, *settings, *every, detector="msp")
    for _ in ("at first", "from what that left"):
        ended = {str(e.run): e for e in run_all(config) if isinstance(e, Finished | Failed)}
        failed = ended[RUN]
        assert isinstance(failed, Failed)
        assert "step 2: the" in str(failed.error)
        assert isinstance(ended["digits/k8/icarl/seed0"], Finished), "it has no later step"
        assert (tmp_path / RUN / "error.txt").read_text(encoding="utf-8") == f"{failed.error}\n"
        assert not (tmp_path / RUN / "step02/step.json").exists()
    assert set(opencil.read_rows(tmp_path / RUN)["step"]) == {1}


@pytest.mark.parametrize("part", ["images", "labels"])
def test_other_images_are_refused(
    part: str, done: Path, short: Make, run_all: RunAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A memory is indices into the images of before; two labels that are exchanged make other images too."""
    config = short(done, detector=["msp", "gen"])
    data = load(config)
    pixels, labels = data.train.images.clone(), data.train.labels.clone()  # type: ignore[attr-defined]
    if part == "images":
        pixels[0, 0, 0, 0] ^= 1
    else:
        different = int((labels != labels[0]).nonzero()[0])
        labels[[0, different]] = labels[[different, 0]]
    other = replace(data, train=replace(data.train, images=pixels, labels=labels))  # type: ignore[type-var]
    monkeypatch.setattr(launch, "load", lambda _: other)
    (failed,) = run_all(config)
    assert isinstance(failed, Failed)
    assert "was trained on other images" in str(failed.error)
    monkeypatch.undo()
    assert isinstance(run_all(config)[-1], Finished)
