"""The order of work: the same again, interrupted or not; failures; the accuracies of the models."""

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch

import opencil
from opencil import BadInput
from opencil.config import Config
from opencil.locks import Lock
from opencil.runs import runner
from opencil.runs.events import Evaluated, Event, Failed, Finished, Training
from opencil.runs.store import RunFolder
from tests import forks

Make = Callable[..., Config]
RunAll = Callable[[Config], list[Event]]
Results = Callable[[Path], dict[str, object]]

RUN = "digits/k2/icarl/seed0"


# --- the same again --------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_bits(
    finished: Path, tmp_path: Path, tiny: Make, run_all: RunAll, results: Results
) -> None:
    torch.manual_seed(12345)  # the global generator has no say
    run_all(tiny(tmp_path / "again"))
    assert results(tmp_path / "again") == results(finished)


def test_digits_compute_with_one_thread_and_leave_the_others_as_they_were(tmp_path: Path, tiny: Make) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        events = opencil.execute(tiny(tmp_path, "benchmark.classes_per_step=8", detector="msp"))
        next(events)
        assert torch.get_num_threads() == 1
        events.close()  # type: ignore[attr-defined]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_another_seed_gives_other_weights_and_rows(
    finished: Path, tmp_path: Path, tiny: Make, run_all: RunAll, results: Results
) -> None:
    run_all(tiny(tmp_path, seed=1))
    first, second = results(finished / RUN), results(tmp_path / "digits/k2/icarl/seed1")
    assert first.keys() == second.keys()
    for step in ("step01", "step04"):
        for name in ("model.safetensors", "memory.safetensors", "detectors/energy.parquet"):
            assert first[f"{step}/{name}"] != second[f"{step}/{name}"]


@pytest.mark.usefixtures("has_bfloat16")
def test_the_precision_reaches_the_training(
    tmp_path: Path, tiny: Make, run_all: RunAll, contents: Callable[[Path], dict[str, bytes]]
) -> None:
    weights = []
    for precision in ("fp32", "bf16"):
        runs = tmp_path / precision
        short = ("benchmark.classes_per_step=8", "cil.*.epochs=1")
        run_all(tiny(runs, *short, f"training.precision={precision}", detector="msp"))
        weights.append(contents(runs)["digits/k8/icarl/seed0/step01/model.safetensors"])
    assert weights[0] != weights[1]


def test_runs_of_a_grid_do_not_disturb_each_other(
    finished: Path, tmp_path: Path, tiny: Make, run_all: RunAll, results: Results
) -> None:
    run_all(tiny(tmp_path, "benchmark.classes_per_step=[8, 2]"))
    assert results(tmp_path / RUN) == results(finished / RUN)


def test_detectors_do_not_touch_the_model(
    finished: Path, tmp_path: Path, tiny: Make, run_all: RunAll, results: Results
) -> None:
    run_all(tiny(tmp_path, detector="msp"))
    fewer, whole = results(tmp_path / RUN), results(finished / RUN)
    assert {name: whole[name] for name in fewer if name != "config.yml"} == {
        name: content for name, content in fewer.items() if name != "config.yml"
    }


def test_events_tell_the_whole_story(tmp_path: Path, tiny: Make, run_all: RunAll) -> None:
    events = run_all(tiny(tmp_path))
    assert all(str(event.run) == RUN for event in events)
    training = [event for event in events if isinstance(event, Training)]
    assert {event.steps for event in training} == {4}
    for t in (1, 2, 3, 4):
        of_step = [event.progress for event in training if event.step == t]
        iterations = of_step[0].iterations
        places = [(epoch, i) for epoch in (1, 2) for i in range(1, iterations + 1)]
        assert [(p.epoch, p.iteration) for p in of_step] == places
        assert all(torch.isfinite(p.loss) for p in of_step)
    evaluated = [(event.step, event.detector) for event in events if isinstance(event, Evaluated)]
    assert evaluated == [(t, d) for t in (1, 2, 3, 4) for d in ("energy", "msp", "relation")]
    assert events[-1] == Finished(events[0].run, already=False)


# --- killed ----------------------------------------------------------------------------------------

WATCH = """
for event in opencil.execute(config):
    if {when}:
        die()
"""
KILLED = {
    "inside an epoch of step 2": WATCH.format(
        when="isinstance(event, Training) and event.step == 2 and "
        "(event.progress.epoch, event.progress.iteration) == (2, 3)"
    ),
    "between two detectors of step 2": WATCH.format(
        when="isinstance(event, Evaluated) and (event.step, event.detector) == (2, 'energy')"
    ),
    "in the middle of writing the weights of step 2": """
def fill(path, content, fill=atomic_files._fill):
    fill(path, content)
    if "step02" in str(path):
        os.truncate(path, os.path.getsize(path) // 2)
        die()
atomic_files._fill = fill
"""
    + WATCH.format(when="False"),
    "between the weights of step 2 and its mark": """
def fill(path, content, fill=atomic_files._fill):
    if path.name.startswith("step.json.") and path.parent.name == "step02":
        die()
    fill(path, content)
atomic_files._fill = fill
"""
    + WATCH.format(when="False"),
}


@pytest.mark.parametrize("code", KILLED.values(), ids=KILLED.keys())
def test_killed_and_started_again_equals_never_killed(
    code: str,
    finished: Path,
    tmp_path: Path,
    tiny: Make,
    run_all: RunAll,
    results: Results,
) -> None:
    config = tiny(tmp_path / "runs")
    with forks.code(config, code) as process:
        _, errors = process.communicate()
    assert process.returncode == -9, errors
    killed = results(tmp_path / "runs" / RUN)
    assert "step01/step.json" in killed
    assert "step03/step.json" not in killed
    if "truncate" in code:
        assert [name for name in killed if name.endswith(".part")]

    events = run_all(config)
    assert min(event.step for event in events if isinstance(event, (Training, Evaluated))) == 2
    assert isinstance(events[-1], Finished)
    assert results(tmp_path / "runs") == results(finished)
    assert list(tmp_path.rglob("*.part")) == []


def test_stopped_again_and_again_equals_never_stopped(
    finished: Path, tmp_path: Path, tiny: Make, results: Results
) -> None:
    config, starts, done = tiny(tmp_path / "runs"), 0, False
    while not done:
        events = opencil.execute(config)
        # A step has at most 10 iterations and 3 detectors: every start gets at least one step further.
        done = any(isinstance(event, Finished) for event in islice(events, 15))
        events.close()
        starts += 1
    assert starts >= 3
    assert results(tmp_path / "runs") == results(finished)


def test_only_what_is_missing_is_done(finished: Path, tiny: Make, run_all: RunAll, results: Results) -> None:
    before = results(finished)
    (finished / RUN / "step03" / "detectors" / "relation.parquet").unlink()
    (finished / RUN / "step04" / "step.json").unlink()
    (finished / RUN / "step04" / "model.safetensors.part").write_bytes(b"half")
    (finished / RUN / "step04" / "detectors" / "msp.parquet.part").write_bytes(b"half")
    events = run_all(tiny(finished))
    assert {event.step for event in events if isinstance(event, Training)} == {4}
    evaluated = [(e.step, e.detector) for e in events if isinstance(e, Evaluated)]
    assert evaluated[0] == (3, "relation")
    assert {step for step, _ in evaluated[1:]} <= {4}
    assert results(finished) == before


def test_half_a_file_beside_finished_work_goes_unless_somebody_may_write_it(
    finished: Path, tiny: Make, run_all: RunAll
) -> None:
    half = finished / RUN / "step04" / "step.json.0123abcd.part"
    half.write_bytes(b"half")
    with Lock(finished / RUN / ".held"):
        run_all(tiny(finished))
    assert half.exists()
    run_all(tiny(finished))
    assert not half.exists()


# --- failures --------------------------------------------------------------------------------------


def test_a_run_that_diverges_fails_alone_and_keeps_its_steps(
    tmp_path: Path, tiny: Make, run_all: RunAll, results: Results
) -> None:
    config = tiny(tmp_path, "benchmark.classes_per_step=[4, 8]", "cil.icarl.later.lr=1e30", detector="msp")
    events = run_all(config)
    (failed,) = [event for event in events if isinstance(event, Failed)]
    assert str(failed.run) == "digits/k4/icarl/seed0"
    for part in ("ICaRL, step 2", "nan", "epoch 1 of 2", "learning rate 1e+30"):
        assert part in str(failed.error)
    (done,) = [event for event in events if isinstance(event, Finished)]
    assert str(done.run) == "digits/k8/icarl/seed0", "its one step never comes to the later schedule"
    kept = results(tmp_path / "digits/k4/icarl/seed0")
    assert "step01/detectors/msp.parquet" in kept
    assert not any(name.startswith("step02") for name in kept)
    rows = opencil.read_rows(tmp_path)
    assert set(zip(rows["k"], rows["step"], strict=True)) == {(4, 1), (8, 1)}

    again = run_all(config)
    assert [type(event) for event in again if not isinstance(event, Training)] == [Failed, Finished]
    assert results(tmp_path / "digits/k4/icarl/seed0") == kept


def test_a_run_that_diverges_at_the_end_fails_alone_too(tmp_path: Path, tiny: Make, run_all: RunAll) -> None:
    # One iteration a step: the loss is finite, the weights after it are not.
    settings = ["cil.icarl.epochs=1", "benchmark.batch_size=10000", "cil.icarl.first.lr=1e38"]
    config = tiny(tmp_path, *settings, "place.checkpoint_seconds=0", detector="msp")
    for _ in ("at first", "from what that left"):
        events = run_all(config)
        assert [type(event) for event in events if not isinstance(event, Training)] == [Failed]
        assert "not finite" in str(events[-1].error)
        assert not (tmp_path / RUN / "step01" / "step.json").exists()


def test_bad_places_are_refused_before_anything_is_written(tmp_path: Path, tiny: Make) -> None:
    runs = tmp_path / "runs"
    for settings, said in (
        (["place.data_root=not-there"], "'not-there'.*no such folder"),
        (["place.device=abacus"], "'abacus'.*allowed here are auto, cpu"),
    ):
        with pytest.raises(BadInput, match=said):
            list(opencil.execute(tiny(runs, *settings)))
    assert not runs.exists()


# --- the models themselves --------------------------------------------------------------------------


def test_the_accuracy_matrix_is_that_of_the_stored_models(finished: Path) -> None:
    """Image by image: all seen classes (task 0), and the two that came with each step."""
    stream = opencil.benchmark("digits").stream(2)
    rows = opencil.read_rows(finished)
    stored = rows[rows["metric"] == "accuracy"].set_index(["step", "task"])["value"]
    run = opencil.open_run(finished / RUN)
    for step in stream:
        model = run.model(step.number)
        right: dict[int, list[bool]] = {task: [] for task in range(step.number + 1)}
        with torch.no_grad():
            for i in step.test.tolist():
                pixels = (stream.test.images[i : i + 1].float() / 255 - 0.31) / 0.38
                label = int(stream.test.labels[i])
                for task in (0, label // 2 + 1):
                    right[task].append(int(model(pixels).argmax()) == label)
        expected = {task: sum(answers) / len(answers) for task, answers in right.items()}
        assert stored.loc[step.number].to_dict() == pytest.approx(expected, abs=1e-12)


def test_the_accuracy_of_nearest_means(finished: Path) -> None:
    """iCaRL's own accuracy, in float64: the class whose exemplars' mean direction is nearest."""
    data = opencil.benchmark("digits")
    stream = data.stream(2)
    rows = opencil.read_rows(finished)
    folder, step = RunFolder(finished / RUN).step(4), stream[3]
    model = opencil.open_run(finished / RUN).model(4)

    def directions(images: opencil.ImageSet, indices: torch.Tensor) -> torch.Tensor:
        features = opencil.forward(model, images, data.transform, indices).features.double()
        return features / features.norm(dim=1, keepdim=True)

    means = [directions(stream.train, kept).mean(dim=0) for kept in folder.memory(80).per_class]
    middle = torch.stack([mean / mean.norm() for mean in means])
    nearest = torch.cdist(directions(stream.test, step.test), middle).argmin(dim=1)
    labels = stream.test.labels[step.test]
    found = rows[(rows["metric"] == "accuracy_nearest_mean") & (rows["step"] == 4)]
    assert list(found["task"]) == [0, 1, 2, 3, 4]
    for task, value in zip(found["task"], found["value"], strict=True):
        of_task = labels >= 0 if task == 0 else labels // 2 + 1 == task
        assert value == pytest.approx(float((nearest == labels)[of_task].double().mean()), abs=1e-12)


def test_the_public_benchmark_is_the_configs_data() -> None:
    data = opencil.benchmark("digits")
    assert {name: ood.distance for name, ood in data.ood.items()} == {
        "digits-held-out": "near",
        "photo-patches": "far",
        "noise": "far",
    }
    with pytest.raises(BadInput, match="did you mean 'digits'"):
        opencil.benchmark("digit")


def test_a_run_does_not_go_on_with_other_images(
    finished: Path, tiny: Make, run_all: RunAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory is indices: they would name other exemplars."""
    config = tiny(finished, detector=["msp", "gen"])
    loaded = runner.load(config)
    pixels = loaded.train.images.clone()
    pixels[0, 0, 0, 0] ^= 1
    other = replace(loaded, train=replace(loaded.train, images=pixels))
    monkeypatch.setattr(runner, "load", lambda _: other)
    (failed,) = run_all(config)
    assert isinstance(failed, Failed)
    assert "was trained on other images than those of 'digits' now" in str(failed.error)
    monkeypatch.undo()
    assert isinstance(run_all(config)[-1], Finished)
