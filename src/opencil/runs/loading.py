"""From a config to its data: images on a device, and a record of what was read."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from opencil.config import Config, PlaceConfig, resolve
from opencil.data.benchmark import BenchmarkData, dataset_of, load_data
from opencil.data.check import Asked, describe
from opencil.data.decoding import workers_here
from opencil.data.images import Access, Images, Split
from opencil.data.kept_pixels import room_here
from opencil.data.roles import SHIFTED, Role
from opencil.data.stream import count_classes
from opencil.engine.device import resolve_device
from opencil.engine.ranks import started
from opencil.errors import BadInput
from opencil.runs import ray_cluster


def usable_places(place: PlaceConfig) -> list[PlaceConfig]:
    """The place of each process that runs are spread over; one that is not there is refused."""
    require_one_process(place)
    devices = [resolve_device(name) for name in place.devices] if place.launcher == "local" else []
    if place.data_root is not None and not Path(place.data_root).is_dir():
        raise BadInput(f"place.data_root = {place.data_root!r} is not allowed: there is no such folder")
    runs = Path(place.runs)
    there = next(path for path in (runs, *runs.absolute().parents) if path.exists())
    if not there.is_dir():
        what = "is a file" if there == runs else f"cannot be made: {there} is a file"
        raise BadInput(f"place.runs = {place.runs!r} {what}: a folder is needed, to store runs in")
    if there != runs and not os.access(there, os.W_OK | os.X_OK):
        raise BadInput(
            f"place.runs = {place.runs!r} cannot be made: {there} cannot be written to; --runs names another"
        )
    if place.launcher == "ray":
        return ray_cluster.ray_places(place)
    on_cpu = devices[0].type == "cpu"
    asked = (place.jobs or 1) if place.jobs != "auto" else workers_here() if on_cpu else 1
    count = asked if on_cpu else len(devices)
    if count == 1:
        return [replace(place, device=str(devices[0]), jobs=1, pack=max(place.pack, asked))]
    place = with_share(place, count)
    if on_cpu:
        return [replace(place, device=str(devices[0]), jobs=1, threads=place.threads or 1)] * count
    packed = replace(place, jobs=1, pack=max(place.pack, asked))
    return [replace(packed, device=str(device)) for device in devices]


def require_one_process(place: PlaceConfig) -> None:
    """Refuse, on several ranks, to start more processes or to do several runs at once: a run has them all."""
    if started() == 1:
        return
    for key, asked, one in (
        ("pack", place.pack, 1),
        ("jobs", place.jobs or 1, 1),
        ("launcher", place.launcher, "local"),
        ("device", place.device, place.devices[0]),
    ):
        if asked != one:
            raise BadInput(
                f"place.{key} = {asked} is not allowed on several ranks, which do one run together: leave it "
                "out, or start the command without torchrun"
            )


def with_share(place: PlaceConfig, processes: int) -> PlaceConfig:
    """The place of one of several processes of a machine: its part of the processors and of the memory."""
    workers = place.workers or max(1, workers_here() // processes)
    decoded_mb = room_here() // 2**20 // processes if place.decoded_mb is None else place.decoded_mb
    return replace(place, workers=workers, decoded_mb=decoded_mb)


def place_here(place: PlaceConfig) -> PlaceConfig:
    """Where the process computes that starts the others: on a cluster they may have a GPU, and it none."""
    local = place.launcher == "local" or place.device == "cpu"
    return place if local else replace(place, device="auto")


def load(config: Config) -> BenchmarkData:
    """The data of a config's benchmark, on the config's device."""
    benchmark, place = config.benchmark, config.place
    data = load_data(
        benchmark.id,
        benchmark.ood,
        shifted=benchmark.shifted,
        image_size=benchmark.image_size,
        transform=benchmark.transform,
        device=resolve_device(place.devices[0]),
        access=access(place),
        own=benchmark.datasets,
    )
    benchmark.check_classes(count_classes(data.train))
    return data


def describe_data(config: Config, data: BenchmarkData) -> dict[str, Any]:
    """What data a config's runs read, for their record: numbers of images, ours and the paper's."""
    benchmark, root = config.benchmark, access(config.place).root

    def of(name: str, role: str, split: Split, images: Images) -> dict[str, Any]:
        found = {"name": name, "role": role, "split": split, "images": len(images)}
        return found | describe(dataset_of(name, benchmark.datasets), split, root)

    splits = [of(benchmark.id, "ID", "train", data.train), of(benchmark.id, "ID", "test", data.test)]
    splits += [of(name, ood.distance, "test", ood.images) for name, ood in data.ood.items()]
    splits += [
        {"name": name, "role": SHIFTED, "split": "test", "images": len(images), "paper": None, "files": ""}
        for name, images in data.shifted.items()
    ]
    return {"datasets": splits}


def splits(config: Config) -> list[Asked]:
    """The splits that a config's benchmark reads, in files or from installed packages."""
    b = config.benchmark
    wanted: list[tuple[str, Split, Role | Literal["ID"]]] = [(b.id, "train", "ID"), (b.id, "test", "ID")]
    wanted += [(name, "test", role) for name, role in b.ood.items()]
    made = {name: dataset_of(name, b.datasets) for name, _, _ in wanted}
    return [Asked(name, made[name], split, role) for name, split, role in wanted]


def access(place: PlaceConfig) -> Access:
    """How a config's datasets are read and served."""
    return Access(
        root=Path(place.data_root) if place.data_root else None,
        cache=place.cache,
        store=place.store,
        resident_mb=place.resident_mb,
        workers=place.workers,
        decoded_mb=place.decoded_mb,
    )


def benchmark(name: str, data_root: str | None = None, device: str = "cpu") -> BenchmarkData:
    """A shipped benchmark's data, to work with in Python: images, OOD sets, class-incremental stream."""
    return load(resolve({"benchmark": name, "place": {"data_root": data_root, "device": device}}))
