"""``opencil.run``: what it takes, what it returns, and that no failure passes in silence."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd
import pytest
import torch
import torch.nn.functional as F

import opencil
from opencil import BadInput, OpenCILError
from opencil.config import Config

Make = Callable[..., Config]
RUN = "digits/k2/icarl/seed0"
SHORT = {"icarl": {"epochs": 2}}


@pytest.fixture
def results(finished: Path, tiny: Make) -> opencil.Results:
    """The results of a run that is finished."""
    return opencil.run(tiny(finished))


# --- arguments -------------------------------------------------------------------------------------


def test_a_config_a_mapping_a_yml_and_keywords_ask_for_the_same(
    finished: Path, tiny: Make, tmp_path: Path
) -> None:
    config = tiny(finished)
    (tmp_path / "my.yml").write_text(config.to_yaml(), encoding="utf-8")
    place = {"runs": str(finished), "device": "cpu"}
    sections = {
        "benchmark": "digits",
        "cil": SHORT,
        "detector": ["energy", "msp", "relation"],
        "place": place,
    }
    for found in (
        opencil.run(config),
        opencil.run(sections),
        opencil.run(tmp_path / "my.yml"),
        opencil.run(str(tmp_path / "my.yml")),
        opencil.run(**sections | {"detector": ("energy", "msp", "relation")}, seed=range(1)),
        opencil.run(sections, detector="msp"),
        opencil.run(
            benchmark="digits", place=place, settings="cil.icarl.epochs=2", cil="icarl", detector="msp"
        ),
    ):
        assert found.config.cil == config.cil
        assert found.folders == (finished / RUN,)
        assert set(found.rows["detector"]) == {"", *found.config.detector}


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"detektor": "msp"}, "'detektor' is unknown.*'detector'"),
        ({"cil": "icral"}, "'icral' is unknown.*'icarl'"),
        ({"config": 5}, "config is int"),
        ({"config": "not-there.yml"}, "not-there.yml"),
        ({"settings": "cil.icarl.epochs"}, "'cil.icarl.epochs'"),
    ],
)
def test_other_arguments_are_refused(
    arguments: dict[str, object], key: str, tiny: Make, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=key):
        opencil.run(**arguments)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="seed, settings"):
        opencil.run(tiny(tmp_path), seed=1, settings=["cil.icarl.epochs=1"])


# --- results ---------------------------------------------------------------------------------------


def test_rows_and_runs_are_those_of_the_folder(results: opencil.Results, finished: Path) -> None:
    pd.testing.assert_frame_equal(results.rows, opencil.read_rows(finished))
    (run,) = results.runs
    assert run.model(4).head.out_features == 8
    assert str(run.spec) == RUN
    assert results.runs[0] is run
    assert f"{len(results.rows)} rows of {finished.as_posix()}/{RUN}" in repr(results)


def test_tables_print_as_on_a_terminal_and_notebooks_draw_them(results: opencil.Results) -> None:
    for table in results.table():
        assert str(table) in str(results) == repr(results.table())
    summary = results.table()[1]
    (energy,) = [line for line in str(summary).splitlines() if re.match(r"icarl +energy ", line)]
    row = next(cells for cells in summary.lines if cells[1].text == "energy")
    assert energy.split() == [cell.text for cell in row]
    (main,) = results.table("main")
    drawn = main.html()
    assert results.table("main")._repr_html_() == drawn
    cells = [re.sub(r"<[^>]+>", "", c).rstrip("¹²³") for c in re.findall(r"<td[^>]*>(.*?)</td>", drawn)]
    assert cells == [cell.text for line in main.lines for cell in line]
    assert results._repr_html_() == "\n".join(table.html() for table in results.table())
    assert "&lt;script&gt; a &amp; b" in replace(main, title="<script> a & b").html()


def test_kinds_of_tables(results: opencil.Results) -> None:
    assert len(results.table("all")) > len(results.table("main", statistics=True)) > 1
    for name, compare in (("mian", None), ("ablation", None), ("main", "papr")):
        with pytest.raises(BadInput):
            results.table(name, compare=compare)  # type: ignore[arg-type]


# --- failures --------------------------------------------------------------------------------------


@pytest.fixture
def broken() -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Register a method, 'broken', whose loss at step 2 is the function of the logits under 'loss'."""
    how: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}

    @opencil.register_learner("broken")
    @dataclass(frozen=True)
    class Broken(opencil.Learner):
        schedule: opencil.Schedule = field(default_factory=lambda: opencil.Schedule(epochs=1, lr=0.1))

        def stages(self, task: opencil.Task) -> Iterator[opencil.Stage]:
            def my_loss(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
                logits = task.model(images)
                return how["loss"](logits) if task.step.number == 2 else F.cross_entropy(logits, labels)

            yield opencil.Stage("train", task.model, my_loss, self.schedule, task.train_plus)

    return how


def test_failures_are_raised_when_the_other_runs_are_done(
    broken: dict[str, Callable[[torch.Tensor], torch.Tensor]], tmp_path: Path
) -> None:
    asked = {
        "benchmark": {"name": "digits", "classes_per_step": 4, "near": [], "far": ["noise"], "shifted": {}},
        "cil": {"broken": {}, "finetune": {"epochs": 1}},
        "detector": "msp",
        "place": {"runs": str(tmp_path), "device": "cpu"},
    }
    error = tmp_path / "digits/k4/broken/seed0/error.txt"
    broken["loss"] = lambda logits: logits.sum() * torch.nan
    with pytest.raises(OpenCILError, match="1 of 2 runs failed") as raised:
        opencil.run(asked)
    assert "digits/k4/broken/seed0" in str(raised.value)
    assert isinstance(raised.value.__cause__, OpenCILError)
    assert set(opencil.read_rows(tmp_path).query("step == 2")["cil"]) == {"finetune"}
    assert "Traceback" not in error.read_text(encoding="utf-8")

    broken["loss"] = lambda logits: logits @ logits
    with pytest.raises(OpenCILError, match="RuntimeError: mat1 and mat2 shapes") as raised:
        opencil.run(asked)
    assert type(raised.value.__cause__) is RuntimeError
    text = error.read_text(encoding="utf-8")
    assert "\nTraceback" in text
    assert "in my_loss" in text

    broken["loss"] = lambda logits: logits.square().mean()
    opencil.run(asked)
    assert not error.exists()


def test_progress_is_for_terminals_and_notebooks(
    finished: Path, tiny: Make, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opencil.run(tiny(finished), progress=True)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes this for a terminal
    opencil.run(tiny(finished))
    assert capsys.readouterr() == ("", "")
    opencil.run(tiny(finished), progress=True)
    assert "icarl/seed0" in capsys.readouterr().out


def test_an_interrupted_run_is_free_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook keeps the traceback, and with it all frames: no lock may depend on them."""

    @contextmanager
    def interrupting(*_: object, **__: object) -> Iterator[Callable[[object], None]]:
        def show(_: object) -> None:
            raise KeyboardInterrupt

        yield show

    def run() -> opencil.Results:
        place = {"runs": str(tmp_path), "device": "cpu"}
        return opencil.run(benchmark="digits", cil={"finetune": {"epochs": 1}}, detector="msp", place=place)

    with monkeypatch.context() as patched:
        patched.setattr("opencil.cli.progress.progress", interrupting)
        with pytest.raises(KeyboardInterrupt) as kept:
            run()
    assert len(run().rows), kept
