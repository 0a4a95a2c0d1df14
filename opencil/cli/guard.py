"""What all commands have: how they begin, with ``--plugin``, and how they end.

Expected errors end them with a sentence and an exit code, Ctrl-C as what it is.
"""

import inspect
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from opencil.errors import OpenCILError

#: Where problems are told.
problems = Console(stderr=True, soft_wrap=True, highlight=False)


class Interrupts:
    """Ctrl-C, remembered: native code that it falls into makes an error of its own of it, or swallows it."""

    seen = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Notice it inside the block, and raise ``KeyboardInterrupt`` as ever."""
        self.seen = False  # of an earlier command in this process
        usual = signal.getsignal(signal.SIGINT)
        in_main = threading.current_thread() is threading.main_thread()
        if usual is not signal.default_int_handler or not in_main:  # somebody else's, or ignored
            yield
            return

        def note(number: int, frame: FrameType | None) -> None:
            self.seen = True
            signal.default_int_handler(number, frame)

        signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, usual)


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
        try:
            with interrupts.watched():
                for plugin in () if takes_itself else flags.pop("plugin", None) or ():
                    from opencil.plugins import load_plugin  # torch: not for --help

                    load_plugin(plugin)
                command(*args, **flags)
        except (KeyboardInterrupt, Exception) as error:
            if isinstance(error, KeyboardInterrupt) or interrupts.seen:
                say("interrupted: what was finished is stored, and the same command goes on from there")
                raise typer.Exit(130) from None
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
