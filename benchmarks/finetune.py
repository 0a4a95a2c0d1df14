"""Time the tuning of all fine-tuning detectors' heads at one step, beside one method at a time.

    python benchmarks/finetune.py                            # a GPU: CIFAR-100's step 5 at k = 10, ResNet-32
    python benchmarks/finetune.py --device cpu --backbone resnet8 --images 1000

Random images of CIFAR-100's size: 5,000 of new classes, 2,000 in the memory. Ours: all methods advance in
turns, so each view is made and passed through the frozen backbone once. The peer: each method by itself, with
views of its own. "Added" is what a method adds to the time of the others.
"""

import argparse
import time
from collections.abc import Sequence
from itertools import zip_longest

import torch

import opencil
from opencil.detectors.finetune.tuner import Tuning
from opencil.detectors.finetune.views import ViewSource
from opencil.engine.arithmetic import Arithmetic
from opencil.engine.device import SideStream, resolve_device
from opencil.engine.forward import Inputs
from opencil.engine.seeding import generator
from opencil.validation import build

OLD, NEW = 40, 10


def source(flags: argparse.Namespace, device: torch.device) -> ViewSource:
    """Return a step's images and an untrained model."""
    current, memory = flags.images, flags.images * 2 // 5
    pixels = torch.randint(
        0, 256, (current + memory, 3, 32, 32), dtype=torch.uint8, generator=generator(0, "images")
    )
    labels = torch.cat([OLD + torch.arange(current) % NEW, torch.arange(memory) % OLD])
    images = opencil.ImageSet("random", pixels, labels).to(device)
    transform = opencil.Transform((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761), crop=32, padding=4)
    model = opencil.Model(opencil.create_backbone(flags.backbone), OLD + NEW).to(device).train()
    with torch.no_grad():  # update the statistics of batch norm: features are huge without them
        for pixels in images.batches(torch.arange(current, device=device), 128):
            model(transform.test(pixels))
    model.eval()
    arithmetic = build(Arithmetic, {"precision": flags.precision}, "training")
    return ViewSource(Inputs(model, images, transform), labels, labels < OLD, (0, "tune"), arithmetic)


def seconds(names: Sequence[str], flags: argparse.Namespace, device: torch.device) -> float:
    """Return the seconds that the heads of some methods take together."""
    tuners = [opencil.create_detector(name) for name in names]
    if flags.epochs:
        for tuner in tuners:
            tuner.schedule = opencil.Schedule(**{**vars(tuner.schedule), "epochs": flags.epochs})
    views = source(flags, device)
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    with SideStream(device).active():
        for _ in zip_longest(*(Tuning(tuner, views).advance() for tuner in tuners)):
            pass
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--detector", help="a list of fine-tuning detectors; all of them by default")
    parser.add_argument("--together", action="store_true", help="measure only all of them together")
    parser.add_argument("--backbone", default="resnet32")
    parser.add_argument(
        "--images", type=int, default=5_000, help="of new classes; the memory has 2/5 of them"
    )
    parser.add_argument("--epochs", type=int, default=0, help="epochs of each method (default: its own)")
    parser.add_argument("--precision", default="bf16")
    flags = parser.parse_args()
    device = resolve_device(flags.device)
    every = [n for n in opencil.list_detectors() if opencil.create_detector(n).family == "fine-tuning"]
    names = flags.detector.split(",") if flags.detector else every
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    precision = Arithmetic(flags.precision).on(device)  # float32 on a CPU
    print(f"{where}, torch {torch.__version__}, {flags.backbone}, {precision}, {flags.images} new images")
    seconds(names[:1], flags, device)  # warm up: choose algorithms, load kernels
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
