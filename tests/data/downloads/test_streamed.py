"""The streamed store: the resident store's bytes for any number of workers, and no threads left behind."""

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opencil.data.catalogue import Texture
from opencil.data.images import Access, ImageSet
from opencil.data.readers.source import ArraySource, CorruptImage, ImageSource
from opencil.data.streamed import StreamedImages, decode_batches
from opencil.data.transforms import Transform
from opencil.engine.feed import ImageFeed
from opencil.engine.ranks import Share

Tree = Callable[[Path, Mapping[str, int]], Path]
COUNT = 24
TRANSFORM = Transform((0.5,) * 3, (0.25,) * 3, crop=6)


class Watched(ArraySource):
    """Count how often each image is read."""

    read: Counter[int] = Counter()  # noqa: RUF012

    def pixels(self, index: int, side: int) -> Any:
        self.read[index] += 1
        return super().pixels(index, side)


@pytest.fixture
def source() -> Watched:
    array = np.random.default_rng(0).integers(0, 256, (COUNT, 9, 9, 3), dtype=np.uint8)
    Watched.read = Counter()
    return Watched(np.arange(COUNT) % 3, ("a", "b", "c"), Path("array"), array)


def streamed(source: ImageSource, workers: int = 2, side: int = 8) -> StreamedImages:
    labels = torch.from_numpy(source.labels)
    return StreamedImages("toy", source, labels, side, workers, "key", source.classes)


def resident(source: ImageSource, side: int = 8) -> ImageSet:
    pixels = np.stack([source.pixels(i, side) for i in range(len(source))])
    images = torch.from_numpy(np.ascontiguousarray(pixels))
    return ImageSet("toy", images, torch.from_numpy(source.labels), source.classes)


def decoding_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("opencil-decode")]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(
    indices=st.lists(st.integers(0, COUNT - 1), max_size=40),
    size=st.integers(1, 12),
    workers=st.sampled_from([1, 2, 5]),
)
def test_batches_are_those_of_the_resident_store(
    source: ArraySource, indices: list[int], size: int, workers: int
) -> None:
    rows = torch.tensor(indices, dtype=torch.int64)
    ours = list(streamed(source, workers).batches(rows, size))
    expected = list(resident(source).batches(rows, size)) if indices else []
    assert [len(batch) for batch in ours] == [len(batch) for batch in expected]
    assert all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True))
    assert all(batch.dtype == torch.uint8 and batch.is_contiguous() for batch in ours)
    assert decoding_threads() == []
    relabelled = streamed(source).relabel([2, 0, 1]).to(torch.device("cpu"))
    assert torch.equal(relabelled.labels, resident(source).relabel([2, 0, 1]).labels)
    assert relabelled.classes == ("c", "a", "b")


def test_threads_end_when_the_consumer_stops_early(source: ArraySource) -> None:
    batches = streamed(source, workers=3).batches(torch.arange(COUNT), 2)
    next(batches)
    assert decoding_threads() != []
    batches.close()  # type: ignore[attr-defined]
    assert decoding_threads() == []


def test_only_two_batches_are_decoded_ahead(source: Watched) -> None:
    batches = decode_batches(source, range(COUNT), 8, 2, workers=4)
    next(batches)
    batches.close()
    assert Watched.read.total() <= 6


@pytest.fixture
def photographs(tree: Tree, tmp_path: Path) -> Path:
    tree(tmp_path / "dtd" / "images", {"banded": 12, "dotted": 8})
    return tmp_path


def test_a_corrupt_image_is_named_and_threads_end(photographs: Path) -> None:
    path = photographs / "dtd" / "images" / "banded" / "7.png"
    path.write_bytes(b"broken")
    images = Texture().serve("texture", "test", 8, Access(photographs, store="streamed", workers=2))
    with pytest.raises(CorruptImage, match=str(path)):
        list(images.batches(torch.arange(20), 4))
    assert decoding_threads() == []


@pytest.mark.parametrize(
    ("store", "megabytes", "kind"),
    [
        ("resident", 1, ImageSet),
        ("streamed", 1, StreamedImages),
        ("auto", 1, ImageSet),
        ("auto", 0, StreamedImages),
    ],
)
@pytest.mark.parametrize("prepared", [False, True])
def test_the_access_chooses_the_store(
    photographs: Path, store: Any, megabytes: int, kind: type, prepared: bool
) -> None:
    if prepared:
        Texture().load("test", 8, photographs)
    access = Access(photographs, store=store, resident_mb=megabytes, workers=1)
    images = Texture().serve("texture", "test", 8, access)
    assert isinstance(images, kind)
    assert (images.name, images.classes, len(images)) == ("texture", ("banded", "dotted"), 20)


def test_each_rank_decodes_only_its_share(source: Watched) -> None:
    counts = []
    for share in (Share(slice(3), 0.5), Share(slice(3, 6), 0.5)):
        Watched.read.clear()
        feed = ImageFeed(streamed(source), TRANSFORM, torch.arange(COUNT), 6, (1,), share=share)
        assert len(list(feed.epoch(0))) == 4
        counts.append(Counter(Watched.read))
    assert counts[0] + counts[1] == Counter(range(COUNT))
    assert counts[0].total() == counts[1].total() == COUNT // 2


def test_the_benchmark_of_the_store_runs(tree: Tree, tmp_path: Path) -> None:
    tree(tmp_path / "imagenet" / "train", {"n01": 2, "n02": 1})
    top = Path(__file__).resolve().parents[3]
    tiny = ["--images", "5", "--workers", "1", "--repeats", "1"]
    done = subprocess.run(
        [sys.executable, top / "benchmarks" / "streamed_store.py", tmp_path, *tiny],
        env={**os.environ, "PYTHONPATH": f"{top / 'src'}{os.pathsep}{top}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "5 images of 3 photographs" in done.stdout
