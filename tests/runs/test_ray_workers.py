"""Workers on a Ray cluster: a real one of two nodes; and without one what is asked of it."""

import json
import re
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import opencil
from opencil.config import Config, PlaceConfig
from opencil.errors import BadInput
from opencil.runs import ray_cluster, ray_workers
from opencil.runs.events import Event
from opencil.runs.loading import usable_places
from opencil.runs.plan import plan
from opencil.runs.ray_cluster import ray_places, workers_of_a_node
from opencil.runs.worker_process import _require_shared
from tests import forks

Make = Callable[..., Config]
SHORT = ["benchmark.classes_per_step=8", "cil.*.epochs=2"]
TRIES: Any = SimpleNamespace(
    is_initialized=lambda: False, init=lambda **_: pytest.fail("it tries for minutes")
)

#: In a process of its own: what Ray leaves behind in one, its threads say, is no matter of other tests.
ON_TWO_NODES = """
    import json
    from dataclasses import replace
    from ray.cluster_utils import Cluster
    from opencil.runs import runner

    node = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    cluster.add_node(**node)
    place = replace(config.place, launcher="ray", address=cluster.address)
    config = replace(config, place=place)
    hired, hire = [], runner.hire

    def noting(*asked):
        start = hire(*asked)
        def begin(*of):
            hired.append(start(*of))
            return hired[-1]
        return begin

    runner.hire = noting
    under_way, told = set(), []
    try:
        for event in opencil.execute(config):
            if isinstance(event, Training) and len(under_way) < 2:
                under_way.add(str(event.run))
                if len(under_way) == 2:  # each of the two workers has one
                    os.kill(hired[0].process.number, signal.SIGKILL)
            elif not isinstance(event, (Training, Evaluated)):
                what = getattr(event, "reason", "") or str(getattr(event, "error", ""))
                told.append([type(event).__name__, str(event.run), what])
    finally:
        import ray
        ray.shutdown()
        cluster.shutdown()
    print(json.dumps({"told": told, "hired": len(hired), "machines": [w.process.machine for w in hired]}))
"""


@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed: pip install 'opencil[ray]'")
def test_two_nodes_leave_what_this_process_leaves_though_a_worker_is_killed(
    tmp_path: Path,
    tiny: Make,
    run_all: Callable[[Config], list[Event]],
    results: Callable[[Path], dict[str, object]],
) -> None:
    grid = {"seed": [0, 1, 2, 3], "detector": "msp"}
    config = tiny(tmp_path / "on-ray", *SHORT, **grid)
    with forks.code(config, ON_TWO_NODES) as driver:
        run_all(tiny(tmp_path / "here", *SHORT, **grid))
        out, err = driver.communicate()
    assert driver.returncode == 0, err
    found = json.loads(out.splitlines()[-1])
    lost = [(run, reason) for kind, run, reason in found["told"] if kind == "Lost"]
    assert len(lost) == 1, found
    assert "was ended by SIGKILL" in lost[0][1]
    assert found["hired"] == 3, "another one came in its place"
    finished = sorted(run for kind, run, _ in found["told"] if kind == "Finished")
    assert finished == sorted(str(spec) for spec in plan(config))
    assert len(found["told"]) == len(finished) + 1
    assert results(tmp_path / "on-ray") == results(tmp_path / "here")


# --- where runs go ---------------------------------------------------------------------------------


class Cluster:
    """As much of the module ray as tells what a cluster has."""

    def __init__(self, **resources: float) -> None:
        self.cluster_resources = lambda: resources


def places(monkeypatch: pytest.MonkeyPatch, resources: dict[str, float], **values: Any) -> list[PlaceConfig]:
    monkeypatch.setattr(ray_cluster, "connected", lambda place: Cluster(**resources))
    return usable_places(PlaceConfig(launcher="ray", **values))


def test_one_worker_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    found = places(monkeypatch, {"GPU": 4.0, "CPU": 32.0}, pack=3)
    assert [(p.device, p.pack, p.jobs, p.threads) for p in found] == [("gpu", 3, 1, None)] * 4
    assert len(places(monkeypatch, {"GPU": 4.0, "CPU": 32.0}, jobs=2)) == 2
    assert [p.device for p in places(monkeypatch, {"GPU": 1.0, "CPU": 32.0}, device="cuda")] == ["cuda"]


def test_one_worker_a_core_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    found = places(monkeypatch, {"CPU": 6.0})
    assert [(p.device, p.jobs, p.threads) for p in found] == [("cpu", 1, 1)] * 6
    assert len(places(monkeypatch, {"CPU": 6.0}, threads=4, jobs="auto")) == 1
    assert len(places(monkeypatch, {"GPU": 2.0, "CPU": 6.0}, device="cpu")) == 6
    assert len(places(monkeypatch, {"CPU": 1.0}, jobs=3)) == 3, "two of them wait for nodes that join"


def test_a_cluster_without_room_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match=r"no room for a worker on a GPU; .* --jobs N"):
        places(monkeypatch, {"CPU": 6.0}, device="gpu")
    with pytest.raises(BadInput, match="no room for a worker on 8 CPU cores"):
        places(monkeypatch, {"CPU": 6.0}, threads=8)
    assert len(places(monkeypatch, {}, device="gpu", jobs=2)) == 2


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ({"launcher": "ray", "device": "cuda:1"}, "device = 'cuda:1' is not allowed with launcher = ray"),
        ({"launcher": "ray", "device": "cuda:0,cuda:1"}, "auto, gpu, cuda and cpu are"),
        ({"address": "10.0.0.1:6379"}, "address = '10.0.0.1:6379' is for launcher = ray"),
        ({"launcher": "slurm"}, "it should be 'local' or 'ray'"),
    ],
)
def test_what_means_nothing_is_refused(place: dict[str, str], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        opencil.resolve({"benchmark": "digits", "place": place})


def test_ray_that_is_missing_is_named(tmp_path: Path, tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"the package ray is missing; pip install 'opencil\[ray\]' brings it"):
        list(opencil.execute(tiny(tmp_path / "r", "place.launcher=ray")))
    assert not any(tmp_path.iterdir())


class Unreachable:
    is_initialized = staticmethod(lambda: False)

    @staticmethod
    def init(**_: Any) -> None:
        raise ConnectionError("nobody answers")


@pytest.mark.parametrize(
    ("address", "variable", "said"),
    [
        (
            "ray://h",
            "ray://v",
            r"at 'ray://h', which place.address says \(nobody answers\): 'ray start --head' .*"
            "--address HOST:PORT names another; leave it out to use this machine",
        ),
        (
            None,
            "ray://v",
            r"at 'ray://v', which RAY_ADDRESS says \(nobody answers\): .*"
            "unset it to use this machine",
        ),
        (None, "", "Ray cannot make a cluster of this machine: nobody answers"),
    ],
)
def test_a_cluster_that_does_not_answer_is_named(
    monkeypatch: pytest.MonkeyPatch, address: str | None, variable: str, said: str
) -> None:
    monkeypatch.setitem(sys.modules, "ray", Unreachable)  # type: ignore[arg-type]
    monkeypatch.setenv("RAY_ADDRESS", variable)
    with pytest.raises(BadInput, match=said):
        ray_places(PlaceConfig(launcher="ray", address=address))


@pytest.mark.parametrize("by_variable", [False, True])
@pytest.mark.parametrize("address", ["127.0.0.1:1", "[::1]:1", "127.0.0.1:99999", "ray://127.0.0.1:1"])
def test_an_address_where_nobody_listens_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch, address: str, by_variable: bool
) -> None:
    monkeypatch.setitem(sys.modules, "ray", TRIES)
    if by_variable:
        monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(
        BadInput, match="there is no Ray cluster to be reached at " + re.escape(repr(address))
    ):
        ray_places(PlaceConfig(launcher="ray", address=None if by_variable else address))


@pytest.mark.parametrize(
    ("answer", "why"),
    [(b"HTTP/1.1 400 Bad Request\r\n", "what listens there is not Ray"), (None, "timed out")],
    ids=["another", "silent"],
)
def test_an_address_where_another_listens_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch, answer: bytes | None, why: str
) -> None:
    monkeypatch.setattr("opencil.runs.ray_cluster._PATIENCE", 1.0)
    monkeypatch.setitem(sys.modules, "ray", TRIES)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def serve() -> None:
            line, _ = server.accept()
            with line, suppress(ConnectionError):
                line.recv(100)
                if answer:
                    line.sendall(answer)
                line.recv(100)  # until the other side has left

        listening = threading.Thread(target=serve)
        listening.start()
        with pytest.raises(BadInput, match=re.escape(f"{address!r}, which place.address says ({why})")):
            ray_places(PlaceConfig(launcher="ray", address=address))
        listening.join()


def test_an_empty_address_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As --address "$HEAD" is where nobody has set HEAD: Ray itself would not understand it."""
    asked: list[Any] = []
    ray = SimpleNamespace(
        is_initialized=lambda: False,
        init=lambda address, **_: asked.append(address),
        cluster_resources=lambda: {"CPU": 3.0},
    )
    monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert len(ray_places(PlaceConfig(launcher="ray", address=""))) == 3
    assert asked == [None]


def test_a_folder_that_a_node_does_not_see_is_refused(tmp_path: Path) -> None:
    _require_shared(tmp_path)
    with pytest.raises(BadInput, match="on a file system that all of them see"):
        _require_shared(tmp_path / "elsewhere")


# --- ends ------------------------------------------------------------------------------------------


class Gone:
    """As much of ray as an actor needs that is dead: whatever it is asked fails."""

    @staticmethod
    def nodes() -> list[dict[str, Any]]:
        return [
            {"Alive": True, "Resources": {"CPU": 8.0, "GPU": 2.0}},
            {"Alive": True, "Resources": {"CPU": 4.0}},
            {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
        ]

    @staticmethod
    def get(_: object) -> Any:
        raise RuntimeError("The actor died.\n\tactor_id: 1\nThe actor is dead because its node has died.\n")

    @staticmethod
    def kill(_: object) -> None:
        raise ValueError("it is dead")


class Call:
    """Any attribute, option or call of an actor."""

    def __getattr__(self, name: str) -> "Call":
        return self

    def __call__(self, *values: Any, **options: Any) -> "Call":
        return self


def test_a_lost_node_is_a_lost_worker() -> None:
    process = ray_workers.RayProcess(Gone, Call(), PlaceConfig(device="cpu"))
    assert process.ended() == "is gone: The actor is dead because its node has died."


def test_workers_share_the_processors_and_memory_of_a_node() -> None:
    sharing = [
        workers_of_a_node(Gone, PlaceConfig(device=device, threads=threads))
        for device, threads in (("gpu", None), ("cpu", 1), ("cpu", 3))
    ]
    assert sharing == [2, 8, 2]
