"""Backbones made of other networks: any module, and timm's."""

import importlib
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from opencil.errors import BadInput, nearest
from opencil.nets.model import Backbone
from opencil.nets.published import as_transform
from opencil.registry import register_backbone


class AdaptedBackbone(Backbone):
    """A backbone made of a module from images to features [B, D], or to maps [B, C, H, W] to be averaged.

    A module with a classifier at its end needs timm's methods: ``forward_features``, optionally
    ``forward_head(…, pre_logits=True)``, and ``forward_intermediates`` for the maps of the stages. ``width``
    is D, by default the module's ``num_features``.
    """

    network: Any

    def __init__(self, network: nn.Module, width: int | None = None) -> None:
        super().__init__()
        self.network = network
        # timm: number of features after layers between the last stage and the classifier.
        width = width or getattr(network, "head_hidden_size", None) or getattr(network, "num_features", None)
        if not isinstance(width, int):
            raise BadInput(f"{type(network).__name__} has no num_features: give AdaptedBackbone a width")
        self.width = width

    @property
    def weighted(self) -> nn.Module:
        """Return the module without the adapter."""
        return self.network  # type: ignore[no-any-return]

    def forward(self, images: Tensor) -> Tensor:
        """Return features [B, width] of images [B, 3, H, W]."""
        return self._pooled(getattr(self.network, "forward_features", self.network)(images))

    def _pooled(self, last: Tensor) -> Tensor:
        """Return features from the output of ``forward_features``, or of a network without a head."""
        if hasattr(self.network, "forward_head"):
            last = self.network.forward_head(last, pre_logits=True)
        return last.mean(dim=(2, 3)) if last.ndim == 4 else last

    def features_and_maps(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return both from one pass, if the module has ``forward_intermediates``."""
        if not hasattr(self.network, "forward_intermediates"):
            return super().features_and_maps(images)
        last, maps = self.network.forward_intermediates(images)
        return self._pooled(last), list(maps)

    def maps(self, images: Tensor) -> list[Tensor]:
        """Return the maps of ``forward_intermediates``, [B, C, H, W] each."""
        if not hasattr(self.network, "forward_intermediates"):
            return super().maps(images)
        return list(self.network.forward_intermediates(images, intermediates_only=True))


@register_backbone("timm")
class Timm(AdaptedBackbone):
    """A network of timm by its name there (`model`), e.g. `pretrained`; values go to timm.create_model."""

    def __init__(self, model: str, **values: Any) -> None:
        timm = _import_timm()
        try:
            network = timm.create_model(model, num_classes=0, **values)
        except (RuntimeError, TypeError, ValueError) as error:
            known = timm.list_models()
            hint = "" if model in known else nearest(model, known)
            raise BadInput(f"timm cannot create {model!r} with {values}: {error}{hint}") from error
        super().__init__(network)

    @staticmethod
    def preprocessing(values: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the preprocessing that timm notes for its pretrained weights."""
        if not values.get("pretrained") or "model" not in values:
            return None
        noted = _import_timm().get_pretrained_cfg(str(values["model"]))
        if noted is None:
            return None
        interpolation = "bicubic" if noted.interpolation == "bicubic" else "bilinear"
        return as_transform(noted.input_size[-1], tuple(noted.mean), tuple(noted.std), interpolation)


def _import_timm() -> Any:
    try:
        return importlib.import_module("timm")
    except ImportError:
        raise BadInput("backbone 'timm' needs a package: pip install 'opencil[timm]'") from None
