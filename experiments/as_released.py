r"""Run the command line of OpenCIL with BiC as released beside ours.

    python experiments/as_released.py run --benchmark cifar100 --data-root ROOT --cil bic,bic_released \
        --detector msp,energy --seed 0 --pack 2

The paper and its code differ in places, and the package does as the paper says. The variant is for a
comparison (bic.md). It is written from a description of that code, not from the code.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch.nn.functional as F
from torch import Tensor

import opencil
from opencil.cil.bic import BiC
from opencil.cli import app
from opencil.validation import NonNegative


@opencil.register_learner("bic_released")
@dataclass(frozen=True)
class ReleasedBiC(BiC):
    """BiC whose correction is fitted to softmax outputs, with decay, while batch norm trains."""

    double_softmax: bool = True
    batch_norm_trains: bool = True
    decay: NonNegative = 2e-4

    def stages(self, task: opencil.Task) -> Iterator[opencil.Stage]:
        """Yield BiC's stages with another stage of correction."""
        model = task.model

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(F.softmax(model(images), dim=1), labels)

        for stage in super().stages(task):
            if stage.name == "correct":
                model.train(self.batch_norm_trains)
                schedule = replace(stage.schedule, weight_decay=self.decay)
                stage = replace(stage, loss=loss if self.double_softmax else stage.loss, schedule=schedule)
            yield stage
            model.eval()


if __name__ == "__main__":
    app()
