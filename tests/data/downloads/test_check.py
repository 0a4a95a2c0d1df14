"""Check datasets that are present, different, damaged or missing."""

import hashlib
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from opencil.data.catalogue import CIFAR100, Texture
from opencil.data.check import BenchmarkSplit, CheckResult, check, describe
from opencil.data.digits import Digits
from opencil.data.images import Progress

Tree = Callable[[Path, Mapping[str, int]], Path]


def silent(*_: int) -> None:
    pass


def checked(root: Path, full: bool = False, progress: Progress = silent) -> CheckResult:
    return check(BenchmarkSplit("texture", Texture(), "test", "far"), root, 32, full, progress)


def test_a_dataset_that_is_present(tree: Tree, tmp_path: Path) -> None:
    assert (checked(tmp_path).images, checked(tmp_path).usable) == (None, False)
    tree(tmp_path / "dtd" / "images", {"banded": 3})
    result = checked(tmp_path)
    assert (result.images, result.expected, result.decoded, result.checksum) == (3, 5640, 3, "")
    assert result.usable


def test_damage_is_named(tree: Tree, tmp_path: Path) -> None:
    tree(tmp_path / "dtd" / "images", {"banded": 3})
    path = tmp_path / "dtd" / "images" / "banded" / "1.png"
    path.write_bytes(path.read_bytes()[:50])
    result = checked(tmp_path)
    assert [str(path) in message for message in result.corrupt] == [True]
    assert not result.usable
    (tmp_path / "dtd" / "images" / "dotted").mkdir()
    result = checked(tmp_path)
    assert "dotted" in result.problem
    assert not result.usable


def test_large_datasets_are_sampled_unless_full(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path / "dtd" / "images", {"banded": 10})
    monkeypatch.setattr("opencil.data.check.SAMPLE", 4)
    calls: list[tuple[int, int]] = []
    result = checked(tmp_path, progress=lambda done, total: calls.append((done, total)))
    assert (result.images, result.decoded, calls[-1]) == (10, 4, (4, 4))
    assert checked(tmp_path, full=True).decoded == 10


def test_checksums_of_the_original_files(
    cifar: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = cifar(tmp_path)
    path = root / "cifar-100-python" / "test"
    entry = BenchmarkSplit("cifar100", CIFAR100(), "test", "ID")
    monkeypatch.setattr(CIFAR100, "checksums", {"test": hashlib.md5(path.read_bytes()).hexdigest()})
    for files in ("canonical", "differs"):
        assert check(entry, root, 32, False, silent).checksum == files
        assert describe(CIFAR100(), "test", root) == {"paper": 10_000, "files": files}
        path.write_bytes(pickle.dumps(pickle.loads(path.read_bytes()), protocol=4))


def test_a_dataset_of_a_package_is_loaded() -> None:
    entry = BenchmarkSplit("digits", Digits(), "train", "ID")
    result = check(entry, None, 8, False, silent)
    assert (result.images, result.decoded, result.expected, result.usable) == (965, 965, None, True)
    assert not check(entry, None, 32, False, silent).usable
    assert describe(Digits(), "train", None) == {"paper": None, "files": ""}
