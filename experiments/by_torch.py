r"""Plugin: ResNet-32 in torch's own operations, to compare accuracies with those of the project's kernels.

    RUN="opencil run --benchmark cifar100 --data-root ROOT --classes-per-step 100 --cil finetune \
        --detector msp --seed 0,1,2,3,4,5 --epochs-scale 0.15 --pack 6"
    $RUN --runs ours
    $RUN --runs torch --plugin experiments/by_torch.py --set benchmark.backbone=resnet32_by_torch \
        --set training.compile=true

All classes in one step: single trainings with about the iterations of a step of ten classes, the same images
in the same order, and 10,000 test images. Later steps would enlarge small differences.
"""

from torch import Tensor

from opencil import register_backbone
from opencil.nets.resnet import ResNet, resnet32


class ByTorch(ResNet):
    """A residual network that never uses the project's kernels."""

    def has_kernels_for(self, images: Tensor) -> bool:
        """Return False on every device."""
        return False


@register_backbone("resnet32_by_torch")
def resnet32_by_torch() -> ResNet:
    """Return the layers of ResNet-32 with the same initial weights."""
    network = resnet32()
    return ByTorch(network.stem, list(network.blocks), network.per_stage)
