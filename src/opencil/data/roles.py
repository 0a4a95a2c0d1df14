"""What an evaluation set is to a model: OOD that lies near or far, or ID that has shifted."""

from typing import Final, Literal

Role = Literal["near", "far", "shifted"]
#: The roles of OOD sets, as the paper's tables have them.
OOD_ROLES: Final[tuple[Role, ...]] = ("near", "far")
#: ID images under a covariate shift: no average of OOD sets has them.
SHIFTED: Final[Role] = "shifted"
ROLES: Final = (*OOD_ROLES, SHIFTED)
#: The name of the average over all OOD sets, beside those over the sets of a role.
ALL: Final = "all"
