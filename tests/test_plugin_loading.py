"""``--plugin`` and ``plugins:``: a user's own file is known to every command, and to the runs it made."""

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import opencil
from opencil import plugins
from opencil.config import Config, parse_yaml, read_yaml
from opencil.registry import DETECTORS, REGISTRIES
from tests.cli.common import call

PLUGINS = Path(__file__).parent / "plugins"
MARGIN = (PLUGINS / "margin.py").read_text(encoding="utf-8")
Tiny = Callable[..., Config]


@pytest.fixture(autouse=True)
def _own_folder(empty_wide_folder: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command here starts so; what is put on the path for the files beside a plugin goes again."""
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def margin() -> Path:
    file = Path("margin.py")
    file.write_text(MARGIN, encoding="utf-8")
    return file


def forget() -> None:
    """As in a new process: only ours are registered."""
    for registry in REGISTRIES:
        for name in [name for name in registry.names() if registry.plugin_of(name)]:
            del registry._entries[name]
    plugins._imported.clear()


# --- who knows it ------------------------------------------------------------------------------------


def test_every_command_takes_plugins() -> None:
    commands = [["run"], ["check"], ["list"], ["report"], ["doctor"], ["data", "check"], ["runs", "list"]]
    assert all("--plugin" in call(*words, "--help").stdout for words in commands)


def test_the_flag_and_the_yml_say_the_same(margin: Path) -> None:
    words = ["--detector", "margin", "--set", "detector.margin.scale=2.0", "--cil", "icarl"]
    printed = call("config", "--plugin", "margin.py", *words)
    assert printed.exit_code == 0, printed.stderr
    assert yaml.safe_load(printed.stdout)["plugins"] == ["margin.py"]
    forget()
    Path("configs").mkdir()
    Path("configs/my.yml").write_text(printed.stdout.replace("margin.py", "../margin.py"), encoding="utf-8")
    assert read_yaml(Path("configs/my.yml"))["plugins"] == ["margin.py"]
    assert call("config", "configs/my.yml").stdout == printed.stdout
    assert opencil.resolve(parse_yaml(printed.stdout, "printed")).detector == {
        "margin": {"by_task": False, "scale": 2.0}
    }
    assert opencil.resolve({"plugins": margin}).plugins == ("margin.py",)


def test_a_module_is_a_plugin_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_methods").mkdir()
    (tmp_path / "their_methods/__init__.py").touch()
    (tmp_path / "their_methods/margins.py").write_text(MARGIN, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    opencil.load_plugin("their_methods.margins")
    assert DETECTORS.plugin_of("margin@mine") == "their_methods.margins"
    found = plugins.find_plugin("their_methods.margins").module.__file__
    assert found == str(tmp_path / "their_methods/margins.py")
    opencil.load_plugin("their_methods.margins")
    del sys.modules["their_methods.margins"]


def test_a_file_runs_once_until_its_text_changes(margin: Path, tmp_path: Path) -> None:
    margin.write_text(MARGIN + "\nopencil.counted = getattr(opencil, 'counted', 0) + 1\n", encoding="utf-8")
    try:
        for spelling in ("margin.py", "./margin.py", str(tmp_path / "margin.py")):
            opencil.load_plugin(spelling)
        assert opencil.counted == 1  # type: ignore[attr-defined]
        margin.write_text(margin.read_text(encoding="utf-8").replace("= 1.0", "= 3.0"), encoding="utf-8")
        opencil.load_plugin(margin)
        assert opencil.counted == 2  # type: ignore[attr-defined]
    finally:
        del opencil.counted  # type: ignore[attr-defined]
    assert DETECTORS.create("margin").scale == 3.0


def test_what_a_changed_file_registers_no_more_is_gone(margin: Path) -> None:
    metric = "opencil.register_metric('gone', label='Gone', definition='gone.')(lambda id_scores: 0)\n"
    margin.write_text(MARGIN + metric, encoding="utf-8")
    opencil.load_plugin(margin)
    assert "gone" in opencil.evaluation.metric.metrics()
    margin.write_text(MARGIN.replace("class Margin", "class Renamed") + "nothing\n", encoding="utf-8")
    with pytest.raises(opencil.BadInput, match="name 'nothing' is not defined"):
        opencil.load_plugin(margin)
    margin.write_text(MARGIN.replace("class Margin", "class Again"), encoding="utf-8")
    opencil.load_plugin("./margin.py")
    assert type(opencil.create_detector("margin")).__name__ == "Again"
    assert "gone" not in opencil.list_metrics()
    assert "gone" not in opencil.evaluation.metric.metrics()


# --- what cannot be used -----------------------------------------------------------------------------

BROKEN = {
    "import opencil\n\nnothing.at_all\n": "(mine.py, line 3): NameError: name 'nothing' is not defined",
    "def f(:\n": "(mine.py, line 1): SyntaxError",
    "import sys\nsys.exit(3)\n": "(mine.py, line 2): SystemExit: 3",
    "raise GeneratorExit\n": "(mine.py, line 1): GeneratorExit",
    "raise type('Odd', (Exception,), {'__str__': lambda e: 1 / 0})\n": "(mine.py, line 1): Odd: Odd without",
    "x = 1\nimport broken_beside\n": "(broken_beside.py, line 2): ZeroDivisionError",
    "import json\n\njson.loads('{')\n": "(mine.py, line 3): JSONDecodeError",
    MARGIN.replace('"margin"', '"msp"'): "(mine.py, line 8): detector 'msp' is already registered",
    MARGIN + "\nraise RuntimeError('no GPU here\\nand more')\n": "RuntimeError: no GPU here",
}


@pytest.mark.parametrize(("text", "sentence"), BROKEN.items(), ids=range(len(BROKEN)))
def test_a_file_that_cannot_be_imported_is_named_with_its_line(text: str, sentence: str) -> None:
    Path("broken_beside.py").write_text("\n1 / 0\n", encoding="utf-8")
    Path("mine.py").write_text(text, encoding="utf-8")
    Path("mine.yml").write_text("plugins: [mine.py]\n", encoding="utf-8")
    with pytest.raises(opencil.BadInput, match=re.escape(sentence)):
        opencil.load_plugin("mine.py")
    assert "margin" not in DETECTORS.names(), "what it registered before it failed is gone"
    for words in (["config", "--plugin", "mine.py"], ["config", "mine.yml"], ["check", "mine.py"]):
        result = call(*words)
        assert result.exit_code == 2
        assert sentence in result.stderr
        assert "Traceback" not in result.output


@pytest.mark.parametrize("plugin", ["margn.py", "not_installed.here", "their/margin"])
def test_what_is_no_plugin_is_refused(plugin: str, margin: Path) -> None:
    with pytest.raises(opencil.BadInput, match=re.escape(f"plugin {plugin!r}")) as refused:
        opencil.load_plugin(plugin)
    assert ("did you mean 'margin.py'" in str(refused.value)) == (plugin == "margn.py")
    os.mkfifo("pipe.py")
    with pytest.raises(opencil.BadInput, match="not a file"):  # it would wait for a writer
        opencil.load_plugin("pipe.py")


# --- what runs remember ------------------------------------------------------------------------------


@pytest.fixture
def made(finished: Path, tiny: Tiny, margin: Path) -> Path:
    """A run of ours on which a detector of a file has been evaluated."""
    opencil.load_plugin("margin.py")
    for _ in opencil.execute(tiny(finished, detector=["margin", "msp"])):
        pass
    return finished


def test_a_run_notes_which_file_its_rows_are_of(made: Path) -> None:
    folder, sha256 = made / "digits/k2/icarl/seed0", plugins.find_plugin("margin.py").sha256
    noted = read_yaml(folder / "config.yml")["plugins"]
    assert noted == {"margin.py": sha256}
    rows = json.loads((folder / "step01/step.json").read_text(encoding="utf-8"))["rows"]
    assert rows["margin"]["made"][0]["plugins"] == {"margin.py": sha256}
    assert all("plugins" not in rows[name]["made"][0] for name in ("", "msp"))


def test_without_the_file_it_is_said_what_is_missing(made: Path) -> None:
    forget()
    hint = "margin.py registered names of stored runs: give --plugin margin.py"
    report = call("report", str(made))
    assert report.exit_code == 0
    assert hint in report.stderr
    assert "margin" in report.stdout
    again = call("run", "--runs", str(made), "--cil", "icarl", "--detector", "margin")
    assert again.exit_code == 2
    assert "detector 'margin' is unknown" in again.stderr
    run = opencil.open_run(made / "digits/k2/icarl/seed0")
    assert run.detector("msp", 1).ready
    with pytest.raises(opencil.BadInput, match=r"margin\.py, or in Python call opencil\.load_plugin"):
        run.detector("margin", 1)
    with_it = call("report", str(made), "--plugin", "margin.py")
    assert with_it.stderr == ""


def test_a_run_of_a_method_of_a_file_is_opened_with_it(tiny: Tiny, tmp_path: Path) -> None:
    Path("adamw.py").write_text((PLUGINS / "adamw.py").read_text(encoding="utf-8"), encoding="utf-8")
    opencil.load_plugin("adamw.py")
    config = tiny(tmp_path / "runs", "benchmark.classes_per_step=4", cil="adamw-replay", detector="msp")
    for _ in opencil.execute(config):
        pass
    folder = tmp_path / "runs/digits/k4/adamw-replay/seed0"
    forget()
    with pytest.raises(
        opencil.BadInput, match=r"CIL method 'adamw-replay' is unknown.*\nadamw\.py registered"
    ):
        opencil.open_run(folder)
    opencil.load_plugin("adamw.py")
    assert opencil.open_run(folder).model(2).head.out_features == 8


def test_a_changed_file_is_noted_and_not_refused(made: Path, margin: Path, tiny: Tiny) -> None:
    margin.write_text(MARGIN + "\n# a remark\n", encoding="utf-8")
    words = ["run", "--runs", str(made), "--cil", "icarl", "--set", "cil.icarl.epochs=2", "--device", "cpu"]
    said = "margin.py has changed since rows of margin were made, and they are kept"
    for spelling in ("margin.py", "./margin.py"):
        forget()
        result = call(*words, "--detector", "margin,energy", "--plugin", spelling)
        assert result.exit_code == 0, result.stderr
        assert said in result.stderr
    forget()
    opencil.load_plugin(margin.resolve())  # as a YML in another folder names it, and in Python
    with pytest.warns(UserWarning, match=said):
        opencil.run(tiny(made, detector="margin"))
    (made / "digits/k2/icarl/seed0/step04/detectors/margin.parquet").unlink()
    assert call(*words, "--detector", "margin", "--plugin", "margin.py").exit_code == 0
    report = call("report", str(made), "--table", "main")
    assert "Rows were made by several versions of margin.py" in report.stdout
