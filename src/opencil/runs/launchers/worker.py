"""A worker process: runs arrive as pickles on standard input, events leave on standard output."""

import _thread
import logging
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import cache
from queue import SimpleQueue

import torch

from opencil.config import Config
from opencil.data.benchmark import BenchmarkData
from opencil.errors import OpenCILError
from opencil.plugins import load_plugin
from opencil.runs.events import Event, Failed, Training
from opencil.runs.failures import portable
from opencil.runs.launch import work
from opencil.runs.loading import load
from opencil.runs.spec import RunSpec

#: The least seconds between two messages about a training.
_EVERY = 0.5
#: Signals that end a worker with a checkpoint: queues such as Slurm's send SIGUSR1 to all processes of a job.
_STOPS = {signal.SIGTERM, getattr(signal, "SIGUSR1", signal.SIGTERM)}


def serve() -> None:
    """Do runs as they arrive, until None arrives or a signal stops the process."""
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
        do_runs(config, _receive_runs(), plugins, cache(lambda: load(config)), send)
    except (KeyboardInterrupt, BrokenPipeError, EOFError):  # stopped, or its parent process has ended
        code = 75
    except BaseException:
        traceback.print_exc()
        code = 1
    os._exit(code)  # all is stored; the thread on standard input is not waited for


def do_runs(
    config: Config,
    specs: Iterable[RunSpec],
    plugins: Iterable[str],
    data: Callable[[], BenchmarkData],
    send: Callable[[Event | OpenCILError], object],
) -> None:
    """Do runs in a process of a launcher, and send their events.

    An error of all runs, as one in the data, is sent too.
    """
    try:
        for plugin in plugins:
            load_plugin(plugin)
        with closing(work(config, specs, data)) as events:
            for event in portable_events(events, every_epoch=config.place.tensorboard is not None):
                send(event)
    except (OpenCILError, OSError) as error:
        send(portable(error if isinstance(error, OpenCILError) else OpenCILError(str(error))))


def _receive_runs() -> Iterator[RunSpec]:
    """Yield runs as they arrive; where the sender has ended, the run in progress is interrupted."""
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


def portable_events(events: Iterable[Event], every_epoch: bool) -> Iterator[Event]:
    """Yield events for another process, without tensors of a device.

    Trainings come now and then, or at the end of ``every_epoch`` too.
    """
    sent = 0.0
    for event in events:
        if isinstance(event, Failed):
            yield replace(event, error=portable(event.error))
        elif isinstance(event, Training):
            p, now = event.progress, time.monotonic()
            if now >= sent + _EVERY or (every_epoch and p.epoch_ends):
                sent = now
                # The loss is read where an epoch ends: there the training has waited for the device anyway.
                loss, total = (torch.tensor(float(t) if p.epoch_ends else 0.0) for t in (p.loss, p.total))
                yield replace(event, progress=replace(p, loss=loss, total=total, state=dict))
        else:
            yield event
