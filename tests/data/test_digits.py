"""The embedded benchmark's datasets."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits, load_sample_images

from opencil.data.digits import Digits, HeldOutDigits, Noise, PhotoPatches
from opencil.data.images import Dataset, ImageSet
from opencil.errors import BadInput
from opencil.registry import DATASETS


def load(dataset: Dataset, split: str = "test") -> ImageSet:
    return dataset.load(split, 8, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["digits", "digits-held-out", "photo-patches", "noise"])
def test_images_are_bytes_of_one_size_and_always_the_same(name: str) -> None:
    dataset = DATASETS.create(name)
    images = load(dataset)
    assert (images.name, images.images.dtype, images.side) == (name, torch.uint8, 8)
    np.random.seed(1)  # noqa: NPY002 the global generator must not matter
    assert images.fingerprint == load(dataset).fingerprint
    with pytest.raises(BadInput, match=r"benchmark\.image_size"):
        dataset.load("test", 32, None)


def test_digits_are_split_without_overlap() -> None:
    """Every third image of the digits 0–7 is a test image; 8 and 9 are held out."""
    source = load_digits()
    expected: dict[str, list[tuple[torch.Tensor, int]]] = {"train": [], "test": [], "held out": []}
    ranks = [0] * 10
    for image, label in zip(source.images, source.target.tolist(), strict=True):
        rounded = torch.tensor([[round(v * 255 / 16) for v in row] for row in image.tolist()])
        split = "held out" if label >= 8 else "test" if ranks[label] % 3 == 2 else "train"
        ranks[label] += 1
        expected[split].append((rounded.to(torch.uint8).expand(3, 8, 8), label % 8))
    sets = load(Digits(), "train"), load(Digits()), load(HeldOutDigits())
    for images, known in zip(sets, expected.values(), strict=True):
        assert torch.equal(images.images, torch.stack([pixels for pixels, _ in known]))
        assert images.labels.tolist() == [label for _, label in known]
    assert [len(images) for images in sets] == [965, 478, 354]
    assert Digits.classes == 8


def test_patches_are_block_means_of_the_photographs() -> None:
    images, patch, cell = load(PhotoPatches()), 32, 4
    places = [
        (label, photo, y, x)
        for label, photo in enumerate(load_sample_images().images)
        for y in range(0, photo.shape[0] - patch + 1, patch)
        for x in range(0, photo.shape[1] - patch + 1, patch)
    ]
    assert images.labels.tolist() == [label for label, *_ in places]
    assert len(places) == 520
    for index in range(0, len(places), 7):
        _, photo, y, x = places[index]
        for row, column, channel in [(0, 0, 0), (7, 7, 2), (3, 5, 1), (6, 1, 0)]:
            block = photo[y + row * cell :, x + column * cell :, channel][:cell, :cell]
            assert int(images.images[index, channel, row, column]) == round(block.sum().item() / cell**2)


def test_noise_is_grey_uniform_and_drawn_by_its_seed() -> None:
    noise = load(Noise(seed=3)).images
    assert not torch.equal(noise, load(Noise(seed=4)).images)
    assert torch.equal(noise[:, 0], noise[:, 1])
    assert torch.equal(noise[:, 0], noise[:, 2])
    values = noise[:, 0].flatten()
    assert set(values.tolist()) == set(range(256))
    assert abs(float(values.float().mean()) - 127.5) < 2  # 32,000 values: standard error .4


def test_images_are_read_without_importing_scikit_learn() -> None:
    code = "import opencil, sys; opencil.benchmark('digits'); print('sklearn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
