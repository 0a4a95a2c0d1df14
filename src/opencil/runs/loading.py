"""Load the data of a config: images on a device, and a record of the datasets."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from opencil.config import Config, PlaceConfig, resolve
from opencil.data.benchmark import OOD, BenchmarkData, find_dataset
from opencil.data.check import BenchmarkSplit, describe
from opencil.data.file_dataset import FileDataset
from opencil.data.images import Access
from opencil.data.roles import SHIFTED
from opencil.data.stream import count_classes
from opencil.data.streamed import count_workers
from opencil.engine.device import resolve_device
from opencil.engine.ranks import world_size
from opencil.errors import BadInput, one_line
from opencil.runs.features import FrozenData, measure_seconds


def check_place(place: PlaceConfig) -> None:
    """Refuse absent and unwritable folders, and several runs at once on several ranks."""
    if place.data_root is not None and not Path(place.data_root).is_dir():
        raise BadInput(f"place.data_root = {place.data_root!r} is not allowed: there is no such folder")
    runs = Path(place.runs)
    there = next(path for path in (runs, *runs.absolute().parents) if path.exists())
    if not there.is_dir() or (there != runs and not os.access(there, os.W_OK | os.X_OK)):
        raise BadInput(
            f"place.runs = {place.runs!r} is not allowed: {there} is a file or cannot be written to"
        )
    several = (place.pack, place.jobs or 1, place.launcher, len(place.devices)) != (1, 1, "local", 1)
    if several and world_size() > 1:
        keys = "place.jobs, place.pack, place.launcher and several devices"
        raise BadInput(f"ranks of torchrun do one run together: {keys} are not allowed with them")


def with_share(place: PlaceConfig, processes: int) -> PlaceConfig:
    """Return the place of one of several processes of a machine: its part of the processors."""
    return replace(place, workers=place.workers or max(1, count_workers() // processes))


def load(config: Config, ood: bool = True) -> BenchmarkData:
    """Load the data of a config's benchmark, on the config's device; without ``ood`` the ID images alone."""
    benchmark, read, device = config.benchmark, access(config.place), resolve_device(config.place.devices[0])
    train, test, *others = (
        entry.dataset.serve(entry.name, entry.split, benchmark.image_size, read).to(device)
        for entry in splits(config)[: None if ood else 2]
    )
    if train.classes and test.classes and train.classes != test.classes:
        which = ", ".join(sorted({*train.classes} ^ {*test.classes})[:5]) or "they are in another order"
        raise BadInput(f"the classes of {train.name!r} in training and test images differ: {one_line(which)}")
    benchmark.check_classes(count_classes(train))
    roles = benchmark.ood.items() if ood else ()
    data = BenchmarkData(
        train,
        test,
        {name: OOD(images, role) for (name, role), images in zip(roles, others, strict=True)},
        benchmark.transform.fit(train),
        {name: kind.make(name, test, read.root) for name, kind in benchmark.shifted.items() if ood},
    )
    return replace(data, features=FrozenData(config, data)) if benchmark.stores_features else data


def describe_data(config: Config, data: BenchmarkData) -> dict[str, Any]:
    """Return a record of the data of a config's runs: numbers of images, ours and the paper's."""
    root, found = access(config.place).root, []
    for asked in splits(config):
        of_id = data.train if asked.split == "train" else data.test
        images = of_id if asked.role == "ID" else data.ood[asked.name].images
        note = {"name": asked.name, "role": asked.role, "split": asked.split, "images": len(images)}
        digest = {"digest": images.fingerprint}
        found.append(note | describe(asked.dataset, asked.split, root) | digest)
    shifted = {"role": SHIFTED, "split": "test", "paper": None, "files": ""}
    found += [
        {"name": name, "images": len(images), **shifted, "digest": images.fingerprint}
        for name, images in data.shifted.items()
    ]
    return {"datasets": found}


def splits(config: Config) -> list[BenchmarkSplit]:
    """Return the splits of a config's benchmark, in files or from installed packages."""
    b = config.benchmark
    of_id = find_dataset(b.id, b.datasets)
    found = [BenchmarkSplit(b.id, of_id, "train", "ID"), BenchmarkSplit(b.id, of_id, "test", "ID")]
    ood = ((name, find_dataset(name, b.datasets), role) for name, role in b.ood.items())
    return [*found, *(BenchmarkSplit(name, made, "test", role) for name, made, role in ood)]


def expect_features(config: Config) -> tuple[int, float] | None:
    """Return how many features a config's runs have to compute at most, and an estimate of the seconds.

    It is None where the backbone is not frozen. Nothing is decoded: where images are not prepared yet, all
    are counted.
    """
    if not config.benchmark.stores_features:
        return None
    side, read, known, count = config.benchmark.image_size, access(config.place), True, 0
    for entry in splits(config):
        if isinstance(entry.dataset, FileDataset):
            file = entry.dataset.prepared_file(entry.name, entry.split, side, read)
            known, size = known and file.path.is_file(), len(file.on_disk.source)
        else:
            size = len(entry.dataset.serve(entry.name, entry.split, side, read))
        is_test = (entry.role, entry.split) == ("ID", "test")
        count += size * (1 + is_test * len(config.benchmark.shifted))
    if known and isinstance(data := load(config).features, FrozenData):
        count = data.count_missing()
    return count, measure_seconds(config, count) if count else 0.0


def access(place: PlaceConfig) -> Access:
    """Return how a config's datasets are read and served."""
    return Access(
        root=Path(place.data_root) if place.data_root else None,
        cache=place.cache,
        store=place.store,
        resident_mb=place.resident_mb,
        workers=place.workers,
    )


def benchmark(name: str, data_root: str | None = None, device: str = "cpu") -> BenchmarkData:
    """Load a shipped benchmark's data: images, OOD sets and the class-incremental stream."""
    return load(resolve({"benchmark": name, "place": {"data_root": data_root, "device": device}}))
