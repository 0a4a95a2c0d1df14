"""Workers in processes of this machine, which are reached by pipes.

Not by ``multiprocessing``, which would run the caller's own script again in every worker.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from opencil.config import Config, PlaceConfig
from opencil.runs.crew import Hire, Inbox
from opencil.runs.process_workers import Process, ProcessWorker, in_words
from opencil.runs.worker_process import PROGRAM


def hire(config: Config, plugins: list[str]) -> Hire:
    """A function that starts a worker for a config's runs at a place."""

    def start(place: PlaceConfig, inbox: Inbox) -> ProcessWorker:
        return ProcessWorker(replace(config, place=place), plugins, inbox, LocalProcess(place.device))

    return start


class LocalProcess(Process):
    """A process of this machine."""

    def __init__(self, name: str) -> None:
        self.name = name
        with _deaf_to_interrupts():
            self.started = subprocess.Popen(
                [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        assert self.started.stdin is not None
        assert self.started.stdout is not None
        self._stdin, self._stdout = self.started.stdin, self.started.stdout

    def write(self, data: bytes) -> None:
        """Send it something."""
        with suppress(OSError, ValueError):
            self._stdin.write(data)
            self._stdin.flush()

    def read(self, most: int) -> bytes:
        """Wait for what it says next."""
        return os.read(self._stdout.fileno(), most)

    def close(self) -> None:
        """Close what it listens to."""
        with suppress(OSError):
            self._stdin.close()

    def wait(self) -> str:
        """Wait for its end."""
        code = self.started.wait()
        self.close()
        self._stdout.close()
        return in_words(code)

    def kill(self) -> None:
        """End it as it stands."""
        self.started.kill()


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
