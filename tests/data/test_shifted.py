"""Shifted sets: the corruption of each image, and files of CIFAR-100-C."""

from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from opencil.data.corruptions import corrupt_images
from opencil.data.images import ImageSet
from opencil.data.shifted import ShiftedSet
from opencil.errors import BadInput
from opencil.validation import build

COUNT, SIDE = 30, 8


@pytest.fixture
def test() -> ImageSet:
    pixels = np.random.default_rng(0).integers(0, 256, (COUNT, 3, SIDE, SIDE), dtype=np.uint8)
    return ImageSet("t", torch.from_numpy(pixels), torch.arange(COUNT) % 7)


def write(folder: Path, test: ImageSet, **more: Any) -> None:
    """Write files of CIFAR-100-C; all pixels of image i at severity s are 10 s + i."""
    folder.mkdir()
    values = np.concatenate([10 * s + np.arange(COUNT) for s in range(1, 6)]).astype(np.uint8)
    images = np.broadcast_to(values[:, None, None, None], (5 * COUNT, SIDE, SIDE, 3))
    for name in ("fog", "frost"):
        np.save(folder / f"{name}.npy", more.get(name, images))
    np.save(folder / "labels.npy", more.get("labels", np.tile(test.labels.numpy(), 5)))


def test_images_are_corrupted_one_by_one_and_all_pairs_are_equally_frequent(test: ImageSet) -> None:
    kinds = ShiftedSet(("gaussian_noise", "pixelate"), (1, 3, 5), seed=4)
    made = kinds.make("shifted", test, None)
    assert (made.name, made.labels.tolist()) == ("shifted", test.labels.tolist())
    drawn: Counter[tuple[str, int]] = Counter()
    for i, image in enumerate(test.images):
        for name, severity in product(kinds.corruptions, kinds.severities):
            alone = corrupt_images(image[None].numpy(), name, severity, [np.random.default_rng([4, i])])
            drawn[name, severity] += np.array_equal(made.images[i], alone[0])
    assert list(drawn.values()) == [COUNT / 6] * 6
    assert torch.equal(made.images, kinds.make("again", test, None).images)
    assert not torch.equal(made.images, replace(kinds, seed=5).make("other", test, None).images)


def test_files_of_cifar_100_c(test: ImageSet, tmp_path: Path) -> None:
    write(tmp_path / "C", test)
    kinds = ShiftedSet(("fog", "frost"), (1, 4), files="C")
    made = kinds.make("shifted", test, tmp_path)
    severities = [((image.long() - i) / 10).unique().tolist() for i, image in enumerate(made.images)]
    assert sorted(severities) == [[1.0]] * (COUNT // 2) + [[4.0]] * (COUNT // 2)


BAD_FILES: list[tuple[dict[str, Any], str]] = [
    ({"labels": np.zeros(5 * COUNT, int)}, "labels"),
    ({"labels": np.zeros(3)}, r"labels\.npy"),
    ({"fog": np.zeros((5 * COUNT, 4, 4, 3), np.uint8)}, r"fog\.npy"),
    ({"fog": np.zeros((5 * COUNT, SIDE, SIDE, 3))}, r"fog\.npy"),
    ({"fog": np.array([{"a": 1}])}, r"fog\.npy"),
]


@pytest.mark.parametrize(("content", "key"), BAD_FILES)
def test_bad_files(test: ImageSet, tmp_path: Path, content: dict[str, Any], key: str) -> None:
    write(tmp_path / "C", test, **content)
    with pytest.raises(BadInput, match=key):
        ShiftedSet(("fog",), files="C").make("shifted", test, tmp_path)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"corruptions": ["fogg"]}, "'fog'"),
    ({"corruptions": ["frost"]}, "'frost'"),
    ({"corruptions": ["../x"], "files": "C"}, "corruptions"),
    ({"corruptions": []}, "corruptions"),
    ({"severities": [1, 1]}, "severities"),
    ({"severities": [6]}, "severities"),
]


@pytest.mark.parametrize(("values", "key"), BAD)
def test_bad_values(values: dict[str, Any], key: str) -> None:
    with pytest.raises(BadInput, match=key):
        build(ShiftedSet, values, where="shifted")
