"""ACIL: analytic class-incremental learning."""

from dataclasses import dataclass

from opencil import Paper, Schedule, register_learner
from opencil.cil.analytic import EQUATION, Analytic
from opencil.validation import Positive


@register_learner(
    "acil",
    paper=Paper(
        "ACIL: Analytic Class-Incremental Learning with Absolute Memorization and Privacy Protection",
        2022,
        "2205.14922",
    ),
)
@dataclass(frozen=True)
class ACIL(Analytic):
    """Ridge regression on random features, of constant strength."""

    equation = EQUATION
    differs = (
        "Its authors store an inverse matrix and W, and update both; here the sums that they follow from are "
        "stored: the same to rounding. Their 8,192 random features (`@published`) take 512 MiB of every "
        "step's file, the default of 10,000 for 1,280 features 760 MiB. More than 64 features are scaled to "
        "length 1. Step 1 has PyCIL's schedule; theirs is 300 epochs of batches of 256 from a rate of 0.5."
    )
    named = {"published": {"width": 8192}}

    first: Schedule = Schedule(epochs=160, lr=0.1, milestones=(120, 140), weight_decay=5e-4)
    ridge: Positive | None = 0.1
