"""A worker process: runs arrive as pickles on standard input, events leave on standard output."""

import logging
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from functools import cache, partial

import torch

from opencil.config import Config
from opencil.data.benchmark import BenchmarkData
from opencil.errors import BadInput, OpenCILError
from opencil.plugins import load_plugin
from opencil.runs.events import Event, Failed, Training
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
        specs = iter(partial(pickle.load, sys.stdin.buffer), None)
        do_runs(config, specs, plugins, cache(partial(load, config)), send)
    except (KeyboardInterrupt, BrokenPipeError, EOFError):  # stopped, or its parent process has ended
        code = 75
    except BaseException:
        traceback.print_exc()
        code = 1
    os._exit(code)  # all is stored


def _interrupt_once(*_: object) -> None:
    """Interrupt the run; further signals would disturb the writing of its checkpoint."""
    for number in _STOPS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def do_runs(
    config: Config,
    specs: Iterable[RunSpec],
    plugins: Iterable[str],
    data: Callable[[], BenchmarkData],
    send: Callable[[Event | OpenCILError], object],
) -> None:
    """Do runs in a process of a launcher, and send their events or an error of all runs.

    Trainings are sent now and then, and at the end of every epoch where curves are drawn.
    """
    sent, every_epoch = 0.0, config.place.tensorboard is not None
    try:
        for plugin in plugins:
            load_plugin(plugin)
        with closing(work(config, specs, data)) as events:
            for event in events:
                if isinstance(event, Failed):
                    event = replace(event, error=_plain(event.error))
                elif isinstance(event, Training):
                    p, now = event.progress, time.monotonic()
                    if now < sent + _EVERY and not (every_epoch and p.epoch_ends):
                        continue
                    sent = now
                    # The loss is read where an epoch ends: there the training has waited for the device.
                    loss, total = (torch.tensor(float(t) if p.epoch_ends else 0.0) for t in (p.loss, p.total))
                    event = replace(event, progress=replace(p, loss=loss, total=total, state=dict))
                send(event)
    except (OpenCILError, OSError) as error:
        send(_plain(error))


def _plain(error: Exception) -> OpenCILError:
    """Return an error that can be pickled."""
    return BadInput(str(error)) if isinstance(error, BadInput) else OpenCILError(str(error))
