"""A scaled-down grid by stage: where the time goes, and which run was alone at its end.

    python benchmarks/grid.py                        # a GPU: random images of CIFAR-100's size, ResNet-32
    python benchmarks/grid.py --compare              # and again with every step in order, as the peer
    python benchmarks/grid.py --device cpu           # digits
    python benchmarks/grid.py --data ROOT --scale 1  # the real one: CIFAR-100, k = 10, whole schedules

Four CIL methods, all detectors, six OOD sets. ``--scale`` shortens all schedules, those of heads too. Seconds
are the host's, each counted once: what a stage spent in its own code, not in another run's turn in the middle
of it. On a GPU most of it launches work; that the host waits for the device shows where all queues were full.
"""

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

import opencil
from opencil.cil.learner import Learner
from opencil.config import Config
from opencil.data.images import Dataset, ImageSet, Split
from opencil.detectors.finetune.views import ViewSource
from opencil.engine.device import resolve_device
from opencil.engine.iteration import WARM_UP, Iteration
from opencil.runs import advance, lanes, runner, tuning
from opencil.runs.events import Event, Failed, Finished, Training
from opencil.runs.outputs_cache import OutputsCache
from opencil.runs.store import StepFolder

CLASSES, PER_CLASS = 40, 500
OOD = [f"random-ood-{i}" for i in range(6)]
Function = Callable[..., Any]
STAGES = {
    "data": "images loaded and described",
    "start": "models made, first iterations, captures, compiler",
    "training": "iterations",
    "step end": "herding, outputs of test and training images, files",
    "tuning": "heads",
    "outputs": "of test and OOD images",
    "evaluation": "detectors and metrics",
    "rows": "written",
    "waiting": "all queues were full",
    "rest": "turns, events",
}


@opencil.register_dataset("random")
@dataclass(frozen=True)
class Random(Dataset):
    """Noise around a colour for each class: as fast to learn as anything, and finite."""

    classes: ClassVar[int | None] = CLASSES

    def load(self, split: Split, size: int, root: Path | None) -> ImageSet:
        """500 training or 100 test images of each class."""
        per_class = PER_CLASS if split == "train" else PER_CLASS // 5
        numbers = torch.Generator().manual_seed(len(split))
        labels = torch.arange(CLASSES * per_class) % CLASSES
        colour = torch.randint(0, 128, (CLASSES, 3, 1, 1), generator=numbers)
        noise = torch.randint(0, 128, (len(labels), 3, size, size), generator=numbers)
        return ImageSet("random", (colour[labels] + noise).to(torch.uint8), labels)


for name in OOD:
    opencil.register_dataset(name)(Random)


def first_of_captured(iteration: Iteration, *_: object) -> str | None:
    """The stage of an iteration: those up to the capture are the start."""
    return "start" if iteration._captures and iteration._calls <= WARM_UP else None


@dataclass
class Clock:
    """Seconds of each stage, in its own code alone."""

    seconds: Counter[str] = field(default_factory=Counter)
    of_detectors: Counter[str] = field(default_factory=Counter)
    _stack: list[str] = field(default_factory=lambda: ["rest"])
    _since: float = field(default_factory=time.perf_counter)

    def _count(self) -> None:
        now = time.perf_counter()
        self.seconds[self._stack[-1]] += now - self._since
        self._since = now

    @contextmanager
    def stage(self, name: str | None) -> Iterator[None]:
        """Count the block's seconds for a stage; None: for the one around it."""
        self._count()
        self._stack.append(name or self._stack[-1])
        try:
            yield
        finally:
            self._count()
            self._stack.pop()

    def timed(self, function: Function, name: str | Callable[..., str | None]) -> Function:
        """The function, its seconds counted for a stage, which may depend on its arguments."""

        def call(*args: Any, **named: Any) -> Any:
            with self.stage(name if isinstance(name, str) else name(*args)):
                return function(*args, **named)

        return call

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside the block the package's functions are timed."""

        def measure(detector: Any, *args: Any, **named: Any) -> Any:
            before = self.seconds["evaluation"]
            found = timed_measure(detector, *args, **named)
            self.of_detectors[detector.registered_name] += self.seconds["evaluation"] - before
            return found

        timed_measure = self.timed(advance.measure, "evaluation")
        patches: list[tuple[Any, str, Any]] = [
            (advance, "measure", measure),
            (lanes, "time", SimpleNamespace(sleep=self.timed(time.sleep, "waiting"))),
        ]
        for owner, attribute, name in (
            (runner, "load", "data"),
            (runner, "describe_data", "data"),
            (Learner, "begin", "start"),
            (Iteration, "__call__", first_of_captured),
            (advance, "forward", "step end"),
            (Learner, "remember", "step end"),
            (StepFolder, "save", "step end"),
            (tuning._Tuning, "next", "tuning"),
            (ViewSource, "_computed_chunk", "tuning"),
            (OutputsCache, "outputs", "outputs"),
            (advance, "_add_rows", "rows"),
            (lanes.Strand, "_turn", lambda one, *_: "training" if one._queued == lanes.QUEUED else "rest"),
        ):
            patches.append((owner, attribute, self.timed(getattr(owner, attribute), name)))
        before = [(owner, attribute, getattr(owner, attribute)) for owner, attribute, _ in patches]
        try:
            for owner, attribute, value in patches:
                setattr(owner, attribute, value)
            yield
        finally:
            for owner, attribute, value in before:
                setattr(owner, attribute, value)


@dataclass
class Timing:
    """When a run's events came, in seconds after the grid began."""

    begins: float
    trained: float = 0.0
    ends: float = 0.0
    iterations: int = 0


def grid(flags: argparse.Namespace, runs: str, device: torch.device) -> Config:
    """The config of the grid."""
    benchmark: Any = "digits"
    if flags.data:
        benchmark = "cifar100"
    elif device.type == "cuda":
        benchmark = {
            "name": "random",
            "id": "random",
            "near": OOD[:2],
            "far": OOD[2:],
            "image_size": 32,
            "transform": {"mean": [0.5] * 3, "std": [0.25] * 3, "crop": 32, "padding": 4, "flip": True},
            "backbone": "resnet32",
            "classes_per_step": [10],
            "memory": 2000,
        }
    place = {"runs": runs, "device": str(device), "pack": flags.pack, "data_root": flags.data}
    epochs = max(1, round(10 * flags.scale))  # of heads
    settings = [f"cil.*.epochs_scale={flags.scale}", f"detector.*.schedule.epochs={epochs}"]
    settings += ["training.compile=true"] if flags.compile else []
    user = {"benchmark": benchmark, "cil": flags.cil, "detector": flags.detector, "place": place}
    return opencil.resolve(user, settings=settings)


def timed(config: Config) -> tuple[float, Clock, dict[str, Timing]]:
    """Seconds of a grid, by stage and by run."""
    clock, timings = Clock(), dict[str, Timing]()
    began = time.perf_counter()
    with clock.watching():
        for event in opencil.execute(config):
            note(event, time.perf_counter() - began, timings)
    clock._count()
    return time.perf_counter() - began, clock, timings


def note(event: Event, now: float, timings: dict[str, Timing]) -> None:
    timing = timings.setdefault(event.run.cil, Timing(now))
    if isinstance(event, Training) and not event.progress.stage.startswith("tune"):
        timing.trained = now
        timing.iterations += 1
    elif isinstance(event, (Finished, Failed)):
        timing.ends = now
        if isinstance(event, Failed):
            print(f"{event.run} failed: {event.error}")


def alone(timings: dict[str, Timing]) -> dict[str, float]:
    """For how long each run was the only one under way."""
    edges = sorted({t for timing in timings.values() for t in (timing.begins, timing.ends)})
    found: dict[str, float] = dict.fromkeys(timings, 0.0)
    for start, end in pairwise(edges):
        under_way = [name for name, t in timings.items() if t.begins <= start and t.ends >= end]
        if len(under_way) == 1:
            found[under_way[0]] += end - start
    return found


def show(title: str, total: float, clock: Clock, timings: dict[str, Timing]) -> None:
    print(f"\n{title}: {total:.1f} s")
    for stage, what in STAGES.items():
        seconds = clock.seconds[stage]
        print(f"  {stage:<12}{seconds:8.1f} s {100 * seconds / total:5.1f} %  {what}")
    slowest = clock.of_detectors.most_common(4)
    print("  slowest in evaluation:", ", ".join(f"{name} {seconds:.1f} s" for name, seconds in slowest))
    print(f"\n  {'run':<12}{'begins':>9}{'trained':>9}{'ends':>9}{'alone':>9}{'iterations':>12}")
    for name, lone in alone(timings).items():
        t = timings[name]
        print(f"  {name:<12}{t.begins:9.1f}{t.trained:9.1f}{t.ends:9.1f}{lone:9.1f}{t.iterations:12,}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--pack", type=int, default=4)
    parser.add_argument("--cil", default="icarl,bic,wa,foster")
    parser.add_argument("--detector", default="all")
    parser.add_argument("--scale", type=float, help="of all schedules (0.03; of those of digits 0.3)")
    parser.add_argument("--data", help="root of the datasets: CIFAR-100 instead of random images")
    parser.add_argument("--compile", action="store_true", help="backbones as torch.compile makes them")
    parser.add_argument("--compare", action="store_true", help="then the same with every step in order")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    device = resolve_device(flags.device)
    flags.scale = flags.scale or (0.03 if device.type == "cuda" else 0.3)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{flags.threads} threads"
    print(f"{where}, torch {torch.__version__}, pack {flags.pack}, schedules × {flags.scale}")
    usual = runner.goes_beside
    orders = {"as runs go": usual, "every step in order": lambda _: False}
    for title, goes_beside in list(orders.items())[: 1 + flags.compare]:
        runner.goes_beside = goes_beside
        with tempfile.TemporaryDirectory() as runs:
            show(title, *timed(grid(flags, runs, device)))
    runner.goes_beside = usual


if __name__ == "__main__":
    main()
