"""FSA-FiLM: first-session adaptation of scales and shifts."""

from dataclasses import dataclass

from torch import nn

from opencil import BadInput, Model, register_learner
from opencil.cil.fsa import FSA, PAPER

#: Layers with a scale and a shift of each channel.
_NORMS = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm)


@register_learner("fsa-film", paper=PAPER)
@dataclass(frozen=True)
class FSAFiLM(FSA):
    """As FSA, but at step 1 only the scales and shifts of normalisation layers are tuned."""

    title = "FSA-FiLM"
    equation = FSA.equation
    differs = (
        f"{FSA.differs} The scales and shifts are the normalisation layers' own, whose running statistics "
        "stay, in place of new ones after these layers: the same function."
    )

    def trained_part(self, model: Model) -> nn.Module:
        """Return the head, with the scales and shifts: the other layers stay in evaluation mode."""
        tuned = [p for m in model.backbone.modules() if isinstance(m, _NORMS) for p in m.parameters()]
        if not tuned:
            raise BadInput("FSA-FiLM tunes scales and shifts of normalisation: the backbone has none")
        model.backbone.requires_grad_(False)
        return nn.ModuleList([model.head, nn.ParameterList(p.requires_grad_(True) for p in tuned)])
