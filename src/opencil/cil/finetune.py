"""Fine-tuning without a memory, the lowest bound."""

from dataclasses import dataclass

from opencil import register_learner
from opencil.cil.replay import Replay


@register_learner("finetune")
@dataclass(frozen=True)
class Finetune(Replay):
    """Cross-entropy on the new classes only, without a memory: the lowest bound."""

    family = "bounds"
    equation = r"L = \text{CE}(z, y) \text{ on new classes}"

    remembers = False
    revisits = False
