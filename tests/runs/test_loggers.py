"""Logs of runs: losses by epoch, accuracies and AUCs by step, each once, read from what loggers wrote."""

import re
import struct
import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import opencil
from opencil import BadInput, OpenCILError
from opencil.config import Config, PlaceConfig
from opencil.runs import loggers
from opencil.runs.events import Evaluated, Event, Trained, Training
from opencil.runs.loggers import logging

RUN = "digits/k4/bic/seed0"
#: By name: axis, place and value of each value.
Curves = dict[str, list[tuple[int, float]]]


@pytest.fixture
def events(short: Callable[..., Config], tmp_path: Path) -> list[Event]:
    """Those of a short run of BiC, which has a second stage from step 2 on."""
    return list(opencil.execute(short(tmp_path / "runs", "cil.*.epochs=2", cil="bic", detector="msp")))


def expect(events: list[Event]) -> Curves:
    """Return what a log of these events should have, by a loop over them."""
    found, losses = defaultdict(list), defaultdict(list)
    for event in events:
        if isinstance(event, Training):
            p, name = event.progress, f"step{event.step:02d}/{event.progress.stage}"
            losses[name, p.epoch].append(float(p.loss))
            if p.epoch_ends:
                of_epoch = losses[name, p.epoch]
                found[f"{name}/loss"].append((p.epoch, sum(of_epoch) / len(of_epoch)))
                found[f"{name}/learning rate"].append((p.epoch, p.lr))
        elif isinstance(event, Trained | Evaluated):
            for name, value in event.values.items():
                found[name].append((event.step, value))
    return dict(found)


def log(events: list[Event], place: PlaceConfig) -> None:
    with logging(place) as write:
        for event in events:
            write(event)


def check(found: Curves, events: list[Event]) -> None:
    expected = expect(events)
    assert {"accuracy", "auc/msp", "fpr/msp"} < set(expected)
    assert found.keys() == expected.keys()
    for name, points in expected.items():
        assert found[name] == [(at, pytest.approx(value, rel=1e-5)) for at, value in points]


def test_steps_have_the_accuracies_and_averages_of_the_rows(
    short: Callable[..., Config], tmp_path: Path
) -> None:
    config = short(tmp_path / "runs", "cil.*.epochs=1", cil="bic", detector="msp")
    events = list(opencil.execute(config))
    rows = opencil.read_study(tmp_path / "runs").rows
    rows = rows[(rows["task"] == 0) & ~rows["distance"].isin(["shifted", "future"])]
    steps = [event.step for event in events if isinstance(event, Trained)]
    assert steps == sorted(rows["step"].unique())
    for event in events:
        if isinstance(event, Trained):
            here = rows[(rows["step"] == event.step) & (rows["detector"] == "")]
            assert event.values == dict(zip(here["metric"], here["value"], strict=True))
        elif isinstance(event, Evaluated):
            here = rows[(rows["step"] == event.step) & (rows["detector"] == event.detector)]
            for metric in ("auc", "fpr"):
                values = here.loc[here["metric"] == metric, "value"].tolist()
                assert event.values[f"{metric}/msp"] == pytest.approx(sum(values) / len(values))
    assert not [event for event in opencil.execute(config) if isinstance(event, Trained)], "only once"


def test_tensorboard(events: list[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    item, reads = torch.Tensor.__float__, []
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "__float__", lambda tensor: (reads.append(1), item(tensor))[1])
        log(events, PlaceConfig(tensorboard=str(tmp_path / "curves")))
    found = reader.EventAccumulator(str(tmp_path / "curves" / RUN))
    found.Reload()
    check({tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}, events)
    ends = [event for event in events if isinstance(event, Training) and event.progress.epoch_ends]
    assert len(reads) == len(ends), "a loss is read once an epoch"


def test_mlflow_in_a_folder(events: list[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is resumed goes on in its own log; the same run of another folder has another."""
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    for name, value in (("MLFLOW_DISABLE_TELEMETRY", "true"), ("MLFLOW_ALLOW_FILE_STORE", "true")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    half = len(events) // 2
    place = PlaceConfig(log=("mlflow",), runs=str(tmp_path / "runs"))
    for part in (events[:half], events[half:]):
        log(part, place)
    log(events[-3:], PlaceConfig(log=("mlflow",), runs=str(tmp_path / "others")))
    client = mlflow.MlflowClient((tmp_path / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("opencil").experiment_id
    other, own = client.search_runs([experiment], order_by=["start_time DESC"])
    assert (
        (own.info.run_name, own.info.status) == (other.info.run_name, other.info.status) == (RUN, "FINISHED")
    )
    assert own.data.params["benchmark.name"] == "digits"
    assert own.data.params["seed.run"] == "0"
    curves = {name: client.get_metric_history(own.info.run_id, name) for name in own.data.metrics}
    check({name: [(point.step, point.value) for point in points] for name, points in curves.items()}, events)


def test_wandb_offline(events: list[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    for name, value in (("WANDB_MODE", "offline"), ("WANDB_DIR", str(tmp_path)), ("WANDB_SILENT", "true")):
        monkeypatch.setenv(name, value)
    log(events, PlaceConfig(log=("wandb",), runs=str(tmp_path / "runs")))
    wandb.teardown()  # ends the process that writes the file
    (file,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    records = list(read_wandb(file))
    runs = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    assert {(run.display_name, run.project) for run in runs} == {(RUN, "opencil")}
    assert '"digits"' in str(
        next(item for item in runs[0].config.update if item.key == "benchmark").value_json
    )
    found = defaultdict(list)
    for record in records:
        if record.WhichOneof("record_type") == "history":
            items = {item.key or item.nested_key[0]: float(item.value_json) for item in record.history.item}
            at = int(items.pop("epoch", items.pop("step", 0)))
            for name, value in items.items():
                if not name.startswith("_"):
                    found[name].append((at, value))
    check(dict(found), events)
    axes = {record.metric.name: record.metric.step_metric for record in records if record.metric.name}
    assert axes["accuracy"] == "step"
    assert {axis for name, axis in axes.items() if name.endswith("loss")} == {"epoch"}


def read_wandb(file: Path) -> Any:
    """Yield the records of W&B's file: LevelDB's log, seven bytes and then records in blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, part = file.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, size, kind = struct.unpack("<IHB", content[at : at + 7])
        part, at = part + content[at + 7 : at + 7 + size], at + 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(part)
            part = b""


def test_without_a_logger_nothing_is_written(
    events: list[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (empty := tmp_path / "empty").mkdir()
    monkeypatch.chdir(empty)
    log(events, PlaceConfig())
    assert list(empty.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "module"),
    [("tensorboard", "torch.utils.tensorboard"), ("wandb", "wandb"), ("mlflow", "mlflow")],
)
def test_a_package_must_be_installed(name: Any, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    command = re.escape(f"pip install 'opencil[{name}]'")
    with pytest.raises(BadInput, match=command), logging(PlaceConfig(log=(name,))):
        pass


def use(monkeypatch: pytest.MonkeyPatch, opened: Callable[[Any], Any]) -> None:
    """Let every logger open its logs by this function."""
    module = type("module", (), {"connect": lambda _: opened})
    monkeypatch.setattr(loggers, "import_module", lambda _: module)


class Broken:
    """A log that fails, from its second value on."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def write(self, values: dict[str, float], axis: str, at: int) -> None:
        self.calls.append("write")
        if len(self.calls) > 1:
            raise ConnectionError("no answer")

    def close(self, failed: bool) -> None:
        self.calls.append("close")


def test_a_log_that_fails_does_not_end_the_run(events: list[Event], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is left out from then on, with a warning; a log that cannot be opened is an error."""
    made = Broken()
    monkeypatch.setattr(
        loggers, "import_module", lambda _: type("m", (), {"connect": lambda _: lambda _: made})
    )
    with pytest.warns(UserWarning, match="no answer"):
        log(events, PlaceConfig(log=("wandb",)))
    assert made.calls == ["write", "write"]

    def refuse(_: object) -> Any:
        raise ConnectionError("no key")

    use(monkeypatch, refuse)
    with pytest.raises(OpenCILError, match="no key"):
        log(events, PlaceConfig(log=("wandb",)))


def test_an_interrupted_run_is_closed(events: list[Event], monkeypatch: pytest.MonkeyPatch) -> None:
    ended = list[bool]()
    made = type("L", (), {"write": lambda *_: None, "close": lambda _, failed: ended.append(failed)})()
    monkeypatch.setattr(
        loggers, "import_module", lambda _: type("m", (), {"connect": lambda _: lambda _: made})
    )
    with suppress(KeyboardInterrupt), logging(PlaceConfig(log=("wandb",))) as write:
        for event in events[:-1]:
            write(event)
        raise KeyboardInterrupt
    assert ended == [True]
    log(events, PlaceConfig(log=("wandb",)))
    assert ended == [True, False]
