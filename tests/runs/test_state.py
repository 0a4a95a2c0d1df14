"""A stored run opened again: its models, memories and detectors are those behind its rows."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import opencil
from opencil import BadInput, OpenCILError, open_run
from opencil.config import Config
from opencil.files import Damaged
from opencil.runs.loading import load
from opencil.runs.spec import plan
from opencil.runs.state import Run, StepOutputs
from opencil.runs.store import RunFolder
from tests.stored import edit_json, replace_model

Make = Callable[..., Config]
RUN = "digits/k4/icarl/seed0"
BY_TASK = (
    "detector.msp@task.by_task=true",
    "detector.react@task.by_task=true",
    "detector.react@task.setup=train+",
    "detector.ber@task.by_task=true",
    "detector.ber@nnguide.scored_by={name: nnguide, neighbours: 20}",
    "detector.ber@other.head_of=ber@another",
)
RELEASED = ["relation@released", "nnguide@released"]
DETECTORS = ["msp", "relation", "ber", "msp@task", "react@task", "ber@task", "ber@nnguide", "ber@other"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, short: Make) -> Path:
    runs = tmp_path_factory.mktemp("stored")
    settings = (*BY_TASK, "detector.nnguide@released.neighbours=20")
    opencil.run(short(runs, *settings, detector=[*DETECTORS, *RELEASED]))
    return runs / RUN


@pytest.mark.parametrize("name", DETECTORS)
def test_a_detector_gives_the_scores_behind_the_rows(run: Path, name: str) -> None:
    opened, rows = open_run(run), opencil.read_rows(run)
    step = opened.stream[1]
    outputs = [
        opencil.forward(opened.model(2), images, opened.data.transform, indices)
        for images, indices in ((opened.stream.test, step.test), (opened.data.ood["noise"].images, None))
    ]
    detector = opened.detector(name, 2)
    expected = opencil.ood_metrics(*(detector.score(o) for o in outputs)).auc
    found = rows[(rows["detector"] == name) & (rows["step"] == 2) & (rows["metric"] == "auc")]
    assert found["value"].item() == pytest.approx(expected)


def test_by_task_scores_are_standardised_by_the_memory(run: Path) -> None:
    opened = open_run(run)
    outputs = opencil.forward(
        opened.model(2), opened.stream.train, opened.data.transform, opened.memory(2).indices
    )
    assert outputs.labels is not None
    for name in ("msp@task", "react@task", "ber@task"):
        detector = opened.detector(name, 2)
        own = copy.copy(detector)
        own.by_task = False
        scores, found = own.score(outputs), detector.score(outputs)
        for task in (0, 1):
            of_task = scores[outputs.labels // 4 == task]
            predicted = outputs.logits.argmax(dim=1) // 4 == task
            expected = (scores[predicted] - of_task.mean()) / of_task.std()
            assert found[predicted].tolist() == pytest.approx(expected.tolist(), rel=1e-3, abs=1e-3)


def test_labels_that_differ_in_their_scores_alone_share_a_head(run: Path) -> None:
    heads = {path.stem: path.read_bytes() for path in (run / "step02" / "heads").iterdir()}
    assert set(heads) == {"ber", "ber@task", "ber@nnguide", "ber@other"}
    assert heads["ber"] == heads["ber@task"] == heads["ber@nnguide"] != heads["ber@other"]
    rows = opencil.read_rows(run).query("metric == 'auc' and step == 2").set_index("detector")["value"]
    assert rows["ber"] != rows["ber@nnguide"]


def test_models_and_memories(run: Path) -> None:
    opened = open_run(run)
    labels = opened.stream.train.labels
    assert not len(opened.memory(0).indices)
    assert set(labels[opened.memory(1).indices].tolist()) == {0, 1, 2, 3}
    for label, indices in enumerate(opened.memory(2).per_class):
        assert len(set(indices.tolist())) == 80 // 8
        assert set(labels[indices].tolist()) == {label}
    old = labels[opened.train_plus(opened.stream[1])] < 4
    assert int(old.sum()) == len(opened.memory(1).indices)
    model = opened.model(2)
    assert model.head.out_features == 8
    next(model.parameters()).data.zero_()
    assert next(opened.model(2).parameters()).any(), "a copy"
    assert "2 of 2 steps trained" in repr(opened)


def test_names_and_numbers_that_are_not_there(run: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no run in"):
        open_run(tmp_path)
    opened = open_run(run)
    with pytest.raises(BadInput, match="'gen' is not a detector of the run"):
        opened.detector("gen", 1)
    for number in (-1, 0, 3):
        with pytest.raises(BadInput, match=rf"has no step {number}: stored are 1, 2"):
            opened.model(number)
    with pytest.raises(BadInput, match="has no step 3"):
        opened.memory(3)


def test_every_random_choice_has_its_own_seed(tmp_path: Path, short: Make) -> None:
    config = short(tmp_path, "seed.initialisation=11", "seed.data_order=12")
    new = Run(plan(config)[0], RunFolder(tmp_path), load(config))
    assert (new.setting.initialisation_seed, new.setting.data_seed) == (11, 12)
    step = new.stream[0]
    assert new.source(step, new.learner.load(new.setting, step)).seed == (12, "tune", 1)


def test_a_head_must_be_that_of_the_model(done: Path) -> None:
    run = done / RUN

    def change(info: dict[str, Any]) -> None:
        info["heads"]["ber"] = info["rows"]["ber"]["head"] = "of another"

    edit_json(run / "step01/step.json", change)
    with pytest.raises(Damaged, match=r"ber.safetensors cannot be used"):
        open_run(run).detector("ber", 1)
    edit_json(run / "step01/step.json", lambda info: info["files"].pop("heads/ber.safetensors"))
    edit_json(run / "step01/step.json", lambda info: info["heads"].pop("ber"))
    with pytest.raises(BadInput, match="ber has no head at step 1"):
        open_run(run).detector("ber", 1)


def test_a_head_must_be_of_the_classes_of_its_step(done: Path) -> None:
    step, other = (open_run(done / RUN).folder.step(number) for number in (1, 2))
    info = step.info()
    step.save_tensors("heads/ber.safetensors", other.tensors("heads/ber.safetensors", other.info()), info)
    step.save_info(info)
    with pytest.raises(Damaged, match=r"ber.safetensors cannot be used"):
        open_run(done / RUN).detector("ber", 1)


def test_a_run_in_the_place_of_another_is_refused(done: Path) -> None:
    place = (done / RUN).with_name("seed5")
    (done / RUN).rename(place)
    with pytest.raises(Damaged, match=f"it is of run {RUN}"):
        open_run(place)
    place.rename(mine := done / "mine")
    assert str(open_run(mine).spec) == RUN


def test_a_model_must_be_of_the_learner(done: Path) -> None:
    run = done / RUN
    opened = open_run(run)
    step, info = opened.folder.step(2), opened.info(2)
    replace_model(step, opened.model(1).state_dict(), info)
    with pytest.raises(OpenCILError, match="step 2: the weights do not fit"):
        open_run(run).model(2)


def test_set_ups_of_the_released_code(run: Path) -> None:
    """Relation: the memory and ten test images of each new class, which are not scored. NNGuide: a batch."""
    opened = open_run(run)
    step, test = opened.stream[1], opened.stream.test
    outputs = StepOutputs(opened, step)
    relation = opened.detector("relation@released", 2)
    scored, held = outputs.scored(relation), outputs.held_out
    assert sorted([*scored.tolist(), *held.tolist()]) == sorted(step.test.tolist())
    counts = test.labels[held].bincount(minlength=step.seen)
    assert counts.tolist() == [0] * step.old + [10] * step.new

    setup = outputs.setup("memory+test")
    assert setup.labels is not None
    known = opened.stream.train.labels[opened.memory(2).indices].tolist()
    assert setup.labels.tolist() == known + test.labels[held].tolist()
    model, transform = opened.model(2), opened.data.transform
    images = torch.cat(
        [
            transform.test(part.images[indices])
            for part, indices in ((opened.stream.train, opened.memory(2).indices), (test, held))
        ]
    )
    naive = opencil.create_detector("relation").fit(opencil.forward(model, images))
    of = [
        opencil.forward(model, images, transform, indices)
        for images, indices in ((test, scored), (opened.data.ood["noise"].images, None))
    ]
    rows = opencil.read_rows(run)
    chosen = (rows["detector"] == "relation@released") & (rows["step"] == 2) & (rows["metric"] == "auc")
    expected = opencil.ood_metrics(*(naive.score(o) for o in of)).auc
    assert rows[chosen & (rows["ood"] == "noise")]["value"].item() == pytest.approx(expected, abs=1e-4)

    batch = outputs.setup("batch")
    assert len(batch) == opened.setting.batch_size
    assert torch.equal(batch.logits, StepOutputs(opened, step).setup("batch").logits), "drawn by the seed"
    assert outputs.scored(opened.detector("nnguide@released", 2)) is step.test


def test_a_run_keeps_as_many_exemplars_of_every_class(tiny: Callable[..., Config], tmp_path: Path) -> None:
    config = tiny(tmp_path, "benchmark.memory_per_class=3", "benchmark.classes_per_step=4", detector="msp")
    for _ in opencil.execute(config):
        pass
    run = opencil.open_run(tmp_path / "digits/k4/icarl/seed0")
    counts = [[len(indices) for indices in run.memory(step).per_class] for step in (1, 2)]
    assert counts == [[3] * 4, [3] * 8]


def test_predictions_are_names_and_labels_of_the_dataset_are_translated(finished: Path) -> None:
    """Classes are learned in a random order: compared as they are, labels would be right by chance alone."""
    run = opencil.open_run(finished / "digits/k2/icarl/seed0")
    data, rows = run.data, opencil.read_rows(finished)
    truth = [str(label) for label in data.test.labels.tolist()]  # digits have no other names
    for step in run.stream:
        of_step = rows[(rows.step == step.number) & (rows.metric == "accuracy") & (rows.task == 0)]
        names = run.predict(data.test, step.number)
        assert set(names) <= set(run.classes(step.number)) == {truth[i] for i in step.test.tolist()}
        right = [names[i] == truth[i] for i in step.test.tolist()]
        assert sum(right) / len(right) == pytest.approx(of_step.value.item())
    model = run.model(step.number)
    outputs = opencil.forward(model, data.test, data.transform)
    assert torch.equal(outputs.labels, run.stream.test.labels)
    assert torch.equal(opencil.forward(model, run.stream.test, data.transform).labels, outputs.labels)
    ood = {"noise": data.ood["noise"].images}
    table = opencil.evaluate(model, data.test, ood, transform=data.transform, detectors="msp")
    assert table.loc[table.metric == "accuracy", "value"].item() == pytest.approx(of_step.value.item())
