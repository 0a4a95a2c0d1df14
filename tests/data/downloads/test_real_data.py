"""Readers on the real datasets, and the two tracks from end to end."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import opencil
from opencil.config import resolve
from opencil.data.catalogue import TIN
from opencil.data.readers.image_files import read_list, read_shipped_list
from opencil.runs.loading import load

Real = Callable[..., Path]
CIFAR_TRACK = ("cifar100", "cifar10", "mnist", "svhn", "texture", "places365", "tin")


def test_the_benchmark_loads_with_the_papers_counts(real: Real) -> None:
    data = opencil.benchmark("cifar100", data_root=str(real(*CIFAR_TRACK)))
    assert (len(data.train), len(data.test)) == (50_000, 10_000)
    assert {name: (len(o.images), o.distance) for name, o in data.ood.items()} == {
        "cifar10": (10_000, "near"),
        "tin": (7_498, "near"),
        "mnist": (10_000, "far"),
        "texture": (5_640, "far"),
        "svhn": (26_032, "far"),
        "places365": (10_000, "far"),
    }


@pytest.mark.parametrize(
    ("part", "name", "split"),
    [
        ("cifar100", "cifar100", "train"),
        ("cifar100", "cifar100", "test"),
        ("cifar10", "cifar10", "test"),
        ("svhn", "svhn", "test"),
        ("texture", "texture", "test"),
        ("places365", "places365", "test"),
    ],
)
def test_pixels_have_the_recorded_checksum(
    real: Real, shared: Path, part: str, name: str, split: str
) -> None:
    root = real(part)
    folder = part if (shared / "data" / part).is_dir() else f"{name}-{split}"
    expected = json.loads((shared / "data" / folder / "meta.json").read_text())["sha256"]
    images = opencil.create_dataset(name).load(split, 32, root)
    pixels = images.images.permute(0, 2, 3, 1).contiguous().numpy()
    assert hashlib.sha256(pixels.data).hexdigest() == expected


def test_the_shipped_selection_is_openoods(real: Real, tmp_path: Path) -> None:
    root = real("tin")
    lines = read_list(root / "benchmark_imglist" / "cifar100" / "test_tin.txt")
    assert [Path(line.path).name for line in lines] == read_shipped_list("tin")
    plain = tmp_path / "tiny-imagenet-200"
    plain.mkdir()
    (plain / "val").symlink_to(root / "images_classic" / "tin" / "val")
    on_disk = TIN().locate("tin", "test", tmp_path)
    assert on_disk.layout.name == "folder, shipped list"
    listed = TIN().locate("tin", "test", root).source
    for i in (0, 3000, 7497):
        assert Path(on_disk.source.name(i)).name == Path(listed.name(i)).name
    np.testing.assert_array_equal(on_disk.source.pixels(5000, 32), listed.pixels(5000, 32))


def test_the_imagenet1k_track_runs_from_end_to_end(
    real: Real, mnist: Callable[..., Path], tmp_path: Path
) -> None:
    """Run on small images, streamed, with a tiny network, one epoch a step, and two detectors."""
    root = tmp_path / "downloads"
    root.mkdir()
    (root / "imagenet-mini").symlink_to(real("imagenet-mini") / "imagenet-mini")
    mnist(root, 6)
    textures = real("texture") / "images_classic" / "texture"
    for name in ("banded", "dotted"):
        folder = root / "dtd" / "images" / name
        folder.mkdir(parents=True)
        first = min((textures / name).iterdir())
        (folder / first.name).symlink_to(first)
    config = resolve(
        {"benchmark": "imagenet1k", "cil": {"icarl": {"epochs": 1}}, "detector": "msp,energy"},
        flags={"benchmark": {"classes_per_step": [50], "memory": 100, "backbone": "resnet8"}},
        settings=[
            "benchmark.image_size=32",
            "benchmark.transform.crop=28",
            "place.store=streamed",
            "place.device=cpu",
            f"place.data_root={root}",
            f"place.runs={tmp_path / 'runs'}",
        ],
    )
    data = load(config)
    assert (len(data.train), len(data.test), len(data.train.classes)) == (400, 100, 100)
    assert {name: len(o.images) for name, o in data.ood.items()} == {
        "imagenet-o": 40,
        "inaturalist": 40,
        "openimage-o": 40,
        "species": 40,
        "mnist": 6,
        "texture": 2,
    }
    events = list(opencil.execute(config))
    assert isinstance(events[-1], opencil.runs.events.Finished)
    rows = opencil.read_rows(tmp_path / "runs")
    assert set(rows["step"]) == {1, 2}
    assert set(rows["detector"]) == {"", "msp", "energy"}
    assert rows["value"].notna().all()
