"""What a person sees: the opening line, bars that leave nothing behind, dry runs, help, completion."""

import io
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress
from typer.testing import CliRunner

import opencil
from opencil.cli import app
from opencil.cli.opening import duration, opening
from opencil.cli.progress import progress
from opencil.config import Config, PlaceConfig, SeedConfig
from opencil.engine.arithmetic import Arithmetic
from opencil.runs.events import Evaluated, Failed
from opencil.runs.outlook import outlook
from opencil.runs.plan import plan

TINY = shlex.split(
    "--benchmark digits --cil icarl --device cpu --detector energy,msp,relation --set cil.*.epochs=2"
)


@pytest.fixture(autouse=True)
def _own_folder(empty_wide_folder: None) -> None:
    """Every command here starts so."""


def call(*words: str, **env: str) -> Any:
    return CliRunner().invoke(app, list(words), env=env or None)


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


# --- the opening line and --dry-run ----------------------------------------------------------------


def test_the_opening_line_counts_what_is_done(tiny: Callable[..., Config], finished: Path) -> None:
    config = tiny(finished, seed=[0, 1])
    assert opening(outlook(config), config.place.runs).startswith(
        f"2 runs, 1 done: icarl on digits (k = 2; seeds 0, 1); energy, msp, relation; on cpu; "
        f"stored in {finished}; about "
    )


def test_how_long_it_may_take_is_what_like_runs_took(tiny: Callable[..., Config], finished: Path) -> None:
    infos = [step.info() for step in opencil.open_run(finished / "digits/k2/icarl/seed0").folder.trained()]
    took = sum(sum(info["seconds"].values()) for info in infos)
    ahead = outlook(tiny(finished, seed=[0, 1, 2]))
    assert ahead.seconds == pytest.approx(2 * took)
    assert [run.seconds == 0 for run in ahead.runs] == [True, False, False]
    alone = outlook(tiny(finished, "place.pack=2", seed=[0, 1]))
    assert alone.seconds == pytest.approx(took), "the other is done"


@pytest.mark.parametrize(
    "other",
    [
        {"cil": "wa"},
        {"detector": "gen"},
        {"settings": ["cil.icarl.temperature=3"]},
        {"settings": ["benchmark.memory=16"]},
        {"settings": ["place.pack=2"]},
    ],
    ids=str,
)
def test_nothing_is_said_where_no_like_run_tells(
    other: dict[str, Any], tiny: Callable[..., Config], finished: Path
) -> None:
    settings = other.pop("settings", ())
    config = tiny(finished, *settings, seed=[1, 2], **other)
    assert outlook(config).seconds is None
    assert "about" not in opening(outlook(config), config.place.runs)


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "1 s"), (75, "75 s"), (100, "2 min"), (3000, "50 min"), (9000, "2.5 h")]
)
def test_durations_are_as_people_say_them(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_a_dry_run_says_what_would_run_and_writes_nothing(finished: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    words = ["--seed", "0,1", "--detector", "msp,energy,gen", "--runs", str(finished)]
    result = call("run", *TINY, *words, "--dry-run")
    assert (result.exit_code, result.stderr) == (0, "")
    first, heading, *lines = result.stdout.splitlines()
    assert first.startswith("2 runs: icarl on digits")
    assert heading.split() == ["run", "so", "far", "to", "do"]
    assert [" ".join(line.split()) for line in lines] == [
        "digits/k2/icarl/seed0 4 of 4 steps gen on steps that are trained",
        "digits/k2/icarl/seed1 nothing steps 1 to 4 with msp, energy, gen",
    ]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_dry_run_refuses_what_a_run_would(finished: Path) -> None:
    words = [*TINY, "--runs", str(finished), "--set", "cil.icarl.temperature=7"]
    dry, real = call("run", *words, "--dry-run"), call("run", *words)
    assert (dry.exit_code, dry.stdout, dry.stderr) == (real.exit_code, real.stdout, real.stderr)
    assert dry.exit_code == 2


def test_a_dry_run_of_a_run_that_is_done(finished: Path) -> None:
    result = call("run", *TINY, "--runs", str(finished), "--dry-run")
    assert result.stdout.split("\n")[2].split() == ["digits/k2/icarl/seed0", "done", "nothing"]


# --- --quiet ---------------------------------------------------------------------------------------


def test_quiet_shows_nothing_but_problems(finished: Path) -> None:
    result = call("run", *TINY, "--runs", str(finished), "--quiet")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    failing = ["--detector", "msp", "--set", "cil.icarl.first.lr=1e30", "--runs", "r"]
    result = call("run", *TINY, *failing, "-q")
    assert (result.exit_code, result.stdout) == (1, "")
    assert [line.partition(":")[0] for line in result.stderr.splitlines()] == ["error", "error"]


# --- bars ------------------------------------------------------------------------------------------


@pytest.fixture
def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bars are drawn when they change, not some times a second."""

    usual = Progress.update

    def update(bars: Progress, *args: Any, **values: Any) -> None:
        usual(bars, *args, **values)
        bars.refresh()

    monkeypatch.setattr(Progress, "update", update)


def written(screen: Console) -> str:
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def evaluations(config: Config) -> Iterator[Evaluated]:
    """All but the last of a step."""
    for spec in plan(config):
        yield from (Evaluated(spec, 1, 4, name) for name in list(spec.detectors)[:-1])


def test_each_bar_is_called_what_it_is_a_part_of(
    terminal: Console, tiny: Callable[..., Config], tmp_path: Path, at_once: None
) -> None:
    config = tiny(tmp_path, seed=[0, 1])
    first, second, *_ = evaluations(config)
    with progress(terminal, 2) as show:
        show(first)
        show(second)
        whole, part = screen_after(written(terminal))
    assert re.fullmatch(r"all 2 runs +12% \S+ left", re.sub("[━╸╺]", "", whole))
    assert re.fullmatch(
        r"k2/icarl/seed0 · step 1/4 · evaluation +67% \S+ left msp", re.sub("[━╸╺]", "", part)
    )


def test_a_step_that_is_measured_has_no_bar(
    terminal: Console, tiny: Callable[..., Config], tmp_path: Path, at_once: None
) -> None:
    (spec,) = plan(tiny(tmp_path))
    with progress(terminal, 1) as show:
        for event in (Evaluated(spec, 1, 4, "msp"), Evaluated(spec, 2, 4, "msp")):
            show(event)
        assert [line.split("·")[1] for line in screen_after(written(terminal))[1:]] == [" step 2/4 "]
        for name in ("energy", "relation"):
            show(Evaluated(spec, 2, 4, name))
        assert len(screen_after(written(terminal))) == 1, "the bar of all runs is left"


def test_bars_leave_room_for_what_ctrl_c_shows(
    tiny: Callable[..., Config], tmp_path: Path, at_once: None
) -> None:
    """On a full line it would go to the next, and a bar would stay."""
    narrow = Console(file=io.StringIO(), force_terminal=True, width=50, color_system=None)
    with progress(narrow, 1) as show:
        for event in evaluations(tiny(tmp_path)):
            show(event)
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written(narrow))
        assert 40 < max(map(len, re.split(r"[\r\n]", plain))) <= 48


@pytest.mark.parametrize("leaving", [KeyboardInterrupt, ValueError, None])
def test_nothing_stays_on_the_screen(
    leaving: type[BaseException] | None, terminal: Console, tiny: Callable[..., Config], tmp_path: Path
) -> None:
    try:
        with progress(terminal, 1) as show:
            for event in evaluations(tiny(tmp_path)):
                show(event)
            if leaving:
                raise leaving
    except (KeyboardInterrupt, ValueError):
        pass
    terminal.print("the end")
    assert "evaluation" in written(terminal)
    assert screen_after(written(terminal)) == ["the end"]


def test_a_failure_is_told_beside_the_bars(
    terminal: Console, tiny: Callable[..., Config], tmp_path: Path
) -> None:
    config = tiny(tmp_path)
    (spec,) = plan(config)

    def told(event: Failed) -> None:
        terminal.file.write(f"{event.error}\n")  # as another console would, past the bars

    with progress(terminal, 1, troubled=told) as show:
        for event in evaluations(config):
            show(event)
        show(Failed(spec, opencil.OpenCILError("of it")))
    assert screen_after(written(terminal)) == ["of it"]


# --- help ------------------------------------------------------------------------------------------

COMMANDS = [[], ["run"], ["config"], ["evaluate"], ["check"], ["list"], ["doctor"], ["report"], ["data"]]
COMMANDS += [["data", "check"], ["data", "prepare"], ["data", "show"]]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_h_is_help(words: list[str]) -> None:
    short, long = call(*words, "-h", COLUMNS="80"), call(*words, "--help", COLUMNS="80")
    assert (short.exit_code, short.stdout) == (0, long.stdout)
    assert all(len(line) <= 80 for line in short.stdout.splitlines())


def test_help_shows_the_defaults_that_there_are() -> None:
    text = " ".join(call("run", "-h", COLUMNS="200").stdout.split())
    place, training = PlaceConfig(), Arithmetic()
    (seed,) = SeedConfig().runs
    defaults = {"benchmark": "digits", "cil": "all", "detector": "all", "seed": seed, "runs": place.runs}
    defaults |= {"outputs-limit": place.outputs_limit, "device": place.device, "pack": place.pack}
    for flag, default in (defaults | {"precision": training.precision}).items():
        assert re.search(rf"--{flag} [^│]*\[default: \({default}\)\]", text), flag
    assert opencil.resolve().benchmark.name == "digits"


# --- completion ------------------------------------------------------------------------------------


def completed(line: str) -> list[str]:
    """What a bash shows for a line that ends where the cursor is."""
    words = shlex.split(line) + ([""] if line.endswith(" ") else [])
    env = {
        "_OPENCIL_COMPLETE": "complete_bash",
        "COMP_WORDS": "\n".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    result = CliRunner().invoke(app, [], env=env, prog_name="opencil")
    return result.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("opencil r", ["run", "report", "runs"]),
        ("opencil run --benchmark dig", ["digits"]),
        ("opencil run --cil ic", ["icarl"]),
        ("opencil run --cil icarl,w", ["icarl,wa"]),
        ("opencil run --detector msp,ms", []),
        ("opencil config --detector logitn", ["logitnorm"]),
        ("opencil run --set be", ["benchmark."]),
        ("opencil run --set cil.icarl.first.mi", ["cil.icarl.first.milestones="]),
        ("opencil run --device cp", ["cpu"]),
        ("opencil run --precision b", ["bf16"]),
        ("opencil list de", ["detectors"]),
        ("opencil data check x --benchmark cif", ["cifar100"]),
        ("opencil data show x sv", ["svhn"]),
        ("opencil report --table main,ab", ["main,ablation"]),
    ],
)
def test_a_shell_completes_names(line: str, offered: list[str]) -> None:
    assert completed(line) == offered
