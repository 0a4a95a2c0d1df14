"""Processes of this machine, one for each run at a time."""

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Generator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from opencil.config import Config, PlaceConfig
from opencil.data.streamed import count_workers
from opencil.engine.device import resolve_device
from opencil.errors import OpenCILError
from opencil.runs.events import Event, Failed, Finished, Lost
from opencil.runs.launchers.mps import shared_gpu
from opencil.runs.loading import with_share
from opencil.runs.spec import RunSpec

#: Workers that may end in the middle of a run before the run is given up: it may end them itself.
_LOSSES = 2


def find_places(place: PlaceConfig) -> list[PlaceConfig]:
    """Return a place per process: ``jobs`` on a CPU, ``pack`` on each GPU."""
    devices = [resolve_device(name) for name in place.devices]
    on_cpu = devices[0].type == "cpu"
    jobs = count_workers() if place.jobs == "auto" and on_cpu else place.jobs
    each = max(place.pack, jobs if isinstance(jobs, int) else 1)
    one = replace(place, jobs=1, pack=1)
    if each * len(devices) == 1:
        return [replace(one, device=str(devices[0]))]
    one = with_share(one, each * len(devices))
    return [
        replace(one, device=str(device), threads=place.threads or (1 if on_cpu else None))
        for device in devices
        for _ in range(each)
    ]


def launch(
    config: Config, specs: Sequence[RunSpec], places: Sequence[PlaceConfig], plugins: list[str]
) -> Generator[Event]:
    """Give runs to workers in their order, and yield the events of all of them.

    A worker that is lost is replaced, and its run is resumed from where it is stored. Closing the generator
    stops all workers, each with a checkpoint.
    """
    inbox: SimpleQueue[tuple[Worker, Any]] = SimpleQueue()
    queue, losses, workers = deque(specs), Counter[Path](), dict[Worker, RunSpec]()
    started: list[Worker] = []

    def assign(worker: Worker) -> None:
        workers.pop(worker, None)
        if queue:
            workers[worker] = queue.popleft()
        worker.send(workers.get(worker))

    def start(place: PlaceConfig) -> None:
        started.append(Worker(replace(config, place=place), plugins, inbox, variables))
        assign(started[-1])

    with ExitStack() as stack:
        variables = stack.enter_context(shared_gpu(places))
        stack.callback(lambda: _stop(list(workers), started))
        for place in places[: len(queue)]:
            start(place)
        while workers:
            worker, message = inbox.get()
            if worker not in workers:  # it had nothing more to do, and has ended
                continue
            if isinstance(message, OpenCILError):  # the data cannot be loaded: the other runs would fail too
                raise message
            if isinstance(message, Finished | Failed):
                assign(worker)
            elif isinstance(message, Ended):
                spec, reason = workers.pop(worker), message.reason
                losses[spec.folder] += 1
                if losses[spec.folder] < _LOSSES:
                    queue.appendleft(spec)
                    message = Lost(spec, reason)
                else:
                    message = Failed(spec, OpenCILError(f"{_LOSSES} workers ended in it; {reason}"))
                if queue:
                    start(worker.place)
            yield message


@dataclass(frozen=True)
class Ended:
    """The last message of a worker's reader: the process has ended."""

    reason: str


class Worker:
    """A process that does runs: see ``opencil.runs.launchers.worker``."""

    def __init__(
        self, config: Config, plugins: list[str], inbox: "SimpleQueue[Any]", variables: dict[str, str]
    ) -> None:
        self.place, self._inbox = config.place, inbox
        path = os.pathsep.join(filter(None, sys.path))
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from opencil.runs.launchers.worker import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **variables, "PYTHONPATH": path},
            start_new_session=True,  # a terminal's Ctrl-C reaches this process alone
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self.send((config, plugins, sys.argv))
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def send(self, message: object) -> None:
        """Send a run, or None: there are no more."""
        with suppress(OSError):  # it has ended, which its reader reports
            pickle.dump(message, self._input)
            self._input.flush()

    def stop(self) -> None:
        """Ask it to leave its run, checkpointed."""
        self._process.terminate()

    def wait(self) -> None:
        """Wait for its end."""
        self._process.wait()
        self._reader.join()
        with suppress(OSError):  # a message that it has not read
            self._input.close()

    def kill(self) -> None:
        """End it as it stands."""
        self._process.kill()

    def _listen(self) -> None:
        with self._output as events, suppress(EOFError, pickle.UnpicklingError):
            while True:
                self._inbox.put((self, pickle.load(events)))
        code = self._process.wait()
        ended = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self._inbox.put((self, Ended(f"the worker on {self.place.device} {ended}")))


def _stop(busy: list[Worker], started: list[Worker]) -> None:
    """Let busy workers leave with a checkpoint and wait for all; a second interruption kills them."""
    try:
        for worker in busy:
            worker.stop()
        for worker in started:
            worker.wait()
    except BaseException:
        for worker in started:
            worker.kill()
        raise
