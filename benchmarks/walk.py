"""Count what one small run takes: frames above the loss, file operations, locks.

    python benchmarks/walk.py          # iCaRL with MSP on digits, four steps of one epoch

Frames are those of the package on the stack when a loss is first computed, without the loss itself. File
operations are Python's audit events about files below the folder of runs or the folder that the command is
given in, and flushes to disk; operations of one kind on one path are counted each time.
"""

import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch.nn.functional as F

_EVENTS = {
    "open",
    "os.chmod",
    "os.link",
    "os.listdir",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.scandir",
    "os.symlink",
    "os.truncate",
    "os.utime",
    "tempfile.mkstemp",
}


def main() -> None:
    """Run and print the counts."""
    operations, frames, locks = Counter[str](), list[str](), Counter[str]()
    compute = F.cross_entropy

    def cross_entropy(*args: Any, **values: Any) -> Any:
        frame = sys._getframe(1)
        while not frames and frame is not None:
            stack, place = [], frame
            while place is not None:
                if str(place.f_globals.get("__name__", "")).partition(".")[0] == "opencil":
                    stack.append(f"{place.f_globals['__name__']}.{place.f_code.co_qualname}")
                place = place.f_back
            frames.extend(stack)
        return compute(*args, **values)

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        below = (os.path.realpath(folder), folder)

        def audit(event: str, args: tuple[Any, ...]) -> None:
            if event in _EVENTS and isinstance(args[0], str | os.PathLike):
                path = str(Path(folder) / os.fspath(args[0]))
                if path.startswith(below):
                    operations[event] += 1
                    if (args[0] and ".lock" in path) or ".held" in path:
                        locks[path] += event == "open"

        flush = os.fsync

        def fsync(handle: Any) -> None:
            operations["os.fsync"] += 1
            flush(handle)

        from opencil.cli import app as command

        sys.addaudithook(audit)
        os.fsync, F.cross_entropy = fsync, cross_entropy
        words = (
            "run --benchmark digits --cil icarl --detector msp --set cil.icarl.epochs=1 --device cpu --quiet"
        )
        sys.argv = ["opencil", *words.split()]
        acquired = _count_acquisitions()
        try:
            command()
        except SystemExit as end:
            if end.code:
                raise
        os.chdir(Path(folder).parent)
        counted = dict(operations)
    print(f"frames above the loss: {len(frames) - 1}")
    for name in frames:
        print(f"    {name}")
    print(f"file operations: {sum(counted.values())} {counted}")
    print(f"locks acquired: {acquired['locks']}; opens of lock files: {sum(locks.values())}")


def _count_acquisitions() -> Counter[str]:
    counts: Counter[str] = Counter()

    def counting(owner: Any) -> None:
        acquire = owner.acquire

        def counted(*args: Any, **values: Any) -> Any:
            counts["locks"] += 1
            return acquire(*args, **values)

        owner.acquire = counted

    from filelock import BaseFileLock

    counting(BaseFileLock)
    return counts


if __name__ == "__main__":
    main()
