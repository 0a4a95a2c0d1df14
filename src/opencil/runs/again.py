"""A stored step trained once more, from the stored step before it, and compared bit for bit."""

import tempfile
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from torch import Tensor

from opencil.config import PlaceConfig
from opencil.engine.determinism import only_deterministic
from opencil.engine.device import cpu_threads, resolve_device
from opencil.errors import BadInput
from opencil.evaluation.metric import shares
from opencil.runs import file_formats
from opencil.runs.advance import train_step
from opencil.runs.events import Event
from opencil.runs.plan import RunSpec
from opencil.runs.provenance import decides_bits
from opencil.runs.run import Run, opened_run
from opencil.runs.store import ENVIRONMENT, RunFolder, StepFolder
from opencil.study.rows import COLUMNS, read_tables

#: What decides bits, by how it is noted.
_MADE_WITH = {
    "torch": "another torch",
    "source": "another source of opencil",
    "device": "another device",
    "cpu": "other instructions of the CPU",
    "cuda": "another CUDA",
    "cudnn": "another cuDNN",
    "precision": "another precision",
    "threads": "another number of threads",
    "ranks": "another number of ranks",
}


@dataclass(frozen=True)
class Again:
    """A step trained again: what differs from what is stored; empty where every bit is the same."""

    spec: RunSpec
    step: int
    differences: list[str]


@dataclass(frozen=True)
class Trial:
    """A step that is to be trained again, and why its bits may come out otherwise; nothing: they must not."""

    run: Run
    number: int
    doubts: list[str]
    threads: int | None
    strict: bool  #: whether it was made with ``--deterministic``

    def carry_out(self) -> Generator[Event, None, Again]:
        """Train it beside the run, in which nothing is changed, and compare."""
        run, number = self.run, self.number
        step = run.stream[number - 1]
        with (
            tempfile.TemporaryDirectory(prefix="opencil-again-") as folder,
            cpu_threads(self.threads),
            only_deterministic(self.strict),
        ):
            again = Run(run.spec, _Beside(Path(folder), run.folder, number), run.data)
            yield from train_step(again, step, checkpoint_seconds=float("inf"))
            return Again(run.spec, number, list(_differences(run, again, number)))


def trial(path: Path, place: PlaceConfig, number: int | None = None) -> Trial:
    """What ``carry_out`` is to train: a run's step, by default the last that is stored."""
    folder = RunFolder(path)
    if folder.stored().get("foreign"):
        raise BadInput(f"the models of {path} were trained elsewhere: there is no training to do again")
    run = opened_run(path, place)
    stored = [step.number for step in run.trained_steps]
    if not stored:
        raise BadInput(f"{path} has no stored step yet: there is nothing to compare with")
    if number is not None and number not in stored:
        raise BadInput(f"{path} has no step {number}: stored are {', '.join(map(str, stored))}")
    number = number or stored[-1]
    if number > 1 and number - 1 not in stored:
        raise BadInput(f"step {number} cannot be trained again: the step before it is missing")
    # It was noted for the whole run once, by its last call.
    then = run.info(number).get("computed_with", folder.record(ENVIRONMENT))
    threads = then.get("threads")
    if run.stream.train.device.type != "cpu" or not isinstance(threads, int):
        threads = None
    with cpu_threads(threads):
        doubts = list(_doubts(run, run.info(number).get("made", {}).get(""), then))
    return Trial(run, number, doubts, threads, bool(then.get("only_deterministic")))


def place_for(path: Path, device: str | None, data_root: str | None) -> PlaceConfig:
    """Where to train a run's step again: on the kind of device that made it, unless another is named."""
    if device is None:
        made_on = RunFolder(path).record(ENVIRONMENT).get("device")
        device = "cpu" if made_on == "cpu" else "auto"
    resolve_device(device)
    return PlaceConfig(data_root=data_root, device=device)


@dataclass(frozen=True)
class _Beside(RunFolder):
    """A folder for one step of a run, whose steps before it lie where they are."""

    origin: RunFolder
    number: int

    def step(self, number: int) -> StepFolder:
        """The folder of a step: the run's own of those before, which are only read."""
        return super().step(number) if number >= self.number else self.origin.step(number)


def _doubts(run: Run, made: dict[str, Any] | None, computed_with: dict[str, Any]) -> Iterator[str]:
    """Why bits may come out otherwise here than they did then; what was not noted is not known to differ."""
    device = run.stream.train.device
    if not made:
        yield "it is not noted what made the step"
    then, now = computed_with | (made or {}), decides_bits(device) | run.made()
    for key, what in _MADE_WITH.items():
        if key in then and key in now and then[key] != now[key]:
            yield f"{what} ({then[key]} then, {now[key]} here)"
    if made and made.get("plugins") != now.get("plugins"):
        yield "another text of plugins"
    if device.type != "cpu" and not run.spec.training.deterministic:
        yield "training.deterministic is false"


def _differences(run: Run, again: Run, number: int) -> Iterator[str]:
    yield from _of_tensors("model", _weights(run, number), _weights(again, number))
    memories = [one.memory(number).tensors() for one in (run, again)]
    yield from _of_tensors("memory", *memories)
    # Bytes are those of model and memory, and steps of before have no rows of them.
    stored, new = (shares(_rows(one.folder.step(number))) for one in (run, again))
    key = [column for column in COLUMNS if column != "value"]
    # Metrics may have been added to the stored rows.
    beside = new.merge(stored, on=key, how="left", suffixes=("", "_stored"), indicator=True)
    if absent := int((beside["_merge"] != "both").sum()):
        yield f"accuracies: {absent} of {len(new)} rows are not stored"
    differ = beside[(beside["_merge"] == "both") & (beside["value"] != beside["value_stored"])]
    both_nan = differ["value"].isna() & differ["value_stored"].isna()
    if len(differ := differ[~both_nan]):
        most = (differ["value"] - differ["value_stored"]).abs().max()
        yield f"accuracies: {len(differ)} of {len(new)} rows differ, by up to {100 * most:.3g} points"


def _weights(run: Run, number: int) -> dict[str, Tensor]:
    return {name: tensor.cpu() for name, tensor in run.trained(number).model.state_dict().items()}


def _of_tensors(what: str, stored: dict[str, Tensor], new: dict[str, Tensor]) -> Iterator[str]:
    if stored.keys() != new.keys():
        yield f"{what}: other tensors than those that are stored"
        return
    for name, tensor in stored.items():
        other = new[name]
        if (tensor.shape, tensor.dtype) != (other.shape, other.dtype):
            yield f"{what}: {name} has another shape or type than the stored one"
        elif bytes(file_formats.bytes_of(tensor)) != bytes(file_formats.bytes_of(other)):
            gap = (tensor.double() - other.double()).abs()
            count, most = int((gap > 0).sum()), float(gap.max()) if gap.numel() else 0.0
            yield f"{what}: {count:,} of {gap.numel():,} numbers of {name} differ, by up to {most:.3g}"


def _rows(step: StepFolder) -> pd.DataFrame:
    return read_tables(step.placed([step.model_rows], None, step.info()), file_formats.damaged)
