"""The processes of one torchrun command: each executes the same run, on its share of every batch.

All random choices follow from seeds, so the ranks execute the same code on the same data. They sum gradients,
gather the rows of forward passes and compare checksums. Rank 0 alone shows progress and writes.
"""

import atexit
import hashlib
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from opencil.engine.device import resolve_device
from opencil.errors import BadInput, OpenCILError

T = TypeVar("T")
#: Environment variables set by torchrun in each process.
_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
#: Seconds in which a rank with an error expects the others to have it too; they may be waiting for this one.
_GRACE = 20.0


class LostRank(BaseException):
    """A rank has ended, hangs or has failed alone. No ``except Exception`` around one method catches it."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}: what was finished is stored, and the same command resumes from there")


@dataclass(frozen=True)
class Share:
    """The rows of one rank in every batch."""

    rows: slice
    weight: float  #: their fraction of the batch, and so of its mean


class Ranks:
    """All ranks of a command, seen from this one on its ``device``; the ``first`` alone writes.

    Each waits ``seconds`` for the others; ``on_machine`` of them share this machine's processors. Where they
    are ``capturable``, CUDA graphs can contain their sums.
    """

    def __init__(self, rank: int, size: int, device: torch.device, seconds: float) -> None:
        self.rank, self.size, self.device, self.first = rank, size, device, rank == 0
        self.on_machine = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        self._seconds, self._works, limit = seconds, 0, timedelta(seconds=seconds)
        with self.connected():
            self._store, _, _ = next(rendezvous("env://", timeout=limit))
            dist.init_process_group("gloo", store=self._store, rank=rank, world_size=size, timeout=limit)
            places = self.collect((socket.gethostname(), device))
            # NCCL needs a GPU for each rank; Gloo serves CPUs, and ranks that share a GPU.
            own_gpus = len(set(places)) == size and all(device.type == "cuda" for _, device in places)
            self.capturable = own_gpus and dist.is_nccl_available()
            self._group = dist.new_group(backend="nccl", timeout=limit) if self.capturable else None

    def share(self, rows: int, what: str = "a batch") -> Share:
        """Return this rank's part of a number of rows; the ranks take them in order."""
        if rows < self.size:
            raise BadInput(f"{what} has {rows} images for {self.size} ranks: use at most {rows} of these")
        counts = self.counts(rows)
        start = sum(counts[: self.rank])
        return Share(slice(start, start + counts[self.rank]), counts[self.rank] / rows)

    def counts(self, rows: int) -> list[int]:
        """Return how many rows each rank takes; the first ranks take one more where they do not divide."""
        each, more = divmod(rows, self.size)
        return [each + (rank < more) for rank in range(self.size)]

    def sum_(self, tensor: Tensor) -> Tensor:
        """Replace a tensor by the sum of all ranks' tensors: the same bits on all of them."""
        with self.connected():
            dist.all_reduce(tensor, group=self._group)
        return tensor

    def sum_all_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all ranks, in one message."""
        sums = self.sum_(torch.cat([tensor.flatten() for tensor in tensors]))
        parts = torch.split(sums, [tensor.numel() for tensor in tensors])
        for tensor, total in zip(tensors, parts, strict=True):
            tensor.copy_(total.view(tensor.shape))

    def gather(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """Return the rows of all ranks in the ranks' order; ``counts`` are the numbers of their rows."""
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in counts]
        with self.connected():
            dist.all_gather(parts, padded, group=self._group)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    def same_fate(self, error: Exception | None) -> None:
        """Return where all ranks have failed in a work, or none; raise LostRank where only some have.

        All ranks call it at the end of each work. If others wait for a failed rank in the middle of the work,
        it gives up after ``_GRACE`` seconds; its end makes the others give up too.
        """
        self._works += 1
        keys = [f"work {self._works}, rank {rank}" for rank in range(self.size)]
        seconds = self._seconds if error is None else min(_GRACE, self._seconds)
        reason = "" if error is None else f"rank {self.rank} has failed ({type(error).__name__}: {error})"
        with self.connected(reason):  # not by a message, which a sum on another rank would take for its own
            self._store.set(keys[self.rank], "")
            self._store.wait(keys, timedelta(seconds=seconds))
        reasons = self.collect(reason)
        if any(reasons) and not all(reasons):
            raise LostRank(f"only {'; '.join(filter(None, reasons))}") from error

    def collect(self, value: object) -> list[Any]:
        """Return the values of all ranks."""
        found: list[Any] = [None] * self.size
        with self.connected():
            dist.all_gather_object(found, value)
        return found

    @contextmanager
    def connected(self, reason: str = "") -> Iterator[None]:
        """Turn errors between processes into LostRank; errors of the rank's own device stay as they are."""
        try:
            yield
        except (torch.OutOfMemoryError, torch.AcceleratorError):
            raise
        except (RuntimeError, ValueError) as error:
            silent = f"a rank of {self.size} has ended or was silent for {self._seconds:g} s"
            raise LostRank(reason or silent) from error


_joined: Ranks | None = None
_current: Ranks | None = None


def join(device: str, seconds: float) -> Ranks | None:
    """Return the ranks started by torchrun, joined at the first call; None in a single process.

    A kind of device such as ``cuda`` is the GPU with this process's number on the machine.
    """
    global _joined
    if _joined is None and world_size() > 1:
        place = resolve_device(device)
        if str(place) == "cuda":
            place = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        if place.type == "cuda":
            torch.cuda.set_device(place)
        _joined = Ranks(int(os.environ["RANK"]), world_size(), place, seconds)
        if not _joined.capturable:  # Gloo's threads must not outlive the interpreter
            atexit.register(dist.destroy_process_group)
    return _joined


def current() -> Ranks | None:
    """Return the ranks sharing the work at this moment; None if this process computes alone."""
    return _current


@contextmanager
def using(ranks: Ranks | None) -> Iterator[None]:
    """Share the work inside the block with these ranks; with None, compute alone."""
    global _current
    before, _current = _current, ranks
    try:
        yield
    finally:
        _current = before


def from_first(compute: Callable[..., T], *args: Any) -> T:
    """Call a function on rank 0 alone; return its value, or raise its error, on all ranks.

    The value is pickled, so its tensors must be on the CPU. Without ranks, only call the function.
    """
    if _current is None:
        return compute(*args)
    sent: list[Any] = [None, None]
    if _current.first:
        try:
            sent[0] = compute(*args)
        except Exception as problem:
            sent[1] = type(problem), problem.args, vars(problem)
    with _current.connected():
        dist.broadcast_object_list(sent, src=0)
    if sent[1] is not None:
        kind, arguments, attributes = sent[1]
        error: Exception = kind.__new__(kind, *arguments)  # its __init__ may take other arguments
        vars(error).update(attributes)
        raise error
    value: T = sent[0]
    return value


def agree(what: str, *values: object) -> None:
    """Raise on all ranks where their values differ: tensors are compared by bits, others as text."""
    if _current is None:
        return
    digest = hashlib.sha256()
    for value in values:
        if isinstance(value, Tensor):
            value = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        digest.update(value if isinstance(value, bytes) else repr(value).encode())
    if len(set(_current.collect(digest.hexdigest()))) > 1:
        raise OpenCILError(f"{what} is not the same on all ranks: do they have the same data and versions?")


def world_size() -> int:
    """Return the number of processes started by torchrun; 1 without it."""
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in _VARIABLES) else 1


def is_first_rank() -> bool:
    """Return whether this process is rank 0, or the only one."""
    return world_size() == 1 or os.environ["RANK"] == "0"
