"""What a person sees: the opening line, bars that leave nothing behind, dry runs, help, completion."""

import io
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

import opencil
from opencil.cli import app
from opencil.cli.guard import exit_on_errors
from opencil.cli.progress import progress
from opencil.cli.run import opening
from opencil.config import Config, PlaceConfig, SeedConfig
from opencil.engine.arithmetic import Arithmetic
from opencil.runs.events import Evaluated, Failed
from opencil.runs.outlook import outlook
from opencil.runs.spec import plan
from tests.cli.common import call

TINY = shlex.split(
    "--benchmark digits --cil icarl --device cpu --detector energy,msp,relation --set cil.*.epochs=2"
)


def screen_after(text: str) -> list[str]:
    """The lines that a terminal shows in the end."""
    lines, at = [""], 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
        if part == "\n":
            at += 1
            lines += [""] * (at + 1 - len(lines))
        elif part == "\x1b[2K":
            lines[at] = ""
        elif up := re.fullmatch(r"\x1b\[(\d*)A", part):
            at -= int(up[1] or 1)
        elif part[0] not in "\x1b\r":
            lines[at] += part
    return [line.rstrip() for line in lines if line.strip()]


def test_the_opening_line_counts_what_is_done(tiny: Callable[..., Config], finished: Path) -> None:
    config = tiny(finished, seed=[0, 1])
    assert opening(outlook(config), config.place.runs).startswith(
        f"2 runs, 1 done: icarl on digits (k = 2; seeds 0, 1); energy, msp, relation; on cpu; "
        f"stored in {finished}; about "
    )


def test_a_dry_run_says_what_would_run_and_writes_nothing(finished: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name != ".lock"}
    words = ["--seed", "0,1", "--detector", "msp,energy,gen", "--runs", str(finished)]
    result = call("run", *TINY, *words, "--dry-run")
    assert (result.exit_code, result.stderr) == (0, "")
    first, heading, *lines = result.stdout.splitlines()
    assert first.startswith("2 runs: icarl on digits")
    assert heading.split() == ["run", "so", "far", "to", "do"]
    assert [" ".join(line.split()) for line in lines] == [
        "digits/k2/icarl/seed0 4 of 4 steps gen on trained steps",
        "digits/k2/icarl/seed1 nothing steps 1 to 4 with msp, energy, gen",
    ]
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.name != ".lock"} == before
    words = [*TINY, "--runs", str(finished), "--set", "cil.icarl.temperature=7"]
    dry, real = call("run", *words, "--dry-run"), call("run", *words)
    assert (dry.exit_code, dry.stdout, dry.stderr) == (real.exit_code, real.stdout, real.stderr)
    assert dry.exit_code == 2, "it refuses what a run would"


def test_quiet_shows_nothing_but_problems(finished: Path) -> None:
    result = call("run", *TINY, "--runs", str(finished), "--quiet")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    failing = ["--detector", "msp", "--set", "cil.icarl.first.lr=1e30", "--runs", "r"]
    result = call("run", *TINY, *failing, "-q")
    assert (result.exit_code, result.stdout) == (1, "")
    assert [line.partition(":")[0] for line in result.stderr.splitlines()] == ["error", "error"]


# --- bars ------------------------------------------------------------------------------------------


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Console:
    """A terminal whose bars are drawn when they change, not some times a second."""
    from rich.progress import Progress

    usual = Progress.update

    def update(bars: Progress, *args: Any, **values: Any) -> None:
        usual(bars, *args, **values)
        bars.refresh()

    monkeypatch.setattr(Progress, "update", update)
    return Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)


def written(screen: Console) -> str:
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def test_a_bar_for_each_run_and_all(terminal: Console, tiny: Callable[..., Config], tmp_path: Path) -> None:
    specs = plan(tiny(tmp_path, seed=[0, 1]))
    with progress(terminal, 2) as show:
        for step in (1, 2):
            show(Evaluated(specs[0], step, 4, "msp"))
        whole, part = screen_after(re.sub("[━╸╺]", "", written(terminal)))
    assert re.fullmatch(r"all 2 runs +25% \S+ left", whole)
    assert re.fullmatch(r"k2/icarl/seed0 +50% \S+ left step 2/4 · msp", part)


@pytest.mark.parametrize("leaving", [KeyboardInterrupt, ValueError, None])
def test_nothing_but_failures_stays_on_the_screen(
    leaving: type[BaseException] | None, terminal: Console, tiny: Callable[..., Config], tmp_path: Path
) -> None:
    (spec,) = plan(tiny(tmp_path))

    try:
        with progress(terminal, 1) as show:
            show(Evaluated(spec, 1, 4, "msp"))
            show(Failed(spec, opencil.OpenCILError("of it")))
            terminal.print("of it")
            show(Evaluated(spec, 1, 4, "msp"))
            if leaving:
                raise leaving
    except (KeyboardInterrupt, ValueError):
        pass
    assert "step 1/4" in written(terminal)
    assert screen_after(written(terminal)) == ["of it"]


# --- help and completion ---------------------------------------------------------------------------

COMMANDS = ["", "run", "config", "evaluate", "check", "list", "doctor", "report", "data", "runs"]
COMMANDS += ["data check", "data prepare", "data show", "runs list", "runs check", "runs clean"]


@pytest.mark.parametrize("words", COMMANDS)
def test_h_is_help_with_an_example(words: str) -> None:
    short, long = (call(*words.split(), flag, COLUMNS="80") for flag in ("-h", "--help"))
    assert (short.exit_code, short.stdout) == (0, long.stdout)
    assert all(len(line) <= 80 for line in short.stdout.splitlines())
    assert words in ("", "data", "runs") or f"Example: opencil {words}" in short.stdout


def test_help_shows_flags_with_the_defaults_that_there_are() -> None:
    text = " ".join(call("run", "-h", COLUMNS="200").stdout.split())
    place, (seed,) = PlaceConfig(), SeedConfig().runs
    defaults = {
        "benchmark": "digits",
        "cil": "icarl",
        "detector": "msp,energy",
        "seed": seed,
        "runs": place.runs,
    }
    defaults |= {"device": place.device, "pack": place.pack, "precision": Arithmetic().precision}
    for flag, default in defaults.items():
        assert re.search(rf"--{flag} [^│]*\[default: \({default}\)\]", text), flag
    assert opencil.resolve().benchmark.name == "digits"
    for flag in ("classes-per-step", "data-root", "set", "epochs-scale"):
        assert f"--{flag} " in text
    assert "OPENCIL_DATA" in text


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("opencil r", ["run", "report", "runs"]),
        ("opencil run --benchmark dig", ["digits"]),
        ("opencil run --cil ic", ["icarl"]),
        ("opencil run --cil icarl,w", ["icarl,wa"]),
        ("opencil run --detector msp,ms", []),
        ("opencil config --detector logitn", ["logitnorm"]),
        ("opencil run --set cil.icarl.first.mi", ["cil.icarl.first.milestones="]),
        ("opencil list de", ["detectors"]),
        ("opencil data show x sv", ["svhn"]),
        ("opencil report --table main,ab", ["main,ablation"]),
    ],
)
def test_a_shell_completes_names(line: str, offered: list[str]) -> None:
    words = shlex.split(line)
    env = {
        "_OPENCIL_COMPLETE": "complete_bash",
        "COMP_WORDS": "\n".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    assert CliRunner().invoke(app, [], env=env, prog_name="opencil").stdout.split() == offered


def test_control_characters_are_escaped() -> None:
    result = call("report", "a\x1b[31mb")
    assert "\x1b" not in result.output
    assert r"a\x1b[31mb" in result.stderr


def test_a_pipe_that_nobody_reads_ends_a_command_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    def write() -> None:
        try:
            raise BrokenPipeError
        except BrokenPipeError:
            raise SystemExit(1)  # noqa: B904 - as rich does

    with pytest.raises(typer.Exit), exit_on_errors():
        write()
    assert capsys.readouterr() == ("", "")
