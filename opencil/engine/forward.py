"""One forward pass of a model over images: what herding, detectors and accuracy all read."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from opencil.data.images import Images
from opencil.data.transforms import Transform
from opencil.nets.model import Classifier


@dataclass(frozen=True)
class Outputs:
    """Features f [N, D], logits z [N, classes] and, where there are any, labels [N]."""

    features: Tensor
    logits: Tensor
    labels: Tensor | None = None

    def __len__(self) -> int:
        return len(self.logits)


@torch.no_grad()
def forward(
    model: Classifier,
    images: Images,
    transform: Transform,
    indices: Tensor | None = None,
    batch_size: int = 512,
) -> Outputs:
    """Outputs in float32 of the chosen images (default: all): test transform, model in eval mode."""
    if isinstance(model, nn.Module):
        model.eval()
    chosen = (torch.arange(len(images)) if indices is None else indices).to(images.device)
    features, logits = [], []
    for pixels in images.batches(chosen, batch_size):
        f = model.features(transform.test(pixels))
        features.append(f.float())
        logits.append(model.classify(f).float())
    return Outputs(torch.cat(features), torch.cat(logits), images.labels[chosen])
