"""Training curves for TensorBoard: one loss and one learning rate an epoch, read once an epoch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import opencil
from opencil import BadInput
from opencil.config import Config
from opencil.runs import tensorboard
from opencil.runs.events import Training
from opencil.runs.tensorboard import training_curves

RUN = "digits/k2/bic/seed0"


@pytest.fixture
def read() -> Callable[[Path], dict[str, list[tuple[int, float]]]]:
    """What TensorBoard finds in a folder: the (epoch, value) pairs of each curve."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
        found = reader.EventAccumulator(str(folder))
        found.Reload()
        return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}

    return curves


def test_every_stage_of_every_step_has_its_curves(
    tiny: Callable[..., Config], tmp_path: Path, read: Callable[[Path], Any]
) -> None:
    losses: dict[str, list[float]] = {}
    rates: dict[str, list[tuple[int, float]]] = {}
    with training_curves(str(tmp_path / "curves")) as write:
        for event in opencil.execute(tiny(tmp_path / "runs", cil="bic", detector="msp")):
            write(event)
            if isinstance(event, Training):
                p, name = event.progress, f"step{event.step:02d}/{event.progress.stage}"
                losses.setdefault(f"{name} {p.epoch}", []).append(float(p.loss))
                if p.epoch_ends:
                    rates.setdefault(f"{name}/learning rate", []).append((p.epoch, p.lr))
    found = read(tmp_path / "curves" / RUN)
    assert {tag for tag in found if tag.endswith("rate")} == set(rates)
    assert len(rates) == 1 + 2 * 3  # BiC has a second stage from step 2 on
    for tag, expected in rates.items():
        assert found[tag] == [(epoch, pytest.approx(rate)) for epoch, rate in expected]
        name = tag.removesuffix("/learning rate")
        means = [(epoch, sum(v) / len(v)) for epoch, v in ((e, losses[f"{name} {e}"]) for e, _ in expected)]
        assert found[f"{name}/loss"] == [(epoch, pytest.approx(mean, rel=1e-5)) for epoch, mean in means]


def test_a_loss_is_read_once_an_epoch(
    tiny: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    reads, epochs, reading = 0, 0, False
    item = torch.Tensor.__float__

    def counted(tensor: torch.Tensor) -> float:
        nonlocal reads
        reads += reading
        return item(tensor)

    monkeypatch.setattr(torch.Tensor, "__float__", counted)
    with training_curves(str(tmp_path / "curves")) as write:
        for event in opencil.execute(tiny(tmp_path / "runs", detector="msp")):
            reading = True
            write(event)
            reading = False
            epochs += isinstance(event, Training) and event.progress.epoch_ends
    assert reads == epochs == 2 * 4


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with training_curves(None) as write:
        write(object())  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_without_the_package_it_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorboard, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"pip install 'opencil\[tensorboard\]'"), training_curves("there"):
        pass
