"""Measure the training speed of iCaRL's step ≥ 2 with its teacher: captured and eager, one run and several.

    python benchmarks/train_step.py                  # a GPU: graph against eager, and 8 runs packed
    python benchmarks/train_step.py --compile        # also torch's own kernels, compiled, in graphs
    python benchmarks/train_step.py --backbone resnet18 --batch 256 --precision bf16 --compile --pack 1
    python benchmarks/train_step.py --cil replay     # the same without a teacher
    python benchmarks/train_step.py --ranks          # also the path of several ranks, with one
    python benchmarks/train_step.py --device cpu     # the same code on the CPU, a few iterations

Random images of CIFAR-100's or ImageNet's size. The eager step is the same iteration without a capture and
with torch's own kernels, measured in the same process.
"""

import argparse
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from unittest import mock

import torch

import opencil
from opencil.cil.learner import Setting, Task
from opencil.engine.arithmetic import Arithmetic
from opencil.engine.device import resolve_device
from opencil.engine.feed import augmented_loss
from opencil.engine.iteration import Iteration
from opencil.engine.ranks import Ranks, current, using
from opencil.engine.seeding import generator
from opencil.validation import build

#: Side and number of the images that a backbone is measured with.
SIDES = {"resnet32": (32, 7_000), "resnet18": (224, 2_048)}


def one_run(
    seed: int,
    device: torch.device,
    arithmetic: Arithmetic,
    capture: bool,
    batch: int,
    backbone: str,
    cil: str,
) -> Iterator[None]:
    """Train step 5 at k = 10 without end; yield after each queued iteration."""
    side, count = SIDES[backbone]
    size = (count, 3, side, side)
    images = torch.randint(0, 256, size, dtype=torch.uint8, generator=generator(seed, "images"))
    images_set = opencil.ImageSet("random", images, torch.arange(count) % 50).to(device)
    transform = opencil.Transform(
        (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761), crop=side, padding=side // 8
    )
    setting = Setting(images_set, images_set, transform, backbone, batch, seed, seed, arithmetic)
    everything = torch.arange(count)
    learner = opencil.create_learner(cil)
    old = opencil.Step((10,) * 4, 10, everything, everything)
    step = opencil.Step((10,) * 5, 10, everything, everything)
    task: Task = learner.begin(setting, step, opencil.Memory(2_000), learner.load(setting, old))
    stage = next(iter(learner.stages(task)))
    loss = augmented_loss(stage.loss, transform)
    share = None if (ranks := current()) is None else ranks.share(batch)
    iterate = Iteration(stage.module, loss, stage.schedule, arithmetic, device, capture=capture, share=share)
    stage.module.train()
    epoch = 0
    while True:
        order = torch.randperm(count, generator=generator(seed, epoch)).to(device)
        order = order[: count // batch * batch]
        drawn = transform.draw(len(order), images_set.side, generator(seed, "draw", epoch))
        draw = [tensor.to(device) for tensor in drawn]
        labels = images_set.labels[order]
        for i, pixels in enumerate(images_set.batches(order, batch)):
            rows = slice(i * batch, (i + 1) * batch)
            iterate(pixels, labels[rows], *(choice[rows] for choice in draw))
            yield
        epoch += 1


def measure(
    runs: int,
    device: torch.device,
    arithmetic: Arithmetic,
    capture: bool,
    iterations: int,
    batch: int,
    backbone: str,
    cil: str,
) -> float:
    """Return images per second of ``runs`` trainings that take turns, each on a stream of its own."""
    lanes = []
    for seed in range(runs):
        stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        lanes.append((one_run(seed, device, arithmetic, capture, batch, backbone, cil), stream))

    def advance(times: int) -> None:
        for _ in range(times):
            for lane, stream in lanes:
                with torch.cuda.stream(stream):
                    next(lane)
        if device.type == "cuda":
            torch.cuda.synchronize()

    advance(10 if device.type == "cuda" else 2)  # capture happens here
    best = 0.0
    for _ in range(3):
        start = time.perf_counter()
        advance(iterations)
        best = max(best, iterations * runs * batch / (time.perf_counter() - start))
    return best


def one_rank(device: torch.device) -> Ranks:
    """Return this process as torchrun's only rank, which does all work of several."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return Ranks(0, 1, device, 60)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--backbone", default="resnet32", choices=list(SIDES))
    parser.add_argument("--cil", default="icarl", help="the CIL method")
    parser.add_argument("--precision", default="tf32,bf16")
    parser.add_argument(
        "--search", action="store_true", help="not deterministic: let cuDNN search for the fastest"
    )
    parser.add_argument("--compile", action="store_true", help="measure torch.compile's kernels as well")
    parser.add_argument("--ranks", action="store_true", help="also measure the path of several ranks")
    parser.add_argument("--pack", default="1,2,4,8")
    flags = parser.parse_args()
    device = resolve_device(flags.device)
    name = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"CPU, {torch.get_num_threads()} threads"
    )
    mode = "fastest" if flags.search else "deterministic"
    print(f"{name}, torch {torch.__version__}, {mode}: {flags.cil}, {flags.backbone}, batch {flags.batch}")
    print(f"{'precision':10} {'mode':20} {'images/s':>10} {'ratio':>7}")
    iterations = flags.iterations if device.type == "cuda" else 3
    for precision in flags.precision.split(","):
        arithmetic = build(
            Arithmetic, {"precision": precision, "deterministic": not flags.search}, "training"
        )
        precision = arithmetic.on(device)  # float32 on a CPU
        packs = list(map(int, flags.pack.split(","))) if device.type == "cuda" else []
        what = (flags.batch, flags.backbone, flags.cil)
        with mock.patch("opencil.nets.fused.fits", return_value=False):
            eager = measure(1, device, arithmetic, False, iterations // 3, *what)
            print(f"{precision:10} {'eager':20} {eager:10.0f} {1:6.2f}×", flush=True)
            for pack in packs if flags.compile else []:
                compiled = replace(arithmetic, compile=True)
                speed = measure(pack, device, compiled, True, iterations, *what)
                print(f"{precision:10} {f'compiled graph × {pack}':20} {speed:10.0f} {speed / eager:6.2f}×")
        for pack in packs:
            speed = measure(pack, device, arithmetic, True, iterations, *what)
            print(f"{precision:10} {f'graph × {pack}':20} {speed:10.0f} {speed / eager:6.2f}×", flush=True)
        if flags.ranks:
            with using(one_rank(device)):
                speed = measure(1, device, arithmetic, True, iterations, *what)
            print(f"{precision:10} {'one rank':20} {speed:10.0f} {speed / eager:6.2f}×", flush=True)


if __name__ == "__main__":
    main()
