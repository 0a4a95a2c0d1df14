"""Errors of failed runs: a sentence, and the traceback of an unexpected error in a file."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from opencil.config import Config
from opencil.errors import OpenCILError
from opencil.runs.events import (
    describe_failures,
    failed,
    find_unexpected,
    in_words,
)
from opencil.runs.spec import RunSpec, plan
from opencil.runs.store import LockedRun, RunFolder


@pytest.fixture
def spec(short: Callable[..., Config], tmp_path: Path) -> RunSpec:
    return plan(short(tmp_path))[0]


def bug() -> ZeroDivisionError:
    """Return an error with a traceback."""
    try:
        1 / 0  # noqa: B018
    except ZeroDivisionError as error:
        return error


def test_an_expected_error_is_a_sentence(spec: RunSpec, tmp_path: Path) -> None:
    event = failed(spec, folder := RunFolder(tmp_path / "run"), OpenCILError("the loss is nan"))
    assert str(event.error) == "the loss is nan"
    assert folder.error.read_text() == "the loss is nan\n"
    assert event.own_code == ""


def test_an_unexpected_error_has_its_traceback_in_a_file(spec: RunSpec, tmp_path: Path) -> None:
    folder, error = RunFolder(tmp_path / "run"), bug()
    event = failed(spec, folder, error)
    assert str(folder.error) in str(event.error)
    assert event.error.__cause__ is error
    assert "Traceback" in folder.error.read_text()
    assert folder.failure() == "ZeroDivisionError: division by zero"
    assert "in bug" in event.own_code


def test_a_full_disk_is_named(spec: RunSpec, tmp_path: Path) -> None:
    event = failed(spec, RunFolder(tmp_path / "run"), OSError(errno.ENOSPC, "full", "/there/a"))
    assert str(event.error).startswith("/there/a cannot be written: ")
    locked = RunFolder(tmp_path / "locked")
    failed(spec, locked, LockedRun("another process"))
    assert not locked.error.exists()
    failed(spec, RunFolder(tmp_path / "other rank", writes=False), OpenCILError("no"))
    assert not (tmp_path / "other rank").exists()


def test_detectors_without_rows_are_named_by_their_reasons() -> None:
    error = describe_failures({"a": (1, OpenCILError("no")), "b": (1, OpenCILError("no")), "c": (2, bug())})
    assert str(error).startswith("a, b has no rows: step 1: no; c has no rows: step 2: ZeroDivisionError")
    assert isinstance(find_unexpected(error), ZeroDivisionError)
    assert find_unexpected(describe_failures({"a": (1, OpenCILError("no"))})) is None


def test_an_operation_without_a_deterministic_implementation_is_named() -> None:
    error = RuntimeError(
        "cumsum_cuda_kernel does not have a deterministic implementation, but you set "
        "'torch.use_deterministic_algorithms(True)'."
    )
    assert "cumsum_cuda_kernel" in in_words(error)
    assert find_unexpected(error) is None
