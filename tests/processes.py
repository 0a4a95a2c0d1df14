"""Start the command, or a script, as a user does: in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_ROOT = str(Path(__file__).parents[1])


@contextmanager
def command(
    *words: str, terminal: int | None = None, variables: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Start ``python -m opencil`` with some words; it is killed at the end of the block.

    ``terminal`` is a descriptor that receives all output, ``variables`` are added to the environment.
    """
    with _started("-m", "opencil", *words, terminal=terminal, variables=variables) as process:
        yield process


@contextmanager
def script(path: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Start ``python FILE`` with some words; it is killed at the end of the block."""
    with _started(str(path), *words) as process:
        yield process


@contextmanager
def _started(
    *words: str, terminal: int | None = None, variables: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    output = subprocess.PIPE if terminal is None else terminal
    path = os.pathsep.join([f"{_ROOT}/src", _ROOT, *filter(None, [(variables or {}).get("PYTHONPATH", "")])])
    process = subprocess.Popen(
        [sys.executable, *words],
        stdout=output,
        stderr=output,
        env={**os.environ, **(variables or {}), "PYTHONPATH": path},
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
