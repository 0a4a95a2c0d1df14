"""Training curves for TensorBoard: the loss and the learning rate of every stage of every step, by epoch."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from opencil.errors import BadInput
from opencil.runs.events import Event, Failed, Finished, Training
from opencil.runs.plan import RunSpec


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
    with ExitStack() as stack:
        writers: dict[str, Any] = {}

        def open_writer(run: RunSpec) -> Any:
            from torch.utils.tensorboard import SummaryWriter

            return stack.enter_context(closing(SummaryWriter(str(Path(folder) / str(run)))))

        def write(event: Event) -> None:
            name = str(event.run)
            if isinstance(event, Training) and event.progress.epoch_ends:
                if name not in writers:
                    writers[name] = open_writer(event.run)
                writer, p = writers[name], event.progress
                where = f"step{event.step:02d}/{p.stage}"
                writer.add_scalar(f"{where}/loss", p.mean_loss, p.epoch)
                writer.add_scalar(f"{where}/learning rate", p.lr, p.epoch)
            elif isinstance(event, (Finished, Failed)) and name in writers:
                writers.pop(name).close()  # a grid has many runs: no more files are open than runs are active

        yield write
