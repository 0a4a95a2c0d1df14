"""Files are whole or absent; damage is noticed; what a disk refuses is one error."""

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from opencil import BadInput, OpenCILError, files
from opencil.files import Damaged, DiskError

# --- writing ---------------------------------------------------------------------------------------


def test_a_file_appears_complete_and_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "a.txt"

    def fill(partial: Path) -> None:
        partial.write_text("half")
        assert not path.exists()
        files.write_text(path, "another writer")
        partial.write_text("whole")

    files.write(path, fill)
    assert path.read_text() == "whole"
    assert list(path.parent.iterdir()) == [path]


def test_a_file_is_flushed_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = []
    flush, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (order.append("flush"), flush(handle)))
    monkeypatch.setattr(Path, "replace", lambda old, new: (order.append("rename"), replace(old, new))[1])
    files.write_text(tmp_path / "a.txt", "x")
    assert order == ["flush", "rename"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "a.txt"
    files.write_text(path, "old")

    def fill(partial: Path) -> None:
        partial.write_text("ne")
        raise error

    with pytest.raises(error):
        files.write(path, fill)
    with pytest.raises(FileNotFoundError):
        files.write(path, lambda partial: None)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "a.txt", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    files.write_text(link, "new")
    assert not link.is_symlink()
    assert (target.read_text(), link.read_text()) == ("old", "new")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_pipes_and_folders_are_not_replaced(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(path := tmp_path / "target")
    (tmp_path / "link").symlink_to(path)
    for name in (path, tmp_path / "link"):
        with pytest.raises(BadInput, match=f"{name} is not a file"):
            files.write_text(name, "x")


def test_half_written_files_are_found(tmp_path: Path) -> None:
    leftover, folder = tmp_path / "a" / "b" / "model.part", tmp_path / "mine.part"
    leftover.parent.mkdir(parents=True)
    folder.mkdir()
    for path in (tmp_path / "a" / "model", leftover):
        path.touch()
    assert files.find_temporary(tmp_path) == [leftover]


def test_file_names_differ_as_names_do() -> None:
    for name in ("main-cifar100-k50+10", "ber@nter", "dataset-wa_2"):
        assert files.file_name(name) == name
    names = ["a/b", "a:b", "x" * 300, "x" * 301, "ü" * 300, "\ud800"]
    assert len({files.file_name(name) for name in names}) == len(names)
    assert all(len(files.file_name(name).encode()) < 255 for name in names)


# --- reading ---------------------------------------------------------------------------------------

WRITERS: dict[str, Callable[[Path], object]] = {
    "json": lambda path: files.write_json(path, {"a": [1, 2.5, None], "b": {"c": "ü"}}),
    "checked": lambda path: files.write_checked(path, b"some bytes"),
    "bytes": lambda path: files.write_bytes(path, b"some bytes"),
}
READERS: dict[str, Callable[[Path], object]] = {
    "json": files.read_json,
    "checked": files.read_checked,
    "bytes": lambda path: files.read_bytes(path, files.checksum(b"some bytes")),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_every_damage_is_noticed(tmp_path: Path, kind: str) -> None:
    path, read = tmp_path / "stored", READERS[kind]
    WRITERS[kind](path)
    whole = path.read_bytes()
    expected = {"a": [1, 2.5, None], "b": {"c": "ü"}} if kind == "json" else b"some bytes"
    assert read(path) == expected
    assert files.checksum(whole) == hashlib.sha256(whole).hexdigest()
    for position in range(len(whole)):
        for content in (
            whole[:position],
            whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :],
        ):
            path.write_bytes(content)
            with pytest.raises(Damaged) as raised:
                read(path)
            assert str(path) in str(raised.value)
    path.unlink()
    with pytest.raises(Damaged, match="missing"):
        read(path)
    for make in (Path.mkdir, os.mkfifo):
        make(path)
        with pytest.raises(Damaged, match="not a file"):
            read(path)
        path.rmdir() if path.is_dir() else path.unlink()


def test_a_json_file_of_any_size_is_not_read_into_memory(tmp_path: Path) -> None:
    with (path := tmp_path / "a.json").open("wb") as file:
        file.truncate(2**40)  # takes no room on the disk
    with pytest.raises(Damaged, match="larger than"):
        files.read_json(path)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"3", b"\xff\xfe", b"[" * 100_000])
def test_other_contents_are_no_json_of_ours(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(Damaged):
        files.read_json(tmp_path / "a.json")


# --- disks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize(("place", "name"), [(Path, "write_bytes"), (os, "fsync"), (Path, "replace")])
def test_a_refusal_of_the_system_is_one_error(
    number: int, place: object, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write_text(path := tmp_path / "a.json", "old")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(place, name, refuse)
        with pytest.raises(DiskError, match=f"^{path} cannot be written: ") as refused:
            files.write_text(path, "new")
        patched.setattr(Path, "read_bytes", refuse)
        with pytest.raises(DiskError, match=f"^{path} cannot be read: "):
            files.read_bytes(path)
    assert refused.value.errno == number
    assert isinstance(refused.value, OpenCILError)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/elsewhere"), True),
        (OSError(errno.EIO, "Input/output error"), True),
        (FileNotFoundError(errno.ENOENT, "No such file"), False),
        (OpenCILError("ours"), False),
        (ValueError("a value"), False),
    ],
)
def test_errors_of_the_disk_are_found(error: Exception, refused: bool, tmp_path: Path) -> None:
    with pytest.raises(DiskError if refused else type(error)), files.disk_errors(tmp_path / "a"):
        raise error
    found = files.find_disk_error(error, tmp_path)
    assert (found is not None) == refused
    if refused:
        assert str(found).startswith(getattr(error, "filename", None) or str(tmp_path))


def test_sizes_in_words() -> None:
    sizes = {0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1_500_000: "1.4 MiB", 3 * 2**40: "3,072.0 GiB"}
    assert {size: files.size_in_words(size) for size in sizes} == sizes
