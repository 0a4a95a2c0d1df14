"""A class-incremental run on a few real digits, small enough to train in a test."""

import pytest
import torch

from opencil.cil.icarl import ICaRL
from opencil.cil.learner import Setting, Task
from opencil.data.digits import Digits
from opencil.data.images import ImageSet
from opencil.data.memory import Memory
from opencil.data.stream import Stream
from opencil.data.transforms import Transform


def few(images: ImageSet, per_class: int) -> ImageSet:
    """The first images of classes 0–4."""
    chosen = torch.cat([(images.labels == c).nonzero().flatten()[:per_class] for c in range(5)]).sort().values
    return ImageSet(images.name, images.images[chosen], images.labels[chosen])


@pytest.fixture(scope="session")
def stream() -> Stream:
    """Five classes in steps of 2, 2 and 1; eight training images each."""
    train, test = (few(Digits().load(split, 8, None), 8) for split in ("train", "test"))
    return Stream.create(train, test, 2)


@pytest.fixture
def setting(stream: Stream) -> Setting:
    return Setting(
        images=stream.train,
        test_images=stream.test,
        transform=Transform((0.3, 0.3, 0.3), (0.4, 0.4, 0.4), crop=8, padding=1, flip=False),
        backbone="resnet8",
        batch_size=8,
        initialisation_seed=1,
        data_seed=2,
    )


@pytest.fixture
def first(setting: Setting, stream: Stream) -> Task:
    """Step 1, not trained yet; the memory has room for 12 images."""
    return ICaRL().begin(setting, stream[0], Memory(12), None)


@pytest.fixture
def second(setting: Setting, stream: Stream, first: Task) -> Task:
    """Step 2, not trained yet, after a step 1 that was."""
    learner = ICaRL(epochs=2)
    list(learner.learn(first))
    return learner.begin(setting, stream[1], learner.remember(first), first.model)
