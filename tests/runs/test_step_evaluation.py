"""The evaluation of a run's steps: rows, the cache behind them, and the images that are read."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import Tensor

import opencil
from opencil.nets.resnet import SmallResNet

DETECTORS = ["msp", "odin", "react", "relation"]


def run(runs: Path, *settings: str, detector: list[str] = DETECTORS) -> pd.DataFrame:
    """Two steps of four digits, one epoch each."""
    user = {"benchmark": "digits", "cil": "icarl", "detector": detector}
    place = [f"place.runs={runs}", "place.device=cpu", "benchmark.classes_per_step=4", "cil.icarl.epochs=1"]
    for event in opencil.execute(opencil.resolve(user, settings=[*place, *settings])):
        assert not isinstance(event, opencil.runs.runner.Failed), event
    return opencil.read_rows(runs)


@pytest.fixture(scope="session")
def _once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    runs = tmp_path_factory.mktemp("once") / "runs"
    run(runs)
    return runs


@pytest.fixture
def runs(_once: Path, tmp_path: Path) -> Path:
    """A finished run, the test's own."""
    return Path(shutil.copytree(_once, tmp_path / "runs"))


@pytest.fixture
def images_seen(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many images the backbone has seen since."""
    seen, inner = [0], SmallResNet.forward

    def forward(self: SmallResNet, images: Tensor) -> Tensor:
        seen[0] += len(images)
        return inner(self, images)

    monkeypatch.setattr(SmallResNet, "forward", forward)
    return lambda: seen[0]


def forget(runs: Path) -> None:
    for rows in runs.rglob("detectors/*.parquet"):
        rows.unlink()


def test_rows_hold_every_figure_once(runs: Path) -> None:
    rows = opencil.read_rows(runs)
    key = [column for column in rows.columns if column != "value"]
    assert not rows.duplicated(key).any()
    assert not rows["value"].isna().any()
    measured = rows[(rows["detector"] == "relation") & (rows["step"] == 2)]
    whole = measured[measured["task"] == 0]
    metrics = set(opencil.evaluation.metrics.DEFINITIONS) - {"accuracy", "confidence"}
    for name, distance in (("digits-held-out", "near"), ("photo-patches", "far"), ("noise", "far")):
        of_set = whole[whole["ood"] == name]
        assert set(of_set["metric"]) == metrics
        assert set(of_set["distance"]) == {distance}
    of_tasks = measured[measured["task"] > 0]
    assert set(of_tasks["metric"]) == {"confidence"}
    assert list(of_tasks[of_tasks["ood"] == ""]["task"]) == [1, 2]


def test_the_first_step_has_no_rows_of_old_classes(runs: Path) -> None:
    rows = opencil.read_rows(runs)
    assert {"auc_old", "fpr_old"} & set(rows[rows["step"] == 1]["metric"]) == set()
    assert {"auc_old", "fpr_old"} <= set(rows[rows["step"] == 2]["metric"])


def test_rows_are_what_evaluate_gives_for_the_stored_model(runs: Path) -> None:
    """The same figures by hand: last step, every image, the task of each class."""
    rows = opencil.read_rows(runs)
    data = opencil.benchmark("digits")
    stream = data.stream(4)
    model = opencil.Model(opencil.create_backbone("resnet8"), 8)
    folder = runs / "digits/k4/icarl/seed0/step02"
    model.load_state_dict(opencil.runs.files.read_tensors(folder / "model.safetensors"))
    memory = opencil.runs.files.read_tensors(folder.parent / "step01" / "memory.safetensors")["indices"]
    train_plus = torch.cat([stream[1].train, memory])
    images = stream.train.images[train_plus]
    by_hand = opencil.evaluate(
        model,
        stream.test,
        {name: ood.images for name, ood in data.ood.items()},
        setup=opencil.ImageSet("train+", images, torch.zeros(len(images), dtype=torch.int64)),
        detectors=DETECTORS,
        transform=data.transform,
        tasks=[1] * 4 + [2] * 4,
    )
    stored = rows[rows["step"] == 2].set_index(["detector", "ood", "task", "metric"])["value"]
    assert len(stored) == len(by_hand)
    expected = by_hand.set_index(["detector", "ood", "task", "metric"])["value"]
    pd.testing.assert_series_equal(stored.sort_index(), expected.sort_index(), rtol=1e-4, atol=1e-4)


def test_a_detector_that_is_added_later_needs_no_forward_pass(
    runs: Path, images_seen: Callable[[], int]
) -> None:
    before = opencil.read_rows(runs)
    rows = run(runs, detector=["gen", "klm"])
    assert images_seen() == 0
    assert set(rows["detector"]) == {"", *DETECTORS, "gen", "klm"}
    assert len(rows) > len(before)


def test_evaluating_again_from_the_cache_gives_the_same_rows(runs: Path) -> None:
    before = opencil.read_rows(runs)
    forget(runs)
    pd.testing.assert_frame_equal(run(runs), before)


def test_without_a_cache_the_rows_are_the_same_and_nothing_is_kept(
    runs: Path, images_seen: Callable[[], int]
) -> None:
    before = opencil.read_rows(runs)
    forget(runs)
    shutil.rmtree(runs / ".outputs")
    pd.testing.assert_frame_equal(run(runs, "place.outputs_limit=0"), before)
    assert images_seen() > 0
    assert not (runs / ".outputs").exists()


def test_the_cache_can_lie_elsewhere_and_keeps_to_its_limit(runs: Path, tmp_path: Path) -> None:
    forget(runs)
    run(runs, f"place.outputs={tmp_path / 'kept'}", "place.outputs_limit=200kB")
    entries = list((tmp_path / "kept").glob("*.safetensors"))
    assert entries
    assert sum(entry.stat().st_size for entry in entries) <= 200_000


def test_the_setup_can_be_the_memory(tmp_path: Path, images_seen: Callable[[], int]) -> None:
    """80 exemplars after each step, where train+ has more images."""
    plus = run(tmp_path / "plus", detector=["relation"])
    seen_plus = images_seen()
    memory = run(tmp_path / "memory", "benchmark.setup=memory", detector=["relation"])
    steps = opencil.benchmark("digits").stream(4)
    images_plus = len(steps[0].train) + len(steps[1].train) + 80
    assert seen_plus - (images_seen() - seen_plus) == images_plus - 2 * 80
    assert not plus["value"].equals(memory["value"])


@pytest.mark.parametrize("limit", ["much", "-3", "true"])
def test_a_limit_that_is_not_understood_is_refused(limit: str) -> None:
    with pytest.raises(opencil.BadInput, match=r"place\.outputs_limit"):
        opencil.resolve({}, settings=[f"place.outputs_limit={limit}"])
