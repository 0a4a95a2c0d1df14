"""Start the command, or a script, as a user does: in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

_ROOT = str(Path(__file__).parents[1])


@contextmanager
def script(
    *words: str | Path, terminal: int | None = None, variables: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Start Python with some words, a script first; it is killed at the end of the block.

    ``terminal`` is a descriptor that receives all output, ``variables`` are added to the environment.
    """
    output = subprocess.PIPE if terminal is None else terminal
    more = dict(variables or {})
    path = os.pathsep.join([f"{_ROOT}/src", _ROOT, *filter(None, [more.get("PYTHONPATH")])])
    environment = os.environ | more | {"PYTHONPATH": path}
    arguments = [sys.executable, *map(str, words)]
    process = subprocess.Popen(arguments, stdout=output, stderr=output, env=environment, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


#: Start ``python -m opencil`` with some words.
command = partial(script, "-m", "opencil")
