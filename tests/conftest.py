"""Shared by all tests: one thread, restored registries, and a short finished run to copy."""

import multiprocessing
import os
import pickle
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import settings as hypothesis_settings

import opencil
from opencil import plugins
from opencil.config import Config
from opencil.engine import arithmetic
from opencil.evaluation import metric
from opencil.registry import REGISTRIES

# Sums depend on how they are split over threads: one thread, here and in every process that a test starts.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"
# Some warnings come once a process, which would make a failure depend on the tests that ran before.
torch.set_warn_always(True)
os.environ.pop("OPENCIL_DATA", None)
# No test cuts the power, and flushing would take a third of a short run's time.
os.fsync = lambda handle: None

hypothesis_settings.register_profile("opencil", deadline=None)
hypothesis_settings.load_profile("opencil")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the longest tests first: as the last they would keep the other cores waiting."""
    longest = ("tests/kernels/", "tests/packaging/test_readme.py", "tests/test_learning.py")
    items.sort(key=lambda item: not item.nodeid.startswith(longest))


@pytest.fixture(autouse=True)
def _registries_stay() -> Iterator[None]:
    """Restore the registries after each test."""
    for registry in REGISTRIES:
        registry.names()  # imports our own methods
    tables: list[dict[str, Any]] = [registry._entries for registry in REGISTRIES]
    tables += [metric._records, plugins._imported]
    kept = [dict(table) for table in tables]
    yield
    for table, entries in zip(tables, kept, strict=True):
        table.clear()
        table.update(entries)


@pytest.fixture(scope="session")
def plugin() -> Callable[[str], ModuleType]:
    """Load a file of tests/plugins by its path, as an installed plugin would be."""

    def load(name: str) -> ModuleType:
        spec = spec_from_file_location(f"plugin_{name}", Path(__file__).parent / "plugins" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[spec.name] = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let SIGINT interrupt this process and its children; a suite in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def has_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU compute in bfloat16 where a GPU would."""
    monkeypatch.setattr(arithmetic, "has_bfloat16", lambda device: True)


#: Few, so that runs are short; the last one needs a set-up.
DETECTORS_OF_TINY = ["energy", "msp", "relation"]


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Config]:
    """Return a config of the embedded benchmark, with two epochs a step: ``tiny(runs, *settings)``."""

    def make(
        runs: Path,
        *settings: str,
        detector: str | list[str] | None = None,
        seed: int | list[int] = 0,
        cil: str = "icarl",
    ) -> Config:
        user = {
            "benchmark": "digits",
            "cil": cil,
            "detector": detector or DETECTORS_OF_TINY,
            "seed": seed,
            "place": {"runs": str(runs), "device": "cpu"},
        }
        return opencil.resolve(user, settings=["cil.*.epochs=2", *settings])

    return make


@pytest.fixture(scope="session")
def _finished_once(tiny: Callable[..., Config], tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("finished") / "runs"
    for _ in opencil.execute(tiny(runs)):
        pass
    return runs


@pytest.fixture
def finished(_finished_once: Path, tmp_path: Path) -> Path:
    """A copy of a folder in which ``tiny``'s run is complete: digits/k2/icarl/seed0."""
    return Path(shutil.copytree(_finished_once, tmp_path / "finished-runs"))


@pytest.fixture
def empty_wide_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start commands in an empty folder, on a wide screen."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def on_ranks() -> Callable[..., list[Any]]:
    """Call a function on several ranks, as torchrun starts them, and return their results in order.

    Ranks are forked, so that they need not import anything. The result of a rank that raised an exception is
    the exception, and None of a rank that was killed. Only the first ``answers`` results are waited for.
    """

    def call(function: Callable[[], Any], size: int = 2, answers: int | None = None) -> list[Any]:
        if torch.cuda.is_available():  # the first backward pass starts threads for GPUs, which a fork loses
            pytest.skip("processes cannot be forked from one that has used a GPU")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        context = multiprocessing.get_context("fork")

        def run(rank: int, answer: Any) -> None:
            variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
            os.environ["MASTER_ADDR"] = "127.0.0.1"
            os.environ |= {name: str(value) for name, value in variables.items()}
            try:
                found = function()
            except BaseException as error:
                found = error
            answer.send_bytes(pickle.dumps(found))  # not the connection's own way, which shares memory
            answer.close()
            os._exit(0)

        pipes = [context.Pipe(duplex=False) for _ in range(size)]
        ranks = [context.Process(target=run, args=(rank, pipe)) for rank, (_, pipe) in enumerate(pipes)]
        for rank in ranks:
            rank.start()
        for _, theirs in pipes:
            theirs.close()
        found = []
        for mine, _ in pipes[:answers]:
            try:
                found.append(pickle.loads(mine.recv_bytes()) if mine.poll(60) else None)
            except EOFError:
                found.append(None)
        for rank in ranks:
            rank.kill()
            rank.join()
        return found

    return call
