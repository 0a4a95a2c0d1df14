"""CIFAR's pickles: read plain data, and refuse everything else."""

import io
import os
import pickle
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencil.data.catalogue import CIFAR10, CIFAR100
from opencil.data.readers.pickles import load_plain
from opencil.data.readers.source import ImageSource
from opencil.errors import BadInput

Cifar = Callable[..., Path]


def read(root: Path) -> ImageSource:
    return CIFAR100().locate("cifar100", "test", root).source


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("protocol", range(5))
def test_plain_data_are_those_that_pickle_reads(order: Any, protocol: int) -> None:
    array = np.random.default_rng(0).integers(0, 256, (3, 4), dtype=np.uint8)
    content = {"data": np.asarray(array, order=order), "n": [1, "two", b"3", None, 4.5, (True,)]}
    written = pickle.dumps(content, protocol=protocol)
    plain = load_plain(written, "it")
    np.testing.assert_array_equal(plain["data"], array)
    assert plain["n"] == pickle.loads(written, encoding="bytes")["n"]


class Calls:
    """Pickle as a call of a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize(
    ("bad", "key"),
    [
        (Calls(os.system, "true"), "posix.system"),
        (Calls(eval, "1"), r"\w+\.eval"),
        (Calls(np.load, "x"), "numpy.load"),
        (Calls(getattr, {}, "clear"), r"\w+\.getattr"),
        (Path("x"), "pathlib"),
        (np.array([{}], dtype=object), "it"),
        (np.array(["text"]), "it"),
        (np.zeros(1, [("a", "u1")]), "it"),
    ],
    ids=["system", "eval", "numpy.load", "getattr", "an object", "objects", "text", "records"],
)
@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_anything_but_data_is_refused(bad: Any, key: str, protocol: int) -> None:
    with pytest.raises(BadInput, match=key):
        load_plain(pickle.dumps({"data": bad}, protocol=protocol), "it")


@pytest.mark.parametrize(
    "name", [b"_codecs\nencode", b"numpy.core.multiarray\n_reconstruct", b"numpy\nndarray", b"numpy\ndtype"]
)
@pytest.mark.parametrize("state", [b"}", b"N}X\x04\0\0\0nameI1\ns\x86"], ids=["dict", "slots"])
def test_a_pickle_cannot_change_a_function(name: bytes, state: bytes) -> None:
    with pytest.raises(BadInput):
        load_plain(b"\x80\x02c" + name + b"\n" + state + b"b.", "it")


PAIRS = b"K\0" + b"2\x86" * 60  # a tuple of pairs of pairs: 2^60 values when it is hashed or shown
TEXT = b"X" + (10**5).to_bytes(4, "little") + b"a" * 10**5 + b"q\0"


@pytest.mark.parametrize(
    "content",
    [
        b"}" + PAIRS + b"K\1s",
        b"(" + PAIRS + b"K\1d",
        b"}N0(" + PAIRS + b"K\1u",
        b"\x8f(" + PAIRS + b"\x90",
        b"(" + PAIRS + b"\x91",
        b"cnumpy\ndtype\n" + PAIRS + b"\x85R",
        b"}r\xff\xff\xff\x7f]b",
        b"}(K\0\x96" + (2**40).to_bytes(8, "little") + b"u",
        b"}" + TEXT + b"c_codecs\nencode\nq\x010](" + b"h\1h\0\x85R" * 10**3 + b"es",
    ],
    ids=["key", "keys", "more keys", "set", "frozen set", "dtype", "memo", "bytes", "texts"],
)
def test_a_pickle_cannot_take_all_time_or_memory(content: bytes) -> None:
    with pytest.raises(BadInput):
        load_plain(b"\x80\x02" + content + b".", "it")


@given(st.binary(max_size=60))
def test_garbage_is_refused_or_is_data(content: bytes) -> None:
    with suppress(BadInput):
        load_plain(content, "it")


def test_pixels_and_labels_are_those_of_the_file(cifar: Cifar, tmp_path: Path) -> None:
    root = cifar(tmp_path)
    content = pickle.loads((root / "cifar-100-python" / "test").read_bytes())
    source = read(root)
    assert source.labels.tolist() == content[b"fine_labels"]
    assert source.classes == ("class 0", "class 1")
    for i, row in enumerate(content[b"data"]):
        np.testing.assert_array_equal(source.pixels(i, 32), row.reshape(3, 32, 32))
    (root / "cifar-100-python" / "meta").unlink()
    assert read(root).classes == ("0", "1")


def test_names_of_classes_may_be_any_bytes(cifar: Cifar, tmp_path: Path) -> None:
    meta = cifar(tmp_path) / "cifar-100-python" / "meta"
    meta.write_bytes(pickle.dumps({"fine_label_names": [b"\xff", b"b"]}, protocol=2))
    assert read(tmp_path).classes == ("\N{REPLACEMENT CHARACTER}", "b")


BYTES = np.zeros((2, 3072), np.uint8)


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ([1, 2], "list"),
        ({"data": BYTES}, "fine_labels"),
        ({"data": BYTES, "fine_labels": [0]}, "2 images and 1 labels"),
        ({"data": BYTES, "fine_labels": [0, -1]}, "fine_labels"),
        ({"data": BYTES, "fine_labels": [0, "1"]}, "fine_labels"),
        ({"data": BYTES[:, :100], "fine_labels": [0, 1]}, "'data'"),
        ({"data": BYTES.astype(float), "fine_labels": [0, 1]}, "f8"),
        ({"data": [[0] * 3072], "fine_labels": [0]}, "'data'"),
    ],
    ids=["list", "no labels", "fewer labels", "negative", "text", "short rows", "floats", "lists"],
)
def test_a_pickle_of_something_else_is_refused(tmp_path: Path, content: Any, key: str) -> None:
    (tmp_path / "cifar-100-python").mkdir()
    (tmp_path / "cifar-100-python" / "test").write_bytes(pickle.dumps(content, protocol=4))
    with pytest.raises(BadInput, match=f"cifar-100-python/test.*{key}"):
        read(tmp_path)


def test_cifar10_trains_on_five_batches(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for i in range(1, 6):
        content = {b"data": np.full((2, 3072), i, np.uint8), b"labels": [i, 0]}
        (folder / f"data_batch_{i}").write_bytes(pickle.dumps(content, protocol=2))
    source = CIFAR10().locate("cifar10", "train", tmp_path).source
    assert source.labels.tolist() == [1, 0, 2, 0, 3, 0, 4, 0, 5, 0]
    assert [int(source.pixels(i, 32)[0, 0, 0]) for i in range(10)] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    (folder / "data_batch_3").unlink()
    assert CIFAR10().find("train", tmp_path) is None


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize("meta", [True, False])
def test_the_archive_is_read_like_the_folder(cifar: Cifar, tmp_path: Path, mode: Any, meta: bool) -> None:
    root, other = cifar(tmp_path / "folder"), tmp_path / "archive"
    other.mkdir()
    with tarfile.open(other / "cifar-100-python.tar.gz", mode) as tar:
        for name in ("train", "test", *(["meta"] if meta else [])):
            tar.add(root / "cifar-100-python" / name, f"cifar-100-python/{name}")
    source, expected = read(other), read(root)
    assert source.classes == (expected.classes if meta else ("0", "1"))
    for i in range(len(expected)):
        np.testing.assert_array_equal(source.pixels(i, 32), expected.pixels(i, 32))
    assert source.labels.tolist() == expected.labels.tolist()


@pytest.mark.parametrize(
    ("name", "kind", "size"),
    [
        ("cifar-100-python/test", tarfile.SYMTYPE, 0),
        ("cifar-100-python/test", tarfile.DIRTYPE, 0),
        ("cifar-100-python/test", tarfile.REGTYPE, 1001),
        ("other", tarfile.REGTYPE, 1),
        ("", tarfile.REGTYPE, 0),
    ],
    ids=["symbolic link", "folder", "large", "absent", "damaged"],
)
def test_bad_archives_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: bytes, size: int
) -> None:
    monkeypatch.setattr("opencil.data.readers.pickles.LARGEST_FILE", 1000)
    path = tmp_path / "cifar-100-python.tar.gz"
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    with tarfile.open(path, "w:gz") as tar:
        tar.addfile(info, io.BytesIO(bytes(size)))
    if not name:
        path.write_bytes(path.read_bytes()[:30])
    with pytest.raises(BadInput, match=path.name):
        read(tmp_path)
