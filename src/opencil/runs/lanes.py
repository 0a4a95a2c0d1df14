"""Runs that take turns: their trainings, and beside them what follows each of these.

A turn is what a generator does up to its next event: a training iteration, mostly. On a GPU that is a launch:
the host goes on while the device computes. So a training takes turns until ``QUEUED`` iterations of it wait
for the device, which then has work while the host is busy elsewhere, and what follows a training (tuning,
evaluation) takes turns when all trainings are so far ahead. In the middle of a long turn, between two batches
of images, ``let_others`` brings the trainings up to that again.

How fast a training goes is the device's matter: those with far more work ahead than the others have streams
of a higher priority, all trainings a higher one than what follows them. So no lane waits for another one by
rule, which would leave the device idle: the longest runs as if alone, and the others use what it leaves.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from itertools import count

import torch

from opencil.engine.turns import taking_turns
from opencil.runs.events import Event, Training

#: Turns whose work may wait for the device: of a training, about 0.1 s of it when four share a GPU; of what
#: follows, few, since it reads what it computed, and the host waits for that.
QUEUED, QUEUED_BEHIND = 16, 4
#: Turns of each training before what follows has one, though there be room in the queues.
PASSES = 4
#: Priorities of streams, the lowest first: of a training that is far the longest, of others, of the rest.
LONGEST, TRAINING, BEHIND = -2, -1, 0
#: How much more than the mean of all runs' expected work makes a run far the longest.
FAR_LONGER = 1.25
#: Seconds to wait where all queues are full.
_NAP = 1e-4

#: Events of work, and None where it has to wait for other work.
Work = Generator[Event | None]


class Strand:
    """Work that takes turns, on a stream of its own where there is a GPU."""

    def __init__(self, work: Work, device: torch.device, priority: int, queued: int) -> None:
        self._work, self._queued = work, queued
        self.running = self.ended = False
        #: Whether its last event must be told before it goes on: who reads the loss finds that of now.
        self.untold = False
        self._last: Event | None = None
        self._marks: deque[torch.cuda.Event] = deque()  # of turns that the device has not done
        # A captured step must not run on the default stream, so a single run has a stream of its own too.
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device, priority)  # type: ignore[no-untyped-call]
            self._stream.wait_stream(torch.cuda.current_stream(device))

    def ready(self) -> bool:
        """Whether it can take a turn that keeps the host waiting for nothing but itself."""
        if self.running or self.ended or self.untold:
            return False
        while self._marks and self._marks[0].query():  # type: ignore[no-untyped-call]
            self._marks.popleft()
        return len(self._marks) < (2 if _nears_epoch_end(self._last) else self._queued)

    def next(self) -> Event | None:
        """Take a turn: its event; None where it waits for other work, or has ended."""
        return self._turn(lambda: next(self._work))

    def throw(self, error: Exception) -> Event | None:
        """A turn that begins with an error."""
        return self._turn(lambda: self._work.throw(error))

    def _turn(self, step: Callable[[], Event | None]) -> Event | None:
        self.running = True
        try:
            if self._stream is None:
                event = step()
            else:
                with torch.cuda.stream(self._stream):
                    event = step()
                    if event is not None:
                        mark = torch.cuda.Event()  # type: ignore[no-untyped-call]
                        mark.record(self._stream)
                        self._marks.append(mark)
        except StopIteration:
            self.ended = True
            return None
        except BaseException:
            self.ended = True
            raise
        finally:
            self.running = False
        self._last = event
        within_epoch = isinstance(event, Training) and not event.progress.epoch_ends
        self.untold = event is not None and not within_epoch
        return event

    def close(self) -> None:
        """End the work where it stands; what it has stored stays."""
        self.settle()
        self._work.close()
        self.ended = True

    def settle(self) -> None:
        """Wait for the device: what the work has used can be freed, and used on another stream."""
        if self._stream is not None:
            self._stream.synchronize()


def _nears_epoch_end(event: Event | None) -> bool:
    """Whether the next turn is an epoch's last, in which a training waits for the device."""
    return isinstance(event, Training) and event.progress.iteration + 1 >= event.progress.iterations


class Lane:
    """A run under way: its trainings, and where it says so what follows them, on a strand of its own."""

    def __init__(self, begin: "Callable[[Lane], Work]", device: torch.device, longest: bool) -> None:
        self._device = device
        self.behind: Strand | None = None
        self.followed_last = 0  #: when that had its last turn, as a number that grows
        self.trainings = Strand(begin(self), device, LONGEST if longest else TRAINING, QUEUED)

    def follow(self, work: Work) -> None:
        """Let work take turns that follows the trainings. An error in it is one in them."""
        self.behind = Strand(work, self._device, BEHIND, QUEUED_BEHIND)

    @property
    def followed(self) -> bool:
        """Whether all that follows is done."""
        return self.behind is None or self.behind.ended

    def close(self) -> None:
        """End the run where it stands; what it has stored stays."""
        self.trainings.settle()
        if self.behind is not None:
            self.behind.close()
        self.trainings.close()


class Lanes:
    """Runs under way, which take turns."""

    def __init__(self, device: torch.device, beside: bool) -> None:
        #: Whether what follows a training may go beside the next one.
        self.beside = beside
        self.running: list[Lane] = []
        self._on_gpu = device.type == "cuda"
        self._count = count(1)
        self._untold: deque[tuple[Strand, Event]] = deque()

    def round(self) -> Iterator[Event]:
        """Some turns of the trainings, while there is room in their queues; then one of what follows them."""
        busy = False
        for _ in range(PASSES if self._on_gpu else 1):  # a CPU has no queue to fill
            if not self._train():
                break
            busy = True
            yield from self._told()
        busy |= self._follow()
        yield from self._told()
        self._leave()
        if self.running and not busy and self._on_gpu:
            time.sleep(_NAP)

    def _told(self) -> Iterator[Event]:
        while self._untold:
            strand, event = self._untold.popleft()
            yield event
            strand.untold = False

    def _train(self) -> bool:
        """A turn of every training that is ready; whether any of them did something."""
        turns = [self._turn(lane.trainings) for lane in self.running if lane.trainings.ready()]
        return any(turns)

    def _follow(self) -> bool:
        """A turn of the first work behind a training that has something to do; whether there is any."""
        for lane in sorted(self.running, key=lambda lane: lane.followed_last):
            if lane.behind is None or not lane.behind.ready():
                continue
            try:
                done = self._turn(lane.behind)
            except Exception as error:
                done = self._note(lane.trainings, lane.trainings.throw(error))
            if done or lane.behind.ended:
                lane.followed_last = next(self._count)
                return True
        return False

    def _turn(self, strand: Strand) -> bool:
        if not self.beside:
            return self._note(strand, strand.next())
        with taking_turns(self._fill):
            return self._note(strand, strand.next())

    def _note(self, strand: Strand, event: Event | None) -> bool:
        if event is not None:
            self._untold.append((strand, event))
        return event is not None

    def _fill(self) -> None:
        """Bring the trainings as far ahead of the device as they may be, in the middle of another's turn."""
        for _ in range(QUEUED if self._on_gpu else 1):
            if not self._train():
                break

    def _leave(self) -> None:
        """Runs that have ended leave, when the device is done with what they used."""
        for lane in [lane for lane in self.running if lane.trainings.ended]:
            lane.close()
            self.running.remove(lane)

    def close(self) -> None:
        """End all runs where they stand."""
        for lane in self.running:
            lane.close()
