"""Joint training, the upper bound of Fig. 1a."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from opencil import Memory, Model, Schedule, Setting, Step, register_learner
from opencil.cil.replay import Replay


@register_learner("joint")
@dataclass(frozen=True)
class Joint(Replay):
    """A new model at every step, trained on all data of all classes seen: the upper bound."""

    family = "bounds"
    equation = r"L = \text{CE}(z, y) \text{ on all classes seen}"

    remembers = False

    later: Schedule = Replay.first

    def training_set(self, setting: Setting, step: Step, memory: Memory) -> Tensor:
        """Return the indices of all training images of all classes seen."""
        return (setting.images.labels.cpu() < step.seen).nonzero().flatten()

    def successor(self, setting: Setting, step: Step, previous: Any) -> Model:
        """Return an untrained model."""
        return self.blank(setting, step)
