"""What a detector is: set up on training outputs (where it needs that), then a score for each sample."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from opencil.engine.forward import Outputs
from opencil.errors import BadInput
from opencil.validation import Values

Reads = Literal["logits", "features"]


@dataclass
class Detector(Values, ABC):
    """Scores samples; a larger score is more in-distribution, in every detector.

    A subclass is a dataclass whose fields are its config values. It says what it ``reads``, implements
    ``scores`` and, where it ``needs_setup``, ``set_up``. Users call ``fit`` and ``score``, which check the
    tensors.
    """

    reads: ClassVar[frozenset[Reads]]
    needs_setup: ClassVar[bool] = False

    @abstractmethod
    def scores(self, outputs: Outputs) -> Tensor:
        """Score of each sample, float32 [N]."""

    def set_up(self, outputs: Outputs) -> None:
        """Learn from the outputs of training images; keep what is learned on ``self``."""

    def fit(
        self, features: Tensor | Outputs, logits: Tensor | None = None, labels: Tensor | None = None
    ) -> Self:
        """Set up on training samples: ``Outputs``, or features [N, D], logits [N, C] and labels [N]."""
        self.set_up(self._checked(features, logits, labels))
        self._is_set_up = True
        return self

    @torch.no_grad()
    def score(self, features: Tensor | Outputs | None = None, logits: Tensor | None = None) -> Tensor:
        """Score of each sample, float32 [N]: ``Outputs``, or features [N, D] and logits [N, C]."""
        if self.needs_setup and not getattr(self, "_is_set_up", False):
            raise BadInput(f"{type(self).__name__} has not been set up: call fit on training samples first")
        return self.scores(self._checked(features, logits)).float()

    def _checked(
        self, features: Tensor | Outputs | None, logits: Tensor | None, labels: Tensor | None = None
    ) -> Outputs:
        """Tensors as ``Outputs``: present where they are read, of fitting shapes, finite."""
        if isinstance(features, Outputs):
            outputs = features
            features, logits, labels = outputs.features, outputs.logits, outputs.labels
        given = {"features": features, "logits": logits}
        rows = {len(t) for t in (features, logits, labels) if t is not None}
        for name, tensor in given.items():
            if tensor is None:
                if name in self.reads:
                    raise BadInput(f"{type(self).__name__} reads {name}, which are missing")
                continue
            shape = list(tensor.shape)
            if tensor.ndim != 2 or not tensor.is_floating_point() or 0 in shape or len(rows) > 1:
                raise BadInput(
                    f"{name} are {tensor.dtype} {shape}: a floating-point matrix is needed, "
                    f"with the same number of rows, at least 1, for features, logits and labels"
                )
            if name in self.reads and not torch.isfinite(tensor).all():
                bad = int((~torch.isfinite(tensor)).any(dim=1).nonzero()[0])
                raise BadInput(
                    f"{name} of sample {bad} are not finite: {type(self).__name__} cannot score them"
                )
        nothing = torch.empty(rows.pop(), 0)
        return Outputs(
            nothing if features is None else features.float(),
            nothing if logits is None else logits.float(),
            labels,
        )


@dataclass
class LogitDetector(Detector):
    """A detector that reads logits alone and needs no set-up."""

    reads: ClassVar[frozenset[Reads]] = frozenset({"logits"})
