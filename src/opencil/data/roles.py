"""Roles of evaluation sets: near OOD, far OOD, shifted ID, or classes of later steps."""

from typing import Final, Literal

Role = Literal["near", "far", "shifted", "future"]
#: Roles of OOD sets, in the order of the paper's tables.
OOD_ROLES: Final[tuple[Role, ...]] = ("near", "far")
#: ID images under a covariate shift; they are in no average over OOD sets.
SHIFTED: Final[Role] = "shifted"
#: Roles of the sets that a benchmark names.
ROLES: Final = (*OOD_ROLES, SHIFTED)
#: Test images of classes of later steps, the name of this set too; they are in no average over OOD sets.
FUTURE: Final[Role] = "future"
#: Name of the average over all OOD sets.
ALL: Final = "all"
