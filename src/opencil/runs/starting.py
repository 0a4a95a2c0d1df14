"""How a worker's process is started, also before it is known what it shall do.

It imports for seconds, and so does who gives it runs: started first thing, it does so meanwhile. That is why
this module needs nothing but Python.
"""

import atexit
import pickle
import sys

from opencil.runs.pipes import PipedProcess

#: What the process runs. It has the modules of who starts it, and on another machine that one's own behind.
PROGRAM = """
import sys
sys.path[:] = filter(None, sys.path)  # not of the folder that it is started in
import pickle
theirs = pickle.load(sys.stdin.buffer)
sys.path[:] = theirs + [path for path in sys.path if path not in theirs]
from opencil.importing import importing
with importing():
    from opencil.runs.worker_process import serve
serve()
"""

_ahead: list[PipedProcess] = []


def start_ahead(number: int) -> None:
    """Start processes for whoever asks for some next."""
    _ahead.extend(_start() for _ in range(number))


def started(name: str) -> PipedProcess:
    """A process that was started ahead, or else a new one, by the name that it is told of."""
    process = _ahead.pop() if _ahead else _start()
    process.name = name
    return process


def let_go(but: int = 0) -> None:
    """End all but some of those that were started ahead and that nobody has asked for."""
    for process in _ahead[but:]:
        process.kill()
        process.ended()
    del _ahead[but:]


def _start() -> PipedProcess:
    process = PipedProcess(PROGRAM, "")
    process.write(pickle.dumps(sys.path))
    return process


atexit.register(let_go)
