"""Workers in processes of this machine, which are reached by pipes.

Not by ``multiprocessing``, which would run the caller's own script again in every worker.
"""

from dataclasses import replace

from opencil.config import Config, PlaceConfig
from opencil.runs.crew import Hire, Inbox
from opencil.runs.pipes import PipedProcess
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
        self.name, self.piped = name, PipedProcess(PROGRAM)

    def write(self, data: bytes) -> None:
        """Send it something."""
        self.piped.write(data)

    def read(self, most: int) -> bytes:
        """Wait for what it says next."""
        return self.piped.read(most)

    def close(self) -> None:
        """Close what it listens to."""
        self.piped.close()

    def wait(self) -> str:
        """Wait for its end."""
        return in_words(self.piped.code())

    def kill(self) -> None:
        """End it as it stands."""
        self.piped.process.kill()
