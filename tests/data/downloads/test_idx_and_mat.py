"""MNIST's idx files and SVHN's MATLAB file."""

import gzip
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from opencil.data.catalogue import MNIST, SVHN
from opencil.data.readers.source import ImageSource
from opencil.errors import BadInput

Mnist = Callable[..., Path]


def svhn(root: Path) -> ImageSource:
    return SVHN().locate("svhn", "test", root).source


@pytest.mark.parametrize("compress", [True, False])
def test_digits_are_those_of_the_file(mnist: Mnist, tmp_path: Path, compress: bool) -> None:
    source = MNIST().locate("mnist", "test", mnist(tmp_path, 12, compress)).source
    expected = np.random.default_rng(7).integers(0, 256, (12, 28, 28), dtype=np.uint8)
    assert source.labels.tolist() == [i % 10 for i in range(12)]
    assert source.classes == tuple("0123456789")
    for i in range(12):
        np.testing.assert_array_equal(source.pixels(i, 28), [expected[i]] * 3)


def test_of_two_files_the_compressed_one_is_read(mnist: Mnist, tmp_path: Path) -> None:
    root = mnist(mnist(tmp_path, 12), 5, compress=False)
    assert len(MNIST().locate("mnist", "test", root).source) == 12


GOOD = struct.pack(">IIII", 2051, 5, 28, 28) + bytes(5 * 784)


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(struct.pack(">IIII", 2049, 5, 28, 28) + bytes(5 * 784)),
        gzip.compress(b""),
        gzip.compress(GOOD[:-1]),
        gzip.compress(GOOD + b"\0"),
        gzip.compress(struct.pack(">IIII", 2051, 2**31, 2**31, 2**31)),
        gzip.compress(struct.pack(">IIII", 2051, 3, 28, 28) + bytes(3 * 784)),
        gzip.compress(struct.pack(">IIII", 2051, 0, 28, 28)),
        gzip.compress(GOOD)[:-12],
        GOOD,
    ],
    ids=[
        "labels' magic",
        "empty",
        "short",
        "long",
        "huge",
        "fewer than labels",
        "no images",
        "cut",
        "not compressed",
    ],
)
def test_bad_idx_files_are_refused(mnist: Mnist, tmp_path: Path, content: bytes) -> None:
    path = mnist(tmp_path) / "MNIST" / "raw" / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=path.name):
        MNIST().locate("mnist", "test", tmp_path).source  # noqa: B018


def test_svhn_is_transposed_and_its_ten_is_zero(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 4), dtype=np.uint8)
    (tmp_path / "svhn").mkdir()
    digits = np.array([[1], [10], [9], [10]], np.uint8)
    savemat(tmp_path / "svhn" / "test_32x32.mat", {"X": images, "y": digits})
    assert svhn(tmp_path).labels.dtype == np.int64
    assert svhn(tmp_path).labels.tolist() == [1, 0, 9, 0]
    for i in range(4):
        np.testing.assert_array_equal(svhn(tmp_path).pixels(i, 32), images[:, :, :, i].transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("images", "labels"),
    [
        (np.zeros((32, 32, 3, 0), np.uint8), np.zeros((0, 1))),
        (np.zeros((32, 32, 3, 2), np.uint8), [[1]]),
        (np.zeros((32, 32, 3, 2), np.uint8), [[1], [11]]),
        (np.zeros((32, 32, 3, 2), np.uint8), [[1.0], [2.5]]),
        (np.zeros((32, 32, 3, 2), np.uint8), np.array([[{"a": 1}], [2]], object)),
        (np.zeros((32, 32, 3, 2)), [[1], [2]]),
    ],
    ids=["no images", "fewer labels", "eleven", "half", "objects", "floats"],
)
def test_bad_mat_files_are_refused(tmp_path: Path, images: Any, labels: Any) -> None:
    savemat(tmp_path / "test_32x32.mat", {"X": images, "y": labels})
    with pytest.raises(BadInput, match=r"test_32x32\.mat"):
        svhn(tmp_path)


def test_unknown_types_of_data_are_refused_before_scipy_reads_them(tmp_path: Path) -> None:
    place = tmp_path / "test_32x32.mat"
    savemat(place, {"X": np.zeros((8, 8, 3, 2), np.uint8), "y": [[1], [2]]})
    content = bytearray(place.read_bytes())
    tag = content.index((2).to_bytes(4, "little") + (8 * 8 * 3 * 2).to_bytes(4, "little"))
    content[tag + 1] = 0xFF
    place.write_bytes(content)
    with pytest.raises(BadInput, match="type"):
        svhn(tmp_path)


def test_other_mat_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_32x32.mat").write_bytes(b"not a MATLAB file at all" * 20)
    with pytest.raises(BadInput, match=r"test_32x32\.mat"):
        svhn(tmp_path)


def test_large_mat_files_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opencil.data.readers.arrays._LARGEST", 2000)
    monkeypatch.setattr("scipy.io.loadmat", None)
    few = {"X": np.zeros((4, 4, 3, 9), np.uint8), "y": [1] * 9}
    for other in ({"X": np.zeros((4, 4, 3, 9))}, {"y": np.array([1, 2], object)}, {"z": np.zeros(300)}):
        for compressed in (True, False):
            savemat(tmp_path / "test_32x32.mat", few | other, do_compression=compressed)
            with pytest.raises(BadInput, match=r"2,000|numbers"):
                svhn(tmp_path)
