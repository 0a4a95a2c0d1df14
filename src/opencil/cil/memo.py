"""MEMO: memory-efficient expandable model."""

import copy
from dataclasses import dataclass

from opencil import Model, Paper, Setting, Step, register_learner
from opencil.cil.der import DER
from opencil.nets.growing import GrownModel

PAPER = Paper(
    "A Model or 603 Exemplars: Towards Memory-Efficient Class-Incremental Learning", 2023, "2205.13218"
)


@register_learner("memo", paper=PAPER)
@dataclass(frozen=True)
class MEMO(DER):
    """DER of the network's last stage only; the stages before it are shared, and continue to train."""

    equation = DER.equation
    differs = (
        "Frozen last stages read maps that still change, by weights and batch norm, as in PyCIL "
        "(`train_base`)."
    )

    needs_images = True

    def blank(self, setting: Setting, step: Step) -> Model:
        """Return a model with the shared stages, and a last stage for each step so far."""
        shared, newest = setting.new_backbone().split()
        older = [copy.deepcopy(newest) for _ in range(step.number - 1)]
        return GrownModel(older, newest, step.seen, step.new, shared=shared)
