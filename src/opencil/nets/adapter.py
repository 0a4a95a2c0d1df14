"""Networks from elsewhere as backbones: any module, and those of timm."""

import importlib
from typing import Any

from torch import Tensor, nn

from opencil.errors import BadInput, nearest
from opencil.nets.model import Backbone
from opencil.registry import register_backbone


class AdaptedBackbone(Backbone):
    """A module as a backbone: one that gives features [B, D], or maps [B, C, H, W] whose means are taken.

    Of one that ends in a classifier, ``forward_features`` is called and then, where there is one,
    ``forward_head(…, pre_logits=True)``; ``forward_intermediates`` gives the maps of the stages. These are
    the names that timm's models have. ``width`` is D; a module with ``num_features`` need not be told.
    """

    def __init__(self, network: nn.Module, width: int | None = None) -> None:
        super().__init__()
        self.network = network
        # timm: what a head reads where something stands between the last stage and the classifier.
        width = width or getattr(network, "head_hidden_size", None) or getattr(network, "num_features", None)
        if not isinstance(width, int):
            raise BadInput(
                f"{type(network).__name__} does not say how many features it gives: AdaptedBackbone needs "
                "its width"
            )
        self.width = width

    @property
    def weighted(self) -> nn.Module:
        """The module: a file of its weights knows nothing of the adapter."""
        return self.network

    def forward(self, images: Tensor) -> Tensor:
        """[B, 3, H, W] to [B, width]."""
        network: Any = self.network
        if hasattr(network, "forward_features"):
            return self._pooled(network.forward_features(images))
        found: Tensor = network(images)
        return found.mean(dim=(2, 3)) if found.ndim == 4 else found

    def _pooled(self, last: Tensor) -> Tensor:
        """Features of what ``forward_features`` gives."""
        network: Any = self.network
        if hasattr(network, "forward_head"):
            last = network.forward_head(last, pre_logits=True)
        return last.mean(dim=(2, 3)) if last.ndim == 4 else last

    def features_and_maps(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Both of one pass, where the module has ``forward_intermediates``."""
        network: Any = self.network
        if not hasattr(network, "forward_intermediates"):
            return super().features_and_maps(images)
        last, maps = network.forward_intermediates(images)
        return self._pooled(last), list(maps)

    def maps(self, images: Tensor) -> list[Tensor]:
        """What ``forward_intermediates`` gives, [B, C, H, W] each."""
        network: Any = self.network
        if not hasattr(network, "forward_intermediates"):
            return super().maps(images)
        return list(network.forward_intermediates(images, intermediates_only=True))


@register_backbone("timm")
class Timm(AdaptedBackbone):
    """A network of timm's, by its name there (`model`); other values go to timm.create_model."""

    def __init__(self, model: str, **values: Any) -> None:
        try:
            timm = importlib.import_module("timm")
        except ImportError:
            raise BadInput("backbone 'timm' needs a package: pip install 'opencil[timm]'") from None
        if values.get("pretrained"):
            raise BadInput(
                "backbone.pretrained is not allowed: weights come from a file, whose checksum is recorded; "
                "backbone.weights names it"
            )
        try:
            network = timm.create_model(model, num_classes=0, **values)
        except (RuntimeError, TypeError, ValueError) as error:
            known = timm.list_models()
            hint = "" if model in known else nearest(model, known)
            raise BadInput(f"timm cannot make {model!r} of {values}: {error}{hint}") from error
        super().__init__(network)
