"""``icarl@short``: one CIL method under several values, in one folder of runs, one config and one table."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import opencil
from opencil.config import Config, parse_yaml, read_yaml
from opencil.registry import LEARNERS
from opencil.report.figures.chosen import contents
from opencil.report.tables import summaries
from opencil.runs.reading import read_study

Tiny = Callable[..., Config]
SMALL = ["benchmark.classes_per_step=4", "benchmark.shifted=[]"]
LABELLED = ["icarl", "icarl@same", "icarl@short"]


@pytest.fixture(scope="module")
def runs(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """iCaRL, the same with a label and no values of its own, and one that is trained for less long."""
    folder = tmp_path_factory.mktemp("labels")
    settings = [*SMALL, "cil.icarl@short.epochs=1", "detector.logitnorm.schedule.epochs=1"]
    for _ in opencil.execute(tiny(folder, *settings, cil=",".join(LABELLED), detector=["msp", "logitnorm"])):
        pass
    return folder


def test_each_has_a_folder_rows_and_values_of_its_own(runs: Path) -> None:
    rows = opencil.read_rows(runs)
    assert sorted(rows["cil"].unique()) == LABELLED
    epochs = {}
    for name in LABELLED:
        stored = read_yaml(runs / f"digits/k4/{name}/seed0/config.yml")
        assert list(stored["cil"]) == [name]
        epochs[name] = stored["cil"][name]["later"]["epochs"]
    assert epochs == {"icarl": 2, "icarl@same": 2, "icarl@short": 1}


def test_they_differ_by_their_values_alone(runs: Path) -> None:
    """A label draws no other random numbers: neither for the model nor for the heads that are tuned on it."""
    folders = [runs / f"digits/k4/{name}/seed0" for name in LABELLED]
    plain, same, short = (opencil.open_run(folder).model(2).state_dict() for folder in folders)
    assert all(torch.equal(plain[key], same[key]) for key in plain)
    assert not all(torch.equal(plain[key], short[key]) for key in plain)
    rows = opencil.read_rows(runs)
    values = [rows.loc[rows["cil"] == name, "value"].tolist() for name in LABELLED]
    assert values[0] == values[1]
    assert values[0] != values[2]


def test_they_stand_in_one_table_and_in_the_figures(runs: Path) -> None:
    study = read_study(runs)
    accuracy, detection, *_ = summaries(study)
    assert [line[0].text for line in accuracy.lines] == LABELLED
    assert [line[0].text for line in detection.lines][::2] == LABELLED
    assert not any("differ in more than their seeds" in note for note in detection.notes)
    shown = {content.about.cil for content in contents(study)}
    assert set(LABELLED) <= shown


def test_a_finished_one_answers_at_once_and_another_value_is_refused(runs: Path, tiny: Tiny) -> None:
    def asked(epochs: int) -> Config:
        short = f"cil.icarl@short.epochs={epochs}"
        return tiny(runs, *SMALL, short, cil="icarl@short", detector="msp")

    (event,) = opencil.execute(asked(1))
    assert event == opencil.runs.events.Finished(event.run, already=True)
    with pytest.raises(opencil.BadInput, match=r"icarl@short/seed0 exists with another config: keep both by"):
        list(opencil.execute(asked(3)))


def test_the_printed_yml_has_both() -> None:
    resolved = opencil.resolve(
        cil=["icarl", "icarl@short"], settings=["cil.icarl.epochs=9", "cil.icarl@short.epochs=5"]
    )
    assert [resolved.cil[name]["first"]["epochs"] for name in ("icarl", "icarl@short")] == [9, 5]
    assert opencil.resolve(parse_yaml(resolved.to_yaml(), "printed")) == resolved


def test_a_method_may_ship_values_under_a_label() -> None:
    @opencil.register_learner("ships")
    @dataclass(frozen=True)
    class Ships(opencil.Learner):
        """Ships values."""

        named: ClassVar[Any] = {"heavy": {"weight": 5.0}}
        weight: float = 1.0
        rate: float = 1.0

        def stages(self, task: opencil.Task) -> None:
            return None

    settings = ["cil.ships.rate=2", "cil.ships.weight=3"]
    resolved = opencil.resolve(cil=["ships", "ships@heavy"], settings=settings)
    assert resolved.cil == {
        "ships": {"weight": 3.0, "rate": 2.0},
        "ships@heavy": {"weight": 5.0, "rate": 2.0},
    }
    assert LEARNERS.create("ships@heavy").weight == 5.0
