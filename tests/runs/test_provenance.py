"""Provenance: versions, device, command and source."""

from datetime import datetime

import pytest
import torch

import opencil
from opencil.engine.arithmetic import Arithmetic, only_deterministic
from opencil.engine.device import cpu_threads
from opencil.runs.provenance import command, describe_arithmetic, describe_maker, environment, source_digest

CPU = torch.device("cpu")


def test_the_environment() -> None:
    found = environment(CPU)
    assert (found["opencil"], found["torch"]) == (opencil.__version__, torch.__version__)
    assert found["device"] == "cpu"
    assert found["source"] == source_digest()
    assert {"python", "numpy", "system", "machine", "pyarrow", "safetensors", "threads", "cpu"} <= set(found)


def test_the_arithmetic() -> None:
    with only_deterministic(True), cpu_threads(2):
        found = describe_arithmetic(CPU)
    assert found["only_deterministic"] is True
    assert found["threads"] == 2
    assert found["ranks"] == 1


def test_the_maker_of_rows() -> None:
    found = describe_maker(CPU, Arithmetic(), {"mine.py": "abc"})
    assert found["plugins"] == {"mine.py": "abc"}
    assert found["precision"] == "fp32"
    assert datetime.fromisoformat(found["time"]).tzinfo is not None
    assert "plugins" not in describe_maker(CPU, Arithmetic(), {})


def test_a_command_is_recorded_as_a_shell_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for program in ("/some/where/bin/opencil", "/some/where/opencil/__main__.py"):
        monkeypatch.setattr("sys.argv", [program, "run", "--set", "cil.icarl.epochs=5", "--runs", "my runs"])
        assert command() == "opencil run --set cil.icarl.epochs=5 --runs 'my runs'"
    monkeypatch.setattr("sys.argv", ["/some/where/my.py", "a b"])
    assert command() == "my.py 'a b'"
