"""The embedded benchmark's datasets."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits, load_sample_images

from opencil.data.digits import Digits, HeldOutDigits, Noise, PhotoPatches
from opencil.data.images import Dataset, ImageSet
from opencil.errors import BadInput
from opencil.registry import DATASETS

ALL = [Digits(), HeldOutDigits(), PhotoPatches(), Noise()]


def load(dataset: Dataset, split: str = "test") -> ImageSet:
    return dataset.load(split, 8, None)  # type: ignore[arg-type]


def grey(pixels: "np.ndarray") -> torch.Tensor:
    """scikit-learn's 0 … 16 as bytes, three equal channels."""
    rounded = torch.tensor([[round(v * 255 / 16) for v in row] for row in pixels.tolist()], dtype=torch.uint8)
    return rounded.expand(3, 8, 8)


@pytest.mark.parametrize(
    ("dataset", "split", "counts"),
    [
        (Digits(), "train", [119, 122, 118, 122, 121, 122, 121, 120]),
        (Digits(), "test", [59, 60, 59, 61, 60, 60, 60, 59]),
        (HeldOutDigits(), "test", [174, 180]),
        (PhotoPatches(), "test", [260, 260]),
        (PhotoPatches(patch=64), "test", [60, 60]),
        (Noise(), "test", [500]),
        (Noise(count=7), "test", [7]),
    ],
)
def test_counts_per_class(dataset: Dataset, split: str, counts: list[int]) -> None:
    assert torch.bincount(load(dataset, split).labels).tolist() == counts


@pytest.mark.parametrize("dataset", ALL, ids=lambda d: type(d).__name__)
def test_images_are_bytes_in_rgb(dataset: Dataset) -> None:
    images = load(dataset)
    assert images.images.dtype == torch.uint8
    assert images.images.shape[1:] == (3, 8, 8)
    assert int(images.images.max()) > 200
    assert int(images.images.min()) < 50


@pytest.mark.parametrize("dataset", ALL, ids=lambda d: type(d).__name__)
def test_images_are_the_same_every_time(dataset: Dataset) -> None:
    assert torch.equal(load(dataset).images, load(dataset).images)


@pytest.mark.parametrize("dataset", ALL, ids=lambda d: type(d).__name__)
def test_another_image_size_is_refused(dataset: Dataset) -> None:
    with pytest.raises(BadInput, match=r"benchmark.image_size = 32 does not fit .*8 × 8 pixels"):
        dataset.load("test", 32, None)


def test_digits_are_split_without_overlap() -> None:
    """Every image of 0–7, each in one split only, with scikit-learn's pixels and label."""
    source = load_digits()
    known = [(grey(p), int(c)) for p, c in zip(source.images, source.target, strict=True) if c < 8]
    train, test = load(Digits(), "train"), load(Digits(), "test")
    of_class: dict[int, int] = {}
    expected: dict[str, list[tuple[torch.Tensor, int]]] = {"train": [], "test": []}
    for pixels, label in known:  # every third of a class is for testing
        of_class[label] = of_class.get(label, 0) + 1
        expected["test" if of_class[label] % 3 == 0 else "train"].append((pixels, label))
    for split, images in (("train", train), ("test", test)):
        assert torch.equal(images.images, torch.stack([pixels for pixels, _ in expected[split]]))
        assert images.labels.tolist() == [label for _, label in expected[split]]
    assert len(train) + len(test) == len(known)

    def distinct(images: ImageSet) -> set[bytes]:
        return {image.numpy().tobytes() for image in images.images}

    assert not distinct(train) & distinct(test)


def test_held_out_digits_are_the_eights_and_nines() -> None:
    source = load_digits()
    chosen = [(grey(p), int(c) - 8) for p, c in zip(source.images, source.target, strict=True) if c >= 8]
    held_out = load(HeldOutDigits())
    assert torch.equal(held_out.images, torch.stack([pixels for pixels, _ in chosen]))
    assert held_out.labels.tolist() == [label for _, label in chosen]


@pytest.mark.parametrize("patch", [32, 40])
def test_patches_are_block_means_of_the_photographs(patch: int) -> None:
    """A naive mean for a few pixels of many patches; patches in reading order, the temple's first."""
    images, cell = load(PhotoPatches(patch=patch)), patch // 8
    places = [
        (label, photo, y, x)
        for label, photo in enumerate(load_sample_images().images)
        for y in range(0, photo.shape[0] - patch + 1, patch)
        for x in range(0, photo.shape[1] - patch + 1, patch)
    ]
    assert images.labels.tolist() == [label for label, *_ in places]
    for index in range(0, len(places), 7):
        _, photo, y, x = places[index]
        for row, column, channel in [(0, 0, 0), (7, 7, 2), (3, 5, 1), (6, 1, 0)]:
            total = sum(
                int(photo[y + row * cell + i, x + column * cell + j, channel])
                for i in range(cell)
                for j in range(cell)
            )
            assert int(images.images[index, channel, row, column]) == round(total / cell**2)


def test_patches_keep_the_colours() -> None:
    images = load(PhotoPatches()).images
    assert not torch.equal(images[:, 0], images[:, 2])


def test_patches_of_a_size_that_does_not_divide_are_refused() -> None:
    with pytest.raises(BadInput, match="patch = 20 is not allowed: it should be a multiple of 8"):
        load(PhotoPatches(patch=20))


def test_noise_is_grey_uniform_and_follows_its_seed() -> None:
    noise = load(Noise(seed=3)).images
    assert torch.equal(noise, load(Noise(seed=3)).images)
    assert not torch.equal(noise, load(Noise(seed=4)).images)
    assert torch.equal(noise[:, 0], noise[:, 1])
    assert torch.equal(noise[:, 0], noise[:, 2])
    values = noise[:, 0].flatten()
    assert set(values.tolist()) == set(range(256))
    assert abs(float(values.float().mean()) - 127.5) < 2  # 32,000 values: standard error .4


def test_noise_does_not_depend_on_global_state() -> None:
    np.random.seed(0)  # noqa: NPY002 on purpose the global generator
    first = load(Noise()).images
    np.random.seed(1)  # noqa: NPY002
    assert torch.equal(first, load(Noise()).images)


def test_the_number_of_classes_is_known_before_loading() -> None:
    assert Digits.classes == int(load(Digits(), "train").labels.max()) + 1


@pytest.mark.parametrize("name", ["digits", "digits-held-out", "photo-patches", "noise"])
def test_datasets_are_registered_with_a_sentence(name: str) -> None:
    assert DATASETS.entry(name).about
    assert load(DATASETS.create(name)).name == name


@pytest.mark.parametrize("dataset", [Digits(), HeldOutDigits(), PhotoPatches()])
def test_another_release_may_have_its_files_elsewhere(
    monkeypatch: pytest.MonkeyPatch, dataset: Dataset
) -> None:
    """They are then read by scikit-learn's own functions."""
    there = load(dataset)
    monkeypatch.setattr("opencil.data.digits._inside", lambda path: Path("nowhere", path))
    elsewhere = load(dataset)
    assert torch.equal(elsewhere.images, there.images)
    assert torch.equal(elsewhere.labels, there.labels)


def test_images_are_read_without_importing_scikit_learn() -> None:
    code = "import opencil, sys; opencil.benchmark('digits'); print('sklearn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
