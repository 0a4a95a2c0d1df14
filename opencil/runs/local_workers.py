"""Workers in processes of this machine: how one is started and spoken with, and what it does itself.

They speak in pickles: over the process's standard input, whose end tells it to leave, and over what was its
standard output, whose end says that it is gone. Not by ``multiprocessing``, which would run the caller's own
script again in every worker.
"""

import _thread
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from queue import SimpleQueue
from typing import IO, Any

import torch

from opencil.config import Config, PlaceConfig
from opencil.data.benchmark import BenchmarkData
from opencil.engine.device import resolve_device
from opencil.errors import OpenCILError
from opencil.plugins import load_plugin
from opencil.runs.crew import Asks, Assignment, Ended, Inbox, Message, Refuses, Says, Worker
from opencil.runs.events import Event, Failed, Training
from opencil.runs.failures import portable
from opencil.runs.loading import describe_data, load

_START = """
import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
from opencil.runs.local_workers import serve
serve()
"""
#: The least time between two messages about one run's training, but at the end of an epoch.
_EVERY = 0.1
_LEFT = 75  #: exit code of a worker that was told to leave, or stopped


@dataclass(frozen=True)
class _Order:
    """All that a worker needs to know; ``command`` is what the process that starts it was started with."""

    config: Config
    plugins: list[str]
    command: list[str]


class LocalWorker(Worker):
    """A process of this machine, as it is seen from the one that started it."""

    def __init__(self, config: Config, plugins: list[str], inbox: Inbox) -> None:
        self.place, self._inbox = config.place, inbox
        with _deaf_to_interrupts():
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        self._send(sys.path)
        self._send(_Order(config, plugins, sys.argv))
        threading.Thread(target=self._listen, daemon=True).start()

    def give(self, run: Assignment | None) -> None:
        """Answer it."""
        self._send(run)

    def leave(self) -> None:
        """Close what it listens to."""
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()

    def wait(self) -> None:
        """Wait for its end."""
        self._process.wait()

    def kill(self) -> None:
        """End it as it stands."""
        self._process.kill()

    def _send(self, message: object) -> None:
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):  # it has ended, as the listening thread will say
            pickle.dump(message, self._process.stdin)
            self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with suppress(Exception), self._process.stdout as stream:  # its end, in the middle of a message too
            while True:
                self._inbox.put((self, pickle.load(stream)))
        code = self._process.wait()
        self.leave()
        self._inbox.put((self, Ended(f"the worker on {self.place.device} {_in_words(code)}" if code else "")))


def _in_words(code: int) -> str:
    if code == _LEFT:
        return "was stopped"
    if code < 0:
        with suppress(ValueError):
            name = signal.Signals(-code).name
            memory = ": the machine may have too little memory" if name == "SIGKILL" else ""
            return f"was ended by {name}{memory}"
    return f"ended with exit code {code}"


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


# --- in the worker's process -----------------------------------------------------------------------


def serve() -> None:
    """Be a worker: do the runs that are given, until there are no more or it is time to leave."""
    channel = _Channel()
    order: _Order = pickle.load(sys.stdin.buffer)
    sys.argv = order.command
    for number in (signal.SIGTERM, getattr(signal, "SIGUSR1", signal.SIGTERM)):
        signal.signal(number, _Leaving())
    code = 0
    try:
        _work(order, channel, _replies())
    except (KeyboardInterrupt, BrokenPipeError):  # or whom it works for is gone
        code = _LEFT
    except (OpenCILError, OSError) as error:
        channel.send(
            Refuses(portable(error if isinstance(error, OpenCILError) else OpenCILError(str(error))))
        )
    except BaseException:
        traceback.print_exc()
        code = 1
    # All is stored. Python would first wait for the thread that reads standard input.
    os._exit(code)


def _work(order: _Order, channel: "_Channel", replies: "SimpleQueue[Assignment | None]") -> None:
    from opencil.runs.runner import work

    for plugin in order.plugins:
        load_plugin(plugin)
    logging.getLogger("opencil").addHandler(_Forward(channel))

    @cache
    def prepared() -> tuple[BenchmarkData, dict[str, Any]]:
        data = load(order.config)
        return data, describe_data(order.config, data)

    def given() -> Iterator[Assignment]:
        while True:
            channel.send(Asks())
            run = replies.get()
            if run is None:
                return
            yield run

    telling = _Telling()
    device = resolve_device(order.config.place.device)
    with closing(work(order.config, device, given(), prepared)) as events:
        for event in events:
            if (told := telling(event)) is not None:
                channel.send(told)


class _Channel:
    """Where messages go: what was standard output. Whatever anybody prints goes to standard error."""

    def __init__(self) -> None:
        self._stream: IO[bytes] = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        with self._lock:
            pickle.dump(message, self._stream)
            self._stream.flush()


def _replies() -> "SimpleQueue[Assignment | None]":
    """What the worker is given; where nobody is left to give, it leaves."""
    replies: SimpleQueue[Assignment | None] = SimpleQueue()

    def listen() -> None:
        with suppress(EOFError, OSError, pickle.UnpicklingError):
            while True:
                replies.put(pickle.load(sys.stdin.buffer))
        _thread.interrupt_main(signal.SIGTERM)
        replies.put(None)  # the main thread may be waiting for one

    threading.Thread(target=listen, daemon=True).start()
    return replies


class _Leaving:
    """Interrupts what is under way, once: more signals would disturb the checkpoints that are written."""

    seen = False

    def __call__(self, *_: object) -> None:
        if not _Leaving.seen:
            _Leaving.seen = True
            raise KeyboardInterrupt


class _Forward(logging.Handler):
    """Passes on what is logged."""

    def __init__(self, channel: _Channel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            self._channel.send(Says(record.name, record.levelno, record.getMessage()))


class _Telling:
    """Events as another process can have them: few, and without what lives on a device."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], float] = {}

    def __call__(self, event: Event) -> Event | None:
        if isinstance(event, Failed):
            return replace(event, error=portable(event.error))
        if not isinstance(event, Training):
            return event
        p, now = event.progress, time.monotonic()
        of = str(event.run), p.stage
        if not p.epoch_ends and now - self._told.get(of, 0.0) < _EVERY:
            return None
        self._told[of] = now
        # The loss is read where an epoch ends, where the training has waited for the device anyway.
        loss, total = (float(tensor) if p.epoch_ends else 0.0 for tensor in (p.loss, p.total))
        told = replace(p, loss=torch.tensor(loss), total=torch.tensor(total), state=dict)
        return replace(event, progress=told)


def hire(config: Config, plugins: list[str]) -> Callable[[PlaceConfig, Inbox], Worker]:
    """A function that starts a worker for a config's runs at a place."""
    return lambda place, inbox: LocalWorker(replace(config, place=place), plugins, inbox)
