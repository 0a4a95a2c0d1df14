"""The order of work: the same again, interrupted or not; failures; what each step sees."""

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import opencil
from opencil import BadInput
from opencil.config import Config
from opencil.runs import runner
from opencil.runs.runner import Evaluated, Event, Failed, Finished, Training

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


def test_another_seed_gives_other_weights_and_rows(
    finished: Path, tmp_path: Path, tiny: Make, run_all: RunAll, results: Results
) -> None:
    run_all(tiny(tmp_path, seed=1))
    first, second = results(finished / RUN), results(tmp_path / "digits/k2/icarl/seed1")
    assert first.keys() == second.keys()
    for step in ("step01", "step04"):
        for name in ("model.safetensors", "memory.safetensors", "detectors/energy.parquet"):
            assert first[f"{step}/{name}"] != second[f"{step}/{name}"]


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
    assert evaluated == [(t, d) for t in (1, 2, 3, 4) for d in ("energy", "maxlogit", "msp")]
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
def save(tensors, path, save=files.save_file):
    save(tensors, path)
    if "step02" in str(path):
        os.truncate(path, os.path.getsize(path) // 2)
        die()
files.save_file = save
"""
    + WATCH.format(when="False"),
    "between the weights of step 2 and its mark": """
def write(path, text, write=files.write_text):
    if path.name == "step.json" and path.parent.name == "step02":
        die()
    write(path, text)
files.write_text = write
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
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    config = tiny(tmp_path / "runs")
    with start(config, code) as process:
        _, errors = process.communicate()
    assert process.returncode == -9, errors
    killed = results(tmp_path / "runs" / RUN)
    assert "step01/step.json" in killed
    assert "step03/step.json" not in killed
    if "truncate" in code:
        assert "step02/model.safetensors.part" in killed

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
    (finished / RUN / "step03" / "detectors" / "maxlogit.parquet").unlink()
    (finished / RUN / "step04" / "step.json").unlink()
    (finished / RUN / "step04" / "model.safetensors.part").write_bytes(b"half")
    (finished / RUN / "step04" / "detectors" / "msp.parquet.part").write_bytes(b"half")
    events = run_all(tiny(finished))
    assert {event.step for event in events if isinstance(event, Training)} == {4}
    evaluated = [(e.step, e.detector) for e in events if isinstance(e, Evaluated)]
    assert evaluated[0] == (3, "maxlogit")
    assert {step for step, _ in evaluated[1:]} <= {4}
    assert results(finished) == before


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
    assert len(opencil.read_rows(tmp_path)) == 2 * (1 + 3 * 5)

    again = run_all(config)
    assert [type(event) for event in again if not isinstance(event, Training)] == [Failed, Finished]
    assert results(tmp_path / "digits/k4/icarl/seed0") == kept


def test_a_run_that_diverges_at_the_end_fails_alone_too(tmp_path: Path, tiny: Make, run_all: RunAll) -> None:
    # One iteration a step: the loss is finite, the weights after it are not.
    settings = ["cil.icarl.epochs=1", "benchmark.batch_size=10000", "cil.icarl.first.lr=1e38"]
    events = run_all(tiny(tmp_path, *settings, detector="msp"))
    assert [type(event) for event in events if not isinstance(event, Training)] == [Failed]
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


# --- what a step sees ------------------------------------------------------------------------------


def test_ood_data_grow_and_are_nested(tmp_path: Path, tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[list[int]]] = {}
    real = runner.forward

    def forward(model: Any, images: Any, transform: Any, indices: torch.Tensor) -> Any:
        outputs = real(model, images, transform, indices)
        assert len(outputs) == len(indices)
        assert outputs.logits.shape[1] == model.head.out_features
        seen.setdefault(images.name, []).append(indices.tolist())
        return outputs

    monkeypatch.setattr(runner, "forward", forward)
    for _ in opencil.execute(tiny(tmp_path, "cil.icarl.epochs=1")):
        pass
    counts = {name: [len(indices) for indices in steps] for name, steps in seen.items()}
    assert counts["noise"] == [125, 250, 375, 500], "once for all detectors"
    assert counts["photo-patches"] == [130, 260, 390, 520]
    assert counts["digits-held-out"] == [88, 177, 266, 354]
    for name in ("noise", "photo-patches", "digits-held-out"):
        for fewer, more in zip(seen[name], seen[name][1:], strict=False):
            assert set(fewer) < set(more)
        assert len(set(seen[name][-1])) == counts[name][-1]
        assert seen[name][0] != sorted(seen[name][0]), "a permutation, not the list's own order"
    test = opencil.benchmark("digits").stream(2)
    assert sorted(set(counts["digits"])) == [len(step.test) for step in test]


@pytest.mark.parametrize("order", ["permutation", "list"])
def test_the_order_of_ood_data(
    order: str, tmp_path: Path, tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    real = runner.ood_subset
    monkeypatch.setattr(runner, "ood_subset", lambda *a: seen.append(real(*a)) or seen[-1])
    settings = ["cil.icarl.epochs=1", "benchmark.classes_per_step=8", f"benchmark.ood_order={order}"]
    for _ in opencil.execute(tiny(tmp_path, *settings, "seed.ood_subset=3", detector="msp")):
        pass
    assert len(seen) == 3
    assert all((list(s) == sorted(s)) == (order == "list") for s in seen)


@pytest.mark.parametrize(
    ("setup", "sizes"),
    [
        # The memory holds 80 // seen images of each class; train+ is a step's own and the memory before it.
        ("train+", lambda step: len(step.train) + (80 // step.old * step.old if step.old else 0)),
        ("memory", lambda step: 80 // step.seen * step.seen),
    ],
)
def test_detectors_are_set_up_on_training_images(
    setup: str, sizes: Callable[[opencil.Step], int], tmp_path: Path, tiny: Make
) -> None:
    fitted = []

    @opencil.register_detector("probe")
    @dataclass
    class Probe(opencil.LogitDetector):
        """Notes what it is set up on."""

        needs_setup: ClassVar[bool] = True

        def set_up(self, outputs: opencil.Outputs) -> None:
            assert outputs.labels is not None
            fitted.append((len(outputs), outputs.labels.unique().tolist(), outputs.logits.shape[1]))

        def scores(self, outputs: opencil.Outputs) -> torch.Tensor:
            return outputs.logits[:, 0]

    settings = ["cil.icarl.epochs=1", "benchmark.classes_per_step=3", f"benchmark.setup={setup}"]
    for _ in opencil.execute(tiny(tmp_path, *settings, detector=["probe", "msp"])):
        pass
    stream = opencil.benchmark("digits").stream(3)
    assert [step.seen for step in stream] == [3, 6, 8], "the last step takes the remainder"
    assert fitted == [(sizes(step), list(range(step.seen)), step.seen) for step in stream]


def test_accuracy_is_that_of_the_stored_model(finished: Path) -> None:
    data = opencil.benchmark("digits")
    stream = data.stream(2)
    rows = opencil.read_rows(finished)
    stored = rows[rows["metric"] == "accuracy"].set_index("step")["value"]
    for step in stream:
        model = opencil.Model(opencil.create_backbone("resnet8"), step.seen)
        weights = runner.RunFolder(finished / RUN).step(step.number).weights()
        model.load_state_dict(weights)
        model.eval()
        right = 0
        with torch.no_grad():
            for i in step.test.tolist():
                pixels = (stream.test.images[i : i + 1].float() / 255 - 0.31) / 0.38
                right += int(model(pixels).argmax()) == int(stream.test.labels[i])
        assert stored[step.number] == pytest.approx(right / len(step.test), abs=1e-12)


def test_the_public_benchmark_is_the_configs_data() -> None:
    data = opencil.benchmark("digits")
    assert {name: ood.distance for name, ood in data.ood.items()} == {
        "digits-held-out": "near",
        "photo-patches": "far",
        "noise": "far",
    }
    with pytest.raises(BadInput, match="did you mean 'digits'"):
        opencil.benchmark("digit")
