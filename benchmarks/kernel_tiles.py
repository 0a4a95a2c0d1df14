"""Find the fastest tiles of the kernels for narrow residual networks on this GPU.

    python benchmarks/kernel_tiles.py    # batch 128, and 1,024 as eight packed runs fill a GPU

Microseconds of layers like those of ResNet-32, in training and evaluation, by kernel and channels: means over
layers, from the profiler. All cores compile the candidates first. The best belong into
``opencil.kernels.residual``.
"""

import argparse
import multiprocessing
import os
from collections import defaultdict
from itertools import product
from typing import Any
from unittest import mock

import torch

from opencil.engine.arithmetic import Arithmetic
from opencil.kernels import residual
from opencil.kernels.residual import Chunks, Tile
from opencil.nets import resnet

TABLES = {
    "convolve_and_measure": "FORWARD",
    "convolve_and_normalise": "EVALUATION",
    "convolve_back": "BACKWARD",
    "normalise": "POINTWISE",
    "normalise_back": "POINTWISE",
    "weight_sums": "WEIGHTS",
}
WIDTHS = (16, 32, 64)
REPEATED = 4


def candidates() -> list[dict[str, dict[int, Any]]]:
    """Return the tables to try, with another tile of each kernel in each."""
    tiles = [
        Tile(*tile)
        for tile in (
            (64, 4, 3, 1),
            (64, 4, 3, 3),
            (64, 4, 1, 9),
            (128, 4, 3, 1),
            (128, 4, 1, 3),
            (128, 4, 1, 9),
            (128, 2, 1, 9),
            (128, 8, 3, 1),
            (128, 4, 3, 3),
            (256, 4, 1, 1),
            (256, 4, 1, 3),
            (256, 4, 1, 9),
            (256, 2, 1, 9),
            (256, 8, 3, 1),
            (512, 8, 1, 3),
        )
    ]
    pointwise = [
        (c, n, w) for c, n, w in product((132, 264, 528), (2048, 4096, 8192), (4, 8)) if c < 528 or n < 8192
    ]
    chunks = {
        16: [Chunks(c, b, w, 3, 3) for c, b, w in product((128, 264), (64, 128), (2, 4, 8))],
        32: [Chunks(c, b, w) for c, b, w in product((64, 128), (64, 128), (2, 4))],
        64: [Chunks(c, b, w) for c, b, w in product((32, 64), (64, 128), (4, 8))],
    }
    found = []
    for i in range(max(len(tiles), len(pointwise))):
        tile, (count, numbers, warps) = tiles[i % len(tiles)], pointwise[i % len(pointwise)]
        found.append(
            {
                "FORWARD": dict.fromkeys(WIDTHS, tile),
                "EVALUATION": dict.fromkeys(WIDTHS, tile),
                "BACKWARD": dict.fromkeys(WIDTHS, tile),
                "POINTWISE": {width: Chunks(count, numbers // width, warps) for width in WIDTHS},
                "WEIGHTS": {width: of[i % len(of)] for width, of in chunks.items()},
            }
        )
    return found


def step(backbone: torch.nn.Module, images: torch.Tensor) -> None:
    """Run a forward and backward pass in training, and a forward pass in evaluation."""
    with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        features = backbone.train()(images)
        features.float().square().sum().backward()
        with torch.no_grad():
            backbone.eval()(images)


def durations(backbone: torch.nn.Module, images: torch.Tensor) -> dict[tuple[str, int], float]:
    """Return mean microseconds by kernel and channels of its layer."""
    for _ in range(2):
        step(backbone, images)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(REPEATED):
            step(backbone, images)
        torch.cuda.synchronize()
    layers = [max(c.weight.shape[:2]) for c, _, _ in backbone._layers()]
    events = sorted((e for e in profile.events() if e.device_time), key=lambda e: e.time_range.start)
    by_name: dict[str, list[float]] = defaultdict(list)
    for event in events:
        by_name[event.name].append(event.device_time)
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for name, times in by_name.items():
        if name not in TABLES:
            found["others", 0] += [sum(times) / REPEATED]
            continue
        order = (
            layers
            if name in ("convolve_and_measure", "convolve_and_normalise", "normalise")
            else layers[::-1]
        )
        order = order[:-1] if name == "convolve_back" else order
        for i, time in enumerate(times):
            found[name, order[i % len(order)]].append(time)
    return {
        key: sum(times) if key[0] == "others" else sum(times) / len(times) for key, times in found.items()
    }


def use(tables: dict[str, dict[int, Any]]) -> None:
    for name, table in tables.items():
        setattr(residual, name, table)


def compile_some(which: list[int]) -> None:
    """Run some candidates once, which fills Triton's cache."""
    backbone = resnet._small(2, signed=False).cuda().to(memory_format=torch.channels_last)
    images = torch.randn(128, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    tried = candidates()
    for i in which:
        use(tried[i])
        try:
            step(backbone, images)
        except Exception as error:  # for example too much shared memory
            print(i, type(error).__name__, str(error)[:100], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", default="128,1024")
    flags = parser.parse_args()
    tried = candidates()
    workers = max(1, (os.cpu_count() or 2) - 1)
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers) as pool:
        pool.map(compile_some, [list(range(i, len(tried), workers)) for i in range(workers)])
    backbone = resnet._small(2, signed=False).cuda().to(memory_format=torch.channels_last)
    # One kernel at a time: weight gradients beside the backward pass would slow both.
    alone = mock.patch.object(residual, "_beside", return_value=None)
    with Arithmetic("bf16").active(), alone:
        for batch in map(int, flags.batches.split(",")):
            images = torch.randn(batch, 3, 32, 32, device="cuda").contiguous(
                memory_format=torch.channels_last
            )
            found: dict[tuple[str, int], dict[Any, float]] = defaultdict(dict)
            for tables in tried:
                use(tables)
                try:
                    measured = durations(backbone, images)
                except Exception:
                    continue
                for (name, width), time in measured.items():
                    tile = tables[TABLES[name]][width] if name in TABLES else None
                    found[name, width].setdefault(tile, time)
            print(f"batch {batch}")
            for (name, width), times in sorted(found.items()):
                best = sorted(times.items(), key=lambda item: item[1])[:6]
                print(f"  {name} {width}")
                for tile, time in best:
                    print(f"    {time:7.2f}  {tile}")


if __name__ == "__main__":
    main()
