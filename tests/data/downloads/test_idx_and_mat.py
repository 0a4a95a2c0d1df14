"""MNIST's idx files and SVHN's MATLAB file."""

import gzip
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import loadmat, savemat

from opencil.data.catalogue import MNIST, SVHN
from opencil.data.readers.idx import read_idx
from opencil.data.readers.mat import read_mat
from opencil.errors import BadInput

Mnist = Callable[..., Path]


@pytest.mark.parametrize("compress", [True, False])
def test_digits_are_those_of_the_file(mnist: Mnist, tmp_path: Path, compress: bool) -> None:
    root = mnist(tmp_path, 12, compress)
    source = MNIST().locate("mnist", "test", root).source
    expected = np.random.default_rng(7).integers(0, 256, (12, 28, 28), dtype=np.uint8)
    assert source.labels.tolist() == [i % 10 for i in range(12)]
    assert source.classes == tuple("0123456789")
    for i in range(12):
        np.testing.assert_array_equal(source.pixels(i, 28), [expected[i]] * 3)


def images_file(root: Path, content: bytes) -> Path:
    path = root / "MNIST" / "raw" / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(content))
    return path


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (struct.pack(">IIII", 2049, 5, 28, 28) + bytes(5 * 784), "magic number 2051.* but with 00000801"),
        (b"\x89PNG" + bytes(5 * 784), "magic number 2051.* but with 89504e47"),
        (b"", "magic number 2051.* but with nothing"),
        (struct.pack(">IIII", 2051, 5, 28, 28) + bytes(784), "announces 3,920 bytes and holds 784"),
        (struct.pack(">IIII", 2051, 5, 28, 28) + bytes(6 * 784), "announces 3,920 bytes and holds more"),
        (struct.pack(">IIII", 2051, 2**31, 2**31, 2**31), "is refused: it announces"),
        (struct.pack(">IIII", 2051, 3, 28, 28) + bytes(3 * 784), "holds 3 images and .* 5 labels"),
    ],
    ids=["labels' magic", "another format", "empty", "truncated", "too long", "bomb", "fewer than labels"],
)
def test_bad_idx_files_are_refused(mnist: Mnist, tmp_path: Path, content: bytes, reason: str) -> None:
    path = images_file(mnist(tmp_path), content)
    with pytest.raises(BadInput, match=f"{path.name}.*{reason}"):
        MNIST().locate("mnist", "test", tmp_path).source  # noqa: B018


def test_a_broken_gzip_is_refused(mnist: Mnist, tmp_path: Path) -> None:
    path = mnist(tmp_path) / "MNIST" / "raw" / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-600])
    with pytest.raises(BadInput, match=f"{path.name} cannot be decompressed"):
        MNIST().locate("mnist", "test", tmp_path).source  # noqa: B018


def test_svhn_is_turned_and_its_ten_is_zero(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 4), dtype=np.uint8)
    (tmp_path / "svhn").mkdir()
    savemat(tmp_path / "svhn" / "test_32x32.mat", {"X": images, "y": np.array([[1], [10], [9], [10]])})
    source = SVHN().locate("svhn", "test", tmp_path).source
    assert source.labels.tolist() == [1, 0, 9, 0]
    for i in range(4):
        np.testing.assert_array_equal(source.pixels(i, 32), images[:, :, :, i].transpose(2, 0, 1))


def test_a_mat_file_that_is_none_or_another_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "test_32x32.mat"
    path.write_bytes(b"not a MATLAB file at all" * 20)
    with pytest.raises(BadInput, match="cannot be read as a MATLAB file"):
        SVHN().locate("svhn", "test", tmp_path).source  # noqa: B018
    savemat(path, {"Z": np.zeros(3)})
    with pytest.raises(BadInput, match="it is not SVHN's"):
        SVHN().locate("svhn", "test", tmp_path).source  # noqa: B018


@pytest.mark.parametrize("shape", [(0, 28, 28), (5, 0, 28), (5, 28, 0)])
def test_idx_files_without_pixels_are_refused(mnist: Mnist, tmp_path: Path, shape: tuple[int, ...]) -> None:
    images_file(mnist(tmp_path), struct.pack(">IIII", 2051, *shape))
    with pytest.raises(BadInput, match=r"idx3-ubyte\.gz is empty: its dimensions are"):
        MNIST().locate("mnist", "test", tmp_path).source  # noqa: B018


@pytest.mark.parametrize(
    ("shape", "labels", "reason"),
    [
        ((32, 32, 3, 0), np.zeros((0, 1)), "no X of bytes"),
        ((0, 32, 3, 2), [[1], [2]], "no X of bytes"),
        ((32, 32, 3, 2), [[1], [11]], "other values than the digits"),
        ((32, 32, 3, 2), [[1], [-1]], "other values than the digits"),
        ((32, 32, 3, 2), [[1.0], [np.nan]], "other values than the digits"),
        ((32, 32, 3, 2), [[1.0], [2.5]], "other values than the digits"),
        ((32, 32, 3, 2), ["a", "b"], ""),
        ((32, 32, 3, 2), np.array([[{"a": 1}], [2]], object), "cannot be read as a MATLAB file"),
    ],
    ids=["no images", "no rows", "eleven", "negative", "nan", "half", "text", "objects"],
)
def test_mat_files_of_something_else_are_refused(
    tmp_path: Path, shape: tuple[int, ...], labels: Any, reason: str
) -> None:
    path = tmp_path / "test_32x32.mat"
    savemat(path, {"X": np.zeros(shape, np.uint8), "y": labels})
    with pytest.raises(BadInput, match=f"test_32x32.mat .*{reason}"):
        SVHN().locate("svhn", "test", tmp_path).source  # noqa: B018


def test_mat_files_are_measured_before_they_are_decompressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    savemat(
        tmp_path / "test_32x32.mat",
        {"X": np.zeros((8, 8, 3, 9), np.uint8), "y": [1] * 9},
        do_compression=True,
    )
    monkeypatch.setattr("opencil.data.readers.mat.LARGEST_MEMBER", 8 * 8 * 3 * 9 - 1)
    monkeypatch.setattr("opencil.data.readers.mat._numbers", None)
    with pytest.raises(BadInput, match="its X has more than 1,727 bytes"):
        SVHN().locate("svhn", "test", tmp_path).source  # noqa: B018


def test_cells_in_cells_are_not_looked_at(tmp_path: Path) -> None:
    cells = np.empty((1, 1), object)
    cells[0, 0] = np.zeros(3)
    savemat(tmp_path / "test_32x32.mat", {"X": cells, "y": [1]})
    with pytest.raises(BadInput, match="its X is of kind cell"):
        SVHN().locate("svhn", "test", tmp_path).source  # noqa: B018


def test_announced_bytes_are_compared_with_the_file_before_there_is_room_made(
    mnist: Mnist, tmp_path: Path
) -> None:
    raw = mnist(tmp_path, compress=False) / "MNIST" / "raw"
    path = raw / "t10k-images-idx3-ubyte"
    path.write_bytes(struct.pack(">IIII", 2051, 1000, 1000, 1000) + bytes(100))
    with pytest.raises(BadInput, match="announces 1,000,000,000 bytes and holds 100: it is damaged"):
        read_idx(path, 3)
    packed = raw / "packed.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(BadInput, match=r"announces 1,000,000,000 bytes, and has \d+ compressed"):
        read_idx(packed, 3)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", ["u1", "i2", "u4", "i8", "f4", "f8"])
@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 3, 5), (1, 1), (0, 3), (300, 7)])
def test_arrays_of_numbers_are_those_that_scipy_reads(
    tmp_path: Path, dtype: str, shape: tuple[int, ...], packed: bool
) -> None:
    path = tmp_path / "a.mat"
    array = np.random.default_rng(0).integers(0, 100, shape).astype(dtype)
    more = {"first": np.zeros(3), "X": array, "text": "hello", "y": array[:1]}
    savemat(path, more, do_compression=packed)
    expected, found = loadmat(path), read_mat(path, ("X", "y"))
    assert found.keys() == {"X", "y"}
    for name, numbers in found.items():
        assert numbers.dtype == expected[name].dtype
        np.testing.assert_array_equal(numbers, expected[name])
