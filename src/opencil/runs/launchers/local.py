"""Processes of this machine, one for each run at a time."""

import _thread
import logging
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from queue import SimpleQueue

from opencil.config import Config, PlaceConfig
from opencil.data.streamed import count_workers
from opencil.engine.device import resolve_device
from opencil.errors import OpenCILError
from opencil.runs.events import Event, Failed, Finished, Lost
from opencil.runs.launch import do_runs
from opencil.runs.loading import with_share
from opencil.runs.spec import RunSpec

#: Signals that end a worker with a checkpoint: queues such as Slurm's send SIGUSR1 to all processes of a job.
_STOPS = {signal.SIGTERM, getattr(signal, "SIGUSR1", signal.SIGTERM)}

#: A worker's program. Garbage is not looked for during imports, which saves 0.3 seconds.
_START = """
import gc
gc.disable()
from opencil.runs.launchers.local import serve
gc.freeze()
gc.enable()
serve()
"""


def find_places(place: PlaceConfig) -> list[PlaceConfig]:
    """Return a place per process: ``jobs`` on a CPU, ``pack`` on each GPU."""
    devices = [resolve_device(name) for name in place.devices]
    on_cpu = devices[0].type == "cpu"
    jobs = count_workers() if place.jobs == "auto" and on_cpu else place.jobs
    each = max(place.pack, jobs if isinstance(jobs, int) else 1)
    several = each * len(devices) > 1
    threads = place.threads or (1 if on_cpu and several else None)
    one = replace(with_share(place, each * len(devices)), jobs=1, pack=1, threads=threads)
    return [replace(one, device=str(device)) for device in devices for _ in range(each)]


def launch(
    config: Config, specs: Sequence[RunSpec], places: Sequence[PlaceConfig], plugins: list[str]
) -> Generator[Event]:
    """Give runs to workers in their order, and yield the events of all of them.

    A thread for each place starts the worker there and reads its events. A lost worker is replaced once, and
    its run is resumed from where it is stored: the run may have ended it. Closing the generator stops all
    workers, each with a checkpoint.
    """
    busy, waiting = places[: len(specs)], iter(specs)
    inbox: SimpleQueue[Event | Future[None]] = SimpleQueue()
    workers, stopping = list[Worker](), threading.Event()

    def serve(place: PlaceConfig) -> None:
        worker, again, spec = None, False, next(waiting, None)
        while spec is not None and not stopping.is_set():
            if worker is None:
                worker = Worker(replace(config, place=place), plugins, variables)
                workers.append(worker)
                if stopping.is_set():
                    worker.process.terminate()
            try:
                for event in worker.do(spec):
                    inbox.put(event)
            except (EOFError, pickle.UnpicklingError):
                reason, worker, again = f"the worker on {place.device} {worker.wait()}", None, not again
                lost = Lost(spec, reason)
                inbox.put(lost if again else Failed(spec, OpenCILError(f"2 workers ended in it; {reason}")))
            else:
                again = False
            spec = spec if again else next(waiting, None)
        if worker is not None:
            worker.send(None)
            worker.wait()

    with shared_gpu(places) as variables, ThreadPoolExecutor(len(busy)) as pool:
        try:
            for place in busy:
                pool.submit(serve, place).add_done_callback(inbox.put)
            for _ in busy:
                while isinstance(message := inbox.get(), Event):
                    yield message
                message.result()  # raises the error of the thread
        finally:
            stopping.set()
            try:
                for worker in workers:
                    worker.process.terminate()
                pool.shutdown()
            except BaseException:  # a second interruption
                for worker in workers:
                    worker.process.kill()
                raise


class Worker:
    """A process that does runs: they leave as pickles to its ``serve``, and events come back."""

    def __init__(self, config: Config, plugins: list[str], variables: dict[str, str]) -> None:
        path = os.pathsep.join(filter(None, sys.path))
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **variables, "PYTHONPATH": path},
            start_new_session=True,  # a terminal's Ctrl-C reaches this process alone
        )
        self.send((config, plugins, sys.argv))

    def send(self, message: object) -> None:
        """Send a run, or None: there are no more."""
        assert self.process.stdin is not None
        with suppress(OSError):  # it has ended, which ``do`` raises
            pickle.dump(message, self.process.stdin)
            self.process.stdin.flush()

    def do(self, spec: RunSpec) -> Iterator[Event]:
        """Do a run and yield its events; raise EOFError where the process ends before it does.

        An error of all runs, as one in the data, is raised.
        """
        assert self.process.stdout is not None
        self.send(spec)
        event = None
        while not isinstance(event, Finished | Failed):
            event = pickle.load(self.process.stdout)
            if isinstance(event, OpenCILError):
                raise event
            yield event

    def wait(self) -> str:
        """Wait for its end, and return how it ended."""
        code = self.process.wait()
        with suppress(OSError), self.process:  # closes the pipes, with unread messages
            pass
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def serve() -> None:
    """Do runs as they arrive on standard input, until None arrives or a signal stops the process."""
    events = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # printed text goes to standard error
    for number in _STOPS:
        signal.signal(number, _interrupt_once)

    def send(message: object) -> None:
        pickle.dump(message, events)
        events.flush()

    code = 0
    try:
        config, plugins, sys.argv = pickle.load(sys.stdin.buffer)
        logging.basicConfig(format="%(message)s")
        do_runs(config, _receive_runs(), plugins, send)
    except (KeyboardInterrupt, BrokenPipeError, EOFError):  # stopped, or its parent process has ended
        code = 75
    except BaseException:
        traceback.print_exc()
        code = 1
    os._exit(code)  # all is stored; the thread on standard input is not waited for


def _receive_runs() -> Iterator[RunSpec]:
    """Yield runs as they arrive; where the sender has ended, interrupt the run in progress."""
    inbox: SimpleQueue[RunSpec | None] = SimpleQueue()

    def listen() -> None:
        with suppress(EOFError, OSError, pickle.UnpicklingError):
            while True:
                inbox.put(pickle.load(sys.stdin.buffer))
        _thread.interrupt_main(signal.SIGTERM)
        inbox.put(None)

    threading.Thread(target=listen, daemon=True).start()
    yield from iter(inbox.get, None)


def _interrupt_once(*_: object) -> None:
    """Interrupt the run; further signals would disturb the writing of its checkpoint."""
    for number in _STOPS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


@contextmanager
def shared_gpu(places: Sequence[PlaceConfig]) -> Iterator[dict[str, str]]:
    """Start NVIDIA's Multi-Process Service where processes share a GPU; yield their environment variables.

    With it their kernels run at the same time. Without the service, or where one runs already, the GPU gives
    them time in turn.
    """
    devices = [place.device for place in places if place.device.startswith("cuda")]
    control = shutil.which("nvidia-cuda-mps-control")
    if len(devices) == len(set(devices)) or control is None or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="opencil-mps-") as folder:
        variables = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        environment = {**os.environ, **variables}
        started = subprocess.run([control, "-d"], env=environment, check=False, capture_output=True)
        try:
            yield variables if started.returncode == 0 else {}
        finally:
            subprocess.run([control], input=b"quit\n", env=environment, check=False, capture_output=True)
