"""Fine-tuning without a memory, the lowest bound."""

from dataclasses import dataclass
from typing import ClassVar

from opencil.cil.replay import Replay
from opencil.registry import register_learner


@register_learner("finetune")
@dataclass(frozen=True)
class Finetune(Replay):
    """Cross-entropy on the new classes only, without a memory: the lowest bound."""

    family: ClassVar[str] = "bounds"
    equation: ClassVar[str] = r"L = \text{CE}(z, y) \text{ on new classes}"

    remembers: ClassVar[bool] = False
    revisits: ClassVar[bool] = False
