"""SimpleCIL: class means under a cosine head."""

from dataclasses import dataclass

import torch

from opencil import Model, Paper, Schedule, Setting, Step, Task, register_learner
from opencil.cil.trained_once import TrainedOnce
from opencil.nets.cosine import CosineModel


@register_learner(
    "simplecil",
    paper=Paper(
        "Revisiting Class-Incremental Learning with Pre-Trained Models: Generalizability and Adaptivity are "
        "All You Need",
        2024,
        "2303.07338",
    ),
)
@dataclass(frozen=True)
class SimpleCIL(TrainedOnce):
    """A cosine head whose rows are class means; after step 1, or on a frozen backbone, nothing is trained."""

    equation = (
        r"L = \text{CE}(z, y) \text{ at step 1} \\ z_c = \sigma \cos(\varphi, w_c) \\ w_c \leftarrow \mu_c"
    )
    differs = (
        "The paper's backbone is pretrained: name a file of weights in `benchmark.backbone`, with "
        "`freeze: true`. A backbone that is not frozen is trained at step 1, as in PyCIL's copy, whose "
        "network has no ReLU at its end (`signed: true`). $`\\sigma`$ stays as trained at step 1; with a "
        "frozen backbone it is 1."
    )

    linear = False

    first: Schedule = Schedule(epochs=200, lr=0.01, decay="cosine", weight_decay=5e-4)

    def blank(self, setting: Setting, step: Step) -> Model:
        """Return a model with a cosine head."""
        return CosineModel(setting.new_backbone(), step.sizes)

    @torch.no_grad()
    def fit(self, task: Task) -> None:
        """Set the new classes' rows to their mean features."""
        task.model.head.rows[-1].copy_(torch.stack([f.mean(dim=0) for f in task.new_features()]))
