"""A run's steps: the images and files that are read, each once, the rows, and the cache behind them."""

import io
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pytest
import torch
from torch import Tensor

import opencil
from opencil.config import Config
from opencil.detectors.detector import Reads
from opencil.nets.resnet import ResNet
from opencil.runs import file_formats
from opencil.runs.events import Event, Finished
from opencil.runs.store import RunFolder
from tests.stored import without_bytes

Make = Callable[..., Config]
RunAll = Callable[[Config], list[Event]]

RUN = "digits/k2/icarl/seed0"


@pytest.fixture
def images_seen(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many images the backbone has seen since."""
    seen, inner = [0], ResNet.forward

    def forward(self: ResNet, images: Tensor) -> Tensor:
        seen[0] += len(images)
        return inner(self, images)

    monkeypatch.setattr(ResNet, "forward", forward)
    return lambda: seen[0]


def forget(runs: Path) -> None:
    """Take all rows of detectors away."""
    for rows in runs.rglob("detectors/*.parquet"):
        rows.unlink()


# --- what a step sees ------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["permutation", "list"])
def test_ood_data_grow_and_are_nested(order: str, finished: Path, tiny: Make, run_all: RunAll) -> None:
    seen: dict[str, list[list[int]]] = {}

    @opencil.register_detector("probe")
    @dataclass
    class Probe(opencil.Detector):
        """Notes what it scores."""

        reads: ClassVar[frozenset[Reads]] = frozenset({"logits", "images"})

        def scores(self, outputs: opencil.Outputs) -> Tensor:
            assert outputs.inputs is not None
            assert isinstance(outputs.inputs.images, opencil.ImageSet)
            assert outputs.inputs.indices is not None
            indices = outputs.inputs.indices.tolist()
            assert len(outputs) == len(indices)
            seen.setdefault(outputs.inputs.images.name, []).append(indices)
            return outputs.logits[:, 0]

    settings = ["cil.icarl.epochs=1", f"benchmark.ood_order={order}"]
    run_all(tiny(finished.with_name("probed"), *settings, detector=["probe"]))
    counts = {name: [len(indices) for indices in steps] for name, steps in seen.items()}
    stream = opencil.benchmark("digits").stream(2)
    assert counts == {
        "digits": [len(step.test) for step in stream],
        "corrupted": [len(step.test) for step in stream],
        "noise": [125, 250, 375, 500],
        "photo-patches": [130, 260, 390, 520],
        "digits-held-out": [88, 177, 266, 354],
    }
    for name in ("noise", "photo-patches", "digits-held-out"):
        for fewer, more in zip(seen[name], seen[name][1:], strict=False):
            assert more[: len(fewer)] == fewer
        assert len(set(seen[name][-1])) == counts[name][-1]
        assert (seen[name][0] == sorted(seen[name][0])) == (order == "list")


@pytest.mark.parametrize(
    ("cil", "setup", "sizes"),
    [
        # The memory holds 80 // seen images of each class; train+ is a step's own and the memory before it.
        ("icarl", "train+", lambda step: len(step.train) + (80 // step.old * step.old if step.old else 0)),
        ("icarl", "memory", lambda step: 80 // step.seen * step.seen),
        ("finetune", "memory", lambda step: len(step.train)),  # it keeps none
    ],
)
def test_detectors_are_set_up_on_training_images(
    cil: str, setup: str, sizes: Callable[[opencil.Step], int], tmp_path: Path, tiny: Make, run_all: RunAll
) -> None:
    fitted = []

    @opencil.register_detector("probe")
    @dataclass
    class Probe(opencil.SetUpDetector):
        """Notes what it is set up on."""

        def set_up(self, outputs: opencil.Outputs) -> None:
            assert outputs.labels is not None
            fitted.append((len(outputs), outputs.labels.unique().tolist(), outputs.logits.shape[1]))

        def scores(self, outputs: opencil.Outputs) -> Tensor:
            return outputs.logits[:, 0]

    settings = [f"cil.{cil}.epochs=1", "benchmark.classes_per_step=3", f"detector.probe.setup={setup}"]
    run_all(tiny(tmp_path, *settings, cil=cil, detector=["probe", "msp"]))
    stream = opencil.benchmark("digits").stream(3)
    assert [step.seen for step in stream] == [3, 6, 8], "the last step takes the remainder"
    first = [0 if cil == "icarl" else step.old for step in stream]
    assert fitted == [
        (sizes(step), list(range(of, step.seen)), step.seen) for step, of in zip(stream, first, strict=True)
    ]


def test_a_detector_that_cannot_be_evaluated_does_not_stop_the_others(
    tmp_path: Path, tiny: Make, run_all: RunAll
) -> None:
    """NNGuide wants as many set-up samples as it has neighbours, and no step has so many."""
    settings = ["detector.nnguide.neighbours=1000", "detector.nnguide.setup=train+"]
    events = run_all(tiny(tmp_path, *settings, detector=["nnguide", "relation"]))
    assert isinstance(events[-1], opencil.runs.events.Failed)
    assert "nnguide has no rows: step 1: NNGuide needs at least 1000 samples" in str(events[-1].error)
    rows = opencil.read_rows(tmp_path)
    assert set(rows.loc[rows["detector"] == "relation", "step"]) == {1, 2, 3, 4}
    assert "nnguide" not in set(rows["detector"])


# --- rows ------------------------------------------------------------------------------------------


def test_rows_are_what_evaluate_gives_for_the_stored_model(
    finished: Path, tiny: Make, run_all: RunAll
) -> None:
    """The last step by hand, where every OOD image is seen; detectors that read all there is to read."""
    names = ["msp", "odin", "react", "relation"]
    assert isinstance(run_all(tiny(finished, detector=names))[-1], Finished)
    rows = opencil.read_rows(finished)
    data = opencil.benchmark("digits")
    stream = data.stream(2)
    folder = RunFolder(finished / RUN)
    model = opencil.open_run(finished / RUN).model(4)
    kept = folder.step(4).memory(80).indices
    by_hand = opencil.evaluate(
        model,
        stream.test,
        {name: ood.images for name, ood in data.ood.items()},
        shifted={name: images.labelled_as(stream.test) for name, images in data.shifted.items()},
        setup=opencil.ImageSet("memory", stream.train.images[kept], stream.train.labels[kept]),
        detectors=names,
        transform=data.transform,
        tasks=[1, 1, 2, 2, 3, 3, 4, 4],
    )
    key = ["detector", "ood", "task", "metric"]
    stored = rows[(rows["step"] == 4) & rows["detector"].isin(names)].set_index(key)["value"]
    of_detectors = ~by_hand["metric"].isin(["accuracy", "accuracy_shifted"])
    expected = by_hand[of_detectors].set_index(key)["value"]
    pd.testing.assert_series_equal(stored.sort_index(), expected.sort_index(), rtol=1e-4, atol=1e-4)
    (accuracy,) = set(by_hand.loc[by_hand["metric"] == "accuracy", "value"])
    of_model = rows[(rows["step"] == 4) & (rows["metric"] == "accuracy") & (rows["task"] == 0)]
    assert of_model["value"].item() == pytest.approx(accuracy, abs=1e-12)


# --- nothing twice ---------------------------------------------------------------------------------


@pytest.fixture
def files_read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file of weights or notes has been read since, and how often weights were written."""
    counts: Counter[str] = Counter()
    opened, written = io.open, file_formats.write_sealed

    def count(path: object) -> None:
        if Path(str(path)).name in ("model.safetensors", "step.json"):
            counts["/".join(Path(str(path)).parts[-2:])] += 1

    def open_counted(path: Any, mode: str = "r", *rest: Any, **named: Any) -> Any:
        if "r" in mode:
            count(path)
        return opened(path, mode, *rest, **named)

    def write_counted(path: Path, content: bytes) -> str:
        counts["written"] += path.name == "model.safetensors"
        return written(path, content)

    monkeypatch.setattr(io, "open", open_counted)
    monkeypatch.setattr(file_formats, "write_sealed", write_counted)
    return counts


def test_a_run_reads_nothing_that_it_has_in_memory(
    tmp_path: Path, tiny: Make, run_all: RunAll, files_read: Counter[str]
) -> None:
    """Training, tuning and evaluating four steps; then going on with the last of them missing."""
    settings = ["cil.icarl.epochs=1", "detector.logitnorm.schedule.epochs=1"]
    config = tiny(tmp_path, *settings, detector=["msp", "relation", "logitnorm"])
    assert isinstance(run_all(config)[-1], Finished)
    # A step's note is read once, to see which rows of its there are; a model or a memory never.
    assert files_read == {"written": 4, **{f"step0{t}/step.json": 1 for t in range(1, 5)}}
    files_read.clear()
    shutil.rmtree(tmp_path / RUN / "step04")
    (tmp_path / RUN / "step03" / "detectors" / "relation.parquet").unlink()
    assert isinstance(run_all(config)[-1], Finished)
    assert files_read == {
        # To see whether it is finished, which of its rows can be used, and for the work itself.
        "step01/step.json": 4,
        "step02/step.json": 3,
        "step03/step.json": 3,
        "step03/model.safetensors": 1,
        "step04/step.json": 1,
        "written": 1,
    }


def test_new_images_pass_the_trained_network_once(
    tmp_path: Path, tiny: Make, run_all: RunAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For herding, iCaRL's means and the set-up of detectors together; one step has no teacher."""
    seen, inner = [0], ResNet.forward

    def forward(self: ResNet, images: Tensor) -> Tensor:
        seen[0] += 0 if self.training else len(images)
        return inner(self, images)

    monkeypatch.setattr(ResNet, "forward", forward)
    config = tiny(tmp_path, "benchmark.classes_per_step=8", "cil.icarl.epochs=1")
    assert isinstance(run_all(config)[-1], Finished)
    (step,) = opencil.benchmark("digits").stream(8)
    assert seen[0] == len(step.train) + 2 * len(step.test) + 500 + 520 + 354


# --- the cache -------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [None, ["msp", "relation", "relation@stated", "klm@stated"]])
def test_one_forward_pass_serves_all_detectors(
    finished: Path, tiny: Make, run_all: RunAll, images_seen: Callable[[], int], names: list[str] | None
) -> None:
    """Without a cache: test, shifted, OOD and train+ once each, whoever is set up on it or on the memory."""
    forget(finished)
    run_all(tiny(finished, "place.outputs_limit=0", detector=names))
    stream = opencil.benchmark("digits").stream(2)
    ood = sum((125 + 130) * step.number for step in stream) + 88 + 177 + 266 + 354
    kept = [80 // seen * seen if seen else 0 for seen in (0, 2, 4, 6)]  # of the 80 there is room for
    train_plus = sum(len(step.train) + before for step, before in zip(stream, kept, strict=True))
    assert images_seen() == 2 * sum(len(step.test) for step in stream) + ood + train_plus


def test_a_detector_that_is_added_later_needs_no_forward_pass(
    finished: Path, tiny: Make, run_all: RunAll, images_seen: Callable[[], int]
) -> None:
    run_all(tiny(finished, detector=["gen", "klm"]))
    assert images_seen() == 0
    assert set(opencil.read_rows(finished)["detector"]) == {"", "energy", "gen", "klm", "msp", "relation"}


def test_evaluating_again_from_the_cache_gives_the_same_rows(
    finished: Path, tiny: Make, run_all: RunAll, images_seen: Callable[[], int]
) -> None:
    before = opencil.read_rows(finished)
    forget(finished)
    run_all(tiny(finished))
    pd.testing.assert_frame_equal(opencil.read_rows(finished), before)
    assert images_seen() == 0


def test_a_run_of_before_bytes_were_rows_is_whole(
    finished: Path,
    tiny: Make,
    run_all: RunAll,
    images_seen: Callable[[], int],
    contents: Callable[[Path], dict[str, bytes]],
) -> None:
    without_bytes(finished / RUN)
    before = contents(finished / RUN)
    run_all(tiny(finished))
    assert images_seen() == 0
    after = contents(finished / RUN)
    assert {name for name in before if after[name] != before[name]} <= {"environment.json"}


def test_a_run_of_before_bytes_were_rows_is_gone_on_with(finished: Path, tiny: Make, run_all: RunAll) -> None:
    """Steps that are added have rows of them, and so has one whose rows were lost."""
    expected = opencil.read_rows(finished)
    expected = expected[(expected["step"] > 1) | ~expected["metric"].isin(["model_bytes", "memory_bytes"])]
    without_bytes(finished / RUN)
    for t in (3, 4):
        shutil.rmtree(finished / RUN / f"step0{t}")
    (finished / RUN / "step02/accuracy.parquet").unlink()
    run_all(tiny(finished))
    place = [column for column in expected.columns if column != "value"]
    found = opencil.read_rows(finished).sort_values(place, ignore_index=True)
    pd.testing.assert_frame_equal(found, expected.sort_values(place, ignore_index=True))


def evaluate_twice(config: Config, run_all: RunAll) -> None:
    """Detectors have the same rows of the models just trained and of those that are read."""
    run_all(config)
    found = opencil.read_rows(Path(config.place.runs))
    for folder in Path(config.place.runs).rglob("detectors"):
        shutil.rmtree(folder)
    run_all(config)
    pd.testing.assert_frame_equal(opencil.read_rows(Path(config.place.runs)), found, check_exact=True)


def test_a_set_up_has_the_same_batches_whether_the_model_was_just_trained_or_read(
    tmp_path: Path, tiny: Make, run_all: RunAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last bits depend on the batch: here all of them do."""
    exact = ResNet.forward
    by_batch = lambda net, x: exact(net, x) * (1 if net.training else 1 + len(x) / 99)  # noqa: E731
    monkeypatch.setattr(ResNet, "forward", by_batch)
    names = ["relation", "relation@stated", "nnguide"]
    config = tiny(tmp_path, "place.outputs_limit=0", "benchmark.classes_per_step=4", detector=names)
    evaluate_twice(config, run_all)


def test_a_cpu_trains_and_evaluates_contiguous_weights(
    tmp_path: Path, tiny: Make, run_all: RunAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Channels-last would round otherwise, and digits on a CPU have the same rows in every version."""
    seen, inner = set(), ResNet.forward

    def forward(self: ResNet, images: Tensor) -> Tensor:
        seen.update((self.training, p.is_contiguous()) for p in self.parameters() if p.ndim == 4)
        return inner(self, images)

    monkeypatch.setattr(ResNet, "forward", forward)
    settings = ["benchmark.classes_per_step=4", "cil.replay.epochs=1", "detector.ber.schedule.epochs=1"]
    config = tiny(tmp_path, *settings, cil="replay", detector=["msp", "ber"])
    assert isinstance(run_all(config)[-1], Finished)
    assert seen == {(True, True), (False, True)}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="only there a model has two memory layouts")
def test_on_a_gpu_rows_of_a_stored_model_are_those_of_the_model_just_trained(
    tmp_path: Path, tiny: Make, run_all: RunAll
) -> None:
    settings = ["place.device=cuda", "place.outputs_limit=0", "benchmark.classes_per_step=4"]
    config = tiny(tmp_path, *settings, detector=["energy", "relation", "odin"])
    evaluate_twice(config, run_all)


def test_without_a_cache_the_rows_are_the_same_and_nothing_is_kept(
    finished: Path, tiny: Make, run_all: RunAll
) -> None:
    before = opencil.read_rows(finished)
    forget(finished)
    shutil.rmtree(finished / ".outputs")
    run_all(tiny(finished, "place.outputs_limit=0"))
    pd.testing.assert_frame_equal(opencil.read_rows(finished), before)
    assert not (finished / ".outputs").exists()


def test_the_cache_can_lie_elsewhere_and_keeps_to_its_limit(
    finished: Path, tmp_path: Path, tiny: Make, run_all: RunAll
) -> None:
    forget(finished)
    shutil.rmtree(finished / ".outputs")
    run_all(tiny(finished, f"place.outputs={tmp_path / 'kept'}", "place.outputs_limit=200kB"))
    entries = list((tmp_path / "kept").glob("*.safetensors"))
    assert entries
    assert sum(entry.stat().st_size for entry in entries) <= 200_000
    assert not (finished / ".outputs").exists()
