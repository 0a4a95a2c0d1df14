"""Make small image sets with different pixels in each image."""

from collections.abc import Callable, Sequence

import pytest
import torch

from opencil.data.images import ImageSet


@pytest.fixture(scope="session")
def make_images() -> Callable[..., ImageSet]:
    """Make a set with a random image for each label."""

    def make(labels: Sequence[int], side: int = 4, name: str = "toy") -> ImageSet:
        pixels = torch.Generator().manual_seed(len(labels))
        images = torch.randint(0, 256, (len(labels), 3, side, side), generator=pixels, dtype=torch.uint8)
        return ImageSet(name, images, torch.tensor(labels, dtype=torch.int64))

    return make
