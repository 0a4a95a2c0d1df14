"""Values are chosen by classes of later steps, and never on an OOD set."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch

import opencil
from opencil.config import Config, read_yaml, resolve
from opencil.errors import BadInput
from opencil.runs.choosing import judge, list_choices, make_preset, rank_choices
from opencil.runs.events import Event
from tests.cli.common import call

RUN = Path("digits", "k4", "icarl", "seed0")


@pytest.fixture
def run(done_once: Path) -> opencil.Run:
    return opencil.open_run(done_once / RUN, ood=False)


def auc(inside: torch.Tensor, outside: torch.Tensor) -> float:
    above = (inside[:, None] > outside).double() + 0.5 * (inside[:, None] == outside).double()
    return float(above.mean())


def test_combinations_and_presets() -> None:
    tried = list_choices("ber", {"schedule.lr": [0.1, 0.01], "schedule.epochs": [2], "alpha": [1.0]})
    schedules = [{"lr": lr, "epochs": 2} for lr in (0.1, 0.01)]
    assert tried == [{}, *({"schedule": schedule, "alpha": 1.0} for schedule in schedules)]
    assert list_choices("fdbd", {}) == [{}, {"setup": "train+"}, {"divided_by": "norm"}]


def test_the_future_is_judged_as_in_the_rows(done_once: Path, run: opencil.Run) -> None:
    rows = opencil.read_rows(done_once).query(
        "ood == 'future' and metric == 'auc' and detector == 'relation'"
    )
    ((step, number, found), other) = judge(run, "relation", [{}, {"power": 3.0}], "future")
    assert (step, number, [found]) == (1, 0, rows["value"].tolist())
    assert other[:2] == (1, 1)
    assert other[2] != found, "the last step has no later classes"


def test_held_out_images_are_neither_trained_on_nor_tested(
    tmp_path: Path, short: Callable[..., Config], run_all: Callable[[Config], list[Event]]
) -> None:
    """Only the second of three steps has old classes and later ones."""
    run_all(short(tmp_path, "benchmark.classes_per_step=3", detector="msp"))
    run = opencil.open_run(tmp_path / "digits" / "k3" / "icarl" / "seed0", ood=False)
    ((number, _, found),) = judge(run, "energy", [{}], "held-out")
    images, step = run.stream.train, run.stream[1]
    unseen = torch.ones(len(images), dtype=torch.bool)
    unseen[step.train] = unseen[run.memory(1).indices] = False
    inside, outside = (
        energies(run, chosen.nonzero().flatten())
        for chosen in (unseen & (images.labels < 3), images.labels >= 6)
    )
    assert number == 2
    assert found == pytest.approx(auc(inside, outside), abs=1e-6)


def energies(run: opencil.Run, images: torch.Tensor) -> torch.Tensor:
    outputs = opencil.forward(run.model(2), run.stream.train, run.data.transform, images)
    return outputs.logits.logsumexp(dim=1)


def test_an_ood_set_is_refused_and_not_there(run: opencil.Run) -> None:
    assert run.data.ood == run.data.shifted == {}
    for name in ("noise", "near", "all", "shifted"):
        with pytest.raises(BadInput, match=f"'{name}'"):
            list(judge(run, "msp", [{}], name))


def test_a_head_is_trained_for_each_choice(run: opencil.Run) -> None:
    choices = list_choices("ber", {"schedule.lr": [1e-9, 0.5]})
    _, still, moved = (value for _, _, value in judge(run, "ber", choices, "future"))
    ((_, _, energy),) = judge(run, "energy", [{}], "future")
    assert still == pytest.approx(energy, abs=1e-6), "a head that does not move is the model's"
    assert moved != pytest.approx(energy, abs=1e-3)


def test_the_best_has_the_highest_mean_over_runs(tmp_path: Path) -> None:
    values = {("a", 1): (0.5, 0.9), ("a", 2): (0.7, 0.5), ("b", 1): (0.6, 0.7)}
    rows = pd.DataFrame(
        [(run, step, i, v) for (run, step), of in values.items() for i, v in enumerate(of)],
        columns=["run", "step", "choice", "auc"],
    )
    ranked = rank_choices(rows)
    assert ranked.index.tolist() == [1, 0]
    assert ranked.to_numpy().tolist() == [[pytest.approx(0.7), 0.7], [pytest.approx(0.6), 0.6]]
    choices = [{}, {"schedule": {"lr": 2e-4}, "nter": False}]
    text = make_preset("ber@mine", choices, rows, {"a": "1a1a", "b": "2b2b"}, "future")
    assert "1a1a" in text
    (tmp_path / "mine.yml").write_text(text, encoding="utf-8")
    config = resolve(read_yaml(tmp_path / "mine.yml"), flags={"cil": "icarl"})
    assert list(config.detector) == ["ber@mine"]
    assert config.detector["ber@mine"]["schedule"]["lr"] == 2e-4
    with pytest.raises(BadInput, match="later steps"):
        rank_choices(rows[:0])


def test_the_command(done_once: Path, tmp_path: Path) -> None:
    out = tmp_path / "chosen.yml"
    words = ("tune", done_once, "--detector", "maxlogit", "--try", "by_task=true", "--out", out)
    done = call(*words)
    assert done.exit_code == 0, done.output
    best = max(judge(opencil.open_run(done_once / RUN), "maxlogit", [{}, {"by_task": True}], "future"))
    assert f"{100 * best[2]:.2f}" in done.output
    assert "maxlogit@tuned" in read_yaml(out)["detector"]
    for more, named in (
        ((), str(out)),
        (("--out", tmp_path / "x.yml", "--on", "noise"), "noise"),
        (("--out", tmp_path / "x.yml", "--try", "by_task"), "by_task"),
        (("--out", tmp_path / "x.yml", "--try", "unknown=1"), "unknown"),
    ):
        refused = call(*words, *more)
        assert refused.exit_code == 2
        assert named in refused.stderr
        assert not (tmp_path / "x.yml").exists()
