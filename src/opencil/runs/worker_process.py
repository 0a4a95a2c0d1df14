"""What a worker's process does, wherever it runs: the runs that it is given, until there are no more.

It speaks in pickles: over its standard input, whose end tells it to leave, and over what was its standard
output, whose end says that it is gone. How it is started is in ``starting``, by whom in ``local_workers`` and
``ray_workers``.
"""

import _thread
import logging
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

import torch

from opencil.config import Config
from opencil.data.benchmark import BenchmarkData
from opencil.engine.device import resolve_device
from opencil.errors import BadInput, OpenCILError
from opencil.plugins import load_plugin
from opencil.runs.crew import Asks, Assignment, Message, Refuses, Says
from opencil.runs.events import Event, Failed, Training
from opencil.runs.failures import portable
from opencil.runs.loading import describe_data, load, with_share
from opencil.runs.pipes import LEFT

#: The least time between two messages about one run's training, as much as people see: each takes a
#: millisecond, of who sends it and of who reads it.
_EVERY = 0.5


@dataclass(frozen=True)
class Order:
    """All that a worker needs to know; ``command`` is what the process that starts it was started with."""

    config: Config
    plugins: list[str]
    command: list[str]
    sharing: int = 0  #: workers that may share its machine, where that may be another


def serve() -> None:
    """Be a worker: do the runs that are given, until there are no more or it is time to leave."""
    channel = _Channel()
    try:
        order: Order = pickle.load(sys.stdin.buffer)
    except EOFError:  # whom it would have worked for is gone
        os._exit(LEFT)
    sys.argv = order.command
    for number in (signal.SIGTERM, getattr(signal, "SIGUSR1", signal.SIGTERM)):
        signal.signal(number, _Leaving())
    code = 0
    try:
        _work(order, channel, _replies())
    except (KeyboardInterrupt, BrokenPipeError):  # or whom it works for is gone
        code = LEFT
    except (OpenCILError, OSError) as error:
        _Leaving.seen = True  # whom it works for lets all workers go as soon as one refuses
        channel.send(
            Refuses(portable(error if isinstance(error, OpenCILError) else OpenCILError(str(error))))
        )
    except BaseException:
        traceback.print_exc()
        code = 1
    # All is stored. Python would first wait for the thread that reads standard input.
    os._exit(code)


def _work(order: Order, channel: "_Channel", replies: "SimpleQueue[Assignment | None]") -> None:
    from opencil.runs.runner import work

    if order.sharing:
        order = replace(
            order, config=replace(order.config, place=with_share(order.config.place, order.sharing))
        )
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
            if order.sharing:
                _require_shared(Path(order.config.place.runs) / run.spec.folder)
            yield run

    telling = _Telling(every_epoch=order.config.place.tensorboard is not None)
    device = resolve_device(order.config.place.device)
    with closing(work(order.config, device, given(), prepared)) as events:
        for event in events:
            if (told := telling(event)) is not None:
                channel.send(told)


def _require_shared(folder: Path) -> None:
    """Refuse to store a run where only this machine would find it: its folder was made by who gives it."""
    if not folder.is_dir():
        raise BadInput(
            f"there is no folder {folder.absolute()}, which was made for a run: machines that share a grid "
            "need the folder of runs on a file system that all of them see, at the same path"
        )


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
    """Events as another process can have them: few, and without what lives on a device.

    Of trainings where they are now and then, and ends of epochs as often, or of ``every_epoch``.
    """

    def __init__(self, every_epoch: bool) -> None:
        self._every_epoch = every_epoch
        self._told: dict[tuple[Path, bool], float] = {}  # when last, and when last of an epoch's end

    def __call__(self, event: Event) -> Event | None:
        if isinstance(event, Failed):
            return replace(event, error=portable(event.error))
        if not isinstance(event, Training):
            return event
        p, now = event.progress, time.monotonic()
        of, ends = event.run.folder, p.epoch_ends
        if now < self._told.get((of, ends), 0.0) + _EVERY and not (ends and self._every_epoch):
            return None
        self._told[of, False] = self._told[of, ends] = now
        # The loss is read where an epoch ends, where the training has waited for the device anyway.
        loss, total = (float(tensor) if p.epoch_ends else 0.0 for tensor in (p.loss, p.total))
        told = replace(p, loss=torch.tensor(loss), total=torch.tensor(total), state=dict)
        return replace(event, progress=told)
