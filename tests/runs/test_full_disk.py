"""A disk that is full or fails: the run it happens to fails alone, in a sentence, and goes on later."""

import errno
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import opencil
from opencil import atomic_files
from opencil.config import Config
from opencil.runs import tensorboard
from opencil.runs.events import Event, Failed, Finished
from opencil.runs.outputs_cache import OutputsCache

Make = Callable[..., Config]
RunAll = Callable[[Config], list[Event]]
FIRST, SECOND = "digits/k8/icarl/seed0", "digits/k8/icarl/seed1"


@pytest.fixture
def short(tiny: Make) -> Make:
    """Two runs of one step and one epoch, under one detector."""

    def make(runs: Path, *settings: str) -> Config:
        values = ("benchmark.classes_per_step=8", "benchmark.shifted={}", "cil.*.epochs=1", *settings)
        return tiny(runs, *values, detector="msp", seed=[0, 1])

    return make


def ends(events: list[Event]) -> dict[str, Event]:
    return {str(event.run): event for event in events if isinstance(event, Finished | Failed)}


def refuse_writing(
    monkeypatch: pytest.MonkeyPatch, number: int, what: str, fill: Callable[..., None] = atomic_files._fill
) -> None:
    """Half of a file whose path has ``what`` in it is written, then the system refuses."""

    def refusing(path: Path, content: bytes) -> None:
        if what in path.as_posix():
            fill(path, content[: len(content) // 2])
            raise OSError(number, os.strerror(number))
        fill(path, content)

    monkeypatch.setattr(atomic_files, "_fill", refusing)


@pytest.mark.parametrize(
    ("number", "what", "told", "pack"),
    [
        (errno.ENOSPC, "step01/model.safetensors", "the disk is full", 1),
        (errno.EDQUOT, "step01/step.json", "the quota there is used up", 2),
        (errno.EROFS, "data.json", "the file system is read-only", 1),
    ],
)
def test_a_run_whose_file_cannot_be_written_fails_alone(
    short: Make,
    tmp_path: Path,
    run_all: RunAll,
    results: Callable[[Path], dict[str, object]],
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    what: str,
    told: str,
    pack: int,
) -> None:
    config = short(tmp_path / "runs", f"place.pack={pack}", "place.outputs_limit=0")
    with monkeypatch.context() as patched:
        refuse_writing(patched, number, f"seed0/{what}")
        ended = ends(run_all(config))
    failure = ended[FIRST]
    assert isinstance(failure, Failed)
    assert told in str(failure.error)
    assert f"{tmp_path / 'runs' / FIRST}" in str(failure.error)
    assert isinstance(ended[SECOND], Finished)
    assert (tmp_path / "runs" / FIRST / "error.txt").read_text() == f"{failure.error}\n", "no traceback"
    assert not list((tmp_path / "runs").rglob("*.part"))
    again = ends(run_all(config))
    assert again[FIRST] == Finished(failure.run, already=False)
    assert again[SECOND] == Finished(again[SECOND].run, already=True)
    assert not (tmp_path / "runs" / FIRST / "error.txt").exists()
    if number == errno.ENOSPC:  # once is enough: the others go the same way
        run_all(replace(config, place=replace(config.place, runs=str(tmp_path / "never stopped"))))
        assert results(tmp_path / "runs" / FIRST) == results(tmp_path / "never stopped" / FIRST)


def test_a_run_whose_file_cannot_be_read_fails_alone_and_loses_nothing(
    short: Make, tmp_path: Path, run_all: RunAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = short(tmp_path / "runs")
    run_all(config)
    model = tmp_path / "runs" / FIRST / "step01" / "model.safetensors"
    before, read = model.read_bytes(), Path.read_bytes

    def failing(path: Path) -> bytes:
        if path == model:
            raise OSError(errno.EIO, "Input/output error")
        return read(path)

    more = replace(config, detector={"energy": {}, **config.detector})
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", failing)
        ended = ends(run_all(more))
    failure = ended[FIRST]
    assert isinstance(failure, Failed)
    assert f"{model} cannot be read: the disk fails" in str(failure.error)
    assert isinstance(ended[SECOND], Finished)
    assert model.read_bytes() == before
    assert all(isinstance(event, Finished) for event in ends(run_all(more)).values())


def test_caches_and_curves_that_cannot_be_written_cost_no_run(
    short: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("tensorboard")
    import torch.utils.tensorboard

    class Full:
        def __init__(self, folder: str) -> None: ...
        def add_scalar(self, *_: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch.utils.tensorboard, "SummaryWriter", Full)
    refuse_writing(monkeypatch, errno.ENOSPC, "/.outputs/")
    with caplog.at_level(logging.WARNING), tensorboard.training_curves(str(tmp_path / "curves")) as write:
        events = []
        for event in opencil.execute(short(tmp_path / "runs")):
            write(event)
            events.append(event)
    assert [type(event) for event in ends(events).values()] == [Finished, Finished]
    for what in ("outputs are not kept in", "training curves are not written to"):
        told = [record.message for record in caplog.records if what in record.message]
        assert len(told) == 1, "not once for every entry"
        assert "(No space left on device): runs go on without" in told[0]


def test_a_cache_folder_that_is_read_only_is_no_more_than_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from opencil.runs import outputs_cache

    class ReadOnly:
        def __init__(self, path: Path, timeout: float) -> None:
            raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(outputs_cache, "Lock", ReadOnly)
    with caplog.at_level(logging.WARNING):
        OutputsCache(tmp_path, 100).trim()
    assert "Read-only file system" in caplog.text


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 KiB, where one may be mounted."""
    place = tmp_path / "small"
    place.mkdir()
    if sys.platform != "linux" or not shutil.which("mount"):
        pytest.skip("file systems are mounted on Linux alone")
    command = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(place)]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no file system may be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_is_really_full_stops_a_run_and_more_room_lets_it_go_on(
    small_disk: Path, short: Make, run_all: RunAll
) -> None:
    config = short(small_disk / "runs", "place.outputs_limit=0")
    ended = ends(run_all(config))
    assert isinstance(ended[FIRST], Finished), "one has room"
    failure = ended[SECOND]
    assert isinstance(failure, Failed)
    assert "cannot be written: the disk is full (" in str(failure.error)
    assert " of 400.0 KiB are free)" in str(failure.error)
    assert not list(small_disk.rglob("*.part"))
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    again = ends(run_all(config))
    assert again[FIRST] == Finished(again[FIRST].run, already=True)
    assert again[SECOND] == Finished(failure.run, already=False)
