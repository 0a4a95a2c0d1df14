"""A stored run opened again: the models, memories and detectors that its rows were computed with."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest

import opencil
from opencil import BadInput, OpenCILError, open_run
from opencil.config import Config, dump_yaml, read_yaml

Make = Callable[..., Config]
RunAll = Callable[[Config], list[object]]
SETTINGS = ("benchmark.classes_per_step=4", "detector.ber.schedule.epochs=1")
BY_TASK = (
    "detector.msp@task.by_task=true",
    "detector.react@task.by_task=true",
    "detector.react@task.setup=train+",
    "detector.ber@task.by_task=true",
    "detector.ber@nnguide.scored_by={name: nnguide, neighbours: 20}",
    "detector.ber@nnguide.by_task=true",
    "detector.ber@odin.scored_by=odin",
    "detector.ber@odin.head_of=ber@other",
)
DETECTORS = ["msp", "react", "ber", "msp@task", "react@task", "ber@task", "ber@nnguide", "ber@odin"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny: Make, run_all: RunAll) -> Path:
    runs = tmp_path_factory.mktemp("stored")
    run_all(tiny(runs, *SETTINGS, *BY_TASK, detector=DETECTORS))
    return runs / "digits" / "k4" / "icarl" / "seed0"


@pytest.mark.parametrize("name", DETECTORS)
def test_a_detector_gives_the_scores_behind_the_rows(run: Path, name: str) -> None:
    opened, rows = open_run(run), opencil.read_rows(run)
    step = opened.stream[1]
    outputs = [
        opencil.forward(opened.model(2), images, opened.data.transform, indices)
        for images, indices in ((opened.stream.test, step.test), (opened.data.ood["noise"].images, None))
    ]
    detector = opened.detector(name, 2)
    assert detector.ready
    expected = opencil.ood_metrics(*(detector.score(o) for o in outputs)).auc
    found = rows[(rows["detector"] == name) & (rows["ood"] == "noise") & (rows["metric"] == "auc")]
    assert float(found.set_index("step")["value"][2]) == pytest.approx(expected)


def test_by_task_scores_are_standardised_by_the_memory(run: Path) -> None:
    """Whatever a detector is set up on; and only values that are not the default are written down."""
    opened = open_run(run)
    memory = opencil.forward(
        opened.model(2), opened.stream.train, opened.data.transform, opened.memory(2).indices
    )
    assert memory.labels is not None
    for name in ("msp@task", "react@task", "ber@task"):
        detector = opened.detector(name, 2)
        own = copy.copy(detector)
        own.by_task = False
        scores, found = own.score(memory), detector.score(memory)
        for task in (0, 1):
            of_task = scores[memory.labels // 4 == task]
            predicted = memory.logits.argmax(dim=1) // 4 == task
            assert predicted.any()
            expected = (scores[predicted] - of_task.mean()) / of_task.std()
            assert found[predicted].tolist() == pytest.approx(expected.tolist(), rel=1e-3, abs=1e-3)
    stored = opened.folder.stored()["detector"]
    assert stored["msp@task"] == {"by_task": True}
    assert stored["msp"] == {}


def test_labels_that_are_only_scored_otherwise_share_a_head(run: Path) -> None:
    heads = {path.stem: path.read_bytes() for path in (run / "step02" / "heads").iterdir()}
    assert set(heads) == {"ber", "ber@task", "ber@nnguide", "ber@odin"}
    assert heads["ber"] == heads["ber@task"] == heads["ber@nnguide"]
    assert heads["ber@odin"] != heads["ber"], "it was trained with the random numbers of another label"
    rows = opencil.read_rows(run)
    auc = rows[(rows["metric"] == "auc") & (rows["step"] == 2)].set_index(["detector", "ood"])["value"]
    assert auc["ber"].ne(auc["ber@nnguide"]).any()


def test_memories_hold_old_classes(run: Path) -> None:
    opened = open_run(run)
    labels = opened.stream.train.labels
    assert not len(opened.memory(0).indices)
    assert set(labels[opened.memory(1).indices].tolist()) == {0, 1, 2, 3}
    old = labels[opened.train_plus(opened.stream[1])] < 4
    assert int(old.sum()) == len(opened.memory(1).indices)


def test_what_is_not_there(run: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no run in"):
        open_run(tmp_path)
    opened = open_run(run)
    assert repr(opened) == f"Run(digits/k4/icarl/seed0: 2 of 2 steps trained, in {run})"
    with pytest.raises(
        BadInput, match="'gen' is not one of the run's: those are msp, react, ber, msp@task, "
    ):
        opened.detector("gen", 1)
    for number in (-1, 0, 3):
        with pytest.raises(BadInput, match=rf"has no step {number}: stored are 1, 2"):
            opened.model(number)
    with pytest.raises(BadInput, match="has no step 3"):
        opened.memory(3)
    opened.folder.step(1).head("ber").unlink()
    with pytest.raises(BadInput, match="ber has no head at step 1"):
        opened.detector("ber", 1)


def test_a_value_that_is_new_counts_as_its_default(tmp_path: Path, tiny: Make, run_all: RunAll) -> None:
    """A run of before the value existed goes on; under another value of it, it does not."""
    config = tiny(tmp_path, *SETTINGS, detector=["ber"])
    run_all(config)
    path = tmp_path / "digits" / "k4" / "icarl" / "seed0" / "config.yml"
    record = read_yaml(path)
    del record["training"]["compile"], record["detector"]["ber"]["init"]
    path.write_text(dump_yaml(record))
    assert len(run_all(config)) == 1
    with pytest.raises(OpenCILError, match=r"detector.ber.init: 'copy' in the stored run, 'fresh' now"):
        run_all(tiny(tmp_path, *SETTINGS, "detector.ber.init=fresh", detector=["ber"]))


def test_a_run_of_when_the_set_up_was_the_benchmarks(tmp_path: Path, tiny: Make, run_all: RunAll) -> None:
    """Its value counts for the detectors that have one now; tuners were always trained on train+."""
    config = tiny(tmp_path, *SETTINGS, "detector.*.setup=memory", detector=["msp", "relation", "ber"])
    run_all(config)
    path = tmp_path / "digits" / "k4" / "icarl" / "seed0" / "config.yml"
    record = read_yaml(path)
    record["benchmark"]["setup"] = record["detector"]["relation"].pop("setup")
    path.write_text(dump_yaml(record))
    assert len(run_all(config)) == 1
    opened = open_run(path.parent)
    assert opened.spec.detectors["relation"]["setup"] == "memory"
    assert "setup" not in opened.spec.detectors["msp"] | opened.spec.detectors["ber"]
    with pytest.raises(OpenCILError, match=r"relation.setup: 'memory' in the stored run, 'train\+' now"):
        run_all(tiny(tmp_path, *SETTINGS, "detector.*.setup=train+", detector=["relation", "ber"]))
    del record["benchmark"]["setup"]
    path.write_text(dump_yaml(record))
    with pytest.raises(OpenCILError, match=r"relation.setup: 'train\+' in the stored run, 'memory' now"):
        run_all(config)  # where nothing was said, it was train+


def test_values_that_a_stored_run_does_not_have_are_what_they_were(
    tmp_path: Path, tiny: Make, run_all: RunAll
) -> None:
    """The transform's by default; detectors' as they were ``formerly``, where the default is another."""
    settings = (SETTINGS[0], "detector.t2fnorm.schedule.epochs=1", "detector.t2fnorm.scored=scaled")
    config = tiny(tmp_path, *settings, detector=["t2fnorm"])
    run_all(config)
    path = tmp_path / "digits" / "k4" / "icarl" / "seed0" / "config.yml"
    record = read_yaml(path)
    del record["benchmark"]["transform"]["brightness"], record["detector"]["t2fnorm"]["scored"]
    path.write_text(dump_yaml(record))
    assert len(run_all(config)) == 1, "the same run"
    assert open_run(path.parent).spec.detectors["t2fnorm"]["scored"] == "scaled"
    raw = tiny(tmp_path, *settings, "detector.t2fnorm.scored=raw", detector=["t2fnorm"])
    with pytest.raises(OpenCILError, match=r"t2fnorm.scored: 'scaled' in the stored run, 'raw' now"):
        run_all(raw)
    record["detector"]["npos"] = {"sigma": 0.1}
    path.write_text(dump_yaml(record))
    then = open_run(path.parent).spec.detectors["npos"]
    assert then == {"sigma": 0.1, "distances": "features", "outliers_by": "head"}
    record["detector"]["npos"] = {"sigma": 0.1, "outliers_by": "head"}
    path.write_text(dump_yaml(record))
    assert "distances" not in open_run(path.parent).spec.detectors["npos"], "what came with it is there"
    brighter = tiny(tmp_path, *settings, "benchmark.transform.brightness=0.2", detector=["t2fnorm"])
    with pytest.raises(OpenCILError, match=r"transform.brightness: 0.0 in the stored run, 0.2 now"):
        run_all(brighter)


def test_other_images_are_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opencil.ImageSet, "fingerprint", "of other pixels")
    with pytest.raises(OpenCILError, match="other images"):
        open_run(run)
