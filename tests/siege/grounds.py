"""Where sieges take place: a run of seconds and processes to disturb.

A victim is a process that does what ``python -m opencil WORDS`` does. Most are forks of one that has imported
everything: a start takes milliseconds. An audit hook in them knows every file that Python opens, renames and
removes, so that one can be stopped, or a file operation be refused, at the n-th of them.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests import forks

# Sums depend on how they are split over threads.
os.environ["OMP_NUM_THREADS"] = "1"

#: Two steps of four classes, detectors with a head and without, a checkpoint after every epoch.
SHORT = [
    *("--benchmark", "digits", "--device", "cpu", "--detector", "msp,relation,ber,logitnorm"),
    *("--set", "benchmark.classes_per_step=4", "--set", "benchmark.shifted={}", "--set", "cil.*.epochs=2"),
    *("--set", "detector.*.schedule.epochs=2", "--set", "place.checkpoint_seconds=0"),
]
_ROOT = str(Path(__file__).parents[2])
_OPERATIONS = {"open", "os.rename", "os.remove", "os.mkdir", "os.utime"}
_LONGEST = 120.0  # seconds that a command may take


@dataclass(frozen=True)
class At:
    """What happens to a victim at its ``number``-th file operation below ``root``: a signal, or an error."""

    number: int
    root: str
    signal: int = 0
    errno: int = 0
    writes: bool | None = None  #: Of those that write only, or read only.
    lasting: bool = False  #: At every later one too.


class Victim:
    """A process of ``opencil`` whose output goes into a file."""

    def __init__(self, process: "BaseProcess | subprocess.Popen[bytes]", output: Path) -> None:
        self._process, self._output = process, output
        assert process.pid is not None
        self.pid: int = process.pid

    def send(self, number: int) -> bool:
        """Send a signal; whether there was somebody to receive it."""
        if self.code is not None:
            return False
        os.kill(self.pid, number)
        return True

    @property
    def code(self) -> int | None:
        """The exit code, or the signal with a minus; None while it runs."""
        process = self._process
        return process.exitcode if isinstance(process, BaseProcess) else process.poll()

    @property
    def stopped(self) -> bool:
        """Whether a SIGSTOP holds it."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        except OSError:
            return False

    def wait(self, seconds: float = _LONGEST) -> int | None:
        """Wait for its end, or some seconds; the exit code."""
        if isinstance(self._process, BaseProcess):
            self._process.join(seconds)
        else:
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                return None
        return self.code

    def ended(self) -> int:
        """The exit code after its end, which must come."""
        code = self.wait()
        if code is None:
            os.kill(self.pid, signal.SIGKILL)
            raise AssertionError(f"it did not end within {_LONGEST:.0f} s; it had said:\n{self.said}")
        return code

    @property
    def said(self) -> str:
        """All that it has printed, on both streams."""
        return self._output.read_text(errors="replace")


class Camp:
    """A folder in which victims work; its processes are gone when it closes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        self._fork = forks.context()
        self._started: list[Victim] = []

    def start(
        self, *words: str, at: At | None = None, journal: Path | None = None, real: bool = False
    ) -> Victim:
        """Start ``opencil`` with some words; ``real`` as a user does, without a fork."""
        output = self.folder / f"output{len(self._started)}.txt"
        if real:
            with output.open("wb") as file:
                process = subprocess.Popen(
                    [sys.executable, "-m", "opencil", *words],
                    cwd=self.folder,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env=os.environ | {"PYTHONPATH": _ROOT},
                )
            victim = Victim(process, output)
        else:
            output.touch()
            fork = self._fork.Process(target=_work, args=(words, str(self.folder), str(output), at, journal))
            fork.start()
            victim = Victim(fork, output)
        self._started.append(victim)
        return victim

    def close(self) -> None:
        """End what still runs."""
        for victim in self._started:
            victim.send(signal.SIGKILL)


@contextmanager
def camp(folder: Path) -> Iterator[Camp]:
    """A camp that is struck at the end."""
    pitched = Camp(folder)
    try:
        yield pitched
    finally:
        pitched.close()


def _work(words: tuple[str, ...], folder: str, output: str, at: At | None, journal: Path | None) -> None:
    """What a fork does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with Path(output).open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(folder)
    if at is not None or journal is not None:
        sys.addaudithook(_Hook(folder, at, journal))
    forks.run_command(words)


class _Hook:
    """Notes the file operations below a folder, and does what is to be done at one of them."""

    def __init__(self, folder: str, at: At | None, journal: Path | None) -> None:
        self._folder, self._at, self._journal = folder, at, journal
        self._count, self._busy = 0, False

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if event not in _OPERATIONS or self._busy or not isinstance(args[0], (str, bytes, os.PathLike)):
            return
        self._busy = True
        try:
            path = str(Path(os.fsdecode(args[1 if event == "os.rename" else 0])).absolute())
            if path.startswith(self._folder):
                writes = event != "open" or bool(args[2] & (os.O_WRONLY | os.O_RDWR))
                self._note(f"{event} {path}")
                if self._at is not None and path.startswith(self._at.root):
                    self._look(self._at, writes, path)
        finally:
            self._busy = False

    def _note(self, line: str) -> None:
        if self._journal is not None:
            with self._journal.open("a") as file:
                file.write(f"{line}\n")

    def _look(self, at: At, writes: bool, path: str) -> None:
        if at.writes not in (None, writes):
            return
        self._count += 1
        if self._count == at.number or (at.lasting and self._count > at.number):
            if at.errno:
                raise OSError(at.errno, os.strerror(at.errno), path)
            os.kill(os.getpid(), at.signal)


def succeed(victim: Victim) -> str:
    """What a command says that must succeed."""
    assert victim.ended() == 0, victim.said
    return victim.said


def operations(journal: Path, root: Path) -> int:
    """How many file operations below a folder a journal has noted."""
    return sum(line.partition(" ")[2].startswith(str(root)) for line in journal.read_text().splitlines())
