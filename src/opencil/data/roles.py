"""Roles of evaluation sets: near OOD, far OOD, or shifted ID."""

from typing import Final, Literal

Role = Literal["near", "far", "shifted"]
#: Roles of OOD sets, in the order of the paper's tables.
OOD_ROLES: Final[tuple[Role, ...]] = ("near", "far")
#: ID images under a covariate shift; they are in no average over OOD sets.
SHIFTED: Final[Role] = "shifted"
ROLES: Final = (*OOD_ROLES, SHIFTED)
#: Name of the average over all OOD sets.
ALL: Final = "all"
