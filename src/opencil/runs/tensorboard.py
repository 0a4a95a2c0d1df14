"""Training curves for TensorBoard: the loss and the learning rate of every stage of every step, by epoch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opencil.errors import BadInput
from opencil.runs.events import Event, Failed, Finished, Training


@contextmanager
def training_curves(folder: str | None) -> Iterator[Callable[[Event], None]]:
    """Yield a function of events: it writes their curves below a folder, as ``folder/RUN``.

    Without a folder it does nothing. The loss is read once an epoch, where training has waited for the device
    anyway; a resumed run adds to its curves.
    """
    if folder is None:
        yield lambda _: None
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise BadInput("place.tensorboard needs a package: pip install 'opencil[tensorboard]'") from None
    writers: dict[str, Any] = {}

    def write(event: Event) -> None:
        name = str(event.run)
        if isinstance(event, Training) and event.progress.epoch_ends:
            if name not in writers:
                writers[name] = SummaryWriter(str(Path(folder) / name))
            p, where = event.progress, f"step{event.step:02d}/{event.progress.stage}"
            writers[name].add_scalar(f"{where}/loss", p.mean_loss, p.epoch)
            writers[name].add_scalar(f"{where}/learning rate", p.lr, p.epoch)
        elif isinstance(event, (Finished, Failed)) and name in writers:
            writers.pop(name).close()  # a grid has many runs: no more files are open than runs are active

    try:
        yield write
    finally:
        for writer in writers.values():
            writer.close()
