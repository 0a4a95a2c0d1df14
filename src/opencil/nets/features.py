"""A backbone for features that were computed beforehand."""

from typing import Any

from torch import Tensor

from opencil.errors import BadInput
from opencil.nets.model import Backbone


class StoredFeatures(Backbone):
    """Pass features of a frozen network on, which come as images [B, width, 1, 1].

    ``network_bytes`` is the size of the network that computed them; the model is a head beside it.
    """

    frozen = True

    def __init__(self, width: int, network_bytes: int = 0) -> None:
        super().__init__()
        self.width, self.network_bytes = width, network_bytes

    def forward(self, images: Tensor) -> Tensor:
        """Return features [B, width]."""
        return images.flatten(1)

    def maps(self, images: Tensor) -> list[Tensor]:
        """Refuse: the network's stages are not stored."""
        raise _without_stages()

    def split(self) -> Any:
        """Refuse: the network's stages are not stored."""
        raise _without_stages()


def _without_stages() -> BadInput:
    return BadInput("features are stored without the network's stages: see backbone.recompute = true")
