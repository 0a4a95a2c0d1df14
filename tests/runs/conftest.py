"""Helpers for tests of stored runs."""

import subprocess
import sys
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import opencil
from opencil.config import Config
from opencil.runs.events import Event
from tests import stored


@pytest.fixture(scope="session")
def run_all() -> Callable[[Config], list[Event]]:
    """Execute a config to its end and give the events."""
    return lambda config: list(opencil.execute(config))


@pytest.fixture(scope="session")
def contents() -> Callable[[Path], dict[str, bytes]]:
    """Every file below a folder by its path."""
    return stored.contents


@pytest.fixture(scope="session")
def results() -> Callable[[Path], dict[str, object]]:
    """What must be the same, bit for bit, in two runs of one config, in however many calls."""
    return partial(stored.results, history=False)


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.Popen[str]]:
    """Start a Python process in which ``config`` is a config, and the code given runs."""

    def begin(config: Config, code: str) -> subprocess.Popen[str]:
        yml = tmp_path_factory.mktemp("started") / "config.yml"
        yml.write_text(config.to_yaml(), encoding="utf-8")
        setting = """
            import os, signal, sys
            from pathlib import Path
            import torch
            torch.set_num_threads(1)
            import opencil
            from opencil.config import read_yaml
            from opencil import atomic_files
            from opencil.runs.plan import plan
            from opencil.runs.events import Evaluated, Training
            from opencil.runs.store import RunFolder

            def die():
                os.kill(os.getpid(), signal.SIGKILL)

            config = opencil.resolve(read_yaml(Path(sys.argv[1])))
        """
        script = textwrap.dedent(setting) + textwrap.dedent(code)
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [sys.executable, "-c", script, str(yml)], stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )

    return begin
