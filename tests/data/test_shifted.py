"""Shifted sets: which image gets which corruption, and files of CIFAR-100-C."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from opencil.data.corruptions import corrupted
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
    """Files as CIFAR-100-C has them; image i at severity s is 10 s + i everywhere."""
    folder.mkdir()
    values = np.concatenate([10 * s + np.arange(COUNT) for s in range(1, 6)]).astype(np.uint8)
    images = np.broadcast_to(values[:, None, None, None], (5 * COUNT, SIDE, SIDE, 3))
    for name in ("fog", "frost"):
        np.save(folder / f"{name}.npy", more.get(name, images))
    np.save(folder / "labels.npy", more.get("labels", np.tile(test.labels.numpy(), 5)))


def test_every_pair_is_drawn_equally_often(test: ImageSet) -> None:
    kinds = ShiftedSet(("contrast", "brightness"), (1, 3, 5))
    drawn = [(name, severity, len(chosen)) for name, severity, chosen in kinds._drawn(COUNT)]
    assert drawn == [(name, s, 5) for name in ("contrast", "brightness") for s in (1, 3, 5)]
    other = ShiftedSet(("contrast", "brightness"), (1, 3, 5), seed=1)
    assert [c.tolist() for *_, c in kinds._drawn(COUNT)] != [c.tolist() for *_, c in other._drawn(COUNT)]


def test_images_are_corrupted_one_by_one(test: ImageSet) -> None:
    kinds = ShiftedSet(("gaussian_noise", "pixelate"), (2, 5), seed=4)
    made = kinds.make("shifted", test, None)
    assert (made.name, made.labels.tolist()) == ("shifted", test.labels.tolist())
    for name, severity, chosen in kinds._drawn(COUNT):
        for i in chosen:
            alone = corrupted(test.images[i][None], name, severity, [np.random.default_rng([4, int(i)])])
            assert torch.equal(made.images[i], alone[0])
    assert torch.equal(made.images, kinds.make("again", test, None).images)


def test_files_of_cifar_100_c(test: ImageSet, tmp_path: Path) -> None:
    write(tmp_path / "C", test)
    kinds = ShiftedSet(("fog", "frost"), (1, 4), files="C")
    made = kinds.make("shifted", test, tmp_path)
    for _, severity, chosen in kinds._drawn(COUNT):
        for i in chosen:
            assert (made.images[i] == 10 * severity + i).all()


BAD_FILES: list[tuple[dict[str, Any], str]] = [
    ({"labels": np.zeros(5 * COUNT, int)}, "does not have the labels"),
    ({"labels": np.zeros(3)}, r"labels\.npy has float64"),
    ({"fog": np.zeros((5 * COUNT, 4, 4, 3), np.uint8)}, r"fog\.npy has uint8"),
    ({"fog": np.zeros((5 * COUNT, SIDE, SIDE, 3))}, r"fog\.npy has float64"),
    ({"fog": np.array([{"a": 1}])}, r"cannot be read from .*fog\.npy"),
]


@pytest.mark.parametrize(("content", "message"), BAD_FILES)
def test_bad_files(test: ImageSet, tmp_path: Path, content: dict[str, Any], message: str) -> None:
    write(tmp_path / "C", test, **content)
    with pytest.raises(BadInput, match=message):
        ShiftedSet(("fog",), files="C").make("shifted", test, tmp_path)


def test_missing_files(test: ImageSet, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"cannot be read from .*labels\.npy"):
        ShiftedSet(("fog",), files="C").make("shifted", test, tmp_path)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"corruptions": ["fogg"]}, "did you mean 'fog'"),
    ({"corruptions": ["frost"]}, "corruption 'frost' is unknown"),
    ({"corruptions": ["../x"], "files": "C"}, "is no corruption"),
    ({"corruptions": []}, "some are needed"),
    ({"severities": [1, 1]}, "each once"),
    ({"severities": [6]}, "less than or equal to 5"),
]


@pytest.mark.parametrize(("values", "message"), BAD)
def test_bad_values(values: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        build(ShiftedSet, values, where="shifted")


def test_large_images_are_refused() -> None:
    large = ImageSet("t", torch.zeros(1, 3, 224, 224, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64))
    with pytest.raises(BadInput, match="224 pixels cannot be corrupted"):
        ShiftedSet().make("shifted", large, None)
