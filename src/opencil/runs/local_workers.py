"""Workers that are processes, as they are seen from the one that started them.

Those of this machine are reached by pipes, not by ``multiprocessing``, which would run the caller's own
script again in every worker. What is said to them and by them is ``worker_process``'s matter.
"""

import io
import pickle
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from opencil.config import Config, PlaceConfig
from opencil.runs.crew import Assignment, Ended, Hire, Inbox, Refuses, Worker
from opencil.runs.starting import started
from opencil.runs.worker_process import Order

if TYPE_CHECKING:
    from opencil.runs.pipes import PipedProcess
    from opencil.runs.ray_workers import RayProcess


def hire(config: Config, plugins: list[str]) -> Hire:
    """A function that starts a worker for a config's runs at a place."""

    def start(place: PlaceConfig, inbox: Inbox) -> ProcessWorker:
        return ProcessWorker(replace(config, place=place), plugins, inbox, started(place.device))

    return start


class ProcessWorker(Worker):
    """A worker in a process; ``sharing`` workers may share its machine, where that may be another."""

    def __init__(
        self,
        config: Config,
        plugins: list[str],
        inbox: Inbox,
        process: "PipedProcess | RayProcess",
        sharing: int = 0,
    ) -> None:
        self.place, self.process, self._inbox = config.place, process, inbox
        process.write(pickle.dumps(Order(config, plugins, sys.argv, sharing)))
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
        try:
            while True:
                message = pickle.load(stream)
                if isinstance(message, Refuses) and self.process.machine:
                    error = message.error
                    message = Refuses(type(error)(f"on {self.process.machine}: {error}"))
                self._inbox.put((self, message))
        except EOFError:
            pass
        except Exception:  # its end in the middle of a message, or one that cannot be read: it is to leave
            self.process.close()
            with suppress(Exception):
                while self.process.read(2**16):
                    pass
        reason = self.process.ended()
        self._inbox.put((self, Ended(f"the worker on {self.process.name} {reason}" if reason else "")))


class _Said(io.RawIOBase):
    """What a process says, as a file."""

    def __init__(self, process: "PipedProcess | RayProcess") -> None:
        self._process = process

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._process.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
