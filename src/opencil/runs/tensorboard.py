"""Training curves for TensorBoard: the loss and the learning rate of every stage of every step, by epoch."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from opencil.errors import BadInput
from opencil.runs.events import Event, Failed, Finished, Training
from opencil.runs.plan import RunSpec

_log = logging.getLogger("opencil.runs")


@contextmanager
def training_curves(folder: str | None) -> Iterator[Callable[[Event], None]]:
    """A function that takes a run's events and writes its curves below a folder, as ``folder/RUN``.

    Without a folder it does nothing. The loss is read once an epoch, where training has waited for the device
    anyway; a run that goes on where it stopped adds to its curves.
    """
    if folder is None:
        yield lambda _: None
        return
    if find_spec("tensorboard") is None:
        raise BadInput(
            f"place.tensorboard = {folder!r} is not possible: the package tensorboard is missing; "
            "pip install 'opencil[tensorboard]' brings it"
        )
    writers: dict[str, Any] = {}
    lost = False  # a disk takes no more of them: runs go on without

    def open_writer(run: RunSpec) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(Path(folder) / str(run)))

    @contextmanager
    def going_on() -> Iterator[None]:
        nonlocal lost
        try:
            yield
        except OSError as error:
            if not lost:
                why = os.strerror(error.errno) if error.errno else str(error)
                _log.warning("training curves are not written to %s (%s): runs go on without", folder, why)
            lost = True

    def write(event: Event) -> None:
        name = str(event.run)
        if isinstance(event, Training) and event.progress.epoch_ends and not lost:
            with going_on():
                if name not in writers:
                    writers[name] = open_writer(event.run)
                writer, p = writers[name], event.progress
                where = f"step{event.step:02d}/{p.stage}"
                writer.add_scalar(f"{where}/loss", p.mean_loss, p.epoch)
                writer.add_scalar(f"{where}/learning rate", p.lr, p.epoch)
        elif isinstance(event, (Finished, Failed)) and name in writers:
            with going_on():  # a grid has many runs: no more files are open than runs are active
                writers.pop(name).close()

    try:
        yield write
    finally:
        for writer in writers.values():
            with going_on():
                writer.close()
