"""What the check says of datasets that are there, differ, are damaged or missing."""

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from opencil.atomic_files import digest
from opencil.data.catalogue import CIFAR100, MNIST, Texture
from opencil.data.check import Asked, Checked, check, describe
from opencil.data.digits import Digits

Tree = Callable[[Path, Mapping[str, int]], Path]


def checked(root: Path, full: bool = False) -> Checked:
    return check(Asked("texture", Texture(), "test", "far"), root, 32, full)


def test_a_dataset_that_is_there(tree: Tree, tmp_path: Path) -> None:
    tree(tmp_path / "dtd" / "images", {"banded": 3})
    result = checked(tmp_path)
    assert result.on_disk is not None
    assert (result.images, result.expected, result.decoded) == (3, 5640, 3)
    assert result.usable
    assert result.differs


def test_the_papers_count_does_not_differ(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path / "dtd" / "images", {"banded": 3})
    monkeypatch.setattr(Texture, "counts", {"test": 3})
    assert not checked(tmp_path).differs


def test_a_missing_dataset(tmp_path: Path) -> None:
    result = checked(tmp_path)
    assert (result.on_disk, result.images, result.problem, result.usable) == (None, None, "", False)


def test_damage_is_told_by_name(tree: Tree, tmp_path: Path) -> None:
    tree(tmp_path / "dtd" / "images", {"banded": 3})
    path = tmp_path / "dtd" / "images" / "banded" / "1.png"
    path.write_bytes(path.read_bytes()[:50])
    result = checked(tmp_path)
    assert [str(path) in message for message in result.corrupt] == [True]
    assert not result.usable


def test_a_layout_that_cannot_be_read_is_a_problem_not_a_crash(tree: Tree, tmp_path: Path) -> None:
    tree(tmp_path / "dtd" / "images", {"banded": 1, "dotted": 0})
    result = checked(tmp_path)
    assert "class 'dotted'" in result.problem
    assert not result.usable


def test_large_datasets_are_sampled_from_end_to_end_unless_full(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path / "dtd" / "images", {"banded": 10})
    monkeypatch.setattr("opencil.data.check.SAMPLE", 4)
    told: list[tuple[int, int]] = []
    asked = Asked("texture", Texture(), "test", "far")
    result = check(asked, tmp_path, 32, progress=lambda done, total: told.append((done, total)))
    assert (result.images, result.decoded, told[-1]) == (10, 4, (4, 4))
    assert checked(tmp_path, full=True).decoded == 10


def test_checksums_of_published_files(mnist: Callable[..., Path], tmp_path: Path) -> None:
    result = check(Asked("mnist", MNIST(), "test", "far"), mnist(tmp_path), 32)
    assert (result.checksum, result.usable) == ("differs", True)
    assert checked(tmp_path).checksum == ""


def test_the_published_file_is_recognised(
    cifar: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hashlib

    root = cifar(tmp_path)
    path = root / "cifar-100-python" / "test"
    monkeypatch.setattr(CIFAR100, "checksums", {"test": hashlib.md5(path.read_bytes()).hexdigest()})
    asked = Asked("cifar100", CIFAR100(), "test", "ID")
    assert check(asked, root, 32).checksum == "canonical"
    path.write_bytes(pickle.dumps(pickle.loads(path.read_bytes()), protocol=4))
    assert check(asked, root, 32).checksum == "differs"


def test_what_may_not_be_read_is_that_rows_problem(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path / "dtd" / "images", {"banded": 3})

    def refuse(*_: object) -> bytes:
        raise PermissionError(13, "Permission denied", "a file")

    with monkeypatch.context() as patched:
        patched.setattr("opencil.data.check._checksum", refuse)
        assert checked(tmp_path).problem == "a file cannot be read: Permission denied"
    monkeypatch.setattr(Path, "is_dir", lambda path: bool(refuse()) if path.name == "images" else True)
    result = checked(tmp_path)
    assert "a file cannot be read: Permission denied" in result.problem
    assert not result.usable


def test_a_dataset_of_a_package_is_loaded() -> None:
    asked = Asked("digits", Digits(), "train", "ID")
    result = check(asked, None, 8)
    assert (result.images, result.decoded, result.expected, result.usable) == (965, 965, None, True)
    result = check(asked, None, 32)
    assert "its images are 8 × 8 pixels" in result.problem
    assert not result.usable


# --- what a run notes ------------------------------------------------------------------------------


def test_what_is_noted_about_a_split(
    mnist: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = mnist(tmp_path)
    assert describe(MNIST(), "test", root) == {"paper": 10_000, "files": "differs"}
    names = [path for path in root.rglob("*") if path.name in MNIST.checksums]
    monkeypatch.setattr(MNIST, "checksums", {path.name: digest(path, "md5") for path in names})
    assert describe(MNIST(), "test", root) == {"paper": 10_000, "files": "canonical"}


def test_where_no_checksum_is_known_nothing_is_said_of_files(tree: Tree, tmp_path: Path) -> None:
    tree(tmp_path / "dtd" / "images", {"banded": 3})
    assert describe(Texture(), "test", tmp_path) == {"paper": 5640, "files": ""}


def test_images_of_a_package_are_in_no_paper() -> None:
    assert describe(Digits(), "train", None) == {"paper": None, "files": ""}
