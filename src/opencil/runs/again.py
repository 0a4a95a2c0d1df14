"""Train a run's last step again, from the stored step before it, and compare bit for bit."""

import shutil
import tempfile
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor

from opencil.engine.arithmetic import only_deterministic
from opencil.engine.device import cpu_threads
from opencil.errors import BadInput
from opencil.runs.events import Event
from opencil.runs.provenance import describe_arithmetic, describe_maker
from opencil.runs.run import run
from opencil.runs.state import Run, open_run
from opencil.runs.store import Info, RunFolder, bytes_of


@dataclass
class Trial:
    """The last stored step of a run, to be trained again as it was computed then.

    ``doubts`` say why its bits may differ here, and are empty where they must not.
    """

    run: Run
    number: int
    doubts: list[str]
    threads: int | None
    differences: list[str] = field(default_factory=list)  #: found by ``carry_out``

    def carry_out(self) -> Generator[Event]:
        """Train it in a folder beside the run, which stays unchanged, and compare."""
        spec, stored = replace(self.run.spec, detectors={}, metrics=()), self.run.folder
        info = self.run.info(self.number)
        with (
            tempfile.TemporaryDirectory(prefix="opencil-again-") as place,
            cpu_threads(self.threads),
            only_deterministic(info["computed_with"]["only_deterministic"]),
        ):
            beside = RunFolder(Path(place))
            for step in map(stored.step, range(1, self.number)):
                measured = shutil.ignore_patterns("heads", "detectors")
                shutil.copytree(step.path, beside.step(step.number).path, ignore=measured)
            then, now = stored.step(self.number), beside.step(self.number)
            with closing(run(spec, self.run.data, beside, checkpoint_seconds=1e9)) as events:
                for event in events:
                    if now.trained:
                        break
                    yield event
            for name in ("model.safetensors", "memory.safetensors"):
                tensors = then.tensors(name, info), now.tensors(name, now.info())
                self.differences += _differences(name, *tensors)


def plan_trial(path: Path, data_root: str | None = None) -> Trial:
    """Return the trial of a run's last stored step, on the run's kind of device."""
    stored = RunFolder(path).trained()
    if not stored or len(stored) < stored[-1].number:
        raise BadInput(f"{path} has no stored step to train again, or a step before it is missing")
    number, info = stored[-1].number, stored[-1].info()
    device = "cpu" if info["rows"][""]["made"][0]["device"] == "cpu" else "auto"
    opened = open_run(path, data_root, device)
    threads = info["computed_with"]["threads"] if opened.stream.train.device.type == "cpu" else None
    with cpu_threads(threads):
        return Trial(opened, number, list(_doubts(opened, info)), threads)


def _doubts(opened: Run, info: Info) -> Iterator[str]:
    """Yield the reasons why bits may differ here: noted versions and settings that differ."""
    device, training = opened.stream.train.device, opened.spec.training
    then = info["computed_with"] | info["rows"][""]["made"][0]
    now = describe_arithmetic(device) | describe_maker(device, training, opened.spec.plugins())
    for key in sorted((then.keys() | now.keys()) - {"time", "only_deterministic"}):
        if then.get(key) != now.get(key):
            yield f"another {key} ({then.get(key)} then, {now.get(key)} here)"
    if device.type != "cpu" and not training.deterministic:
        yield "training.deterministic is false"


def _differences(file: str, stored: dict[str, Tensor], new: dict[str, Tensor]) -> Iterator[str]:
    """Yield a sentence for each tensor of a file that differs."""
    for name in sorted(stored.keys() | new.keys()):
        one, other = stored.get(name), new.get(name)
        if one is None or other is None or (one.shape, one.dtype) != (other.shape, other.dtype):
            yield f"{file}: {name} is missing, or has another shape or type"
        elif bytes_of(one) != bytes_of(other):
            gap = (one.double() - other.double()).abs()
            differing = f"{int((gap > 0).sum()):,} of {gap.numel():,} numbers of {name} differ"
            yield f"{file}: {differing}, by up to {gap.max():.3g}"
