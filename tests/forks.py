"""Processes that are forked from one that has imported everything: a start takes milliseconds, not seconds.

The one they are forked from is fresh and has no threads, as a test process may have; it is started once.
"""

import multiprocessing
import os
import signal
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver, reduction
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TextIO

import torch

import opencil
from opencil import atomic_files
from opencil.config import Config
from opencil.runs.events import Evaluated, Training
from opencil.runs.plan import plan
from opencil.runs.store import RunFolder

_PRELOADED = [
    *("opencil.cli.run", "opencil.cli.report", "opencil.cli.data", "opencil.runs.runner"),
    *(
        "opencil.report.tables",
        "opencil.report.page",
        "opencil.report.figures.drawing",
        "opencil.report.writing",
    ),
    *("opencil.runs.outlook", "opencil.runs.tensorboard", "opencil.data.preparing", "tests.siege.grounds"),
    # What they import when it is needed.
    *("torch._dynamo", "sklearn.datasets", "pyarrow.parquet", "PIL.Image", "matplotlib.pyplot"),
]
_ROOT = str(Path(__file__).parents[1])
_LONGEST = 120.0  # seconds that a process may take


def context() -> ForkServerContext:
    """Starts processes as ``multiprocessing`` does."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(_PRELOADED)
    with _on_path():  # Python 3.11's does not see this process's sys.path
        forkserver.ensure_running()
    return made


@dataclass(frozen=True)
class Forked:
    """A process; its parts have the names that a Popen's have."""

    process: BaseProcess
    stdout: TextIO  #: can be read while it runs
    errors: TextIO

    @property
    def returncode(self) -> int | None:
        """The exit code, or the signal with a minus; None while it runs."""
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal, if there is somebody to receive it."""
        if self.returncode is None:
            assert self.process.pid is not None
            os.kill(self.process.pid, number)

    def wait(self, timeout: float = _LONGEST) -> int | None:
        """Wait for its end, or some seconds; the exit code."""
        self.process.join(timeout)
        return self.returncode

    def communicate(self) -> tuple[str, str]:
        """What it has printed, on both streams, after its end."""
        said = self.stdout.read()
        assert self.wait() is not None, "it does not end"
        self.errors.seek(0)
        return said, self.errors.read()


@contextmanager
def forked(work: Callable[..., object], *args: Any, terminal: int | None = None) -> Iterator[Forked]:
    """A process that calls a function in this folder, with these variables, and is gone at the end.

    ``terminal`` is a descriptor to which all goes that it prints.
    """
    ours, theirs = os.pipe()
    with (
        os.fdopen(ours, encoding="utf-8") as stdout,
        tempfile.TemporaryFile("w+", encoding="utf-8") as errors,
    ):
        outputs = (theirs, errors.fileno()) if terminal is None else (terminal, terminal)
        setting = (str(Path.cwd()), dict(os.environ), *map(_Descriptor, outputs))
        process = context().Process(target=_work, args=(work, args, *setting))
        process.start()
        os.close(theirs)
        started = Forked(process, stdout, errors)
        try:
            yield started
        finally:
            started.send_signal(signal.SIGKILL)
            process.join()


def command(*words: str, terminal: int | None = None) -> AbstractContextManager[Forked]:
    """``python -m opencil`` with some words."""
    return forked(run_command, words, terminal=terminal)


def run_command(words: tuple[str, ...]) -> None:
    """What ``python -m opencil`` does."""
    from opencil.cli import main

    sys.argv = ["opencil", *words]
    main()


def code(config: Config, text: str) -> AbstractContextManager[Forked]:
    """Some lines of Python that have a ``config``, and can ``die()`` as by a SIGKILL."""
    return forked(_run_code, config, textwrap.dedent(text))


def _run_code(config: Config, text: str) -> None:
    torch.set_num_threads(1)
    known = [opencil, atomic_files, Evaluated, Path, RunFolder, Training, os, plan, signal]
    names = {each.__name__.rpartition(".")[2]: each for each in known}
    exec(text, names | {"config": config, "die": lambda: os.kill(os.getpid(), signal.SIGKILL)})


def script(path: Path, *words: str) -> AbstractContextManager[Forked]:
    """``python FILE`` with some words."""
    return forked(_run_script, str(path), words)


def _run_script(path: str, words: tuple[str, ...]) -> None:
    import runpy

    sys.argv = [path, *words]
    sys.path.insert(0, str(Path(path).parent))
    runpy.run_path(path, run_name="__main__")


def _work(
    work: Callable[..., object],
    args: tuple[Any, ...],
    folder: str,
    variables: dict[str, str],
    out: int,
    err: int,
) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.fsync = no_flush
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.close(out)
    if err != out:
        os.close(err)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    work(*args)


def no_flush(handle: object) -> None:
    """Instead of ``os.fsync``, where nobody cuts the power."""


class _Descriptor:
    """A file descriptor on its way to another process, which gets it as a number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Callable[..., int], tuple[Any, ...]]:
        return _taken, (reduction.DupFd(self.number),)


def _taken(duplicate: Any) -> int:
    number: int = duplicate.detach()
    return number


@contextmanager
def _on_path() -> Iterator[None]:
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = _ROOT
    try:
        yield
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before
