"""Helpers for tests of stored runs."""

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
