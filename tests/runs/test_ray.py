"""Runs as tasks on Ray: the same rows as here; what a cluster has room for; clusters that do not answer."""

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import opencil
from opencil.config import Config, PlaceConfig
from opencil.errors import BadInput
from opencil.runs.events import Event
from opencil.runs.launchers import ray as launcher
from tests import processes
from tests.stored import results

Make = Callable[..., Config]


@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed: pip install 'opencil[ray]'")
def test_tasks_leave_the_files_of_one_process(
    tmp_path: Path, short: Make, run_all: Callable[[Config], list[Event]]
) -> None:
    """Ray runs beside a command of its own: its threads stay in a process for ever."""
    config = short(tmp_path / "ray", "place.launcher=ray", "place.jobs=2", seed=[0, 1], detector="msp")
    (tmp_path / "my.yml").write_text(config.to_yaml())
    patient = {"RAY_raylet_start_wait_time_s": "120"}
    with processes.command("run", str(tmp_path / "my.yml"), "--quiet", variables=patient) as process:
        out, err = process.communicate(timeout=300)
    assert process.returncode == 0, out + err
    run_all(short(tmp_path / "here", seed=[0, 1], detector="msp"))
    assert results(tmp_path / "ray") == results(tmp_path / "here")


def places(monkeypatch: pytest.MonkeyPatch, resources: dict[str, float], **values: Any) -> list[PlaceConfig]:
    cluster = SimpleNamespace(cluster_resources=lambda: resources)
    monkeypatch.setattr(launcher, "connect", lambda place: cluster)
    return launcher.find_places(PlaceConfig(launcher="ray", **values))


def test_a_task_per_gpu_or_core(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {"GPU": 4.0, "CPU": 32.0}
    assert [(p.device, p.threads) for p in places(monkeypatch, both)] == [("gpu", None)] * 4
    assert len(places(monkeypatch, both, pack=3)) == 12
    assert len(places(monkeypatch, both, jobs=2)) == 2
    assert [p.device for p in places(monkeypatch, {"GPU": 1.0}, device="cuda")] == ["cuda"]
    assert [(p.device, p.threads) for p in places(monkeypatch, {"CPU": 6.0})] == [("cpu", 1)] * 6
    assert len(places(monkeypatch, {"CPU": 6.0}, threads=4, jobs="auto")) == 1
    assert len(places(monkeypatch, {"GPU": 2.0, "CPU": 6.0}, device="cpu")) == 6
    assert len(places(monkeypatch, {}, device="gpu", jobs=2)) == 2, "they wait for nodes that join"


def test_a_cluster_without_room_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for resources, values in (({"CPU": 6.0}, {"device": "gpu"}), ({"CPU": 6.0}, {"threads": 8})):
        with pytest.raises(BadInput, match="no room for"):
            places(monkeypatch, resources, **values)


@pytest.mark.parametrize(
    ("place", "key"),
    [
        ({"launcher": "ray", "device": "cuda:1"}, "device = 'cuda:1'"),
        ({"address": "10.0.0.1:6379"}, "address = '10.0.0.1:6379'"),
        ({"launcher": "slurm"}, "launcher"),
    ],
)
def test_values_that_mean_nothing_are_refused(place: dict[str, str], key: str) -> None:
    with pytest.raises(BadInput, match=key):
        opencil.resolve({"benchmark": "digits", "place": place})


def test_ray_must_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"pip install 'opencil\[ray\]'"):
        launcher.find_places(PlaceConfig(launcher="ray"))


def connect(monkeypatch: pytest.MonkeyPatch, init: Callable[..., object], address: str | None) -> None:
    ray = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]
    launcher.connect(PlaceConfig(launcher="ray", address=address))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "[::1]:1", "127.0.0.1:99999", "ray://127.0.0.1:1"])
def test_an_address_where_nothing_listens_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    for named, variable in ((address, ""), (None, address)):
        monkeypatch.setenv("RAY_ADDRESS", variable)
        with pytest.raises(BadInput, match="there is no Ray cluster at"):
            connect(monkeypatch, lambda **_: pytest.fail("Ray tries for minutes"), named)


def test_clusters_that_refuse_and_empty_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty address is this machine, as ``--address "$HEAD"`` is without the variable."""

    def refuse(**_: object) -> None:
        raise ConnectionError("no answer")

    with pytest.raises(BadInput, match="no answer"):
        connect(monkeypatch, refuse, "ray://head")
    asked: list[object] = []
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    connect(monkeypatch, lambda address, **_: asked.append(address), "")
    assert asked == [None]


def test_a_folder_that_a_node_does_not_have_is_refused(
    short: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", sys.argv)  # a task replaces it
    sent: list[object] = []
    config = short(tmp_path / "absent")
    spec: Any = None
    launcher._do_run(config, spec, [], ["opencil"], str(tmp_path), SimpleNamespace(put=sent.append))
    (error,) = sent
    assert isinstance(error, BadInput)
    assert str(tmp_path / "absent") in str(error)
