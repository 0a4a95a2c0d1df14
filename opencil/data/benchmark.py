"""A benchmark's data, loaded: the ID dataset's two splits and the OOD sets with their roles."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from opencil.data.images import Dataset, ImageSet
from opencil.data.stream import Stream
from opencil.data.transforms import Transform
from opencil.registry import DATASETS

Distance = Literal["near", "far"]


@dataclass(frozen=True)
class OOD:
    """An OOD test set and how far it lies from the ID data."""

    images: ImageSet
    distance: Distance


@dataclass(frozen=True)
class BenchmarkData:
    """Everything a benchmark's runs read. Rows of ``ood`` are in the benchmark's order."""

    train: ImageSet
    test: ImageSet
    ood: dict[str, OOD]
    transform: Transform

    def stream(self, classes_per_step: int, order_seed: int = 1993) -> Stream:
        """The class-incremental stream over it."""
        return Stream.create(self.train, self.test, classes_per_step, order_seed)


def load_data(
    id_name: str,
    near: tuple[str, ...],
    far: tuple[str, ...],
    *,
    image_size: int,
    transform: Transform,
    device: torch.device,
    root: Path | None = None,
) -> BenchmarkData:
    """Load a benchmark's datasets, by registered name, onto a device."""

    def load(name: str, split: Literal["train", "test"]) -> ImageSet:
        dataset: Dataset = DATASETS.create(name)
        return dataset.load(split, image_size, root).to(device)

    distances: dict[str, Distance] = dict.fromkeys(near, "near") | dict.fromkeys(far, "far")  # type: ignore[assignment]
    ood = {name: OOD(load(name, "test"), distance) for name, distance in distances.items()}
    return BenchmarkData(load(id_name, "train"), load(id_name, "test"), ood, transform)
