"""Training curves for TensorBoard: one loss and one learning rate an epoch, read once an epoch."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import opencil
from opencil import BadInput
from opencil.config import Config
from opencil.runs.events import Training
from opencil.runs.tensorboard import training_curves

RUN = "digits/k4/bic/seed0"


def test_every_stage_of_every_step_has_its_curves(
    short: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    losses: dict[str, list[float]] = {}
    rates: dict[str, list[tuple[int, float]]] = {}
    item, reads = torch.Tensor.__float__, []
    with training_curves(str(tmp_path / "curves")) as write:
        for event in opencil.execute(short(tmp_path / "runs", "cil.*.epochs=2", cil="bic", detector="msp")):
            with monkeypatch.context() as patch:
                patch.setattr(torch.Tensor, "__float__", lambda tensor: (reads.append(1), item(tensor))[1])
                write(event)
            if isinstance(event, Training):
                p, name = event.progress, f"step{event.step:02d}/{event.progress.stage}"
                losses.setdefault(f"{name} {p.epoch}", []).append(float(p.loss))
                if p.epoch_ends:
                    rates.setdefault(name, []).append((p.epoch, p.lr))
    found = reader.EventAccumulator(str(tmp_path / "curves" / RUN))
    found.Reload()
    curves = {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}
    assert curves.keys() == {f"{name}/{kind}" for name in rates for kind in ("loss", "learning rate")}
    assert len(rates) == 1 + 2, "BiC has a second stage from step 2 on"
    assert len(reads) == sum(map(len, rates.values())), "once an epoch"
    for name, expected in rates.items():
        assert curves[f"{name}/learning rate"] == [(epoch, pytest.approx(rate)) for epoch, rate in expected]
        means = [sum(of := losses[f"{name} {epoch}"]) / len(of) for epoch, _ in expected]
        assert [value for _, value in curves[f"{name}/loss"]] == pytest.approx(means, rel=1e-5)


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with training_curves(None) as write:
        write(object())  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_the_package_must_be_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(BadInput, match=r"pip install 'opencil\[tensorboard\]'"), training_curves("there"):
        pass
