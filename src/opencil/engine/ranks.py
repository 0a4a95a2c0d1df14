"""Processes that do one run together, as ``torchrun`` starts them: the only file that talks to them.

Rank 0 leads: it does what a single process does, and it alone reads and writes the store. The others follow:
they wait for work that it hands out, and do that work ``together`` with it, each on its share. Whoever fails
there tells the others, so that an error of one is one of all; where a rank is lost the command ends.
"""

import ctypes
import hashlib
import os
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from opencil.engine.device import resolve_device
from opencil.engine.seeding import derive
from opencil.errors import BadInput, OpenCILError

#: What torchrun tells each process.
_TOLD = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
#: A follower waits for work as long as rank 0 is alive: a connection that breaks ends its wait.
_FOREVER = timedelta(days=365)
#: Seconds in which a rank that has failed hopes to meet the others. Those that wait for its part of something
#: will never come: then its process ends, and they notice.
_GRACE = 20.0
#: Seconds between two looks at who has come.
_LOOK = 0.1
#: Where a rank leaves why its process ends.
_LAST_WORDS = "opencil/last words"


class LostRank(BaseException):
    """A rank is gone, silent or elsewhere: nothing can be done together any more.

    Not an ``Exception``: nobody should take it for the trouble of one method, or of one run.
    """


class Stopped(OpenCILError):
    """Another rank has failed in what all were doing."""


class Left(Stopped):
    """Another rank has left the whole work, not a turn of it."""


@dataclass(frozen=True)
class Share:
    """The rows of every batch that are a rank's own."""

    start: int
    stop: int
    whole: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def weight(self) -> float:
        """Its part of the batch: a mean over the batch is the sum of the shares' means times this."""
        return len(self) / self.whole


class Ranks:
    """All processes of a command, seen from one of them, which computes on ``device``."""

    def __init__(self, rank: int, size: int, device: torch.device, seconds: float) -> None:
        self.rank, self.size, self.device = rank, size, device
        self._seconds = seconds
        #: Whether all ranks do the same work just now.
        self.working = False
        with self.reachable():
            if not dist.is_initialized():
                _begin(rank, size, seconds)
            # Each has connections of its own: a rank may leave one in the middle of another.
            limit = timedelta(seconds=seconds)
            self._host = dist.new_group(backend="gloo", timeout=limit)
            # Followers wait for work as long as it takes; that they take it is not waited for in vain.
            self._work = dist.new_group(backend="gloo", timeout=limit if self.leads else _FOREVER)
            backend = self._backend()
            #: The connections by which tensors go.
            self.group = dist.new_group(backend=backend, timeout=limit)
        #: Whether a CUDA graph can hold what the ranks send each other.
        self.capturable = backend == "nccl"

    @property
    def on_machine(self) -> int:
        """How many ranks share this machine's processors."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", 1))

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def share(self, rows: int, what: str = "a batch") -> Share:
        """This rank's rows of so many, in the ranks' order; the first have one more where they differ."""
        if rows < self.size:
            raise BadInput(f"{what} has {rows} images for {self.size} ranks: use at most {rows} of these")
        counts = self.counts(rows)
        start = sum(counts[: self.rank])
        return Share(start, start + counts[self.rank], rows)

    def counts(self, rows: int) -> list[int]:
        """How many of so many rows each rank has."""
        each, more = divmod(rows, self.size)
        return [each + (rank < more) for rank in range(self.size)]

    def sum_(self, tensor: Tensor) -> Tensor:
        """The sum of all ranks' tensors, in place: the same bits on all of them."""
        with self.reachable():
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def gathered(self, rows: Tensor, counts: Sequence[int], where: str) -> Tensor:
        """All ranks' rows, in the ranks' order; each has so many."""
        self.meet(where)
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in counts]
        with self.reachable():
            dist.all_gather(parts, padded, group=self.group)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    def agree(self, what: str, *values: object) -> None:
        """Refuse to go on where the ranks do not all have the same: tensors bit for bit, others as text."""
        digest = hashlib.sha256()
        for value in values:
            digest.update(_bytes(value) if isinstance(value, Tensor) else repr(value).encode())
        self.meet(f"agree on {what}")
        found = self._told(digest.hexdigest())
        if len(set(found)) > 1:
            other = next(rank for rank, one in enumerate(found) if one != found[0])
            raise OpenCILError(
                f"{what} is not the same on all ranks, on rank {other} another than on rank 0: they need the "
                "same data, the same versions and the same kind of device"
            )

    def meet(self, where: str) -> None:
        """Wait until all ranks are at this place; raise where one of them has failed on its way here."""
        self._meet(derive(where) >> 1)

    def tell(self, error: BaseException, whole: bool = False) -> None:
        """Tell the others, where they meet next, that this rank has failed; or that it leaves the whole work.

        Where all have failed alike, all tell it, and each keeps its own error.
        """
        grace = timedelta(seconds=min(_GRACE, self._seconds))
        why = f"{error}" if isinstance(error, OpenCILError) else f"{type(error).__name__}: {error}"
        try:
            self._meet(0, 2 if whole else 1, why, grace)
        except Stopped:
            return
        except LostRank:
            with suppress(Exception):
                _store().set(_LAST_WORDS, f"rank {self.rank}: {why}")
            _never_freed(self._host)
            raise LostRank(f"rank {self.rank} has failed, and cannot go on: {why}") from error

    def _meet(self, place: int, code: int = 0, why: str = "", patience: timedelta | None = None) -> None:
        state = torch.tensor([code, place, -place])
        with self.reachable():
            work = dist.all_reduce(state, dist.ReduceOp.MAX, group=self._host, async_op=True)
            assert work is not None
            work.wait(*[patience] * (patience is not None))
        code, highest, lowest = state.tolist()
        if code:
            told = [(rank, text) for rank, text in enumerate(self._told(why)) if text]
            raise (Left if code == 2 else Stopped)("; ".join(f"rank {rank}: {text}" for rank, text in told))
        if highest != -lowest:
            raise LostRank("the ranks are at different places of their work, which should not happen")

    def _told(self, text: str) -> list[str]:
        """What each rank says."""
        found: list[Any] = [None] * self.size
        with self.reachable():
            dist.all_gather_object(found, text, group=self._host)
        return found

    @contextmanager
    def together(self) -> Iterator[None]:
        """Inside the block all ranks do the same work; who leaves it by an error tells the others."""
        self.working = True
        try:
            yield
            self.meet("the end of the work")
        except Left:
            raise
        except (Exception, GeneratorExit) as error:
            self.tell(error, whole=True)
            raise
        finally:
            self.working = False

    def hand_out(self, work: object) -> None:
        """Give the followers something to do, as rank 0; None: there is nothing more."""
        with self.reachable():
            dist.broadcast_object_list([work], src=0, group=self._work)

    def next_work(self) -> Any:
        """What rank 0 hands out next."""
        found: list[Any] = [None]
        with self.reachable():
            dist.broadcast_object_list(found, src=0, group=self._work)
        return found[0]

    def _backend(self) -> str:
        """NCCL where each rank has a GPU of its own, which it needs; else Gloo."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, (socket.gethostname(), str(self.device)), group=self._host)
        apart = len(set(found)) == self.size and all("cuda" in device for _, device in found)
        return "nccl" if apart and dist.is_nccl_available() else "gloo"

    @contextmanager
    def reachable(self) -> Iterator[None]:
        """What goes wrong between processes is a lost rank; a device of one's own, or its memory, is not."""
        try:
            yield
        except (torch.OutOfMemoryError, torch.AcceleratorError):
            raise
        except (RuntimeError, ValueError, TimeoutError) as error:  # torch's own are of the first
            words = ""
            with suppress(Exception):
                store = _store()
                words = store.get(_LAST_WORDS).decode() if store.check([_LAST_WORDS]) else ""
            # Gloo says where in its source, what, and how such things come about.
            reason = words or str(error).partition("] ")[2].partition(". ")[0] or str(error).split("\n")[0]
            raise LostRank(
                f"a rank of {self.size} is lost, or was silent for {self._seconds:g} s ({reason})"
            ) from None


def _begin(rank: int, size: int, seconds: float) -> None:
    """Have all ranks know each other. They are waited for here: who waits inside torch hears no signal.

    With --max-restarts torchrun keeps its store, and in it what the ranks of earlier attempts have said; how
    often it has restarted is not the same on all machines. So each rank has a name that none had before, and
    rank 0 gives its own to whoever is there: under that all meet.
    """
    limit, name = timedelta(seconds=seconds), secrets.token_hex(8)
    whole, *_ = next(rendezvous("env://", timeout=limit))
    store = dist.distributed_c10d.PrefixStore("opencil", whole)
    places = [f"rank {number}" for number in range(size)]
    store.set(places[rank], name)
    attempt, give_up = "", time.monotonic() + seconds
    while not (attempt and store.check([f"{attempt}/{place}" for place in places])):
        if rank == 0:
            for place in places:
                if store.check([place]):
                    store.set(store.get(place).decode(), name)
        if not attempt and store.check([name]):
            attempt = store.get(name).decode()
            store.set(f"{attempt}/{places[rank]}", "is here")
        if time.monotonic() > give_up:
            raise TimeoutError("not all have come")
        time.sleep(_LOOK)
    own = dist.distributed_c10d.PrefixStore(attempt, store)
    dist.init_process_group("gloo", store=own, rank=rank, world_size=size, timeout=limit)


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()


def _never_freed(group: Any) -> None:
    """Let the process end while something is under way in a group of Gloo's: who frees one waits for that."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def _bytes(tensor: Tensor) -> bytes:
    return bytes(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)


_joined: Ranks | None = None
_ranks: Ranks | None = None
_apart = False


def several() -> Ranks | None:
    """The ranks of this command; None where it is a single process, or works by itself."""
    return None if _apart else _ranks


def at_work() -> Ranks | None:
    """The ranks, where all of them do the same work just now; None where this process computes alone."""
    ranks = several()
    return ranks if ranks is not None and ranks.working else None


@contextmanager
def among(ranks: Ranks) -> Iterator[None]:
    """Inside the block these are the ranks: what each of several would do, seen in one process."""
    global _ranks
    before, _ranks = _ranks, ranks
    try:
        yield
    finally:
        _ranks = before


@contextmanager
def by_itself() -> Iterator[None]:
    """Inside the block this process computes alone."""
    global _apart
    before, _apart = _apart, True
    try:
        yield
    finally:
        _apart = before


def started() -> int:
    """How many processes torchrun has started, of which this is one; 1 without it."""
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in _TOLD) else 1


def follows() -> bool:
    """Whether this process is another than rank 0, which alone shows and stores."""
    return started() > 1 and os.environ["RANK"] != "0"


def joined(device: str, seconds: float) -> Ranks | None:
    """Join the other processes that torchrun has started; None where there are none.

    A device of a kind, such as ``cuda``, is that GPU of the machine which has the number of the process.
    """
    global _joined, _ranks
    if _joined is None and started() > 1:
        place = resolve_device(device)
        if str(place) == "cuda":
            place = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        if place.type == "cuda":
            torch.cuda.set_device(place)
        _joined = Ranks(int(os.environ["RANK"]), started(), place, seconds)
    _ranks = _joined
    return _ranks


def left() -> None:
    """From here on this process computes alone, until it joins again."""
    global _ranks
    _ranks = None
