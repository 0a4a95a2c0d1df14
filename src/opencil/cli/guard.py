"""End every command with a sentence and an exit code on expected errors and on signals."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import typer
from typer.core import TyperGroup

from opencil.cli.screen import print_error, print_note
from opencil.errors import OpenCILError


class Interrupts:
    """Signals that stop a command: Ctrl-C, and SIGTERM or SIGUSR1 of a queue such as Slurm's.

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
        """Return the reason of the end, and how to resume."""
        event = "interrupted" if self.seen in (None, signal.SIGINT) else f"stopped by {self.seen.name}"
        # The signal may have interrupted the import of torch, which must not be imported here.
        if self.seen == signal.SIGTERM and os.environ.get("WORLD_SIZE", "1") != "1":
            event += ", which torchrun sends when a rank is lost too"
        return f"{event}: finished work is stored, and the same command resumes it"

    @property
    def exit_code(self) -> int:
        """Return the exit code of an interrupted command; 75 is EX_TEMPFAIL: the same command resumes."""
        return 130 if self.seen in (None, signal.SIGINT) else 75


interrupts = Interrupts()


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


class Guarded(TyperGroup):
    """A group of commands, each inside ``exit_on_errors``."""

    def invoke(self, ctx: Any) -> Any:
        """Call the named command."""
        with exit_on_errors():
            return super().invoke(ctx)
