"""End every command with a sentence and an exit code on expected errors and on signals."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import typer
from typer.core import TyperGroup

from opencil.cli.screen import print_error, print_note
from opencil.errors import OpenCILError, no_exits


class Interrupts:
    """Signals that stop a command: Ctrl-C, and SIGTERM or SIGUSR1 of a queue such as Slurm's."""

    seen: signal.Signals | None = None  #: the first one, since native code may swallow exceptions

    def note(self, number: int, _: FrameType | None) -> None:
        """Raise ``KeyboardInterrupt``, so that runs are checkpointed and left."""
        first, self.seen = self.seen is None, self.seen or signal.Signals(number)
        # A queue may send several signals, and torchrun one to all ranks: only Ctrl-C counts twice.
        if first or number == signal.SIGINT:
            raise KeyboardInterrupt


interrupts = Interrupts()


@contextmanager
def exit_on_errors() -> Iterator[None]:
    """End the command with a sentence and an exit code on expected errors and signals inside the block."""
    interrupts.seen, usual = None, dict[int, Any]()
    queues = getattr(signal, "SIGUSR1", signal.SIGTERM)
    for number in {signal.SIGINT, signal.SIGTERM, queues}:
        handler = signal.getsignal(number)
        # A job's starter may ignore SIGUSR1; nobody sends it by accident.
        ignored = number == queues and handler is signal.SIG_IGN
        if ignored or handler in (signal.default_int_handler, signal.SIG_DFL):
            usual[number] = signal.signal(number, interrupts.note)
    try:
        with no_exits():
            yield
    except (KeyboardInterrupt, Exception) as error:
        for number in usual:  # a further one is not to hide this error
            signal.signal(number, signal.SIG_IGN)
        if interrupts.seen or isinstance(error, KeyboardInterrupt):
            queued = interrupts.seen if interrupts.seen != signal.SIGINT else None
            event = f"stopped by {queued.name}" if queued else "interrupted"
            if os.environ.get("RANK", "0") == "0":  # of torchrun's, the first speaks for all
                print_note(f"{event}: finished work is stored, and the same command resumes it")
            usual = {} if queued else usual  # a queue may send more until the process has ended
            raise typer.Exit(75 if queued else 130) from None  # 75: EX_TEMPFAIL
        ended = error.__context__  # rich leaves a pipe that nobody reads any more by SystemExit
        if isinstance(ended, SystemExit) and isinstance(ended.__context__, BrokenPipeError):
            raise typer.Exit(1) from None
        if not isinstance(error, (OpenCILError, OSError)):
            raise
        print_error(error)
        raise typer.Exit(getattr(error, "exit_code", 1)) from None
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)


@contextmanager
def importing() -> Iterator[None]:
    """Import large modules without looking for garbage among their objects, now or when the process ends.

    A short run takes 0.8 of 4 seconds less: torch brings 3,000 modules. A process that has torch already is
    someone else's, and left as it is.
    """
    if "torch" in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class Guarded(TyperGroup):
    """A group of commands, each inside ``exit_on_errors``."""

    def invoke(self, ctx: Any) -> Any:
        """Call the named command."""
        with exit_on_errors():
            return super().invoke(ctx)
