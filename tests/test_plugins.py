"""Files outside the package, which need no change inside it: each registers, keeps the contract, and runs."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

import opencil
from opencil.config import Config
from opencil.runs.events import Event, Finished, Training
from opencil.testing import check_detector, check_learner

Plugin = Callable[[str], ModuleType]
Tiny = Callable[..., Config]


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("adamw", "adamw-replay"),
        ("der_anew", "der-anew"),
        ("nearest_mean", "nearest-mean"),
    ],
)
def test_a_learner_from_outside_keeps_the_contract(plugin: Plugin, file: str, name: str) -> None:
    plugin(file)
    check_learner(name)


def run(config: Config) -> tuple[list[Event], list[float]]:
    """A run's events, and its accuracy after every step."""
    events = list(opencil.execute(config))
    assert isinstance(events[-1], Finished), events[-1]
    rows = opencil.read_rows(config.place.runs)
    rows = rows[(rows["metric"] == "accuracy") & (rows["task"] == 0)]
    return events, [float(value) for value in rows.sort_values("step")["value"]]


def test_a_method_that_trains_nothing_runs_to_its_end(plugin: Plugin, tiny: Tiny, tmp_path: Path) -> None:
    """Its models are stored, its memory herded, detectors of both families evaluated."""
    plugin("nearest_mean")
    settings = ["benchmark.classes_per_step=4", "detector.logitnorm.schedule.epochs=1"]
    events, (first, second) = run(
        tiny(tmp_path, *settings, cil="nearest-mean", detector=["msp", "logitnorm"])
    )
    stages = {event.progress.stage for event in events if isinstance(event, Training)}
    assert stages == {"tune logitnorm"}
    stored = opencil.open_run(tmp_path / "digits/k4/nearest-mean/seed0")
    assert [len(kept) for kept in stored.memory(2).per_class] == [stored.spec.benchmark.memory // 8] * 8
    assert first > 0.6
    assert second > 0.5


def test_a_detector_from_outside_keeps_the_contract(plugin: Plugin) -> None:
    plugin("two_layers")
    check_detector("two-layers")


def test_a_backbone_from_outside_has_values_and_maps_that_a_detector_reads(
    plugin: Plugin, tiny: Tiny, tmp_path: Path
) -> None:
    plugin("small_net")
    plugin("two_layers")
    settings = ["benchmark.classes_per_step=4", "benchmark.backbone={name: small-net, channels: 8}"]
    config = tiny(tmp_path, *settings, detector=["two-layers"])
    run(config)
    model = opencil.open_run(tmp_path / "digits/k4/icarl/seed0").model(2)
    assert [m.shape[1] for m in model.maps(torch.zeros(1, 3, 8, 8))] == [8, 16]
    rows = opencil.read_rows(tmp_path)
    assert rows.loc[(rows["detector"] == "two-layers") & (rows["metric"] == "auc"), "value"].min() > 0.5
    with pytest.raises(opencil.BadInput, match=r"backbone\.chanels = 8 is unknown: .*mean 'channels'"):
        tiny(tmp_path, "benchmark.backbone={name: small-net, chanels: 8}")


@pytest.mark.parametrize(("file", "name"), [("adamw", "adamw-replay"), ("der_anew", "der-anew")])
def test_a_learner_from_outside_learns(
    plugin: Plugin, tiny: Tiny, tmp_path: Path, file: str, name: str
) -> None:
    plugin(file)
    settings = ["benchmark.classes_per_step=4", f"cil.{name}.epochs=8"]
    _, (first, second) = run(tiny(tmp_path, *settings, cil=name, detector="msp"))
    assert first > 0.9
    assert second > 0.8
