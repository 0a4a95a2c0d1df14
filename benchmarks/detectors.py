"""Measure seconds and memory of every post-hoc detector at full size, one by one.

    python benchmarks/detectors.py [--detector post-hoc,continual] [--width 64] [--device cpu] [--threads 1]

50,000 set-up images, 79,170 to score (the test images of CIFAR-100 and the six OOD sets of the paper), 100
classes in 10 tasks. Outputs are drawn around a mean for each class. Detectors that run the network again use
random images and an untrained ResNet-32, with its outputs. Memory is the peak of set-up and scores beyond the
outputs: allocated on a GPU, resident on a CPU (Linux).
"""

import argparse
import ctypes
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

import opencil
from opencil import Outputs, create_detector
from opencil.nets.model import Model
from opencil.registry import DETECTORS


def outputs(count: int, classes: int, width: int, device: torch.device, seed: int) -> Outputs:
    random = torch.Generator(device).manual_seed(0)
    means = torch.rand(classes, width, generator=random, device=device)
    random.manual_seed(seed)
    labels = torch.randint(0, classes, (count,), generator=random, device=device)
    features = (means[labels] + 0.5 * torch.randn(count, width, generator=random, device=device)).relu()
    head = nn.Linear(width, classes, device=device).requires_grad_(False)
    head.weight.copy_(2 * (means - means.mean(dim=0)))
    head.bias.zero_()
    tasks = torch.arange(classes, device=device) * 10 // classes + 1
    return Outputs(features, head(features), labels, head, tasks=tasks)


def network_outputs(count: int, classes: int, device: torch.device, seed: int) -> Outputs:
    random = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=random)
    images = opencil.ImageSet("drawn", pixels, torch.randint(0, classes, (count,), generator=random)).to(
        device
    )
    torch.manual_seed(0)
    model = Model(opencil.create_backbone("resnet32"), classes).to(device)
    transform = opencil.Transform(mean=(0.5,) * 3, std=(0.25,) * 3, crop=32)
    started = time.perf_counter()
    found = opencil.forward(model, images, transform)
    if device.type == "cuda":
        torch.cuda.synchronize()
    print(f"a forward pass over {count:,} images {time.perf_counter() - started:.2f} s", flush=True)
    return replace(found, tasks=torch.arange(classes, device=device) * 10 // classes + 1)


def resident(line: str) -> int:
    """Return bytes from a line of the process's status: VmRSS is now, VmHWM the peak."""
    status = Path("/proc/self/status").read_text()
    return 1024 * next(int(text.split()[1]) for text in status.splitlines() if text.startswith(line))


def extra_bytes(work: Callable[[], object], device: torch.device) -> int:
    """Return the peak of a function's memory beyond what was in use before it."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # memory freed before must not be used again
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = resident("VmRSS")
    work()
    return resident("VmHWM") - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--detector", default="post-hoc,continual")
    parser.add_argument("--set-up", type=int, default=50_000)
    parser.add_argument("--scored", type=int, default=79_170)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    shape = (arguments.classes, arguments.width, device)
    setup, scored = outputs(arguments.set_up, *shape, seed=1), outputs(arguments.scored, *shape, seed=2)
    work = nn.Linear(2048, 2048, device=device)
    work(torch.randn(2048, 2048, device=device))  # warm up: libraries load

    print(f"{arguments.set_up:,} set-up images, {arguments.scored:,} to score, {arguments.classes} classes,")
    print(f"{arguments.width} features, {device}, {arguments.threads} threads of a CPU\n")
    print(f"{'':22}{'set-up':>9}{'scores':>9}{'memory':>12}")
    total = 0.0
    named = {name: create_detector(name) for name in DETECTORS.chosen(arguments.detector.split(","))}
    reading = {name: detector for name, detector in named.items() if not isinstance(detector, opencil.Tuner)}
    by_network = {n for n, d in reading.items() if (d.reads_to_set_up | d.reads) & {"images", "layers"}}
    for name in sorted(reading, key=by_network.__contains__):
        detector = reading[name]
        if name in by_network and setup.inputs is None:
            setup = network_outputs(arguments.set_up, arguments.classes, device, seed=1)
            scored = network_outputs(arguments.scored, arguments.classes, device, seed=2)
        seconds: list[float] = []

        def timed(act: Callable[[Outputs], object], outputs: Outputs, seconds: list[float] = seconds) -> None:
            started = time.perf_counter()
            act(outputs)
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - started)

        def both() -> None:
            timed(detector.fit, setup)  # noqa: B023 it is called at once
            timed(detector.score, scored)  # noqa: B023

        extra = extra_bytes(both, device)
        total += sum(seconds)
        print(f"{name:22}{seconds[0]:7.2f} s{seconds[1]:7.2f} s{extra / 2**20:8,.0f} MiB", flush=True)
    print(f"\nall of them {total:.1f} s")


if __name__ == "__main__":
    with torch.no_grad():
        main()
