"""Throughput and memory of the streamed image store, beside its peers, in one run.

    python benchmarks/streamed_store.py ROOT [--images 1600] [--workers 2] [--repeats 3] [--enlarge 375]

ROOT holds ImageNet photographs in any layout that 'opencil data check' finds. Its images are repeated to the
number asked for, decoded at 256 pixels and served in batches of 128 by

- a plain Pillow loop, one image after the other;
- torch's DataLoader with as many worker processes, persistent and warm, stacking the same arrays;
- the streamed store with as many threads, from the files themselves;
- the streamed store from prepared images;
- the resident store, from memory.

All decode with the same function, take turns within a repeat, and must serve the same bytes. --enlarge writes
the photographs anew with that shorter side: those of ImageNet have 375 pixels in the middle, about 110 kB.
"""

import argparse
import gc
import hashlib
import multiprocessing
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from opencil.data.images import ImageSet
from opencil.data.prepared import PreparedFile
from opencil.data.readers.source import FileSource, ImageSource, Layout, SplitOnDisk, read_image
from opencil.data.streamed import StreamedImages
from opencil.registry import DATASETS

SIDE, BATCH = 256, 128


class MapStyle(Dataset[Tensor]):
    """The photographs as torch's loader wants them."""

    def __init__(self, source: ImageSource, order: list[int]) -> None:
        self.source, self.order = source, order

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(self.source.pixels(self.order[index], SIDE)))


def pillow_loop(source: ImageSource, order: list[int]) -> Iterator[Tensor]:
    for start in range(0, len(order), BATCH):
        images = np.stack([source.pixels(i, SIDE) for i in order[start : start + BATCH]])
        yield torch.from_numpy(np.ascontiguousarray(images))


def enlarged(source: FileSource, side: int, folder: Path) -> FileSource:
    """The photographs as JPEGs whose shorter side has so many pixels."""
    paths = []
    for index in range(len(source)):
        image = read_image(source.paths[index].read_bytes, source.name(index))
        factor = side / min(image.size)
        paths.append(folder / f"{index}.jpg")
        image.resize((round(image.width * factor), round(image.height * factor))).save(paths[-1], quality=92)
    return FileSource(source.labels, source.classes, paths)


def resident_kib() -> int:
    """Memory of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def processor_seconds() -> float:
    """Processor time of this process and its workers so far: other programs hardly move it."""
    pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def consume(batches: Iterator[Tensor]) -> tuple[float, str, int, int]:
    """Seconds, a checksum of all bytes, and this process's memory after the fourth batch and at its peak."""
    checksum = hashlib.sha256()
    started, waited = time.perf_counter(), 0.0
    early = peak = 0
    for number, batch in enumerate(batches):
        pause = time.perf_counter()
        checksum.update(batch.numpy().data)
        memory = resident_kib()
        early = memory if number <= 3 else early
        peak = max(peak, memory)
        waited += time.perf_counter() - pause
    return time.perf_counter() - started - waited, checksum.hexdigest(), early, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("root", type=Path)
    parser.add_argument("--images", type=int, default=1600)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--enlarge", type=int, default=None)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(chosen, Path(folder))


def measure(chosen: argparse.Namespace, folder: Path) -> None:
    source = DATASETS.create("imagenet1k").locate("imagenet1k", "train", chosen.root).source
    if chosen.enlarge:
        source = enlarged(source, chosen.enlarge, folder)
    order = [i % len(source) for i in range(chosen.images)]
    labels = torch.from_numpy(source.labels)
    images = StreamedImages("photographs", source, labels, SIDE, chosen.workers, "photographs")
    on_disk = SplitOnDisk(Layout("photographs", (), lambda _: source), chosen.root)
    prepared = PreparedFile(folder / "photographs.safetensors", on_disk, SIDE)
    stored = replace(images, source=prepared.make(chosen.workers))
    resident = ImageSet(
        "photographs", torch.cat(list(images.batches(torch.arange(len(source)), BATCH))), labels
    )
    loader = DataLoader(
        MapStyle(source, order), BATCH, num_workers=chosen.workers, persistent_workers=chosen.workers > 0
    )
    peers: dict[str, Callable[[], Iterator[Tensor]]] = {
        "Pillow loop": lambda: pillow_loop(source, order),
        f"DataLoader, {chosen.workers} processes": lambda: iter(loader),
        f"streamed store, {chosen.workers} threads": lambda: images.batches(torch.tensor(order), BATCH),
        "streamed, prepared images": lambda: stored.batches(torch.tensor(order), BATCH),
        "resident store": lambda: resident.batches(torch.tensor(order), BATCH),
    }
    for batches in peers.values():  # workers started, files in the page cache
        consume(batches())
    best: dict[str, list[float]] = {name: [] for name in peers}
    costs: dict[str, list[float]] = {name: [] for name in peers}
    checksums = set()
    for _ in range(chosen.repeats):
        for name, batches in peers.items():
            gc.collect()
            before = processor_seconds()
            seconds, checksum, early, peak = consume(batches())
            costs[name].append((processor_seconds() - before) / len(order) * 1000)
            checksums.add(checksum)
            best[name].append(len(order) / seconds)
            if "streamed store" in name:
                growth = max(0, peak - early) / 1024
    assert len(checksums) == 1, "they do not serve the same bytes"
    print(f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, torch {torch.__version__}")
    print(f"{len(order)} images of {len(source)} photographs, side {SIDE}, batches of {BATCH}")
    size = prepared.path.stat().st_size / len(source)
    print(f"prepared images: {size / 1000:.0f} kB an image")
    for name, rates in best.items():
        listed = " ".join(f"{rate:.0f}" for rate in rates)
        cost = f"{np.median(costs[name]):.2f} ms of processor time an image"
        print(f"{name:28} {np.median(rates):5.0f} images/s (median of {listed}), {cost}")
    loader_rates, ours = list(best.values())[1:3]
    ratios = [mine / theirs for mine, theirs in zip(ours, loader_rates, strict=True)]
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    print(f"streamed store / DataLoader: {np.median(ratios):.2f} (median of the repeats, {spread})")
    print(f"streamed store: memory grows by {growth:.1f} MiB from the fourth batch to the epoch's peak")


if __name__ == "__main__":
    main()
