"""A process that bytes are exchanged with by pipes.

It needs nothing but Python, as Ray carries it to its nodes as it stands, where no more of ours is imported.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

LEFT = 75  #: exit code of a process that was told to leave, or stopped


class PipedProcess:
    """Python, running a program; variables of its environment that are None are left out.

    What it prints to standard error goes where this process's does, or where it is ``away`` to who reads it.
    It may end at any time.
    """

    machine = ""  #: where it runs, if that is another machine

    def __init__(
        self,
        program: str,
        name: str,
        folder: str | None = None,
        variables: Mapping[str, str | None] | None = None,
        away: bool = False,
    ) -> None:
        if folder is not None and not os.path.isdir(folder):  # noqa: PTH112 - as little as can be is imported
            raise FileNotFoundError(
                f"there is no folder {folder} on {socket.gethostname()}: nodes need the folders of the "
                "machine that starts a grid, at the same paths"
            )
        self.name = name
        found = {**os.environ, **(variables or {})}
        with _deaf_to_interrupts():
            self.process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE if away else None,
                cwd=folder,
                env={name: value for name, value in found.items() if value is not None},
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin, self._stdout = self.process.stdin, self.process.stdout

    def where(self) -> tuple[str, int]:
        """The machine's name, and the process's number there."""
        return socket.gethostname(), self.process.pid

    def write(self, data: bytes) -> None:
        """Send it something; it may have ended, and what is sent is lost."""
        with suppress(OSError, ValueError):
            self._stdin.write(data)
            self._stdin.flush()

    def close(self) -> None:
        """Close what it listens to, which tells it to leave."""
        with suppress(OSError):
            self._stdin.close()

    def read(self, most: int) -> bytes:
        """Wait for what it says next; empty at its end."""
        return os.read(self._stdout.fileno(), most)

    def read_errors(self, most: int) -> bytes:
        """Wait for what it prints to standard error next; empty at its end."""
        return os.read(self.process.stderr.fileno(), most) if self.process.stderr else b""

    def kill(self) -> None:
        """End it as it stands."""
        self.process.kill()

    def ended(self) -> str:
        """Wait for its end: what has become of it, or nothing where it had no more to do."""
        code = self.process.wait()
        self.close()
        self._stdout.close()
        if code == LEFT:
            return "was stopped"
        if code < 0:
            with suppress(ValueError):
                name = signal.Signals(-code).name
                memory = ": the machine may have too little memory" if name == "SIGKILL" else ""
                return f"was ended by {name}{memory}"
        return f"ended with exit code {code}" if code else ""


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """A process started in the block never gets a terminal's Ctrl-C, which goes to all of them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
