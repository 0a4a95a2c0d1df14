"""Locks that hold on a shared file system too, where the system's own may not: files with a heartbeat.

A lock is a small file that says who holds it. It is made in one step, which a file server decides, and while
it is held its time is set anew every few seconds, by the server's clock. Who finds one judges its holder:

- of this machine, by its process: one that has ended holds nothing, one that lives holds it, halted or not;
- of another, by its heartbeat: the lock is given up when that is old by the server's clock, whatever the
  clocks of the machines say, and does not come while it is watched for a while.

So nobody has to clean up after a process that was killed. One that was halted on another machine for so long
that its lock was taken over finds that out before it writes: see ``confirm``.
"""

import json
import os
import secrets
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Self

from opencil.errors import OpenCILError

#: Seconds between two heartbeats.
BEAT = 10.0
#: Seconds without one after which a holder on another machine may be dead.
STALE = 120.0
#: Seconds that it is watched for then: a file server that was away has kept all heartbeats waiting.
WATCHED = 2.5 * BEAT
#: Seconds between two looks at a lock that one waits for.
_LOOK = 0.02


class Held(TimeoutError):
    """Somebody else holds a lock, and has not let it go in time."""


class LockLost(OpenCILError):
    """A lock was taken over from this process, which had shown no sign of life for long."""


@dataclass(frozen=True)
class Holder:
    """Who holds a lock: a process, by what tells it from all others that had its number."""

    host: str
    machine: str
    process: int
    started: int | None
    token: str  #: another one each time that a lock is taken

    @classmethod
    def here(cls) -> "Holder":
        """This process."""
        process = os.getpid()
        return cls(socket.gethostname(), _machine(), process, _started(process), secrets.token_hex(8))

    @property
    def lives(self) -> bool | None:
        """Whether the process still holds it; None where that cannot be known from here."""
        if self.machine != _machine() or os.name == "nt":
            return None
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # another user's
            pass
        if (started := _started(self.process)) is not None and started != self.started:
            return False  # it has ended, or another one has its number now
        return self.process != os.getpid() or self.token in _tokens


@dataclass(frozen=True)
class _Found:
    """A lock's file: what it says, and when it was last touched, by the file server's clock."""

    content: bytes
    touched: float

    @classmethod
    def at(cls, path: Path) -> "_Found | None":
        # Opened, not looked at: then NFS asks the server.
        try:
            with path.open("rb") as file:
                return cls(file.read(), os.fstat(file.fileno()).st_mtime)
        except FileNotFoundError:
            return None

    @property
    def holder(self) -> Holder | None:
        """Who holds it; None where the file does not say, as one that was left half-written."""
        try:
            return Holder(**json.loads(self.content))
        except (ValueError, TypeError):
            return None

    def may_be_dead(self, folder: Path) -> bool:
        """Whether nobody holds it, as far as one look tells."""
        lives = self.holder and self.holder.lives
        if lives is not None:
            return not lives
        # A heartbeat that is yet to come is from before the server's clock was set back, and as old.
        return abs(_server_time(folder) - self.touched) > STALE

    def is_dead(self, path: Path) -> bool:
        """Whether nobody holds it. That of another machine is watched for a while."""
        if not self.may_be_dead(path.parent):
            return False
        if self.holder and self.holder.lives is False:
            return True
        until = time.monotonic() + WATCHED
        while time.monotonic() < until:
            time.sleep(min(1.0, WATCHED / 4))
            if _Found.at(path) != self:
                return False
        return True


class Lock:
    """A lock by a file: acquired within ``timeout`` seconds or not at all (``Held``)."""

    def __init__(self, path: Path, timeout: float = 0.0) -> None:
        self.path, self._timeout = path, timeout
        self._content, self._folder, self._token = b"", "", ""

    def acquire(self) -> None:
        """Take it."""
        holder = Holder.here()
        self._content = json.dumps(asdict(holder)).encode()
        self._folder = os.path.realpath(self.path.parent)
        give_up = time.monotonic() + self._timeout
        self._token = holder.token
        _tokens.add(self._token)  # before the file is there: an interrupt may come at any line
        try:
            while not self._taken():
                if time.monotonic() >= give_up:
                    raise Held(f"{self.path} is held by {_who(_Found.at(self.path))}")
                time.sleep(_LOOK)
            _held[self._token] = self
            _start_beating()
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let it go; it stays another's where it was taken over."""
        with suppress(OSError):
            if self._token in _tokens and self.is_ours():
                self.path.unlink()
        _held.pop(self._token, None)
        _tokens.discard(self._token)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def is_ours(self) -> bool:
        """Whether the file still says that we hold it."""
        found = _Found.at(self.path)
        return found is not None and found.content == self._content

    def covers(self, folder: str) -> bool:
        """Whether a folder, by its real path, is the lock's or lies below it."""
        return folder == self._folder or folder.startswith(f"{self._folder}{os.sep}")

    def beat(self) -> None:
        """Show a sign of life."""
        with suppress(OSError):
            if self.is_ours():
                os.utime(self.path)  # without a time: the file server takes its own

    def _taken(self) -> bool:
        """Try once."""
        found = _Found.at(self.path)
        if found is None:
            return self._made()
        return found.is_dead(self.path) and self._taken_over(found)

    def _made(self) -> bool:
        """Make the file where there is none: whole, by a link, which a file server decides."""
        with self._written() as ours:
            try:
                os.link(ours, self.path)
            except FileExistsError:
                return self.is_ours()  # the server may have been asked twice, and answered once
            except OSError:  # a file system without links
                return self._made_in_two()
        return True

    def _made_in_two(self) -> bool:
        try:
            with self.path.open("xb") as file:
                file.write(self._content)
        except FileExistsError:
            return False
        return True

    def _taken_over(self, dead: _Found) -> bool:
        """Replace a dead holder's lock, if it still is that: under a lock of its own only one does so."""
        try:
            with Lock(self.path.with_name(f"{self.path.name}.takeover.part")), self._written() as ours:
                found = _Found.at(self.path)
                if found is None or found.content != dead.content:
                    return False
                ours.replace(self.path)
                return True
        except Held:
            return False

    @contextmanager
    def _written(self) -> Iterator[Path]:
        """What we would say, in a file beside that is gone after the block."""
        ours = self.path.with_name(f"{self.path.name}.{secrets.token_hex(4)}.part")
        try:
            ours.write_bytes(self._content)
            yield ours
        finally:
            ours.unlink(missing_ok=True)


def seems_held(path: Path) -> bool:
    """Whether somebody seems to hold a lock; nothing is made for looking that stays."""
    found = _Found.at(path)
    return found is not None and not found.may_be_dead(path.parent)


def confirm(path: Path) -> None:
    """Refuse to go on where a lock that covers a file was ours and is no more."""
    folder = os.path.realpath(path.parent) if _held else ""
    for lock in list(_held.values()):
        if lock.covers(folder) and not lock.is_ours():
            raise LockLost(
                f"{path} is not written: {_who(_Found.at(lock.path))} has taken over what this process held, "
                "since it had shown no sign of life for minutes"
            )


#: The locks that this process holds, by their tokens; and those too that it is about to take.
_held: dict[str, Lock] = {}
_tokens: set[str] = set()
_beating: list[threading.Thread] = []


def _start_beating() -> None:
    def beat() -> None:
        never = threading.Event()
        while not never.wait(BEAT):
            for lock in list(_held.values()):
                lock.beat()

    if not _beating:
        _beating.append(threading.Thread(target=beat, daemon=True, name="heartbeat of locks"))
        _beating[0].start()


if hasattr(os, "register_at_fork"):  # threads do not survive a fork
    os.register_at_fork(after_in_child=_beating.clear)


def _who(found: _Found | None) -> str:
    holder = found and found.holder
    return f"process {holder.process} on {holder.host}" if holder else "another process"


@cache
def _machine() -> str:
    """This machine since it was started, and in it the processes that know each other by their numbers."""
    try:
        booted = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return (
            f"{booted} {Path('/proc/self/ns/pid').readlink()}"  # containers number processes for themselves
        )
    except OSError:
        return f"{socket.gethostname()} {uuid.getnode():x}"


def _started(process: int) -> int | None:
    """When a process began, in the system's ticks; -1 where it has ended, None where that is not told."""
    try:
        told = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *values = told.rpartition(")")[2].split()
    return -1 if state in "ZX" else int(values[18])  # its number may be kept until its end is asked for


def _server_time(folder: Path) -> float:
    """What time it is for whoever keeps a folder's files."""
    handle, name = tempfile.mkstemp(dir=folder, suffix=".part")
    try:
        return os.fstat(handle).st_mtime
    finally:
        os.close(handle)
        with suppress(OSError):  # whoever holds the lock tidies up
            Path(name).unlink()
