"""A disk that is full, over a quota, read-only or failing is told in a sentence, and the old file stays."""

import errno
import os
from pathlib import Path

import pytest
from safetensors import SafetensorError

from opencil import OpenCILError, atomic_files, seals
from opencil.disk import DiskError, disk_error, size_in_words, told, trouble_of_disk
from opencil.runs import file_formats
from opencil.study.rows import Table, read_tables
from opencil.study.study import unusable

REFUSALS = {
    errno.ENOSPC: r"the disk is full \(.* of .* are free\); make room there, and start again",
    errno.EDQUOT: r"the quota there is used up \(.*free\); make room",
    errno.EIO: "the disk fails; look at the system's log",
    errno.EROFS: "the file system is read-only; name another folder",
    errno.EACCES: "Permission denied$",
}


@pytest.mark.parametrize("number", REFUSALS)
@pytest.mark.parametrize("where", ["fill", "flush", "rename", "make the folder"])
def test_what_a_disk_refuses_is_a_sentence_that_names_the_file(
    number: int, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    atomic_files.write_text(path, "old")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        place, name = {
            "fill": (atomic_files, "_fill"),
            "flush": (os, "fsync"),
            "rename": (Path, "replace"),
            "make the folder": (Path, "mkdir"),
        }[where]
        patched.setattr(place, name, refuse)
        with pytest.raises(DiskError, match=f"^{path} cannot be written: {REFUSALS[number]}") as refused:
            atomic_files.write_text(path, "new")
    assert refused.value.errno == number
    assert isinstance(refused.value, OSError)
    assert isinstance(refused.value, OpenCILError)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_temporary_file_that_cannot_be_removed_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(path: Path) -> None:
        path.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(DiskError, match="the disk is full"):
        atomic_files.write(tmp_path / "a", fill)


@pytest.mark.parametrize(
    "error",
    [
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        RuntimeError("Error writing bytes to file. Detail: [errno 28] No space left on device"),
        OSError(errno.ENOSPC, "No space left on device", "/elsewhere"),
    ],
)
def test_libraries_that_raise_something_else_are_understood(error: Exception, tmp_path: Path) -> None:
    found = disk_error(tmp_path / "a", error)
    assert found is not None
    assert str(found).startswith(f"{tmp_path / 'a'} cannot be written: the disk is full")
    anywhere = trouble_of_disk(error, tmp_path)
    assert anywhere is not None
    place = "/elsewhere" if isinstance(error, OSError) else tmp_path
    assert str(anywhere).startswith(f"{place} cannot be written: the disk is full")


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "No such file"),
        ValueError("a value"),
        OSError("Couldn't deserialize thrift"),
        SafetensorError("Error while deserializing header: InvalidHeader (os error 22)"),
        OpenCILError("ours, (os error 28) or not"),
    ],
)
def test_other_errors_are_left_as_they_are(error: Exception, tmp_path: Path) -> None:
    assert disk_error(tmp_path, error) is None
    assert trouble_of_disk(error, tmp_path) is None
    with pytest.raises(type(error)) as raised, told(tmp_path):
        raise error
    assert raised.value is error


def test_a_file_that_a_disk_does_not_give_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "step.json"
    path.write_text("{}")

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    for name in ("read_text", "read_bytes"):
        monkeypatch.setattr(Path, name, fail)
    for read in (file_formats.read_json, file_formats.read_tensors):
        with pytest.raises(DiskError, match=f"^{path} cannot be read: the disk fails") as refused:
            read(path)
        assert "delete" not in str(refused.value)
    with pytest.raises(DiskError, match="cannot be read: the disk fails"):
        seals.read_json(path, unusable)


def test_a_table_that_a_disk_does_not_give_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    (tmp_path / "rows.parquet").touch()
    monkeypatch.setattr(Path, "read_bytes", fail)
    for damaged in (file_formats.damaged, unusable):
        with pytest.raises(DiskError, match=r"rows.parquet cannot be read: the disk fails"):
            read_tables([Table(tmp_path / "rows.parquet")], damaged)


def test_sizes_are_told_in_a_few_letters() -> None:
    sizes = {0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1_500_000: "1.4 MiB", 3 * 2**40: "3,072.0 GiB"}
    assert {size: size_in_words(size) for size in sizes} == sizes
