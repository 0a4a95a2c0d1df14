"""Files are whole or absent."""

import os
from pathlib import Path

import pytest

from opencil import BadInput, atomic_files


def test_a_file_appears_complete_and_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "a.txt"

    def fill(temporary: Path) -> None:
        temporary.write_text("half")
        assert not path.exists(), "nothing stands under the name before it is complete"
        temporary.write_text("whole")

    atomic_files.write(path, fill)
    assert path.read_text() == "whole"
    assert list(path.parent.iterdir()) == [path]


def test_a_file_is_flushed_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = []
    flush, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (order.append("flush"), flush(handle)))
    monkeypatch.setattr(Path, "replace", lambda old, new: (order.append("rename"), replace(old, new))[1])
    atomic_files.write_text(tmp_path / "a.txt", "x")
    assert order == ["flush", "rename", "flush"], "the file, its name, the folder"
    atomic_files.write_bytes(tmp_path / "b", b"x", flush=False)
    assert order[3:] == ["rename"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_write_that_fails_leaves_the_old_file_and_no_other(
    tmp_path: Path, error: type[BaseException]
) -> None:
    path = tmp_path / "a.txt"
    atomic_files.write_text(path, "old")

    def fill(temporary: Path) -> None:
        temporary.write_text("ne")
        raise error("disk full")

    with pytest.raises(error):
        atomic_files.write(path, fill)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_fill_that_writes_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        atomic_files.write(tmp_path / "a.txt", lambda temporary: None)
    assert list(tmp_path.iterdir()) == []


def test_a_link_stays_and_its_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    target, link, dangling = tmp_path / "deep" / "a.txt", tmp_path / "link", tmp_path / "dangling"
    target.write_text("old")
    link.symlink_to(Path("deep") / "a.txt")
    dangling.symlink_to(Path("deep") / "new.txt")
    atomic_files.write_text(link, "new")
    atomic_files.write_text(dangling, "newer")
    assert link.is_symlink()
    assert dangling.is_symlink()
    assert target.read_text() == "new"
    assert (tmp_path / "deep" / "new.txt").read_text() == "newer"
    assert {path.name for path in (tmp_path / "deep").iterdir()} == {"a.txt", "new.txt"}


def test_a_link_may_be_replaced_and_its_file_stays(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    for points_to in (target, tmp_path / "nothing", tmp_path):
        link.unlink(missing_ok=True)
        link.symlink_to(points_to)
        atomic_files.write_text(link, "new", follow=False)
        assert not link.is_symlink()
        assert link.read_text() == "new"
        assert target.read_text() == "old"
        assert set(tmp_path.iterdir()) == {target, link}


def test_who_writes_while_another_writes_has_a_file_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "report.html"

    def fill(temporary: Path) -> None:
        temporary.write_text("first, ")
        atomic_files.write_text(path, "second")
        with temporary.open("a") as file:
            file.write("whole")

    atomic_files.write(path, fill)
    assert path.read_text() == "first, whole"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize(("make", "what"), [("mkfifo", "a pipe"), ("mkdir", "a folder")])
def test_what_is_no_file_is_not_replaced(tmp_path: Path, make: str, what: str, linked: bool) -> None:
    path = tmp_path / "target"
    getattr(os, make)(path)
    kind = path.stat().st_mode
    name = tmp_path / "link" if linked else path
    if linked:
        name.symlink_to(path)
    with pytest.raises(BadInput, match=f"{name} is no file but {what}"):
        atomic_files.write_text(name, "x")
    assert path.stat().st_mode == kind
    assert name.is_symlink() == linked


def test_digest_is_sha256(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert atomic_files.digest(tmp_path / "a") == known


def test_leftovers_are_removed_and_nothing_else(tmp_path: Path) -> None:
    keep, leftover = tmp_path / "a" / "model.safetensors", tmp_path / "a" / "b" / "model.safetensors.part"
    leftover.parent.mkdir(parents=True)
    keep.write_text("x")
    leftover.write_text("x")
    folder = tmp_path / "a" / "mine.part"
    folder.mkdir()
    atomic_files.remove_temporary(tmp_path)
    assert keep.exists()
    assert folder.exists()
    assert not leftover.exists()


def test_a_file_is_called_as_what_it_is_of() -> None:
    for name in ("main-cifar100-k50+10", "ber@nter", "dataset-wa_2"):
        assert atomic_files.file_name(name) == name
    one, other = atomic_files.file_name("a/b"), atomic_files.file_name("a:b")
    assert one != other
    assert one.startswith("a_b-")
    assert other.startswith("a_b-")
