"""Wrap every command: ``--plugin``, errors as one sentence with an exit code, signals that stop it."""

import inspect
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import Annotated, Any

import typer

from opencil.cli.screen import print_error, print_note
from opencil.errors import OpenCILError
from opencil.plugins import load_plugin

#: The exit code of a command that a queue has stopped: the same command resumes (EX_TEMPFAIL of sysexits).
STOPPED = 75


class Interrupts:
    """Signals that stop a command: Ctrl-C, and SIGTERM or SIGUSR1, which queues such as Slurm's send.

    All raise ``KeyboardInterrupt``, so that runs are checkpointed and left. The first one is stored as well,
    since native code may swallow the exception.
    """

    seen: signal.Signals | None = None

    def note(self, number: int, _: FrameType | None) -> None:
        """Handle a signal."""
        first, self.seen = self.seen is None, self.seen or signal.Signals(number)
        # A queue may send several signals, and torchrun one to all ranks: only Ctrl-C counts twice.
        if first or number == signal.SIGINT:
            raise KeyboardInterrupt

    @property
    def sentence(self) -> str:
        """Return what has happened, and how to resume."""
        what = "interrupted" if self.seen in (None, signal.SIGINT) else f"stopped by {self.seen.name}"
        # The signal may have interrupted the import of torch, which must not be imported here.
        if self.seen == signal.SIGTERM and os.environ.get("WORLD_SIZE", "1") != "1":
            what += ", which torchrun sends when a rank is lost too"
        return f"{what}: finished work is stored, and the same command resumes it"

    @property
    def exit_code(self) -> int:
        """Return the exit code of an interrupted command."""
        return 130 if self.seen in (None, signal.SIGINT) else STOPPED


interrupts = Interrupts()
Plugins = Annotated[
    list[str] | None,
    typer.Option("--plugin", help="Your Python file or module; may be repeated.", metavar="FILE.py"),
]


@contextmanager
def exit_on_errors() -> Iterator[None]:
    """End the command with a sentence and an exit code on expected errors and signals inside the block.

    Signals are left alone where another handler was set, or where they are ignored.
    """
    interrupts.seen, usual = None, dict[int, Any]()
    queues = getattr(signal, "SIGUSR1", signal.SIGTERM)
    if threading.current_thread() is threading.main_thread():
        for number in {signal.SIGINT, signal.SIGTERM, queues}:
            handler = signal.getsignal(number)
            # A job's starter may ignore SIGUSR1; nobody sends it by accident.
            ignored = number == queues and handler is signal.SIG_IGN
            if ignored or handler in (signal.default_int_handler, signal.SIG_DFL):
                usual[number] = signal.signal(number, interrupts.note)
    try:
        yield
    except (KeyboardInterrupt, Exception) as error:
        for number in usual:  # a further one is not to hide this error
            signal.signal(number, signal.SIG_IGN)
        if interrupts.seen or isinstance(error, KeyboardInterrupt):
            print_note(interrupts.sentence)
            raise typer.Exit(interrupts.exit_code) from None
        if not isinstance(error, (OpenCILError, OSError)):
            raise
        print_error(error)
        raise typer.Exit(getattr(error, "exit_code", 1)) from None
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command: load its ``--plugin``, and end with a sentence and an exit code on expected errors."""

    @wraps(command)
    def call(*args: Any, plugin: list[str] | None = None, **flags: Any) -> None:
        with exit_on_errors():
            for name in plugin or ():
                load_plugin(name)
            command(*args, **flags)

    own = inspect.signature(command).parameters.values()
    plugin = inspect.Parameter("plugin", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Plugins)
    set_parameters(call, [*own, plugin])
    return call


def set_parameters(call: Callable[..., None], parameters: list[inspect.Parameter]) -> None:
    """Give a function the parameters that typer reads its flags from."""
    call.__dict__.pop("__wrapped__", None)
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
