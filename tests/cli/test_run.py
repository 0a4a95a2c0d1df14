"""The command line: exit codes, where errors go, and that it does what the library does."""

import ctypes
import io
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import opencil
from opencil.cli import app, guard
from opencil.cli.guard import interrupts
from opencil.cli.progress import progress
from opencil.config import Config
from opencil.runs.events import Event, Failed, Finished, Training
from opencil.runs.plan import plan
from opencil.runs.store import RunFolder
from tests import forks

RUN = "digits/k2/icarl/seed0"
PLACE = ["--benchmark", "digits", "--cil", "icarl", "--device", "cpu"]
SHORT = [*PLACE, "--detector", "energy,msp,relation", "--set", "cil.icarl.epochs=2"]
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")  # all but the end of a line


@pytest.fixture(autouse=True)
def _own_folder(empty_wide_folder: None) -> None:
    """Every command here starts so."""


def call(*words: str, **env: str) -> Any:
    return CliRunner().invoke(app, list(words), env=env or None)


def contents(folder: Path) -> dict[str, bytes]:
    """Files that two runs of one config share bit for bit."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.suffix in (".parquet", ".safetensors", ".yml")
    }


# --- run -------------------------------------------------------------------------------------------


def test_a_printed_config_runs_as_its_flags_do(tmp_path: Path, finished: Path) -> None:
    printed = call("config", *SHORT, "--runs", "from-yml")
    (tmp_path / "my.yml").write_text(printed.stdout)
    from_yml = call("run", "my.yml")
    of_all = "icarl on digits (k = 2; seed 0); energy, msp, relation; on cpu; stored in"
    assert (from_yml.exit_code, from_yml.stderr) == (0, f"1 run: {of_all} from-yml\n")
    assert contents(tmp_path / "from-yml") == contents(finished)
    from_flags = call("run", *SHORT, "--runs", str(finished))
    assert from_yml.stdout.replace("from-yml", "") == from_flags.stdout.replace(str(finished), "")


def test_run_away_from_a_terminal_ends_in_the_table(tmp_path: Path) -> None:
    with forks.command("run", *SHORT, "--detector", "msp,energy", "--runs", "r") as started:
        out, err = started.communicate()
    assert started.returncode == 0
    opening, *more = err.splitlines()
    assert opening == "1 run: icarl on digits (k = 2; seed 0); msp, energy; on cpu; stored in r"
    assert all("% of all runs" in line for line in more), "none but on a slow machine"
    assert not CONTROL.search(out + err)
    lines = out.splitlines()
    titles = [line.strip() for line in lines]
    second = titles.index("digits, 2 classes per step: OOD detection")
    third = titles.index("digits, 2 classes per step: OOD detection under covariate shift")
    assert titles[0] == "digits, 2 classes per step: accuracy"
    assert lines[-1] == "runs are stored in r"
    (models,) = [line.split() for line in lines[:second] if line.startswith("icarl")]
    cells = [line.split() for line in lines[second:third] if line.startswith("icarl")]
    assert [line[:2] for line in cells] == [["icarl", "msp"], ["icarl", "energy"]]
    assert {len(line) for line in cells} == {2 + 1 + 3 * 3}
    assert not re.search(r"step \d|loss|left|all runs|━", out)
    # The tables are the rows' and nothing else's.
    rows = opencil.read_rows(tmp_path / "r")
    accuracy = rows[(rows["metric"] == "accuracy") & (rows["task"] == 0)].sort_values("step")["value"]
    assert {line[2] for line in cells} == {f"{100 * accuracy.mean():.2f}"} == {models[1]}
    assert models[2] == f"{100 * accuracy.iloc[-1]:.2f}"


def test_run_again_answers_the_same(finished: Path) -> None:
    before = contents(finished)
    first, second = (call("run", *SHORT, "--runs", str(finished)) for _ in range(2))
    assert first.exit_code == 0
    assert first.stderr.startswith("1 run, all done: icarl on digits")
    assert (first.stdout, first.stderr) == (second.stdout, second.stderr)
    assert contents(finished) == before


def test_a_folder_that_looks_like_markup_is_named_as_it_is(finished: Path, tmp_path: Path) -> None:
    runs = finished.rename(tmp_path / "my [red] runs")
    lines = call("run", *SHORT, "--runs", str(runs)).stdout.splitlines()
    assert lines[-1] == f"runs are stored in {runs}"


def test_run_shows_only_the_detectors_that_were_asked_for(finished: Path) -> None:
    result = call("run", *SHORT, "--detector", "msp", "--runs", str(finished))
    _, _, detection = result.stdout.partition("OOD detection")
    assert {line.split()[1] for line in detection.splitlines() if line.startswith("icarl")} == {"msp"}


def test_a_changed_config_is_refused(finished: Path) -> None:
    before = contents(finished)
    result = call("run", *SHORT, "--runs", str(finished), "--set", "cil.icarl.later.lr=0.5")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "cil.icarl.later.lr: 0.1 in the stored run, 0.5 now" in result.stderr
    assert contents(finished) == before


def test_a_run_that_fails_is_1_and_the_others_are_shown(tmp_path: Path) -> None:
    flags = ["--classes-per-step", "4,8", "--detector", "msp", "--runs", "r"]
    result = call("run", *SHORT, *flags, "--set", "cil.icarl.later.lr=1e30")
    assert result.exit_code == 1
    opening, stopped, total = result.stderr.splitlines()
    assert opening.startswith("2 runs: icarl on digits (k = 4, 8; seed 0); msp;")
    assert stopped.startswith("error: run digits/k4/icarl/seed0 stopped: ICaRL, step 2: the loss is nan")
    assert total == "error: 1 of 2 runs failed; what they had finished is stored in r"
    assert "runs are stored" not in result.stdout
    assert "digits, 8 classes per step" in result.stdout
    assert "digits, 4 classes per step" in result.stdout, "with the step that it has"


def test_a_share_of_the_runs() -> None:
    grid = ["run", *PLACE, "--detector", "msp", "--seed", "0,1", "--runs", "r", "--dry-run", "--only"]
    listed = [re.findall(r"seed\d", call(*grid, only).stdout) for only in ("1/2", "2/2")]
    assert sorted(seed for seeds in listed for seed in set(seeds)) == ["seed0", "seed1"]
    empty = call(*grid, "3/3")
    assert (empty.exit_code, empty.stdout) == (0, "")
    assert empty.stderr == (
        "there is nothing to run: the shares are more than the runs, and this one has none\n"
    )
    assert call(*grid, "3/2").exit_code == 2


def test_methods_that_go_without_the_same_detectors_are_named_together() -> None:
    flags = ["--cil", "ewc,icarl,lwf", "--detector", "msp,ber,logitnorm", "--runs", "r", "--dry-run"]
    (told,) = call("run", *flags).stderr.splitlines()
    assert told == (
        "ewc, lwf go without ber, logitnorm: no images of old classes are seen again, which tuned heads "
        "draw on"
    )
    small = [
        "--cil",
        "icarl",
        "--detector",
        "msp,knn",
        "--classes-per-step",
        "2,4",
        "--runs",
        "r",
        "--dry-run",
    ]
    few = ["--set", "benchmark.memory=16", "--set", "detector.knn.neighbours=14"]
    (told,) = call("run", *small, *few).stderr.splitlines()
    assert told.startswith("icarl (k = 2) goes without knn: 14 images at least"), "six classes have 12"
    (told,) = call("run", *flags, "--cil", "lwf").stderr.splitlines()
    assert told.startswith("lwf goes without ber, logitnorm: ")


def test_a_run_that_fails_at_once_leaves_no_table(tmp_path: Path) -> None:
    result = call("run", *SHORT, "--detector", "msp", "--runs", "r", "--set", "cil.icarl.first.lr=1e30")
    assert result.exit_code == 1
    assert "step 1" in result.stderr
    assert result.stdout == ""


def test_a_bug_in_ones_own_code_is_shown_with_its_place(tmp_path: Path) -> None:
    @opencil.register_detector("buggy")
    @dataclass
    class Buggy(opencil.LogitDetector):
        def scores(self, outputs: opencil.Outputs) -> torch.Tensor:
            return outputs.logits @ outputs.logits

    result = call("run", *SHORT, "--classes-per-step", "8", "--detector", "buggy,msp", "--runs", "r")
    assert result.exit_code == 1
    _, first, place, *_, stopped, total = result.stderr.splitlines()
    assert first == "Traceback (most recent call last):"
    assert f'File "{__file__}"' in place, "not where we call it, but where it is"
    said = "error: run digits/k8/icarl/seed0 stopped: buggy has no rows: step 1: RuntimeError: mat1"
    assert stopped.startswith(said)
    assert stopped.endswith(f"(traceback: {Path('r/digits/k8/icarl/seed0/error.txt')})")
    assert total.startswith("error: 1 of 1 runs failed")
    assert re.search(r"icarl +msp", result.stdout), "the others have their rows"


@pytest.mark.usefixtures("interruptible")
def test_interrupted_is_130_and_what_was_finished_stays(tmp_path: Path) -> None:
    endless = ["cil.icarl.first.epochs=1", "cil.icarl.first.milestones=[]", "cil.icarl.later.epochs=100000"]
    settings = [word for setting in endless for word in ("--set", setting)]
    mark = tmp_path / "r" / RUN / "step01" / "detectors" / "msp.parquet"
    with forks.command("run", *PLACE, "--detector", "msp", "--runs", "r", *settings) as started:
        for _ in range(1200):  # a minute at most
            if mark.exists() or started.wait(timeout=0.05) is not None:
                break
        started.send_signal(signal.SIGINT)
        out, err = started.communicate()
    assert started.returncode == 130, err
    _, interrupted = err.splitlines()
    assert interrupted == "interrupted: what was finished is stored, and the same command goes on from there"
    assert out == ""
    folder = RunFolder(tmp_path / "r" / RUN)
    assert folder.step(1).trained
    assert not folder.step(2).trained
    assert list(tmp_path.rglob("*.part")) == []


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("becomes", ["an error", "a failed run", "nothing"])
def test_an_interrupt_that_native_code_makes_something_else_of(
    becomes: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Reading tensors was seen to end in a ValueError when Ctrl-C fell into it."""
    told = []

    def execute(config: Config, planned: object) -> Iterator[Event]:
        (spec,) = plan(config)
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            if becomes == "an error":
                raise ValueError("could not determine the shape of an object") from None
        failed = becomes == "a failed run"
        yield Failed(spec, opencil.OpenCILError("of it")) if failed else Finished(spec, already=False)
        told.append("more")
        yield Finished(spec, already=False)

    monkeypatch.setattr("opencil.runs.runner.execute", execute)
    result = call("run", *PLACE, "--detector", "msp", "--runs", str(tmp_path))
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1].startswith("interrupted")
    assert told == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_queue_that_says_time_is_up(
    name: str, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is under way is checkpointed at once, the exit code says that there is more, and it goes on."""
    monkeypatch.setattr("opencil.runs.checkpoints.KEPT_EVERY", 0.0)
    number, usual, real = getattr(signal, name), signal.getsignal(getattr(signal, name)), opencil.execute

    def execute(*asked: Any) -> Iterator[Event]:
        with closing(real(*asked)) as events:
            for event in events:
                if isinstance(event, Training) and (event.step, event.progress.epoch) == (3, 2):
                    os.kill(os.getpid(), number)
                    os.kill(os.getpid(), number)  # again, while it leaves: nothing comes of it
                yield event

    with monkeypatch.context() as patched:
        patched.setattr("opencil.runs.runner.execute", execute)
        stopped = call("run", *SHORT, "--runs", "r")
    assert stopped.exit_code == 75
    assert stopped.stderr.splitlines()[-1] == (
        f"stopped by {name}: what was finished is stored, and the same command goes on from there"
    )
    assert (tmp_path / "r" / RUN / "step03" / "checkpoint.safetensors").exists()
    assert signal.getsignal(number) == usual
    assert call("run", *SHORT, "--runs", "r").exit_code == 0
    assert contents(tmp_path / "r") == contents(finished)


def test_a_queues_signal_counts_where_it_was_ignored_and_ctrl_c_does_not() -> None:
    usual = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGUSR1, signal.SIGINT)}
    try:
        with interrupts.watched():
            os.kill(os.getpid(), signal.SIGINT)
            assert interrupts.seen is None
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGUSR1)
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)


def test_a_queues_signal_counts_where_a_library_has_taken_it(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As LLVM does when a kernel is compiled: Python does not notice that its handler is gone."""
    real, libc = opencil.execute, ctypes.CDLL(None)

    def execute(*asked: Any) -> Iterator[Event]:
        with closing(real(*asked)) as events:
            for event in events:
                if isinstance(event, Training) and event.step == 2:
                    libc.signal(signal.SIGUSR1, ctypes.c_void_p(1))  # SIG_IGN
                    monkeypatch.setattr(interrupts, "_taken_back", -9.0)
                    os.kill(os.getpid(), signal.SIGUSR1)
                    assert interrupts.seen is None
                elif isinstance(event, Training) and event.step == 3:
                    os.kill(os.getpid(), signal.SIGUSR1)
                yield event

    with monkeypatch.context() as patched:
        patched.setattr("opencil.runs.runner.execute", execute)
        stopped = call("run", *SHORT, "--runs", "r")
    assert stopped.exit_code == 75, stopped.output


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_that_comes_while_an_error_is_told_does_not_silence_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torchrun sends one to all others when a rank is lost, which these are just about to tell."""

    def tell(error: object) -> None:
        os.kill(os.getpid(), getattr(signal, name))
        usual(error)

    usual = guard.tell
    monkeypatch.setattr(guard, "tell", tell)
    failed = call("report", str(tmp_path / "not there"))
    assert (failed.exit_code, failed.stderr.startswith("error: ")) == (2, True)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_error_without_an_interrupt_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def execute(config: Config, planned: object) -> Iterator[Event]:
        raise ValueError("a bug")
        yield

    monkeypatch.setattr("opencil.runs.runner.execute", execute)
    result = call("run", *PLACE, "--detector", "msp")
    assert isinstance(result.exception, ValueError)


def test_two_processes_on_one_run(tmp_path: Path, tiny: Callable[..., Config]) -> None:
    events = opencil.execute(tiny(tmp_path / "r"))
    next(events)  # this process is in the middle of the run
    result = call("run", *SHORT, "--runs", "r")
    assert result.exit_code == 1
    assert f"{RUN} is being written by another process" in result.stderr
    events.close()


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="there are no pseudo-terminals here")
def test_progress_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    settings = ["--set", "cil.icarl.epochs=10", "--classes-per-step", "4", "--detector", "msp", "--runs", "r"]
    settings += ["--set", "benchmark.shifted={}"]
    ours, theirs = os.openpty()
    with forks.command("run", *PLACE, *settings, terminal=theirs) as started:
        os.close(theirs)
        seen = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            seen += part
        os.close(ours)
        assert started.wait() == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())
    assert re.search(r"the run +[━╸╺]+ +\d+%", text)
    assert re.search(
        r"k4/icarl/seed0 · step [12]/2 · train [━╸╺]+ +\d+% \d:\d\d:\d\d left loss \d+\.\d{3}", text
    )
    assert "runs are stored in r" in text


def test_lines_are_not_for_terminals(
    tmp_path: Path,
    tiny: Callable[..., Config],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("opencil.cli.progress._LINES", 0.0)
    for terminal in (True, False):
        config = tiny(tmp_path / str(terminal), "benchmark.classes_per_step=8", detector="msp")
        with progress(Console(file=io.StringIO(), force_terminal=terminal), 1) as show:
            for event in opencil.execute(config):
                show(event)
        assert (capsys.readouterr().err == "") == terminal


def test_progress_in_a_log_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line now and then with every run that is under way, beside the table and not in it."""
    settings = ["--classes-per-step", "4", "--detector", "msp", "--seed", "0,1", "--pack", "2"]
    monkeypatch.setattr("opencil.cli.progress._LINES", 1e6)
    short = call("run", *SHORT, "--classes-per-step", "8", "--detector", "msp", "--runs", "quick")
    assert short.stderr.count("\n") == 1, "short runs need none"
    monkeypatch.setattr("opencil.cli.progress._LINES", 0.0)
    result = call("run", *SHORT, *settings, "--runs", "every")
    lines = result.stderr.splitlines()[1:]
    shares = [int(line.split()[2]) for line in lines]
    assert shares == sorted(shares)
    assert shares[-1] == 100
    assert all(
        re.match(r"\d\d:\d\d:\d\d · \d+ % of all runs · digits/k4/icarl/seed[01] · ", line) for line in lines
    )
    both = (
        r"seed0 · step 2/2 · train 1/\d+ · loss \d+\.\d{3} · digits/k4/icarl/seed1 · step 2/2 · train 1/\d+"
    )
    assert any(re.search(both, line) for line in lines)
    ends = [re.sub(r".*(seed\d)", r"\1", line) for line in lines if line.endswith("finished")]
    assert ends == ["seed0 · finished", "seed1 · finished"]
    assert "% of all runs" not in result.stdout


def test_a_failed_run_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opencil.cli.progress._LINES", 0.0)
    result = call("run", *SHORT, "--detector", "msp", "--set", "cil.icarl.first.lr=1e30")
    assert result.exit_code == 1
    ends = [line for line in result.stderr.splitlines() if line.endswith("failed")]
    assert len(ends) == 1
    assert "100 %" not in ends[0]


# --- bad input -------------------------------------------------------------------------------------

BAD = [
    (["--detector", "enrgy"], ["'enrgy'", ", ".join(opencil.list_detectors()), "did you mean 'energy'?"]),
    (["--cil", "icrl"], ["'icrl'", "did you mean 'icarl'?"]),
    (["--benchmark", "digit"], ["'digit'", "did you mean 'digits'?"]),
    (["--classes-per-step", "0"], ["benchmark.classes_per_step", "0", "greater than or equal to 1"]),
    (["--classes-per-step", "9"], ["benchmark.classes_per_step = 9", "1 to 8"]),
    (["--classes-per-step", "two"], ["classes_per_step = 'two'", "50+10", "20-20-10"]),
    (["--seed", "0;1"], ["--seed '0;1'", "whole numbers"]),
    (["--seed", ""], ["--seed ''", "whole numbers"]),
    (["--seed", "-1"], ["seed.runs[0] = -1"]),
    (["--cil", ","], ["--cil ','", "names nothing"]),
    (["--precision", "fp8"], ["training.precision", "fp8", "fp32", "tf32", "bf16"]),
    (["--pack", "0"], ["place.pack = 0", "greater than or equal to 1"]),
    (["--epochs-scale", "0"], ["epochs_scale = 0", "greater than 0"]),
    (["--outputs-limit", "much"], ["place.outputs_limit", "much"]),
    (["--set", "benchmark.memory=3"], ["benchmark.memory = 3", "8 classes"]),
    (["--set", "cil.icarl.epoch=3"], ["cil.icarl.epoch = 3", "did you mean 'epochs'?"]),
    (["--set", "cil.icarl.epochs"], ["'cil.icarl.epochs'", "key=value"]),
    (["--set", "cil.icarl.first=["], ["not valid YML"]),
    (["absent.yml"], ["absent.yml", "cannot be read"]),
]


@pytest.mark.parametrize("command", ["config", "run"])
@pytest.mark.parametrize(("words", "fragments"), BAD, ids=[" ".join(words) for words, _ in BAD])
def test_bad_input_is_2_and_a_sentence(command: str, words: list[str], fragments: list[str]) -> None:
    result = call(command, *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert [f for f in fragments if f not in result.stderr] == [], result.stderr
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--data-root", "absent"], "'absent'"), (["--device", "abacus"], "'abacus'")],
)
def test_bad_places_are_2(words: list[str], said: str) -> None:
    result = call("run", "--benchmark", "digits", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert not Path("runs").exists()


def test_several_errors_are_a_sentence_each(tmp_path: Path) -> None:
    (tmp_path / "my.yml").write_text("benchmark: {memory: x, batch_size: 0}\n")
    result = call("config", "my.yml")
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 2


def test_an_error_may_hold_brackets() -> None:
    result = call("config", "--set", "benchmark.far=[[red]]")
    assert result.exit_code == 2
    assert '["red"]' in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--detektor", "msp"],
        ["run", "a.yml", "b.yml"],
        ["list"],
        ["list", "methods"],
        ["dance"],
        ["report", "--html"],
    ],
    ids=" ".join,
)
def test_what_the_command_line_does_not_know_is_2(words: list[str]) -> None:
    result = call(*words)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr


def test_no_traceback_from_the_real_command() -> None:
    words = ["run", "--benchmark", "digits", "--set", "benchmark.memory=3"]
    done = subprocess.run([sys.executable, "-m", "opencil", *words], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: benchmark.memory = 3 is not allowed: at least 1 image for each of 8 classes is needed\n"
    )


# --- help ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["run", "config", "list", "report"])
def test_help_shows_an_example(command: str) -> None:
    result = call(command, "--help")
    assert result.exit_code == 0
    assert f"Example: opencil {command}" in result.stdout
    assert command in call("--help").stdout


def test_help_names_every_flag() -> None:
    text = call("run", "--help").stdout
    flags = ["benchmark", "cil", "detector", "classes-per-step", "seed", "data-root", "runs", "device", "set"]
    flags += ["precision", "pack", "epochs-scale", "outputs-limit"]
    assert [flag for flag in flags if f"--{flag}" not in text] == []
    assert "OPENCIL_DATA" in text


def test_version() -> None:
    result = call("--version")
    assert (result.exit_code, result.stdout) == (0, f"opencil {opencil.__version__}\n")


def test_a_rank_that_is_stopped_says_who_sends_that_too(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = guard.Interrupts()
    stopped.seen = signal.SIGTERM
    assert "torchrun" not in stopped.sentence
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "2")
    assert stopped.sentence.startswith(
        "stopped by SIGTERM, which torchrun sends when a rank is lost too: what"
    )
    stopped.seen = signal.SIGUSR1
    assert "torchrun" not in stopped.sentence


def test_what_interrupts_an_import_of_torch_is_told_without_it() -> None:
    """It may be half there: to import it once more then fails in many ways."""
    code = """
        import signal, sys
        from opencil.cli.guard import interrupts
        interrupts.seen = signal.SIGTERM
        print(interrupts.sentence, interrupts.exit_code, "torch" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("stopped by SIGTERM: what was finished is stored")
    assert done.stdout.endswith("75 False\n")
