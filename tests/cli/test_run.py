"""``opencil run``: exit codes, where errors go, signals, and that it does what the library does."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

import opencil
from opencil.cli.guard import exit_on_errors, interrupts
from opencil.config import Config
from opencil.runs.events import Event, Failed, Finished, Training
from opencil.runs.spec import plan
from tests import processes
from tests.cli.common import call

RUN = "digits/k2/icarl/seed0"
PLACE = ["--benchmark", "digits", "--cil", "icarl", "--device", "cpu"]
SHORT = [*PLACE, "--detector", "energy,msp,relation", "--set", "cil.icarl.epochs=2"]
FAILS = ["--detector", "msp", "--set", "cil.icarl.first.lr=1e30", "--runs", "r"]
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")  # all but the end of a line


def contents(folder: Path) -> dict[str, bytes]:
    """Files that two runs of one config share bit for bit."""
    kinds = (".parquet", ".safetensors", ".yml")
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.suffix in kinds
    }


@pytest.fixture
def _usual_signals() -> Iterator[None]:
    """Restore what the signals of a queue do."""
    usual = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)}
    yield
    for number, handler in usual.items():
        signal.signal(number, handler)


def test_a_printed_config_runs_as_its_flags_do(tmp_path: Path, finished: Path) -> None:
    Path("my.yml").write_text(call("config", *SHORT, "--runs", "from-yml").stdout)
    from_yml = call("run", "my.yml")
    of_all = "icarl on digits (k = 2; seed 0); energy, msp, relation; on cpu; stored in"
    assert (from_yml.exit_code, from_yml.stderr) == (0, f"1 run: {of_all} from-yml\n")
    assert contents(tmp_path / "from-yml") == contents(finished)
    from_flags = call("run", *SHORT, "--runs", str(finished))
    assert from_yml.stdout.replace("from-yml", "") == from_flags.stdout.replace(str(finished), "")


def test_the_table_away_from_a_terminal_is_that_of_the_rows(tmp_path: Path) -> None:
    with processes.command("run", *SHORT, "--detector", "msp,energy", "--runs", "r") as started:
        out, err = started.communicate()
    assert started.returncode == 0
    assert not CONTROL.search(out + err)
    lines = out.splitlines()
    assert lines[-1] == "runs are stored in r"
    titles = [line.strip() for line in lines]
    second = titles.index("digits, 2 classes per step: OOD detection")
    third = titles.index("digits, 2 classes per step: OOD detection under covariate shift")
    (models,) = [line.split() for line in lines[:second] if line.startswith("icarl")]
    cells = [line.split() for line in lines[second:third] if line.startswith("icarl")]
    assert [line[:2] for line in cells] == [["icarl", "msp"], ["icarl", "energy"]]
    rows = opencil.read_rows(tmp_path / "r")
    accuracy = rows[(rows["metric"] == "accuracy") & (rows["task"] == 0)].sort_values("step")["value"]
    assert {line[2] for line in cells} == {f"{100 * accuracy.mean():.2f}"} == {models[1]}
    assert models[2] == f"{100 * accuracy.iloc[-1]:.2f}"


def test_run_again_answers_the_same(finished: Path, tmp_path: Path) -> None:
    before, runs = contents(finished), finished.rename(tmp_path / "my [red] runs")
    first, second = (call("run", *SHORT, "--runs", str(runs)) for _ in range(2))
    assert first.exit_code == 0
    assert first.stderr.startswith("1 run, all done: icarl on digits")
    assert (first.stdout, first.stderr) == (second.stdout, second.stderr)
    assert first.stdout.splitlines()[-1] == f"runs are stored in {runs}"
    assert contents(runs) == before
    chosen = call("run", *SHORT, "--detector", "msp", "--runs", str(runs)).stdout.partition("OOD detection")[
        2
    ]
    assert {line.split()[1] for line in chosen.splitlines() if line.startswith("icarl")} == {"msp"}


def test_a_run_that_fails_is_1_and_the_others_are_shown() -> None:
    flags = ["--classes-per-step", "4,8", "--detector", "msp", "--runs", "r"]
    result = call("run", *SHORT, *flags, "--set", "cil.icarl.later.lr=1e30")
    assert result.exit_code == 1
    opening, stopped, total = result.stderr.splitlines()
    assert opening.startswith("2 runs: icarl on digits (k = 4, 8; seed 0); msp;")
    assert stopped.startswith("error: run digits/k4/icarl/seed0 stopped: ")
    assert "the loss is nan" in stopped
    assert total.startswith("error: 1 of 2 runs failed")
    assert "runs are stored" not in result.stdout
    for k in (4, 8):  # of the first with the step that it has
        assert f"digits, {k} classes per step" in result.stdout
    at_once = call("run", *SHORT, *FAILS)
    assert (at_once.exit_code, at_once.stdout) == (1, "")


def test_a_share_of_the_runs() -> None:
    grid = ["run", *PLACE, "--detector", "msp", "--seed", "0,1", "--runs", "r", "--dry-run", "--only"]
    listed = [re.findall(r"seed\d", call(*grid, only).stdout) for only in ("1/2", "2/2")]
    assert sorted(seed for seeds in listed for seed in set(seeds)) == ["seed0", "seed1"]
    empty = call(*grid, "3/3")
    assert (empty.exit_code, empty.stdout) == (0, "")
    assert "there is nothing to run" in empty.stderr
    assert call(*grid, "3/2").exit_code == 2


def test_methods_that_go_without_the_same_detectors_are_named_together() -> None:
    flags = ["--cil", "ewc,icarl,lwf", "--detector", "msp,ber,logitnorm", "--runs", "r", "--dry-run"]
    (skipped,) = call("run", *flags).stderr.splitlines()
    assert skipped.startswith("ewc, lwf go without ber, logitnorm: ")


# --- signals ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("interruptible")
def test_interrupted_is_130_and_what_was_finished_stays(tmp_path: Path) -> None:
    endless = ["cil.icarl.first.epochs=1", "cil.icarl.first.milestones=[]", "cil.icarl.later.epochs=100000"]
    settings = [word for setting in endless for word in ("--set", setting)]
    mark = tmp_path / "r" / RUN / "step01" / "detectors" / "msp.parquet"
    with processes.command("run", *PLACE, "--detector", "msp", "--runs", "r", *settings) as started:
        for _ in range(1200):  # a minute at most
            if mark.exists() or started.poll() is not None:
                break
            with suppress(subprocess.TimeoutExpired):
                started.wait(timeout=0.05)
        started.send_signal(signal.SIGINT)
        out, err = started.communicate()
    assert (started.returncode, out) == (130, ""), err
    assert err.splitlines()[-1].startswith("interrupted: ")
    assert [step.number for step in opencil.open_run(tmp_path / "r" / RUN).trained_steps] == [1]
    assert list(tmp_path.rglob("*.part")) == []


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("becomes", ["an error", "a failed run", "nothing"])
def test_an_interrupt_that_native_code_makes_something_else_of(
    becomes: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Reading tensors was seen to end in a ValueError when Ctrl-C fell into it."""

    def execute(config: Config, planned: object) -> Iterator[Event]:
        (spec,) = plan(config)
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            if becomes == "an error":
                raise ValueError("could not determine the shape of an object") from None
        failed = becomes == "a failed run"
        yield Failed(spec, opencil.OpenCILError("of it")) if failed else Finished(spec, already=False)
        pytest.fail("goes on after an interrupt")

    monkeypatch.setattr("opencil.runs.launch.execute", execute)
    result = call("run", *PLACE, "--detector", "msp", "--runs", str(tmp_path))
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1].startswith("interrupted")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("_usual_signals")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_queues_signal_stops_with_a_checkpoint(
    name: str, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number, real = getattr(signal, name), opencil.execute

    def execute(*asked: Any) -> Iterator[Event]:
        with closing(real(*asked)) as events:
            for event in events:
                if isinstance(event, Training) and (event.step, event.progress.epoch) == (3, 2):
                    os.kill(os.getpid(), number)
                    os.kill(os.getpid(), number)  # again, while it leaves: nothing comes of it
                yield event

    with monkeypatch.context() as patched:
        patched.setattr("opencil.runs.launch.execute", execute)
        stopped = call("run", *SHORT, "--runs", "r")
    assert stopped.exit_code == 75
    assert stopped.stderr.splitlines()[-1].startswith(f"stopped by {name}: ")
    assert signal.getsignal(number) is signal.SIG_IGN, "until the process has ended"
    assert call("run", *SHORT, "--runs", "r").exit_code == 0
    assert contents(tmp_path / "r") == contents(finished)


def test_a_queues_signal_counts_where_it_was_ignored_and_ctrl_c_does_not() -> None:
    usual = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGUSR1, signal.SIGINT)}
    try:
        with exit_on_errors():
            os.kill(os.getpid(), signal.SIGINT)
            assert interrupts.seen is None
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGUSR1)
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)


def test_an_exit_of_a_plugin_is_an_error() -> None:
    text = "import opencil\nfrom dataclasses import dataclass\n\n"
    text += "@opencil.register_detector('mine')\n@dataclass\n"
    text += "class Mine(opencil.LogitDetector):\n    def __post_init__(self):\n        raise SystemExit(0)\n"
    text += "    def scores(self, outputs):\n        pass\n"
    Path("mine.py").write_text(text)
    for words in (["run", *PLACE, "--detector", "mine"], ["check"]):
        result = call(*words, *["--plugin"] * (words != ["check"]), "mine.py")
        assert result.exit_code == 1
        assert "SystemExit(0)" in f"{result.output}{result.exception!r}"


def test_an_error_without_an_interrupt_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def execute(config: Config, planned: object) -> Iterator[Event]:
        raise ValueError("a bug")
        yield

    monkeypatch.setattr("opencil.runs.launch.execute", execute)
    assert isinstance(call("run", *PLACE, "--detector", "msp").exception, ValueError)


# --- progress --------------------------------------------------------------------------------------


def test_progress_in_a_log_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line now and then with every run that is under way, beside the table and not in it."""
    monkeypatch.setattr("opencil.cli.progress._LINES", 1e6)
    short = call("run", *SHORT, "--classes-per-step", "8", "--detector", "msp", "--runs", "quick")
    assert short.stderr.count("\n") == 1, "short runs need none"
    monkeypatch.setattr("opencil.cli.progress._LINES", 0.0)
    settings = ["--classes-per-step", "4", "--detector", "msp", "--seed", "0,1", "--pack", "2"]
    result = call("run", *SHORT, *settings, "--runs", "every")
    lines = result.stderr.splitlines()[1:]
    shares = [int(line.split()[2]) for line in lines]
    assert shares == sorted(shares)
    assert shares[-1] == 100
    assert any("seed0 · step " in line and "seed1 · step " in line for line in lines)
    assert any(re.search(r"seed1 · step \d/2 · train \d/2", line) for line in lines)
    ends = [re.sub(r".*(seed\d)", r"\1", line) for line in lines if line.endswith("finished")]
    assert sorted(ends) == ["seed0 · finished", "seed1 · finished"]
    assert "% of all runs" not in result.stdout
    (end,) = [line for line in call("run", *SHORT, *FAILS).stderr.splitlines() if line.endswith("failed")]
    assert "100 %" not in end


# --- the command -----------------------------------------------------------------------------------


def test_the_real_command_answers_in_a_sentence_and_without_torch() -> None:
    words = ["run", "--benchmark", "digits", "--set", "benchmark.memory=3"]
    done = subprocess.run([sys.executable, "-m", "opencil", *words], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: benchmark.memory = 3 ")
    assert done.stderr.count("\n") == 1
    code = "import sys; from opencil.cli import app; assert 'torch' not in sys.modules; app()"
    done = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"opencil {opencil.__version__}\n")
