"""Log into a folder for TensorBoard: ``place.tensorboard``, by default ``tensorboard``."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opencil.config import PlaceConfig
from opencil.runs.loggers import Log, missing_package
from opencil.runs.spec import RunSpec


@dataclass
class TensorBoardLog:
    """The log of a run, in a folder of its name."""

    writer: Any

    def write(self, values: dict[str, float], axis: str, at: int) -> None:
        """Write values; a scalar has one axis."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, at)

    def close(self, failed: bool) -> None:
        """Close its file."""
        self.writer.close()


def connect(place: PlaceConfig) -> Callable[[RunSpec], Log]:
    """Return a function that opens the log of a run."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise missing_package("tensorboard") from None
    folder = Path(place.tensorboard or "tensorboard")
    return lambda spec: TensorBoardLog(SummaryWriter(str(folder / spec.folder)))
