"""Time a scaled-down grid from outside: in all, and when each run begins, is trained, and ends.

    python benchmarks/grid.py                        # a GPU: random images of CIFAR-100's size, ResNet-32
    python benchmarks/grid.py --device cpu           # digits
    python benchmarks/grid.py --data ROOT --scale 1  # CIFAR-100, k = 10, whole schedules

Four CIL methods, all detectors, six OOD sets (digits: three). ``--scale`` shortens all schedules, also those
of heads. Times are those at which ``opencil.execute`` yields its events.
"""

import argparse
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import torch

import opencil

CLASSES, PER_CLASS = 40, 500
OOD = [f"random-ood-{i}" for i in range(6)]


@opencil.register_dataset("random")
@dataclass(frozen=True)
class Random(opencil.Dataset):
    """Noise around a colour of each class: as fast to learn as real images."""

    classes: ClassVar[int | None] = CLASSES

    def load(self, split: str, size: int, root: Path | None) -> opencil.ImageSet:
        """Return 500 training or 100 test images of each class."""
        per_class = PER_CLASS if split == "train" else PER_CLASS // 5
        numbers = torch.Generator().manual_seed(len(split))
        labels = torch.arange(CLASSES * per_class) % CLASSES
        colour = torch.randint(0, 128, (CLASSES, 3, 1, 1), generator=numbers)
        noise = torch.randint(0, 128, (len(labels), 3, size, size), generator=numbers)
        return opencil.ImageSet("random", (colour[labels] + noise).to(torch.uint8), labels)


for name in OOD:
    opencil.register_dataset(name)(Random)

RANDOM = {
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


def config_of(flags: argparse.Namespace, runs: str) -> opencil.Config:
    """Return the config of the grid."""
    benchmark: Any = "cifar100" if flags.data else "digits" if flags.device == "cpu" else RANDOM
    place = {"runs": runs, "device": flags.device, "pack": flags.pack, "data_root": flags.data}
    scale = flags.scale or (0.3 if benchmark == "digits" else 0.03)
    settings = [f"cil.*.epochs_scale={scale}", f"detector.*.schedule.epochs={max(1, round(10 * scale))}"]
    settings += ["training.compile=true"] if flags.compile else []
    user = {"benchmark": benchmark, "cil": flags.cil, "detector": flags.detector, "place": place}
    return opencil.resolve(user, settings=settings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--pack", type=int, default=4)
    parser.add_argument("--cil", default="icarl,bic,wa,foster")
    parser.add_argument("--detector", default="all")
    parser.add_argument("--scale", type=float, help="of all schedules (default: 0.03, of digits 0.3)")
    parser.add_argument("--data", help="root of the datasets: CIFAR-100 instead of random images")
    parser.add_argument("--compile", action="store_true", help="compile backbones with torch.compile")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    where = torch.cuda.get_device_name() if flags.device != "cpu" else f"{flags.threads} threads"
    print(f"{where}, torch {torch.__version__}, pack {flags.pack}")
    begins: dict[str, float] = {}
    trained: dict[str, float] = {}
    ends: dict[str, float] = {}
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as runs:
        for event in opencil.execute(config_of(flags, runs)):
            now, cil, kind = time.perf_counter() - started, event.run.cil, type(event).__name__
            begins.setdefault(cil, now)
            ends[cil] = now
            if kind == "Training" and not event.progress.stage.startswith("tune"):
                trained[cil] = now
            elif kind == "Failed":
                print(f"{event.run} failed: {event.error}")
    print(f"{time.perf_counter() - started:.1f} s in all\n")
    alone = dict.fromkeys(begins, 0.0)
    for start, end in pairwise(sorted({*begins.values(), *ends.values()})):
        under_way = [cil for cil in begins if begins[cil] <= start and ends[cil] >= end]
        if len(under_way) == 1:
            alone[under_way[0]] += end - start
    print(f"{'run':<12}{'begins':>9}{'trained':>9}{'ends':>9}{'alone':>9}")
    for cil in begins:
        times = (begins[cil], trained.get(cil, 0.0), ends[cil], alone[cil])
        print(f"{cil:<12}" + "".join(f"{seconds:9.1f}" for seconds in times))


if __name__ == "__main__":
    main()
