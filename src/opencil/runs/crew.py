"""A queue of runs and the workers that take from it, each of which does what one process does.

How a worker is reached is its own matter: it needs no more than ``Worker``, and to put what it says into the
inbox. Those in processes of this machine are in ``local_workers``, those on a cluster in ``ray_workers``.
"""

import logging
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue

from opencil.config import PlaceConfig
from opencil.errors import OpenCILError
from opencil.runs.events import Event, Failed, Finished, Lost
from opencil.runs.plan import RunSpec

#: Workers that may end in the middle of one run before it is given up: it may be what ends them.
_LOSSES = 2
#: Seconds that a run waits for the lock of a worker that was lost: it may be about to leave, and where its
#: machine is gone the lock is that of nobody only after a while.
_PATIENCE = 240.0


@dataclass(frozen=True)
class Assignment:
    """A run for a worker; ``longest`` says that it has far more work ahead than the mean of all.

    ``patience`` is how many seconds it waits while another process holds it.
    """

    spec: RunSpec
    longest: bool = False
    patience: float = 0.0


@dataclass(frozen=True)
class Asks:
    """A worker has room for a run: it must be given one, or None where there is none."""


@dataclass(frozen=True)
class Says:
    """A worker has something for the log."""

    logger: str
    level: int
    text: str


@dataclass(frozen=True)
class Refuses:
    """A worker can do no run at all: what is wrong, with the data say, is wrong for every worker."""

    error: OpenCILError


@dataclass(frozen=True)
class Ended:
    """A worker's last message, whoever sends it: why it has ended; empty where it had nothing more to do."""

    reason: str = ""


Message = Event | Asks | Says | Refuses | Ended


class Worker(ABC):
    """Somebody who does runs, with a device of its own."""

    place: PlaceConfig  #: where it computes

    @abstractmethod
    def give(self, run: Assignment | None) -> None:
        """Answer it: another run, or None: there are no more. It may have ended, which it says itself."""

    @abstractmethod
    def leave(self) -> None:
        """Tell it to leave its runs as they are, checkpointed, and to end."""

    @abstractmethod
    def wait(self) -> None:
        """Wait for its end."""

    @abstractmethod
    def kill(self) -> None:
        """End it as it stands."""


Inbox = SimpleQueue[tuple[Worker, Message]]
#: Starts a worker at a place, who puts messages into the inbox.
Hire = Callable[[PlaceConfig, Inbox], Worker]


def spread(runs: Iterable[Assignment], places: Iterable[PlaceConfig], hire: Hire) -> Generator[Event]:
    """Give runs to workers in their order, one worker a place, and tell what happens in all of them.

    A worker that is lost is replaced, and its runs are taken up from where they are stored. Whoever leaves in
    the middle makes all workers leave, their runs checkpointed.
    """
    inbox: Inbox = SimpleQueue()
    queue, losses, reason = deque(runs), Counter[Path](), ""
    crew: dict[Worker, dict[Path, Assignment]] = {}  # each with the runs that it has under way
    hired: set[Worker] = set()  # who has ever asked for a run
    try:
        for place in places:
            crew[hire(place, inbox)] = {}
        spare = len(crew)  # how many that never asked are replaced: others like them may follow
        # One that has not asked for a run yet, for want of room say, is not waited for when none is left.
        while crew and (queue or hired & crew.keys()):
            worker, message = inbox.get()
            match message:
                case Asks():
                    hired.add(worker)
                    run = queue.popleft() if queue else None
                    if run is not None:
                        crew[worker][run.spec.folder] = run
                    worker.give(run)
                case Says():
                    logging.getLogger(message.logger).log(message.level, "%s", message.text)
                case Refuses():
                    raise message.error
                case Ended():
                    lost, reason = crew.pop(worker), message.reason
                    for folder, run in lost.items():
                        losses[folder] += 1
                        if losses[folder] < _LOSSES:
                            queue.appendleft(replace(run, patience=_PATIENCE))
                            yield Lost(run.spec, reason)
                        else:
                            yield Failed(run.spec, OpenCILError(f"{_LOSSES} workers ended in it; {reason}"))
                    if reason and not lost:
                        logging.getLogger("opencil").warning("%s (it had no run)", reason)
                    if queue and reason and (worker in hired or spare):
                        spare -= worker not in hired
                        crew[hire(worker.place, inbox)] = {}
                case _:
                    if isinstance(message, (Finished, Failed)):
                        crew[worker].pop(message.run.folder, None)
                    yield message
        for run in queue:
            yield Failed(run.spec, OpenCILError(f"there is no worker for it: {reason or 'all have ended'}"))
    finally:
        _dismiss(list(crew))


def _dismiss(crew: list[Worker]) -> None:
    """Let all leave in an orderly way; whoever is interrupted once more does not wait for that."""
    try:
        for worker in crew:
            worker.leave()
        for worker in crew:
            worker.wait()
    except BaseException:
        for worker in crew:
            worker.kill()
        raise
