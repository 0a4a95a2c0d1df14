r"""ResNet-32 in torch's own operations, which on a GPU would run in kernels of ours: do these lose accuracy?

    RUN="opencil run --benchmark cifar100 --data-root ROOT --classes-per-step 100 --cil finetune \
        --detector msp --seed 0,1,2,3,4,5 --epochs-scale 0.15 --pack 6"
    $RUN --runs ours
    $RUN --runs torch --plugin experiments/by_torch.py --set benchmark.backbone=resnet32_by_torch \
        --set training.compile=true

All classes in one step: a single training of each seed, with about the iterations of a step of ten classes,
the same images in the same order, 10,000 to be right about. What is learned after it, where small differences
grow from step to step, is left out on purpose.
"""

from torch import Tensor

from opencil import register_backbone
from opencil.nets.resnet import ResNet, resnet32


class ByTorch(ResNet):
    """A residual network for which there are no kernels."""

    def has_kernels_for(self, images: Tensor) -> bool:
        """None, wherever the images are."""
        return False


@register_backbone("resnet32_by_torch")
def resnet32_by_torch() -> ResNet:
    """The very layers of ResNet-32, drawn alike."""
    network = resnet32()
    return ByTorch(network.stem, list(network.blocks), network.per_stage)
