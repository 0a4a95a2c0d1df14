"""Tuning the heads of all fine-tuning detectors at one step, beside the same work one method at a time.

    python benchmarks/finetune.py                            # a GPU: CIFAR-100's step 5 at k = 10, ResNet-32
    python benchmarks/finetune.py --device cpu --backbone resnet8 --images 1000

Random images of CIFAR-100's size (5,000 of new classes, 2,000 in the memory): the speed does not depend on
what they show. Ours: all methods advance together, so each view is made and passed through the frozen
backbone once. The peer: each method by itself, with views of its own. Both store the heads as a run does.
"Added" is what a method adds to the time of the others.
"""

import argparse
import tempfile
import time
from collections.abc import Generator, Sequence
from pathlib import Path

import torch

import opencil
from opencil.detectors.finetune.tuner import Tuner
from opencil.detectors.finetune.views import ViewSource
from opencil.engine.arithmetic import Arithmetic
from opencil.engine.device import own_stream, resolve_device
from opencil.engine.forward import Inputs
from opencil.engine.loop import Progress
from opencil.engine.schedule import Schedule
from opencil.engine.seeding import generator
from opencil.errors import OpenCILError
from opencil.runs.store import StepFolder
from opencil.runs.tuning import tune
from opencil.validation import build

OLD, NEW = 40, 10


def source(flags: argparse.Namespace, device: torch.device) -> ViewSource:
    """A step's images and a model, which has not been trained: that takes as long."""
    current, memory = flags.images, flags.images * 2 // 5
    pixels = torch.randint(
        0, 256, (current + memory, 3, 32, 32), dtype=torch.uint8, generator=generator(0, "images")
    )
    labels = torch.cat([OLD + torch.arange(current) % NEW, torch.arange(memory) % OLD])
    images = opencil.ImageSet("random", pixels, labels).to(device)
    transform = opencil.Transform((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761), crop=32, padding=4)
    model = opencil.Model(opencil.create_backbone(flags.backbone), OLD + NEW).to(device).train()
    with torch.no_grad():  # batch norm learns what is usual, or else features are huge
        for pixels in images.batches(torch.arange(current, device=device), 128):
            model(transform.test(pixels))
    model.eval()
    arithmetic = build(Arithmetic, {"precision": flags.precision}, "training")
    return ViewSource(Inputs(model, images, transform), labels, labels < OLD, (0, "tune"), arithmetic)


def seconds(names: Sequence[str], flags: argparse.Namespace, device: torch.device) -> float:
    """How long the heads of some methods take together."""
    tuners: dict[str, Tuner] = {}
    for name in names:
        tuners[name] = opencil.create_detector(name)
        if flags.epochs:
            tuners[name].schedule = Schedule(**{**vars(tuners[name].schedule), "epochs": flags.epochs})
    views = source(flags, device)
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, own_stream(device):
        problems = to_the_end(
            tune(tuners, views, "untrained", StepFolder(Path(folder)), checkpoint_seconds=1e9)
        )
        if problems:
            raise SystemExit(f"not tuned: {problems}")
        if device.type == "cuda":
            torch.cuda.synchronize()
    return time.perf_counter() - start


def to_the_end(tuning: Generator[Progress, None, dict[str, OpenCILError]]) -> dict[str, OpenCILError]:
    """What a generator returns at its end."""
    while True:
        try:
            next(tuning)
        except StopIteration as end:
            return dict(end.value)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--detector", help="a list of fine-tuning detectors; all of them by default")
    parser.add_argument("--together", action="store_true", help="no more than all of them together")
    parser.add_argument("--backbone", default="resnet32")
    parser.add_argument(
        "--images", type=int, default=5_000, help="of new classes; the memory has 2/5 of them"
    )
    parser.add_argument("--epochs", type=int, default=0, help="0: as many as the methods have by default")
    parser.add_argument("--precision", default="bf16")
    flags = parser.parse_args()
    device = resolve_device(flags.device)
    every = [n for n in opencil.list_detectors() if opencil.create_detector(n).family == "fine-tuning"]
    names = flags.detector.split(",") if flags.detector else every
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    precision = Arithmetic(flags.precision).on(device)  # which is float32 on a CPU
    print(f"{where}, torch {torch.__version__}, {flags.backbone}, {precision}, {flags.images} new images")
    seconds(names[:1], flags, device)  # what is done once: choosing algorithms, loading kernels
    together = min(seconds(names, flags, device) for _ in range(2))
    if flags.together:
        print(f"{'together':12} {together:15.2f}")
        return
    one_by_one = 0.0
    print(f"{'seconds':12} {'alone':>7} {'added':>7}")
    for name in names:
        alone = min(seconds([name], flags, device) for _ in range(2))
        added = together - seconds([other for other in names if other != name], flags, device)
        one_by_one += alone
        print(f"{name:12} {alone:7.2f} {added:7.2f}", flush=True)
    print(f"{'one by one':12} {one_by_one:7.2f}")
    print(f"{'together':12} {together:15.2f}, {one_by_one / together:.2f}× as fast")


if __name__ == "__main__":
    main()
