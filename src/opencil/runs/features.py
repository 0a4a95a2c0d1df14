"""Compute the features of a benchmark's images by its frozen backbone, once for all steps and runs."""

import hashlib
import logging
import time
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from opencil.config import Config
from opencil.data.benchmark import OOD, BenchmarkData
from opencil.data.features import FeatureFile
from opencil.data.images import FeatureImages, Images, ImageSet
from opencil.data.prepared import cache_folder
from opencil.data.transforms import Untransformed
from opencil.engine.device import cpu_threads, resolve_device
from opencil.engine.frozen import FrozenNetwork, compute_features
from opencil.files import file_name
from opencil.nets.features import StoredFeatures

#: Images that are computed and stored together; where a computation resumes does not change a bit.
BATCH = 256


@dataclass(frozen=True)
class Computing:
    """``done`` of ``total`` missing features of all image sets are computed; now those of ``name`` are."""

    name: str
    done: int
    total: int
    seconds: float | None  #: left, as the images so far took; None before the first

    def __str__(self) -> str:
        left = (
            "" if self.seconds is None else f" · {time.strftime('%H:%M:%S', time.gmtime(self.seconds))} left"
        )
        return f"features of {self.name} · {self.done:,} of {self.total:,} images{left}"


_log = logging.getLogger("opencil.data")
Features = Generator[Computing, None, BenchmarkData]


class FrozenData:
    """The features of a benchmark's images, computed and stored when they are first needed."""

    def __init__(self, config: Config, images: BenchmarkData) -> None:
        self._config, self._images = config, images
        self._found: BenchmarkData | None = None

    def __call__(self) -> Features:
        """Return the data with features for images; yield progress where some have to be computed."""
        if self._found is None:
            self._found = yield from self._load()
        return self._found

    def _load(self) -> Features:
        place, images = self._config.place, self._images
        network, files = self._files()
        with cpu_threads(place.threads):
            yield from self._compute(network, [pair for pair in files if pair[1].load() is None])
        train, test, *others = (_featured(*pair) for pair in files)
        ood = {n: OOD(of, ood.distance) for (n, ood), of in zip(images.ood.items(), others, strict=False)}
        shifted = dict(zip(images.shifted, others[len(ood) :], strict=True))
        size = sum(t.numel() * t.element_size() for t in network.backbone.state_dict().values())
        head = StoredFeatures(network.width, size)
        return BenchmarkData(train, test, ood, Untransformed(), shifted, backbone=head)

    def _files(self) -> tuple[FrozenNetwork, list[tuple[Images, FeatureFile]]]:
        """Return the network, and each image set with the file of its features."""
        images, files = self._images, []
        network = network_of(self._config, images.train.device)
        behind = f"1 {network.digest} {network.kind} {images.transform} {BATCH}"
        sets = [images.train, images.test, *(ood.images for ood in images.ood.values())]
        for of in [*sets, *images.shifted.values()]:
            key = hashlib.sha256(f"{behind} {len(of)} {of.fingerprint}".encode()).hexdigest()
            path = folder_of(self._config) / f"{file_name(of.name)}-{key[:16]}.features"
            files.append((of, FeatureFile(path, key, len(of), network.width)))
        return network, files

    def count_missing(self) -> int:
        """Return the number of images of the sets whose features are not all stored."""
        return sum(len(of) for of, file in self._files()[1] if not file.there)

    def _compute(
        self, network: FrozenNetwork, missing: list[tuple[Images, FeatureFile]]
    ) -> Generator[Computing]:
        """Compute missing features; several processes take image sets that no other one computes."""
        if not missing:
            return
        transform, total = self._images.transform, sum(len(of) for of, _ in missing)
        first = next(missing[0][0].batches(torch.arange(1), 1))
        network.features(transform.test(first))  # makes the network ready, which is not to be measured
        started, computed, behind = time.monotonic(), 0, 0
        for wait in (False, True):
            for of, file in list(missing):
                if (held := file.lock(wait)) is None:
                    continue
                with held:
                    missing.remove((of, file))
                    before = None
                    compute = partial(compute_features, network, of, transform, size=BATCH)
                    for done in () if file.there else file.add(compute, BATCH):
                        computed += done - (done if before is None else before)
                        before, left = done, total - behind - done
                        taken = time.monotonic() - started
                        yield Computing(
                            of.name, total - left, total, taken / computed * left if computed else None
                        )
                behind += len(of)


def folder_of(config: Config) -> Path:
    """Return the folder of stored features, beside the prepared images."""
    place = config.place
    return cache_folder(Path(place.data_root) if place.data_root else None, place.cache) / "features"


def network_of(config: Config, device: torch.device) -> FrozenNetwork:
    """Return the network of a config's frozen backbone."""
    folder, backbone = folder_of(config), config.benchmark.backbone
    return FrozenNetwork(backbone, "auto", device, config.training, folder)


def measure_seconds(config: Config, count: int) -> float:
    """Estimate the seconds for features of ``count`` images, from some batches of noise."""
    benchmark, device = config.benchmark, resolve_device(config.place.devices[0])
    network, side = network_of(config, device), benchmark.image_size
    pixels = torch.randint(0, 256, (64, 3, side, side), dtype=torch.uint8)
    noise = ImageSet("noise", pixels, torch.zeros(len(pixels), dtype=torch.int64)).to(device)
    with cpu_threads(config.place.threads):
        for _ in range(2):  # the first makes the network ready
            started = time.monotonic()
            for features in compute_features(network, noise, benchmark.transform):
                float(features.sum())  # waits for the device
    return (time.monotonic() - started) / len(pixels) * count


def finish(features: Features) -> BenchmarkData:
    """Return the data with features; log how long they take where they have to be computed."""
    told = False
    while True:
        try:
            progress = next(features)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        if not told and progress.seconds is not None:
            _log.warning("computing %s", progress)
            told = True


def _featured(images: Images, file: FeatureFile) -> FeatureImages:
    features = file.load()
    assert features is not None, "the file was just written"
    # The images' own fingerprint: a run may be continued where another runtime computes features.
    name, labels, fingerprint = images.name, images.labels.cpu(), images.fingerprint
    return FeatureImages(name, features, labels, fingerprint, images.classes).to(images.device)
