r"""Methods with the peculiarities of the paper's released code, to see what these do: `opencil` with them in.

    python experiments/as_released.py run --benchmark cifar100 --data-root ROOT --cil bic,bic_released \
        --detector msp,energy --seed 0 --pack 2
    python experiments/as_released.py run --cil icarl --detector augmix,augmix_released,npos,npos_released ...

The paper and its code differ in places, and we do what the paper says. These variants are for comparisons in
results/README.md and no part of the package. They are written from a description of that code, not from the
code. The released AugMix takes, of memory images, the augmented views 1, 2 and 2 again, where it should take
the clean one and both; NPOS keeps perturbations by indices of others, which is as good as at random.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil import register_detector, register_learner
from opencil.cil.bic import BiC
from opencil.cil.learner import Task
from opencil.cli import main
from opencil.detectors.finetune import augmix, npos
from opencil.detectors.finetune.tuner import Batch, Extra
from opencil.engine.loop import Stage
from opencil.validation import NonNegative


@register_learner("bic_released")
@dataclass(frozen=True)
class ReleasedBiC(BiC):
    """BiC whose correction is fitted to softmax outputs, with decay, while batch norm trains."""

    double_softmax: bool = True
    batch_norm_trains: bool = True
    decay: NonNegative = 2e-4

    def stages(self, task: Task) -> Iterator[Stage]:
        """BiC's, the correcting one changed."""
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


@register_detector("augmix_released")
@dataclass
class ReleasedAugMix(augmix.AugMix):
    """AugMix that sees memory images in two augmented views, the second of them twice, and never clean."""

    released: bool = True

    def loss(self, extra: Extra, batch: Batch) -> Tensor:
        """AugMix's, with views 1, 2, 2 of the memory in place of clean, 1, 2."""
        if batch.memory is None:
            return super().loss(extra, batch)
        (made,) = batch.drawn
        z = extra(batch.source.features(made)).unflatten(0, (2, 2, -1))  # [view, part, B, classes]
        of_current = [extra(batch.current.features), z[0, 0], z[1, 0]]
        total = z.new_zeros(())
        for views, labels in (
            (of_current, batch.current.labels),
            ([z[0, 1], z[1, 1], z[1, 1]], batch.memory.labels),
        ):
            consistency = augmix.divergence(torch.stack(views))
            total = total + F.cross_entropy(views[0], labels) + self.weight * consistency
        return total


@register_detector("npos_released")
@dataclass
class ReleasedNPOS(npos.NPOS):
    """NPOS that keeps perturbations whatever their distance from the class."""

    released: bool = True

    def _outliers(self, features: Tensor, numbers: torch.Generator) -> Tensor:
        every = replace(self, kept=self.perturbations)
        made = npos.NPOS._outliers(every, features, numbers)  # all of them, the farthest first
        shape = (-1, self.perturbations, features.shape[-1])
        chance = torch.rand(made.view(shape).shape[:2], generator=numbers, device=made.device)
        kept = chance.topk(self.kept, dim=1).indices
        return made.view(shape).gather(1, kept[..., None].expand(-1, -1, shape[-1])).flatten(0, 1)


# What a tuner draws follows from its name: these draw what ours do, so that nothing else differs. Their
# value ``released`` tells their heads from ours.
ReleasedAugMix.trained_as = property(lambda _: "augmix")
ReleasedNPOS.trained_as = property(lambda _: "npos")


if __name__ == "__main__":
    main()
