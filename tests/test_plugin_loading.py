"""``--plugin`` and ``plugins:``: a user's own file is known to every command, and to the runs it made."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import opencil
from opencil import plugins
from opencil.cli import app
from opencil.config import Config, parse_yaml, read_yaml
from opencil.registry import DETECTORS, REGISTRIES
from opencil.runs.reading import read_study

MARGIN = '''
from dataclasses import dataclass

import opencil


@opencil.register_detector("margin")
@dataclass
class Margin(opencil.LogitDetector):
    """Difference between the two largest logits."""

    scale: float = 1.0

    def scores(self, outputs):
        first, second = outputs.logits.topk(2, dim=1).values.T
        return self.scale * (first - second)
'''
PLAIN = '''
from dataclasses import dataclass

import torch.nn.functional as F

import opencil


@opencil.register_learner("plain")
@dataclass(frozen=True)
class Plain(opencil.Learner):
    """Cross-entropy on all that is there."""

    schedule: opencil.Schedule = opencil.Schedule(epochs=2, lr=0.1)

    def stages(self, task):
        yield opencil.Stage(
            "train",
            task.model,
            lambda images, labels: F.cross_entropy(task.model(images), labels),
            self.schedule,
            task.train_plus,
        )
'''
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


def call(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def forget() -> None:
    """As in a new process: only ours are registered."""
    for registry in REGISTRIES:
        for name in [name for name in registry.names() if registry.plugin_of(name)]:
            del registry._entries[name]
    plugins._loaded.clear()


# --- who knows it ------------------------------------------------------------------------------------


def test_every_command_takes_plugins() -> None:
    import typer

    commands = dict(typer.main.get_command(app).commands)
    for group in ("data", "runs"):
        commands |= {f"{group} {name}": command for name, command in commands.pop(group).commands.items()}
    without = [
        name
        for name, command in commands.items()
        if "--plugin" not in {o for p in command.params for o in p.opts}
    ]
    assert without == []


def test_a_file_s_names_are_listed_with_the_file(margin: Path) -> None:
    result = call("list", "detectors", "m*", "--plugin", "margin.py")
    assert result.exit_code == 0, result.stderr
    (line,) = [line for line in result.stdout.splitlines() if "margin" in line]
    assert "Difference between the two largest logits." in line
    assert line.split()[-1] == "margin.py"


def test_the_flag_and_the_yml_say_the_same(margin: Path) -> None:
    words = ["--detector", "margin", "--set", "detector.margin.scale=2.0", "--cil", "icarl"]
    printed = call("config", "--plugin", "margin.py", *words)
    assert printed.exit_code == 0, printed.stderr
    assert yaml.safe_load(printed.stdout)["plugins"] == ["margin.py"]
    forget()
    Path("my.yml").write_text(printed.stdout, encoding="utf-8")
    again = call("config", "my.yml")
    assert again.stdout == printed.stdout
    assert opencil.resolve(parse_yaml(printed.stdout, "printed")).detector == {"margin": {"scale": 2.0}}
    assert opencil.resolve({"plugins": margin}).plugins == ("margin.py",)


def test_a_yml_names_files_from_where_it_lies(margin: Path) -> None:
    Path("configs").mkdir()
    yml = Path("configs/my.yml")
    yml.write_text("plugins: ../margin.py\ndetector: margin\n", encoding="utf-8")
    assert read_yaml(yml)["plugins"] == ["margin.py"]
    assert call("config", str(yml)).exit_code == 0
    yml.write_text("plugins: [margin.py]\n", encoding="utf-8")
    refused = call("config", str(yml))
    assert refused.exit_code == 2
    assert "plugin 'configs/margin.py' cannot be read: No such file or directory" in refused.stderr


def test_the_flag_adds_to_the_yml(margin: Path) -> None:
    Path("plain.py").write_text(PLAIN, encoding="utf-8")
    Path("my.yml").write_text("plugins: [margin.py]\ndetector: margin\ncil: plain\n", encoding="utf-8")
    result = call("config", "my.yml", "--plugin", "plain.py")
    assert yaml.safe_load(result.stdout)["plugins"] == ["margin.py", "plain.py"]


def test_a_module_is_a_plugin_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_methods").mkdir()
    (tmp_path / "their_methods/__init__.py").touch()
    (tmp_path / "their_methods/margins.py").write_text(MARGIN, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    opencil.load_plugin("their_methods.margins")
    assert DETECTORS.plugin_of("margin@mine") == "their_methods.margins"
    assert plugins.loaded("their_methods.margins").path == tmp_path / "their_methods/margins.py"
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


def test_a_change_that_fails_and_is_taken_back(margin: Path) -> None:
    opencil.load_plugin(margin)
    margin.write_text(MARGIN + "nothing\n", encoding="utf-8")
    with pytest.raises(opencil.BadInput, match="name 'nothing' is not defined"):
        opencil.load_plugin(margin)
    assert "margin" not in opencil.list_detectors()
    margin.write_text(MARGIN, encoding="utf-8")
    opencil.load_plugin(margin)
    assert opencil.create_detector("margin").scale == 1.0


def test_it_may_import_the_files_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside_margin.py").write_text(MARGIN, encoding="utf-8")
    (tmp_path / "mine.py").write_text("import beside_margin\n", encoding="utf-8")
    opencil.load_plugin("mine.py")
    assert DETECTORS.plugin_of("margin") == "mine.py"
    del sys.modules["beside_margin"]


# --- what cannot be used -----------------------------------------------------------------------------

BROKEN = {
    "import opencil\n\nnothing.at_all\n": "plugin mine.py, line 3: NameError: name 'nothing' is not defined",
    "def f(:\n": "plugin mine.py, line 1: SyntaxError: invalid syntax",
    "import not_there_at_all\n": "plugin mine.py, line 1: ModuleNotFoundError: No module named 'not_there",
    "import sys\nsys.exit(3)\n": "plugin mine.py, line 2: SystemExit: 3",
    "x = 1\nimport broken_beside\n": (
        "plugin mine.py, line 2: ZeroDivisionError: division by zero (broken_beside.py, line 2)"
    ),
    MARGIN.replace('"margin"', '"msp"'): (
        "plugin mine.py, line 7: detector 'msp' is already registered by opencil.detectors.posthoc.msp"
    ),
    MARGIN.replace('"margin"', '"My Margin"'): "line 7: detector name 'My Margin' is not usable: allowed are",
}


@pytest.mark.parametrize(("text", "sentence"), BROKEN.items(), ids=range(len(BROKEN)))
def test_a_file_that_cannot_be_imported_is_named_with_its_line(text: str, sentence: str) -> None:
    Path("broken_beside.py").write_text("\n1 / 0\n", encoding="utf-8")
    Path("mine.py").write_text(text, encoding="utf-8")
    for words in (["list", "cil"], ["config"], ["report"]):
        result = call(*words, "--plugin", "mine.py")
        assert result.exit_code == 2
        assert sentence in result.stderr
        assert "Traceback" not in result.output


def test_every_way_to_a_file_names_its_line(margin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag, the YML, ``check``, a module's name, and a run that needs it all say the same."""
    Path("mine.py").write_text(MARGIN + "\nraise RuntimeError('no GPU here\\nand more')\n", encoding="utf-8")
    Path("mine.yml").write_text("plugins: [mine.py]\n", encoding="utf-8")
    line = MARGIN.count("\n") + 2
    sentence = f"line {line}: RuntimeError: no GPU here\n"
    for words in (
        ["run", "--plugin", "mine.py"],
        ["run", "mine.yml"],
        ["check", "mine.py"],
        ["check", "mine.yml"],
        ["evaluate", "models", "--factory", "mine.py:make", "--name", "mine"],
    ):
        result = call(*words)
        assert result.exit_code == 2
        assert f"plugin mine.py, {sentence}" in result.stderr
    monkeypatch.syspath_prepend(".")
    result = call("check", "mine")
    assert f"plugin mine in {Path('mine.py').resolve()}, {sentence}" in result.stderr
    assert "margin" not in DETECTORS.names(), "what it registered before it failed is gone"


@pytest.mark.parametrize(
    "error", ["GeneratorExit()", "type('Odd', (Exception,), {'__str__': lambda _: 1/0})()"]
)
def test_whatever_a_file_raises_is_told(error: str) -> None:
    Path("mine.py").write_text(f"raise {error}\n", encoding="utf-8")
    with pytest.raises(opencil.BadInput, match=r"^plugin mine\.py, line 1: (GeneratorExit|Odd)"):
        opencil.load_plugin("mine.py")


def test_the_line_of_a_package_s_own_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "broken_package"
    package.mkdir()
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "methods.py").write_text("import json\n\njson.loads('{')\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(opencil.BadInput) as refused:
        opencil.load_plugin("broken_package.methods")
    file = package / "methods.py"
    assert str(refused.value).startswith(
        f"plugin broken_package.methods in {file}, line 3: JSONDecodeError: "
    )
    assert "decoder.py" not in str(refused.value)
    (package / "__init__.py").write_text("\n1 / 0\n", encoding="utf-8")
    sys.modules.pop("broken_package")
    with pytest.raises(opencil.BadInput, match=r"division by zero \(__init__\.py, line 2\)$"):
        opencil.load_plugin("broken_package.methods")


def test_what_is_no_plugin_is_refused(margin: Path) -> None:
    for given, sentence in (
        (
            "margn.py",
            "plugin 'margn.py' cannot be read: No such file or directory; did you mean 'margin.py'?",
        ),
        (
            "not_installed.here",
            "plugin 'not_installed.here' is unknown: allowed are a Python file, ending in",
        ),
        ("their/margin", "plugin 'their/margin' cannot be read"),
        ("", "plugin '' is unknown: allowed are a Python file, ending in"),
        ("margin\0.py", "plugin 'margin\\x00.py' cannot be read: embedded null byte"),
    ):
        with pytest.raises(opencil.BadInput) as refused:
            opencil.load_plugin(given)
        assert str(refused.value).startswith(sentence)
    with pytest.raises(opencil.BadInput, match=r"plugins = \{'a': 1\} is not allowed: it should be a list"):
        opencil.resolve({"plugins": {"a": 1}})


# --- what runs remember ------------------------------------------------------------------------------


@pytest.fixture
def made(finished: Path, tiny: Tiny, margin: Path) -> Path:
    """A run of ours on which a detector of a file has been evaluated."""
    opencil.load_plugin("margin.py")
    for _ in opencil.execute(tiny(finished, detector=["margin", "msp"])):
        pass
    return finished


def test_a_run_notes_which_file_its_rows_are_of(made: Path) -> None:
    folder, sha256 = made / "digits/k2/icarl/seed0", plugins.loaded("margin.py").sha256
    noted = read_yaml(folder / "config.yml")["plugins"]
    assert noted == {"margin.py": {"sha256": sha256, "registers": ["detector margin"]}}
    of_rows = json.loads((folder / "step01/step.json").read_text(encoding="utf-8"))["made"]
    assert of_rows["margin"]["plugins"] == {"margin.py": sha256}
    assert "plugins" not in of_rows["msp"]
    assert "plugins" not in of_rows[""]
    (record,) = read_study(made).runs
    assert [m["steps"].keys() for m in record["made"] if "plugins" in m] == [{"margin": ...}.keys()]


def test_without_the_file_it_is_said_what_is_missing(made: Path) -> None:
    forget()
    told = "detector 'margin' is registered by margin.py: give --plugin margin.py"
    report = call("report", str(made))
    assert report.exit_code == 0
    assert told in report.stderr
    assert "margin" in report.stdout
    again = call("run", "--runs", str(made), "--cil", "icarl", "--detector", "margin")
    assert again.exit_code == 2
    assert "detector 'margin' is unknown" in again.stderr
    assert told in again.stderr
    assert told not in call("run", "--runs", str(made), "--detector", "margins").stderr
    run = opencil.open_run(made / "digits/k2/icarl/seed0")
    assert run.detector("msp", 1).ready
    with pytest.raises(opencil.BadInput, match=r"margin\.py, or in Python call opencil\.load_plugin"):
        run.detector("margin", 1)
    with_it = call("report", str(made), "--plugin", "margin.py")
    assert with_it.stderr == ""


def test_a_run_of_a_method_of_a_file_is_opened_with_it(tiny: Tiny, tmp_path: Path) -> None:
    Path("plain.py").write_text(PLAIN, encoding="utf-8")
    opencil.load_plugin("plain.py")
    config = tiny(tmp_path / "runs", "benchmark.classes_per_step=4", cil="plain", detector="msp")
    for _ in opencil.execute(config):
        pass
    folder = tmp_path / "runs/digits/k4/plain/seed0"
    forget()
    sentence = r"needs what is not known here: CIL method 'plain' is registered by plain\.py: give --plugin"
    with pytest.raises(opencil.BadInput, match=sentence):
        opencil.open_run(folder)
    opencil.load_plugin("plain.py")
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


def test_notes_of_several_calls_stand_together() -> None:
    now = {"a.py": {"sha256": "2", "registers": ["detector x"]}}
    before = {
        "a.py": {"sha256": "1", "registers": ["detector x", "metric m"]},
        "b.py": {"sha256": "3", "registers": ["detector x"]},
        "c.py": {"sha256": "4", "registers": ["dataset d"]},
        "of another hand": 7,
    }
    assert plugins.joined(before, now) == {
        "a.py": {"sha256": "2", "registers": ["metric m", "detector x"]},
        "c.py": {"sha256": "4", "registers": ["dataset d"]},
    }
    assert plugins.joined(None, {}) == {}
