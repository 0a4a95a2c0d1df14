"""RanPAC: random projections."""

from dataclasses import dataclass

from opencil import Paper, register_learner
from opencil.cil.analytic import EQUATION, Analytic
from opencil.nets.random_features import Drawn


@register_learner(
    "ranpac",
    paper=Paper(
        "RanPAC: Random Projections and Pre-trained Models for Continual Learning", 2023, "2307.02251"
    ),
)
@dataclass(frozen=True)
class RanPAC(Analytic):
    """Ridge regression on random features; its strength is chosen at every step, on held-out new images."""

    equation = EQUATION
    differs = (
        "Its backbone is pretrained, and at step 1 some added parameters are tuned, under a cosine head; "
        "here under a linear one. `@published` has its values, for 768 features. By default the whole "
        "backbone is trained at step 1, from scratch or from a file of weights, unless it is frozen. Up to "
        "64 features have 2,000 random ones; more are scaled to length 1 and have up to 10,000."
    )
    named = {"published": {"width": 10_000, "first": {"epochs": 20, "lr": 0.01}}}

    drawn: Drawn = "normal"
