"""`opencil.run`: what it takes, what it gives, and that no failure passes in silence."""

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
Losses = dict[str, Callable[[torch.Tensor], torch.Tensor]]
RUN = "digits/k2/icarl/seed0"
SHORT = {"icarl": {"epochs": 2}}


@pytest.fixture
def results(finished: Path, tiny: Make) -> opencil.Results:
    """Those of a run that is finished."""
    return opencil.run(tiny(finished))


# --- what it takes ---------------------------------------------------------------------------------


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
        opencil.run(**sections),
        opencil.run(**sections | {"detector": ("energy", "msp", "relation")}, seed=range(1)),
        opencil.run(
            benchmark="digits", place=place, settings=["cil.icarl.epochs=2"], cil="icarl", detector="msp"
        ),
    ):
        assert found.config.cil == config.cil
        assert found.folders == (finished / RUN,)


def test_keywords_are_laid_on_what_is_given(finished: Path, tiny: Make) -> None:
    config = tiny(finished)
    written = {"benchmark": "digits", "cil": SHORT, "place": {"runs": str(finished), "device": "cpu"}}
    found = opencil.run(written, detector="msp")
    assert list(found.config.detector) == ["msp"]
    assert set(found.rows["detector"]) == {"", "msp"}, "what nobody asked for is not shown"
    assert found.config.cil == config.cil


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"detektor": "msp"}, "config section 'detektor' is unknown.*did you mean 'detector'"),
        ({"cil": "icral"}, "CIL method 'icral' is unknown.*did you mean 'icarl'"),
        ({"config": 5}, "config is int: a Config, a mapping or the path of a YML is needed"),
        ({"config": "not-there.yml"}, "not-there.yml cannot be read"),
        ({"settings": "cil.icarl.epochs"}, "'cil.icarl.epochs' is not understood: allowed is key=value"),
    ],
)
def test_what_cannot_be_asked_for(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        opencil.run(**arguments)  # type: ignore[arg-type]


def test_a_resolved_config_is_not_changed(tmp_path: Path, tiny: Make) -> None:
    with pytest.raises(BadInput, match="seed, settings cannot change a config that is resolved"):
        opencil.run(tiny(tmp_path), seed=1, settings=["cil.icarl.epochs=1"])


# --- what it gives ---------------------------------------------------------------------------------


def test_rows_and_runs_are_those_of_the_folder(results: opencil.Results, finished: Path) -> None:
    pd.testing.assert_frame_equal(results.rows, opencil.read_rows(finished))
    (run,) = results.runs
    assert run.model(4).head.out_features == 8
    assert str(run.spec) == RUN
    assert results.runs[0] is run
    assert (
        repr(results)
        == f"Results({len(results.rows)} rows of {finished.as_posix()}/{RUN}: .rows, .table(), .runs)"
    )


def test_nothing_is_computed_again(
    results: opencil.Results, tiny: Make, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opencil.runs.runner.load", lambda config: pytest.fail("data are not needed"))
    again = opencil.run(tiny(finished))
    assert str(again) == str(results)


def test_tables_print_as_the_terminal_shows_them(results: opencil.Results) -> None:
    accuracy, summary, shifted = results.table()
    for table in (accuracy, summary, shifted):
        assert str(table) in str(results) == repr(results.table())
    lines = str(summary).splitlines()
    assert lines[0] == "digits, 2 classes per step: OOD detection"
    (energy,) = [line for line in lines if re.match(r"icarl +energy ", line)]
    row = next(cells for cells in summary.lines if cells[1].text == "energy")
    assert energy.split() == [cell.text for cell in row]
    assert lines[-1] == summary.notes[-1]


def test_notebooks_draw_tables(results: opencil.Results) -> None:
    (main,) = results.table("main")
    drawn = main.html()
    assert results.table("main")._repr_html_() == drawn == main._repr_html_()
    cells = re.findall(r"<td[^>]*>(.*?)</td>", drawn)
    shown = [re.sub(r"<[^>]+>", "", cell).rstrip("¹²³") for cell in cells]
    assert shown == [cell.text for line in main.lines for cell in line]
    assert (
        drawn.count("<tr>")
        == drawn.count("</tr>")
        == len(main.lines) + sum(bool(b.title) for b in main.blocks) + 2
    )
    best = next(cell for line in main.lines for cell in line if cell.rank == 1)
    assert f"<b><u>{best.text}</u></b>¹" in drawn
    assert results._repr_html_() == "\n".join(table.html() for table in results.table())


def test_html_holds_names_as_text(results: opencil.Results) -> None:
    table = replace(results.table("main")[0], title="<script>", notes=["a & b"])
    assert "<script>" not in table.html()
    assert "&lt;script&gt;" in table.html()
    assert "a &amp; b" in table.html()


def test_every_kind_of_table_and_none_other(results: opencil.Results) -> None:
    assert len(results.table("all")) == 3 + 1 + 3 + 1
    assert len(results.table("main", statistics=True)) == 1 + 2
    with pytest.raises(BadInput, match=r"table 'mian' is unknown.*did you mean 'main'"):
        results.table("mian")
    with pytest.raises(BadInput, match="no table 'ablation'"):
        results.table("ablation")
    with pytest.raises(BadInput, match=r"comparison 'papr' is unknown.*did you mean 'paper'"):
        results.table(compare="papr")  # type: ignore[arg-type]


# --- failures --------------------------------------------------------------------------------------


@pytest.fixture
def broken() -> Losses:
    """A method of one's own, 'broken', whose loss is what the test puts in: a function of the logits."""
    how: Losses = {}

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


def test_a_loss_that_is_not_a_number_is_raised_when_the_others_are_done(
    broken: Losses, tmp_path: Path
) -> None:
    broken["loss"] = lambda logits: logits.sum() * torch.nan
    place = {"runs": str(tmp_path), "device": "cpu"}
    benchmark = {"name": "digits", "classes_per_step": 4}
    with pytest.raises(OpenCILError) as raised:
        opencil.run(
            benchmark=benchmark, cil={"broken": {}, "finetune": {"epochs": 1}}, detector="msp", place=place
        )
    told = str(raised.value).splitlines()
    assert told[0] == "1 of 2 runs failed, and what they had finished is stored:"
    assert told[1].startswith("  digits/k4/broken/seed0: Broken, step 2: the loss is nan")
    assert isinstance(raised.value.__cause__, OpenCILError)
    assert set(opencil.read_rows(tmp_path).query("step == 2")["cil"]) == {"finetune"}
    kept = (tmp_path / "digits/k4/broken/seed0/error.txt").read_text(encoding="utf-8")
    assert kept.startswith("Broken, step 2: the loss is nan"), "an error that we foresee is a sentence there"
    assert "Traceback" not in kept


def test_a_bug_in_ones_own_loss_is_raised_and_its_traceback_kept(broken: Losses, tmp_path: Path) -> None:
    broken["loss"] = lambda logits: logits @ logits
    asked = {
        "benchmark": {"name": "digits", "classes_per_step": 4},
        "cil": ["broken"],
        "detector": "msp",
        "place": {"runs": str(tmp_path), "device": "cpu"},
    }
    with pytest.raises(
        OpenCILError, match=r"broken/seed0 failed, .*: RuntimeError: mat1 and mat2 shapes"
    ) as raised:
        opencil.run(asked)
    assert type(raised.value.__cause__) is RuntimeError
    kept = tmp_path / "digits/k4/broken/seed0/error.txt"
    assert str(kept) in str(raised.value)
    text = kept.read_text(encoding="utf-8")
    for part in ("Traceback (most recent call last)", "runs/runner.py", "in my_loss", "logits @ logits"):
        assert part in text
    assert text.endswith(f"RuntimeError: {raised.value.__cause__}\n")

    broken["loss"] = lambda logits: logits.square().mean()
    opencil.run(asked)
    assert not kept.exists(), "the run has succeeded since"


def test_a_bug_in_ones_own_detector_keeps_the_others(tmp_path: Path, tiny: Make, finished: Path) -> None:
    @opencil.register_detector("buggy")
    @dataclass
    class Buggy(opencil.LogitDetector):
        def scores(self, outputs: opencil.Outputs) -> torch.Tensor:
            return outputs.logits["no such thing"]  # type: ignore[index]

    with pytest.raises(OpenCILError, match="buggy has no rows: step 1: IndexError") as raised:
        opencil.run(tiny(finished, detector=["buggy", "maxlogit"]))
    assert isinstance(raised.value.__cause__, IndexError)
    assert "in scores" in (finished / RUN / "error.txt").read_text(encoding="utf-8")
    steps = opencil.read_rows(finished).query("detector == 'maxlogit'")["step"]
    assert set(steps) == {1, 2, 3, 4}


def test_progress_is_for_terminals_and_notebooks(
    finished: Path, tiny: Make, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opencil.run(tiny(finished), progress=True)
    assert capsys.readouterr() == ("", ""), "nobody is there to see it"
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes this for a terminal
    opencil.run(tiny(finished))
    assert capsys.readouterr() == ("", ""), "nobody has asked"
    opencil.run(tiny(finished), progress=True)
    assert "100%" in capsys.readouterr().out


def test_whoever_is_interrupted_can_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook keeps the traceback, and so all that its frames hold: no run's lock may be among that."""

    @contextmanager
    def interrupting(*_: object) -> Iterator[Callable[[object], None]]:
        def show(_: object) -> None:
            raise KeyboardInterrupt

        yield show

    def go() -> opencil.Results:
        place = {"runs": str(tmp_path), "device": "cpu"}
        cil = {"finetune": {"epochs": 1}}
        return opencil.run(benchmark="digits", cil=cil, detector="msp", place=place)

    with monkeypatch.context() as patched:
        patched.setattr("opencil.front._bars", interrupting)
        with pytest.raises(KeyboardInterrupt) as kept:
            go()
    assert len(go().rows), kept
