"""Workers that are processes, as they are seen from the one that started them, wherever they run.

``Process`` is how one is reached; what is said to it and by it is ``worker_process``'s matter.
"""

import io
import pickle
import signal
import sys
import threading
from abc import ABC, abstractmethod
from contextlib import suppress

from opencil.config import Config
from opencil.runs.crew import Assignment, Ended, Inbox, Refuses, Worker
from opencil.runs.worker_process import LEFT, Order


class Process(ABC):
    """A process that runs ``worker_process.PROGRAM``, or soon will; it may end at any time."""

    name: str  #: where it is, in words
    sharing: int = 0  #: workers that may share its machine, where that may be another
    machine: str = ""  #: that machine's name, when it is known

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Send it something; it may have ended, and what is sent is lost."""

    @abstractmethod
    def read(self, most: int) -> bytes:
        """Wait for what it says next; empty at its end."""

    @abstractmethod
    def close(self) -> None:
        """Close what it listens to, which tells it to leave."""

    @abstractmethod
    def wait(self) -> str:
        """Wait for its end: what has become of it, or nothing where it had no more to do."""

    @abstractmethod
    def kill(self) -> None:
        """End it as it stands."""


class ProcessWorker(Worker):
    """A worker in a process."""

    def __init__(self, config: Config, plugins: list[str], inbox: Inbox, process: Process) -> None:
        self.place, self.process, self._inbox = config.place, process, inbox
        for told in (sys.path, Order(config, plugins, sys.argv, process.sharing)):
            process.write(pickle.dumps(told))
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def give(self, run: Assignment | None) -> None:
        """Answer it."""
        self.process.write(pickle.dumps(run))

    def leave(self) -> None:
        """Close what it listens to."""
        self.process.close()

    def wait(self) -> None:
        """Wait for its end."""
        self._listening.join()

    def kill(self) -> None:
        """End it as it stands."""
        self.process.kill()

    def _listen(self) -> None:
        stream = io.BufferedReader(_Said(self.process))
        with suppress(Exception):  # its end, in the middle of a message too
            while True:
                message = pickle.load(stream)
                if isinstance(message, Refuses) and self.process.machine:
                    error = message.error
                    message = Refuses(type(error)(f"on {self.process.machine}: {error}"))
                self._inbox.put((self, message))
        reason = self.process.wait()
        self._inbox.put((self, Ended(f"the worker on {self.process.name} {reason}" if reason else "")))


class _Said(io.RawIOBase):
    """What a process says, as a file."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._process.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def in_words(code: int) -> str:
    """What an exit code says of a worker; nothing where it had no more to do."""
    if code == LEFT:
        return "was stopped"
    if code < 0:
        with suppress(ValueError):
            name = signal.Signals(-code).name
            memory = ": the machine may have too little memory" if name == "SIGKILL" else ""
            return f"was ended by {name}{memory}"
    return f"ended with exit code {code}" if code else ""
