"""Locks: one holder at a time; a dead one's is taken over, a living one's never, whatever the clocks say."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from opencil import atomic_files, locks
from opencil.locks import Held, Holder, Lock, LockLost, seems_held

DAY = 24 * 3600.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / ".held"


@pytest.fixture(autouse=True)
def _quick(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.parent.mkdir()
    monkeypatch.setattr(locks, "WATCHED", 0.2)


def left(path: Path, age: float = 0.0, **values: Any) -> bytes:
    """A lock of another process, last touched so many seconds ago by the file system's clock."""
    holder = replace(Holder.here(), **values)
    path.write_text(json.dumps(asdict(holder)))
    now = path.stat().st_mtime
    os.utime(path, (now - age, now - age))
    return path.read_bytes()


@pytest.fixture
def process() -> Iterator[Callable[[Path], subprocess.Popen[str]]]:
    """Start a process that holds a lock until it is ended."""
    started: list[subprocess.Popen[str]] = []

    def start(path: Path) -> subprocess.Popen[str]:
        code = "import sys, time; from pathlib import Path; from opencil.locks import Lock\n"
        code += "Lock(Path(sys.argv[1])).acquire(); print('held', flush=True); time.sleep(600)"
        words = [sys.executable, "-c", code, str(path)]
        started.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout is not None
        assert started[-1].stdout.readline() == "held\n"
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.communicate()


def others(path: Path) -> list[str]:
    """What lies beside a lock."""
    return sorted(p.name for p in path.parent.iterdir() if p != path)


def test_one_holds_it_and_it_leaves_nothing(path: Path) -> None:
    with Lock(path):
        assert seems_held(path)
        with pytest.raises(Held, match=rf"is held by process {os.getpid()} on "):
            Lock(path).acquire()
        assert seems_held(path), "who was refused has changed nothing"
        assert others(path) == []
    assert not seems_held(path)
    assert list(path.parent.iterdir()) == []
    with Lock(path), pytest.raises(Held):
        Lock(path, timeout=0.05).acquire()


def test_a_process_holds_it_while_it_lives_halted_too(
    path: Path, process: Callable[[Path], subprocess.Popen[str]]
) -> None:
    """However old its heartbeat is: on its own machine one can see that it lives."""
    holder = process(path)
    holder.send_signal(signal.SIGSTOP)
    os.utime(path, (0, 0))
    for _ in range(2):
        assert seems_held(path)
        with pytest.raises(Held, match=f"process {holder.pid} on "):
            Lock(path).acquire()
    holder.kill()
    # Not waited for: its number is still there, and it has ended.
    while "\nState:\tZ" not in Path(f"/proc/{holder.pid}/status").read_text():
        time.sleep(0.01)
    assert not seems_held(path)
    with Lock(path):
        assert seems_held(path)


def test_a_number_that_another_process_has_now_holds_nothing(path: Path) -> None:
    left(path, started=Holder.here().started - 1)  # type: ignore[operator]
    assert not seems_held(path)
    parent = os.getppid()
    left(path, process=parent, started=(locks._started(parent) or 0) + 1)
    with Lock(path):
        pass


def test_what_this_process_no_longer_knows_of_it_does_not_hold(path: Path) -> None:
    """An interrupt may come between two lines; a notebook's process lives on."""
    left(path)
    with Lock(path):
        assert seems_held(path)


@pytest.mark.parametrize("skew", [-DAY, 0.0, DAY])
def test_another_machine_is_judged_by_the_file_servers_clock(
    path: Path, skew: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + skew)
    left(path, age=locks.STALE - 30, machine="elsewhere", host="node7", process=99)
    assert seems_held(path)
    with pytest.raises(Held, match="process 99 on node7"):
        Lock(path).acquire()
    left(path, age=locks.STALE + 30, machine="elsewhere")
    assert not seems_held(path)
    with Lock(path):
        assert seems_held(path)
    assert others(path) == []


@pytest.mark.parametrize("server", [-DAY, DAY])
def test_a_file_server_whose_clock_is_wrong(
    path: Path, server: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sets the times of both: of the lock, and of what is written to know what time it is there."""
    monkeypatch.setattr(locks, "_server_time", lambda _: time.time() + server)
    left(path, age=locks.STALE - 30 - server, machine="elsewhere")
    assert seems_held(path)
    left(path, age=locks.STALE + 30 - server, machine="elsewhere")
    with Lock(path):
        pass


def test_a_file_server_whose_clock_was_set_back(path: Path) -> None:
    """A heartbeat from a day to come is no sign of life for a day."""
    left(path, age=-DAY, machine="elsewhere")
    with Lock(path):
        pass
    left(path, age=30 - locks.STALE, machine="elsewhere")
    assert seems_held(path)


def test_what_time_it_is_is_asked_of_the_file_system(path: Path) -> None:
    written = path.parent / "now"
    written.touch()
    assert locks._server_time(path.parent) == pytest.approx(written.stat().st_mtime, abs=5)
    written.unlink()
    assert list(path.parent.iterdir()) == []


def test_one_that_beats_while_it_is_watched_keeps_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file server was away: all heartbeats waited, and come just when others look."""
    content = left(path, age=locks.STALE + 1000, machine="elsewhere")
    monkeypatch.setattr(locks, "WATCHED", 1.0)
    beat = threading.Timer(0.3, lambda: os.utime(path))
    beat.start()
    with pytest.raises(Held):
        Lock(path).acquire()
    beat.join()
    assert path.read_bytes() == content


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"host": "x"}', b"\xff"])
def test_a_file_that_does_not_say_who_holds_it(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(Held, match="is held by another process"):
        Lock(path).acquire()
    os.utime(path, (0, 0))
    with Lock(path):
        pass


def test_a_holder_touches_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Lock(path) as lock:
        os.utime(path, (0, 0))
        lock.beat()
        assert path.stat().st_mtime > 0
        content = left(path, age=1000, machine="elsewhere")
        before = path.stat().st_mtime
        lock.beat()
        assert (path.stat().st_mtime, path.read_bytes()) == (before, content), "it is another's now"
    assert path.exists(), "and stays another's"


def test_a_thread_beats_for_all_that_are_held(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "BEAT", 0.01)
    monkeypatch.setattr(locks, "_beating", [])
    with Lock(path):
        os.utime(path, (0, 0))
        for _ in range(1000):
            if path.stat().st_mtime > 0:
                break
            time.sleep(0.01)
        else:
            pytest.fail("no heartbeat came")


def test_who_was_halted_for_so_long_notices_before_it_writes(path: Path, tmp_path: Path) -> None:
    file, elsewhere = path.parent / "step01" / "step.json", tmp_path / "other"
    with Lock(path):
        atomic_files.write_text(file, "mine")
        left(path, machine="elsewhere", host="node7", process=99)
        with pytest.raises(LockLost, match="process 99 on node7 has taken over"):
            atomic_files.write_text(file, "mine again")
        atomic_files.write_text(elsewhere, "what the lock is not of")
    assert file.read_text() == "mine"
    assert list(file.parent.iterdir()) == [file], "nothing half-written"
    atomic_files.write_text(file, "nobody's")


def test_who_waits_is_in_nobodys_way(path: Path) -> None:
    """Of another thread of the process: it holds nothing yet."""
    with Lock(path):
        waiting = threading.Thread(target=lambda: Lock(path, timeout=60).__enter__().release())
        waiting.start()
        while len(locks._tokens) < 2:
            time.sleep(0.001)
        atomic_files.write_text(path.parent / "file", "ours")
    waiting.join()


def test_many_that_want_a_dead_ones_lock_get_it_one_by_one(path: Path) -> None:
    left(path, process=2**22 + 1, started=None)  # a number that no process has
    inside, most, times = 0, 0, 0
    counting = threading.Lock()

    def want() -> None:
        nonlocal inside, most, times
        for _ in range(3):
            with Lock(path, timeout=60):
                with counting:
                    inside += 1
                    most, times = max(most, inside), times + 1
                time.sleep(0.001)
                with counting:
                    inside -= 1

    threads = [threading.Thread(target=want) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, times) == (1, 24)
    assert list(path.parent.iterdir()) == []


def test_who_dies_while_it_takes_over_is_in_nobodys_way(path: Path) -> None:
    guard = path.with_name(".held.takeover.part")
    left(guard, process=2**22 + 1, started=None)
    left(path, process=2**22 + 2, started=None)
    with Lock(path):
        assert seems_held(path)
    assert list(path.parent.iterdir()) == []


def test_who_judged_a_holder_that_has_changed_meanwhile_takes_nothing(path: Path) -> None:
    dead = left(path, process=2**22 + 1, started=None)
    found = locks._Found.at(path)
    assert found is not None
    assert found.content == dead
    lock = Lock(path)
    lock._content = b"mine"
    living = left(path, machine="elsewhere")
    assert not lock._taken_over(found)
    assert path.read_bytes() == living
    path.unlink()
    assert not lock._taken_over(found)


def test_a_file_system_without_links(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise PermissionError("Operation not permitted")

    monkeypatch.setattr(os, "link", unsupported)
    with Lock(path):
        assert seems_held(path)
        with pytest.raises(Held):
            Lock(path).acquire()
    assert list(path.parent.iterdir()) == []


def test_a_file_server_that_answers_a_link_twice(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first answer was lost: it says that the file is there, which it made for us."""
    link = os.link

    def twice(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", twice)
    with Lock(path):
        assert seems_held(path)


def test_where_nothing_can_be_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        Lock(path).acquire()
    assert not path.exists()
    assert (locks._held, locks._tokens) == ({}, set())
