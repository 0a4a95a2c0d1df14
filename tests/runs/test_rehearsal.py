"""--deterministic: what cannot be is named before anything runs, or in a sentence while it does."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opencil
from opencil.config import Config
from opencil.errors import BadInput
from opencil.runs import runner
from opencil.runs.events import Event, Failed, Finished

Make = Callable[..., Config]


def scattered(values: Tensor) -> Tensor:
    """The same numbers by an operation that has no deterministic implementation, on a CPU either."""
    return torch.zeros_like(values).put_(torch.arange(values.numel()), values)


@pytest.fixture
def _second_step_scatters() -> None:
    @opencil.register_learner("scattering")
    @dataclass(frozen=True)
    class Scattering(opencil.Learner):
        """Its first step is as it should be."""

        schedule: opencil.Schedule = field(default_factory=lambda: opencil.Schedule(epochs=3, lr=0.1))

        def stages(self, task: opencil.Task) -> Iterator[opencil.Stage]:
            def loss(images: Tensor, labels: Tensor) -> Tensor:
                logits = task.model(images)
                if task.step.number == 2:
                    scattered(logits.detach())
                return F.cross_entropy(logits, labels)

            yield opencil.Stage("train", task.model, loss, self.schedule, task.train_plus)


@pytest.fixture
def _a_detector_scatters() -> None:
    @opencil.register_detector("scatters")
    @dataclass
    class Scatters(opencil.LogitDetector):
        """The largest logit."""

        def scores(self, outputs: opencil.Outputs) -> Tensor:
            return scattered(outputs.logits.max(dim=1).values)


def strict(config: Config) -> Config:
    return replace(config, place=replace(config.place, only_deterministic=True))


@pytest.mark.usefixtures("_second_step_scatters", "_a_detector_scatters")
def test_every_operation_is_named_with_its_method_before_anything_runs(tiny: Make, tmp_path: Path) -> None:
    user = {
        "benchmark": {"name": "digits", "classes_per_step": 4},
        "cil": ["icarl", "scattering"],
        "detector": ["msp", "scatters"],
        "place": {"runs": str(tmp_path / "runs"), "device": "cpu", "only_deterministic": True},
    }
    with pytest.raises(BadInput) as refused:
        list(opencil.execute(opencil.resolve(user, settings=["cil.*.epochs=1"])))
    assert "--deterministic is not possible on cpu: scatters uses put_, scattering uses put_" in str(
        refused.value
    )
    assert not list((tmp_path / "runs").rglob("step*")), "nothing has run"
    assert not torch.are_deterministic_algorithms_enabled()


def test_deterministic_methods_run_as_ever(
    tiny: Make,
    tmp_path: Path,
    run_all: Callable[[Config], list[Event]],
    contents: Callable[[Path], dict[str, bytes]],
) -> None:
    short = (
        "benchmark.classes_per_step=4",
        "cil.*.epochs=1",
        "benchmark.shifted={}",
        "detector.vos.schedule.epochs=1",
    )
    plain = tiny(tmp_path / "plain", *short, detector=["msp", "vos"])
    checked = strict(tiny(tmp_path / "checked", *short, detector=["msp", "vos"]))
    assert isinstance(run_all(plain)[-1], Finished)
    assert isinstance(run_all(checked)[-1], Finished)
    first, second = contents(tmp_path / "plain"), contents(tmp_path / "checked")
    rows = [name for name in first if name.endswith((".parquet", "model.safetensors"))]
    assert rows
    assert [name for name in rows if first[name] != second[name]] == []


@pytest.mark.usefixtures("_second_step_scatters")
def test_what_a_rehearsal_misses_ends_the_run_in_a_sentence(
    tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_all: Callable[[Config], list[Event]]
) -> None:
    monkeypatch.setattr(runner, "require_deterministic", lambda *_: None)
    config = strict(tiny(tmp_path, "benchmark.classes_per_step=4", cil="scattering", detector="msp"))
    failure = run_all(config)[-1]
    assert isinstance(failure, Failed)
    assert str(failure.error).startswith(
        "scattering: torch has no deterministic implementation of put_ on this device: leave"
    )
