"""Decoded images that stay in the host's memory, as many as it has room for: few are decoded twice.

A step reads its images in every epoch, the memory's exemplars in all later steps, and every evaluation set
once for the outputs and again for each detector that runs the network itself.
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np

from opencil.data.readers.decode import Pixels
from opencil.data.readers.source import ImageSource

_Key = tuple[str, int]


class KeptPixels:
    """At most ``limit`` bytes of decoded images, of all the sets that share it.

    For an image more, those that were used the longest ago make room; but not those that the same set had in
    this pass or in the one before. Else an epoch that is larger than the memory would find nothing in it:
    what it comes to last would have made room for what it begins with.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.held = limit, 0
        self._entries: OrderedDict[_Key, tuple[Pixels, int]] = OrderedDict()
        self._passes: Counter[str] = Counter()
        self._lock = Lock()

    def pass_over(self, source: ImageSource, key: str, side: int) -> ImageSource:
        """A source's images once more, from memory where they are there; ``key`` names the set."""
        if not self.limit or source.at_hand(side):
            return source
        with self._lock:
            self._passes[key] += 1
            return _Pass(source.labels, source.classes, source, self, key, self._passes[key])

    def find(self, key: _Key, number: int) -> Pixels | None:
        """An image that is kept, used now by the set's pass of that number."""
        with self._lock:
            if (entry := self._entries.get(key)) is None:
                return None
            self._entries[key] = (entry[0], number)
            self._entries.move_to_end(key)
            return entry[0]

    def keep(self, key: _Key, pixels: Pixels, number: int) -> None:
        """Keep an image that a pass has decoded, if there is room for it or can be made."""
        with self._lock:
            while self.held + pixels.nbytes > self.limit:
                if not self._entries:
                    return
                (name, _), (oldest, last) = next(iter(self._entries.items()))
                if name == key[0] and last >= number - 1:
                    return
                self._entries.popitem(last=False)
                self.held -= oldest.nbytes
            if key not in self._entries:  # another thread may have decoded it too
                self._entries[key] = (pixels, number)
                self.held += pixels.nbytes


@dataclass(frozen=True)
class _Pass(ImageSource):
    """A source as one pass over it is served."""

    whole: ImageSource
    kept: KeptPixels
    key: str
    number: int

    def name(self, index: int) -> str:
        """The image's own name."""
        return self.whole.name(index)

    def pixels(self, index: int, side: int) -> Pixels:
        """The image, decoded now or before."""
        found = self.kept.find((self.key, index), self.number)
        if found is None:
            found = np.ascontiguousarray(self.whole.pixels(index, side))
            self.kept.keep((self.key, index), found, self.number)
        return found


def room_here() -> int:
    """Bytes for decoded images: a quarter of the memory that is free."""
    return (free_memory() or 0) // 4


def free_memory(root: Path = Path("/")) -> int | None:
    """Bytes that programs may still take here, a container's or a job's limit heeded; None: not known."""
    try:
        machine = _fields(root / "proc/meminfo")["MemAvailable:"] * 1024
    except (OSError, ValueError, LookupError):  # not on Linux
        return None
    try:
        own = next(line for line in (root / "proc/self/cgroup").read_text().splitlines() if line[:3] == "0::")
        group = root / "sys/fs/cgroup" / own[3:].lstrip("/")
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        # What the system keeps of files it lets go when somebody needs the room.
        return max(0, min(machine, limit - used + _fields(group / "memory.stat")["file"]))
    except (OSError, ValueError, LookupError, StopIteration):  # no limit, or none that is told there
        return machine


def _fields(path: Path) -> dict[str, int]:
    """The numbers in a file of the system's, by the words before them."""
    rows = (line.split() for line in path.read_text().splitlines())
    return {row[0]: int(row[1]) for row in rows}
