"""Log to Weights & Biases, as its own variables say: $WANDB_PROJECT, $WANDB_MODE=offline, $WANDB_DIR."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from opencil.config import PlaceConfig
from opencil.runs.loggers import Log, identify, missing_package
from opencil.runs.spec import RunSpec


@dataclass
class WandbLog:
    """A run of W&B; its own count of steps is not used, since resumed runs would fall behind it."""

    run: Any
    known: set[str] = field(default_factory=set)

    def write(self, values: dict[str, float], axis: str, at: int) -> None:
        """Write values, and the axis beside them."""
        for name in values.keys() - self.known:
            self.run.define_metric(name, step_metric=axis)
        self.known |= values.keys()
        self.run.log({**values, axis: at})

    def close(self, failed: bool) -> None:
        """End the run."""
        self.run.finish(exit_code=int(failed))


def connect(place: PlaceConfig) -> Callable[[RunSpec], Log]:
    """Return a function that opens the log of a run."""
    try:
        import wandb
    except ImportError:
        raise missing_package("wandb") from None

    def open_log(spec: RunSpec) -> Log:
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "opencil"),
            name=str(spec),
            id=identify(place, spec),
            resume="allow",
            reinit="create_new",  # several runs are under way at once
            config=spec.record(),
            settings=wandb.Settings(console="off"),
        )
        return WandbLog(run)

    return open_log
