"""CIFAR's pickles: what is read, and that nothing else can happen."""

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
from hypothesis.extra import numpy as hnp

from opencil.data.catalogue import CIFAR10, CIFAR100
from opencil.data.readers.pickles import load_plain
from opencil.errors import BadInput

Cifar = Callable[..., Path]


@given(
    array=hnp.arrays(
        st.sampled_from(["u1", "<i2", ">i4", "f4", "<f8", "?"]), hnp.array_shapes(max_dims=3, max_side=4)
    ),
    protocol=st.integers(0, 5),
)
def test_arrays_of_numbers_come_back_as_pickle_itself_gives_them(array: np.ndarray, protocol: int) -> None:
    content = pickle.dumps({"data": array, "n": [1, "two", b"3", None, 4.5, (True,)]}, protocol=protocol)
    plain = load_plain(content, "it")
    assert plain["data"].dtype == array.dtype
    np.testing.assert_array_equal(plain["data"], array)
    expected = pickle.loads(content, encoding="bytes")["n"]
    assert plain["n"] == expected


def test_fortran_order_is_kept() -> None:
    array = np.asfortranarray(np.arange(6, dtype=np.uint8).reshape(2, 3))
    np.testing.assert_array_equal(load_plain(pickle.dumps({"data": array}), "it")["data"], array)


class Calls:
    """Pickles as a call of something."""

    def __init__(self, what: Callable[..., Any], *arguments: Any) -> None:
        self.call = what, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (Calls(os.system, "true"), "posix.system"),
        (Calls(eval, "1"), r"\w+\.eval"),
        (Calls(np.load, "x"), "numpy.load"),
        (Calls(getattr, {}, "clear"), r"\w+\.getattr"),
        (Path("x"), "pathlib"),
    ],
    ids=["system", "eval", "numpy.load", "getattr", "an object"],
)
@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_anything_but_data_is_refused_by_name(bad: Any, named: str, protocol: int, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"pickle the file is refused: it asks for {named}"):
        load_plain(pickle.dumps({"data": bad}, protocol=protocol), "the file")


def test_nothing_runs_before_the_refusal(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    content = pickle.dumps([Calls(os.mkdir, str(mark))])
    with pytest.raises(BadInput):
        load_plain(content, "it")
    assert not mark.exists()


@pytest.mark.parametrize(
    "array",
    [
        np.array([{}], dtype=object),
        np.array(["text"]),
        np.zeros(1, [("a", "u1")]),
        np.array(["2020"], "M8[Y]"),
    ],
    ids=["objects", "text", "records", "dates"],
)
@pytest.mark.parametrize("protocol", [2, 5])
def test_arrays_of_anything_but_numbers_are_refused(array: np.ndarray, protocol: int) -> None:
    with pytest.raises(BadInput, match="is refused"):
        load_plain(pickle.dumps({"data": array}, protocol=protocol), "it")


def test_other_codecs_are_refused() -> None:
    import codecs

    with pytest.raises(BadInput, match="codec 'rot13'"):
        load_plain(pickle.dumps(Calls(codecs.encode, "abc", "rot13"), protocol=2), "it")


@given(st.binary(max_size=60))
def test_garbage_is_refused_or_is_data(content: bytes) -> None:
    with suppress(BadInput):
        load_plain(content, "it")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_truncated_file_is_named(cifar: Cifar, tmp_path: Path, share: float) -> None:
    path = cifar(tmp_path) / "cifar-100-python" / "test"
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(BadInput, match="cifar-100-python/test is refused"):
        CIFAR100().locate("cifar100", "test", tmp_path).source  # noqa: B018


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_pixels_and_labels_are_those_of_the_file(cifar: Cifar, tmp_path: Path, protocol: int) -> None:
    root = cifar(tmp_path, protocol=protocol)
    with (root / "cifar-100-python" / "train").open("rb") as file:
        content = pickle.load(file)
    source = CIFAR100().locate("cifar100", "train", root).source
    assert source.labels.tolist() == content[b"fine_labels"]
    assert source.classes == ("class 0", "class 1")
    for i, row in enumerate(content[b"data"]):
        expected = [[[row[c * 1024 + y * 32 + x] for x in range(32)] for y in range(32)] for c in range(3)]
        assert source.pixels(i, 32).tolist() == expected


def test_the_archive_serves_as_well_as_the_folder(cifar: Cifar, tmp_path: Path) -> None:
    root, packed = cifar(tmp_path / "open"), tmp_path / "packed"
    packed.mkdir()
    with tarfile.open(packed / "cifar-100-python.tar.gz", "w:gz") as tar:
        tar.add(root / "cifar-100-python", "cifar-100-python")
    one = CIFAR100().locate("cifar100", "test", root)
    other = CIFAR100().locate("cifar100", "test", packed)
    assert (one.layout, other.layout) == ("CIFAR pickle", "CIFAR archive")
    assert other.source.classes == one.source.classes
    assert other.source.labels.tolist() == one.source.labels.tolist()
    for i in range(len(one.source)):
        np.testing.assert_array_equal(other.source.pixels(i, 32), one.source.pixels(i, 32))


def archive(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return path.parent


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 1) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, link, size if kind == tarfile.REGTYPE else 0
    return made


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (member("../evil"), "points outside"),
        (member("/etc/evil"), "points outside"),
        (member("a/../../evil"), "points outside"),
        (member("C:\\evil"), "points outside"),
        (member("cifar-100-python/test", tarfile.SYMTYPE, "/etc/passwd"), "is a link"),
        (member("cifar-100-python/test", tarfile.LNKTYPE, "../x"), "is a link"),
        (member("cifar-100-python/test", tarfile.DIRTYPE), "is no file"),
        (member("other"), "has no member 'cifar-100-python/test'"),
    ],
    ids=["up", "absolute", "up inside", "drive", "symbolic link", "hard link", "folder", "absent"],
)
def test_bad_archives_are_refused(tmp_path: Path, first: tarfile.TarInfo, reason: str) -> None:
    root = archive(tmp_path / "cifar-100-python.tar.gz", first)
    with pytest.raises(BadInput, match=f"cifar-100-python.tar.gz.*{reason}"):
        CIFAR100().locate("cifar100", "test", root).source  # noqa: B018


def test_a_member_that_is_too_large_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opencil.data.readers.archives.LARGEST_MEMBER", 100)
    root = archive(tmp_path / "cifar-100-python.tar.gz", member("cifar-100-python/test", size=101))
    with pytest.raises(BadInput, match="no file of at most 100 bytes"):
        CIFAR100().locate("cifar100", "test", root).source  # noqa: B018


def test_an_archive_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(b"\x1f\x8b not really")
    with pytest.raises(BadInput, match=r"archive .* cannot be read"):
        CIFAR100().locate("cifar100", "test", tmp_path).source  # noqa: B018


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([1, 2], "holds list, not a dict"),
        ({"data": np.zeros((2, 3072), np.uint8)}, "no list 'fine_labels'"),
        ({"data": np.zeros((2, 3072), np.uint8), "fine_labels": [0]}, "2 images and 1 labels"),
        ({"data": np.zeros((2, 3072), np.uint8), "fine_labels": [0, -1]}, "no list 'fine_labels' of labels"),
        ({"data": np.zeros((2, 3072), np.uint8), "fine_labels": [0, "1"]}, "no list 'fine_labels' of labels"),
        ({"data": np.zeros((2, 100), np.uint8), "fine_labels": [0, 1]}, r"no 'data' of bytes \[N, 3072\]"),
        ({"data": np.zeros((2, 3072)), "fine_labels": [0, 1]}, r"no 'data' of bytes \[N, 3072\]"),
        ({"data": [[0] * 3072], "fine_labels": [0]}, r"no 'data' of bytes \[N, 3072\]"),
    ],
    ids=["list", "no labels", "fewer labels", "negative", "text", "short rows", "floats", "lists"],
)
def test_a_pickle_of_something_else_is_refused(tmp_path: Path, content: Any, reason: str) -> None:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    (folder / "test").write_bytes(pickle.dumps(content))
    with pytest.raises(BadInput, match=f"cifar-100-python/test.*{reason}"):
        CIFAR100().locate("cifar100", "test", tmp_path).source  # noqa: B018


def test_without_its_meta_file_classes_are_numbers(cifar: Cifar, tmp_path: Path) -> None:
    (cifar(tmp_path) / "cifar-100-python" / "meta").unlink()
    assert CIFAR100().locate("cifar100", "test", tmp_path).source.classes == ("0", "1")


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


@pytest.mark.parametrize("state", [b"}", b"N}X\x04\0\0\0nameI1\ns\x86"], ids=["dict", "slots"])
@pytest.mark.parametrize(
    "name",
    [b"_codecs\nencode", b"numpy.core.multiarray\n_reconstruct", b"numpy\nndarray", b"numpy\ndtype"],
)
def test_a_pickle_cannot_change_what_it_may_call(name: bytes, state: bytes) -> None:
    content = b"\x80\x02c" + name + b"\n" + state + b"b."
    with pytest.raises(BadInput, match="pickle it is refused"):
        load_plain(content, "it")


@pytest.mark.parametrize("put", [b"r\xff\xff\xff\x7f", b"p2000000000\n"], ids=["binary", "text"])
def test_a_few_bytes_cannot_ask_for_a_large_memo(put: bytes) -> None:
    with pytest.raises(BadInput, match="pickle it is refused: it asks for a memo of 2"):
        load_plain(b"\x80\x02N" + put + b".", "it")


def test_large_pickles_and_archives_are_refused_before_they_are_read(
    cifar: Cifar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = cifar(tmp_path / "open")
    monkeypatch.setattr("opencil.data.readers.pickles.LARGEST_MEMBER", 1000)
    with pytest.raises(BadInput, match=r"test is refused: it has more than 1,000 bytes"):
        CIFAR100().locate("cifar100", "test", root).source  # noqa: B018
    packed = tmp_path / "packed"
    packed.mkdir()
    archive(packed / "cifar-100-python.tar.gz", *(member(f"{i}", size=400) for i in range(3)))
    monkeypatch.setattr("opencil.data.readers.archives._LARGEST_WALK", 1000)
    with pytest.raises(BadInput, match=r"tar\.gz is refused: it announces more than 1,000 bytes"):
        CIFAR100().locate("cifar100", "test", packed).source  # noqa: B018


def test_an_archive_without_its_meta_file_has_numbers_for_classes(cifar: Cifar, tmp_path: Path) -> None:
    root = cifar(tmp_path / "open")
    (tmp_path / "packed").mkdir()
    with tarfile.open(tmp_path / "packed" / "cifar-100-python.tar.gz", "w:gz") as tar:
        tar.add(root / "cifar-100-python" / "test", "cifar-100-python/test")
    assert CIFAR100().locate("cifar100", "test", tmp_path / "packed").source.classes == ("0", "1")


@pytest.mark.parametrize(
    "header", [b"xx size=1\n", b"11 size=a\xff\n", b"12 size=none\n", b"99 path=a\n", b"0 a=b\n"]
)
def test_malformed_headers_of_an_archive_are_refused(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "cifar-100-python.tar.gz"
    extended = tarfile.TarInfo("PaxHeaders/a")
    extended.type, extended.size = tarfile.XHDTYPE, len(header)
    with tarfile.open(path, "w:gz") as tar:
        tar.addfile(extended, io.BytesIO(header))
        tar.addfile(member("a"), io.BytesIO(b"x"))
    with pytest.raises(BadInput, match=r"archive .*tar\.gz"):
        CIFAR100().locate("cifar100", "test", tmp_path).source  # noqa: B018


def test_a_bomb_in_an_archive_is_refused_before_it_is_decompressed(tmp_path: Path) -> None:
    path = tmp_path / "cifar-100-python.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.addfile(member("zeros", size=2**26), io.BytesIO(bytes(2**26)))
        tar.addfile(member("cifar-100-python/test"), io.BytesIO(b"x"))
    assert path.stat().st_size < 2**17
    with pytest.raises(BadInput, match="it announces more than 67,108,864 bytes"):
        CIFAR100().locate("cifar100", "test", tmp_path).source  # noqa: B018


def test_long_headers_and_sizes_below_zero_in_an_archive_are_refused(tmp_path: Path) -> None:
    long = tarfile.TarInfo("PaxHeaders/a")
    long.type, long.size = tarfile.XHDTYPE, 5000
    root = tmp_path / "cifar-100-python.tar.gz"
    with tarfile.open(root, "w:gz") as tar:
        tar.addfile(long, io.BytesIO(b"1" * 5000))
    with pytest.raises(BadInput, match=r"tar\.gz is refused: it has a header of more than 4,096 bytes"):
        CIFAR100().locate("cifar100", "test", tmp_path).source  # noqa: B018
    header = bytearray(member("a").tobuf(tarfile.USTAR_FORMAT))
    header[124:136] = b"\xff" * 10 + b"\xfe\x00"  # -512, so that the next member is this one again
    header[148:156] = b"%06o\0 " % tarfile.calc_chksums(header)[0]
    root.write_bytes(bytes(header) + bytes(1024))
    with pytest.raises(BadInput, match="its member 'a' has a size below 0"):
        CIFAR100().locate("cifar100", "test", tmp_path).source  # noqa: B018


def test_a_sparse_member_is_refused(tmp_path: Path) -> None:
    sparse = member("cifar-100-python/test", tarfile.GNUTYPE_SPARSE)
    root = archive(tmp_path / "cifar-100-python.tar.gz", sparse)
    with pytest.raises(BadInput, match="is no file of at most"):
        CIFAR100().locate("cifar100", "test", root).source  # noqa: B018


@pytest.mark.parametrize("hidden", [b"", b"(0"], ids=["plainly", "behind a mark"])
def test_tuples_in_tuples_are_refused_before_they_are_hashed(hidden: bytes) -> None:
    """Sixty levels would be hashed 2**60 times."""
    levels = b"".join(hidden + b"q%ch%c\x86" % (i, i) for i in range(60))
    for content in (b"\x80\x02}N" + b"2\x86" * 60 + b"Ns.", b"\x80\x02}N\x85" + levels + b"Ns."):
        with pytest.raises(BadInput, match="it names a tuple twice"):
            load_plain(content, "it")


def test_lists_in_lists_are_not_shown() -> None:
    """Sixty levels would be shown 2**60 times."""
    levels = b"]q\0000" + b"".join(b"]q%ch%cah%ca0" % (i, i - 1, i - 1) for i in range(1, 60))
    content = b"\x80\x02" + levels + b"c_codecs\nencode\nX\x01\0\0\0ah%c\x86R." % 59
    with pytest.raises(BadInput, match="it asks for the codec of type list"):
        load_plain(content, "it")


def test_keys_that_are_no_text_do_not_count(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    content = {"data": np.zeros((1, 3072), np.uint8), "fine_labels": [0], 10**5000: 1, (1,): 2}
    (folder / "test").write_bytes(pickle.dumps(content))
    assert CIFAR100().locate("cifar100", "test", tmp_path).source.labels.tolist() == [0]
