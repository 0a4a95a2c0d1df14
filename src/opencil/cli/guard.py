"""What all commands have: how they begin, with ``--plugin``, and how they end.

Expected errors end them with a sentence and an exit code, Ctrl-C as what it is.
"""

import inspect
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from opencil.errors import OpenCILError
from opencil.plugins import load_plugin

#: Where problems are told.
problems = Console(stderr=True, soft_wrap=True, highlight=False)


#: The exit code of a command that a queue has stopped because time is up: the same command goes on (sysexits'
#: EX_TEMPFAIL, "try again").
STOPPED = 75


class Interrupts:
    """Signals that end a command, remembered: native code that they fall into may swallow what they raise.

    Ctrl-C, and SIGTERM or SIGUSR1, which queues such as Slurm's send before time is up. All raise
    ``KeyboardInterrupt``, so that runs under way are checkpointed and left.
    """

    seen: signal.Signals | None = None
    _ours: Callable[[], None] = staticmethod(lambda: None)  #: handles them inside the block
    _taken_back = 0.0
    _leaving = False  #: what has happened is being told

    def take_back(self) -> None:
        """Handle them again where a library does so in our place; at most once a second.

        LLVM, by which Triton compiles a GPU's kernels, has a handler for SIGUSR1 that does nothing.
        """
        if time.monotonic() >= self._taken_back + 1:
            self._taken_back = time.monotonic()
            self._ours()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Notice them inside the block."""
        self.seen, self._leaving = None, False  # of an earlier command in this process
        queues = getattr(signal, "SIGUSR1", signal.SIGTERM)
        numbers = {signal.SIGINT, signal.SIGTERM, queues}
        usual = {number: signal.getsignal(number) for number in numbers}
        in_main = threading.current_thread() is threading.main_thread()
        # Others are somebody else's, or ignored; SIGUSR1 may be ignored by what started a job, and is sent
        # by nobody who does not mean it.
        free = (signal.default_int_handler, signal.SIG_DFL)
        ours = [
            number
            for number in numbers
            if in_main and (usual[number] in free or (number == queues and usual[number] is signal.SIG_IGN))
        ]

        def note(number: int, _: FrameType | None) -> None:
            first, self.seen = self.seen is None, self.seen or signal.Signals(number)
            # A queue may send several, and torchrun one where another rank is lost: we are about to leave.
            if not self._leaving and (first or number == signal.SIGINT):
                raise KeyboardInterrupt

        def handle() -> None:
            for number in ours:
                signal.signal(number, note)

        handle()
        self._ours, before = handle, self._ours
        try:
            yield
        finally:
            self._ours = before
            for number in ours:
                signal.signal(number, usual[number])

    def leave(self) -> bool:
        """From here on they interrupt nothing; whether one has come before."""
        self._leaving = True
        return self.seen is not None

    @property
    def sentence(self) -> str:
        """What has happened."""
        what = "interrupted" if self.seen in (None, signal.SIGINT) else f"stopped by {self.seen.name}"
        # What has happened may have happened to an import of torch: it is not to be imported here.
        if self.seen == signal.SIGTERM and os.environ.get("WORLD_SIZE", "1") != "1":
            what += ", which torchrun sends when a rank is lost too"
        return f"{what}: what was finished is stored, and the same command goes on from there"

    @property
    def exit_code(self) -> int:
        """Of a command that was ended so."""
        return 130 if self.seen in (None, signal.SIGINT) else STOPPED


interrupts = Interrupts()


Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        help="A Python file of yours, or a module, that registers names; may be repeated.",
        metavar="FILE.py",
    ),
]


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """A command that takes ``--plugin``, and whose expected errors end in a sentence and an exit code.

    One that has a parameter ``plugin`` of its own says what is done with it.
    """
    signature = inspect.signature(command)
    takes_itself = "plugin" in signature.parameters

    @wraps(command)
    def call(*args: Any, **flags: Any) -> None:
        with interrupts.watched():
            try:
                for plugin in () if takes_itself else flags.pop("plugin", None) or ():
                    load_plugin(plugin)
                command(*args, **flags)
            except (KeyboardInterrupt, Exception) as error:
                if interrupts.leave() or isinstance(error, KeyboardInterrupt):
                    say(interrupts.sentence)
                    raise typer.Exit(interrupts.exit_code) from None
                if not isinstance(error, (OpenCILError, OSError)):
                    raise
                tell(error)
                raise typer.Exit(error.exit_code if isinstance(error, OpenCILError) else 1) from None

    if not takes_itself:
        plugin = inspect.Parameter("plugin", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Plugins)
        shown(call, signature.replace(parameters=[*signature.parameters.values(), plugin]))
    return call


def shown(call: Callable[..., None], signature: inspect.Signature) -> None:
    """Give a function the flags of a signature that is not written in its head."""
    call.__dict__.pop("__wrapped__", None)
    call.__signature__ = signature.replace(return_annotation=None)  # type: ignore[attr-defined]
    call.__annotations__ = {name: p.annotation for name, p in signature.parameters.items()}


def say(text: str) -> None:
    """Print a sentence beside a command's results: whole words on a terminal, one line elsewhere."""
    problems.print(escape(text), soft_wrap=not problems.is_terminal)


def tell(error: object) -> None:
    """Say what has gone wrong."""
    problems.print(f"[red]error:[/] {escape(str(error))}", soft_wrap=not problems.is_terminal)
