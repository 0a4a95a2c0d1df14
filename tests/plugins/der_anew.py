"""DER whose newest backbone begins with fresh weights: a model of ours that grows, from outside."""

import copy
from dataclasses import dataclass
from typing import Any

import opencil
from opencil import Model, Setting, Step
from opencil.cil.der import DER
from opencil.nets.growing import GrownModel


@opencil.register_learner("der-anew")
@dataclass(frozen=True)
class DERAnew(DER):
    """DER with fresh backbones instead of copies."""

    def successor(self, setting: Setting, step: Step, previous: Any) -> Model:
        kept = copy.deepcopy(previous)
        return GrownModel(kept.backbones(), setting.new_backbone(), step.seen, step.new, kept.head)
