"""Decoded images kept in memory: the same bytes, decoded once while there is room, and within the limit."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from opencil.config import PlaceConfig
from opencil.data.catalogue import Texture
from opencil.data.images import Access, ImageSet
from opencil.data.kept_pixels import KeptPixels, free_memory, room_here
from opencil.data.readers.source import ArraySource, ImageSource
from opencil.data.streamed import StreamedImages
from opencil.data.transforms import Transform
from opencil.detectors.finetune.views import ViewSource
from opencil.engine.feed import ImageFeed
from opencil.engine.forward import Inputs
from opencil.engine.ranks import joined
from opencil.nets.model import Model
from opencil.registry import BACKBONES
from opencil.runs.loading import with_share

COUNT, SIDE = 24, 8
ONE = 3 * SIDE * SIDE


class Watched(ArraySource):
    """Notes which images are decoded."""

    asked: Counter[int] = Counter()  # noqa: RUF012

    def pixels(self, index: int, side: int) -> Any:
        self.asked[index] += 1
        return super().pixels(index, side)


@pytest.fixture
def source() -> Watched:
    array = np.random.default_rng(0).integers(0, 256, (COUNT, 9, 9, 3), dtype=np.uint8)
    Watched.asked = Counter()
    return Watched(np.arange(COUNT) % 3, ("a", "b", "c"), Path("array"), array)


def streamed(
    source: ImageSource, limit: int, key: str = "key", kept: KeptPixels | None = None
) -> StreamedImages:
    labels = torch.from_numpy(source.labels)
    return StreamedImages("toy", source, labels, SIDE, 2, key, source.classes, kept or KeptPixels(limit))


def resident(source: ImageSource) -> ImageSet:
    pixels = np.stack([source.pixels(i, SIDE) for i in range(len(source))])
    return ImageSet("toy", torch.from_numpy(pixels), torch.from_numpy(source.labels), source.classes)


def read(images: StreamedImages, order: list[int]) -> list[bytes]:
    return [
        bytes(pixels.numpy().data) for batch in images.batches(torch.tensor(order), 5) for pixels in batch
    ]


@given(room=st.integers(0, COUNT), orders=st.lists(st.permutations(range(COUNT)), min_size=1, max_size=4))
def test_bytes_are_those_of_the_source_whatever_is_kept(room: int, orders: list[list[int]]) -> None:
    array = np.random.default_rng(0).integers(0, 256, (COUNT, 9, 9, 3), dtype=np.uint8)
    source = ArraySource(np.zeros(COUNT, np.int64), ("a",), Path("array"), array)
    images = streamed(source, room * ONE)
    for order in orders:
        assert read(images, order) == [np.ascontiguousarray(source.pixels(i, SIDE)).tobytes() for i in order]
        assert images.kept is not None
        assert images.kept.held <= images.kept.limit


def test_what_there_is_room_for_is_decoded_once(source: Watched) -> None:
    images = streamed(source, COUNT * ONE)
    for _ in range(3):
        read(images.relabelled([2, 0, 1]), list(range(COUNT)))  # a copy of the set keeps what the set keeps
    assert set(Watched.asked.values()) == {1}


def test_an_epoch_larger_than_the_memory_finds_what_fits_into_it(source: Watched) -> None:
    """The least recently used, alone, would find nothing in an epoch that always goes the same way."""
    images = streamed(source, 10 * ONE)
    for epoch in range(4):
        read(images, torch.randperm(COUNT, generator=torch.Generator().manual_seed(epoch)).tolist())
    assert Watched.asked.total() == COUNT + 3 * (COUNT - 10)


def test_what_nobody_asks_for_any_more_makes_room(source: Watched) -> None:
    """The images of a step's classes give way to the next step's, and to another set."""
    kept = KeptPixels(10 * ONE)
    images = streamed(source, 0, kept=kept)
    for _ in range(2):
        read(images, list(range(10)))
    for _ in range(4):
        read(images, list(range(10, 20)))
    assert [Watched.asked[i] for i in range(10)] == [1] * 10
    assert all(Watched.asked[i] <= 3 for i in range(10, 20))  # once the pass before the last is over
    other = streamed(source, 0, "other", kept)
    Watched.asked.clear()
    for _ in range(2):
        read(other, list(range(10)))
    assert [Watched.asked[i] for i in range(10)] == [1] * 10
    assert kept.held == kept.limit


def test_images_that_need_no_decoding_are_not_kept() -> None:
    array = np.zeros((COUNT, SIDE, SIDE, 3), np.uint8)
    images = streamed(ArraySource(np.zeros(COUNT, np.int64), ("a",), Path("array"), array), COUNT * ONE)
    read(images, list(range(COUNT)))
    assert images.kept is not None
    assert images.kept.held == 0


def test_sets_of_one_access_share_its_memory(tree: Any, tmp_path: Path) -> None:
    tree(tmp_path / "dtd" / "images", {"banded": 2, "dotted": 1})
    access = Access(tmp_path, store="streamed", decoded_mb=3)
    one, other = (Texture().serve("texture", "test", side, access) for side in (4, 8))
    assert isinstance(one, StreamedImages)
    assert isinstance(other, StreamedImages)
    assert one.kept is other.kept is access.kept
    assert access.kept.limit == 3 * 2**20


def test_free_memory_is_the_machines_or_the_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    assert free_memory(tmp_path) is None
    write("proc/meminfo", "MemTotal: 64 kB\nMemAvailable: 10 kB\nHugePages_Total: 0\n")
    assert free_memory(tmp_path) == 10240
    write("proc/self/cgroup", "1:cpu:/\n0::/job\n")
    write("sys/fs/cgroup/job/memory.max", "max\n")
    write("sys/fs/cgroup/job/memory.current", "6000\n")
    write("sys/fs/cgroup/job/memory.stat", "anon 1000\nfile 5000\n")
    assert free_memory(tmp_path) == 10240
    write("sys/fs/cgroup/job/memory.max", "8000\n")
    assert free_memory(tmp_path) == 7000  # what is kept of files can go
    monkeypatch.setattr("opencil.data.kept_pixels.free_memory", lambda: 800)
    assert room_here() == 200


def test_processes_of_a_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opencil.runs.loading.room_here", lambda: 800 * 2**20)
    assert with_share(PlaceConfig(), 4).decoded_mb == 200
    assert with_share(PlaceConfig(decoded_mb=7, workers=3), 4) == PlaceConfig(decoded_mb=7, workers=3)


TRANSFORM = Transform((0.5,) * 3, (0.25,) * 3, crop=6)


def views_of(images: ImageSet | StreamedImages) -> list[torch.Tensor]:
    torch.manual_seed(0)
    inputs = Inputs(Model(BACKBONES.create("resnet8"), 3).eval(), images, TRANSFORM, torch.arange(2, COUNT))
    old = torch.arange(COUNT - 2) < 8
    source = ViewSource(inputs, images.labels[2:], old, seed=(3,))
    return [t for epoch in (0, 1) for views in source.epoch(epoch, 4) for view in views for t in view.tensors]


def test_views_of_streamed_images_are_those_of_resident_ones(
    source: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opencil.detectors.finetune.views.CHUNK", 16)
    expected = views_of(resident(source))
    Watched.asked.clear()
    ours = views_of(streamed(source, 0))
    assert all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True))
    # Two epochs of four iterations, four images of each of two pools: nothing is decoded that is not served.
    assert Watched.asked.total() == 2 * 4 * 4 * 2


def test_each_rank_decodes_its_share_alone(
    source: Watched, on_ranks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a training's batches and of views: together the ranks decode what one process would."""
    monkeypatch.setattr("opencil.detectors.finetune.views.CHUNK", 16)

    def counted() -> tuple[Counter[int], Counter[int], list[torch.Tensor]]:
        ranks = joined("cpu", 30.0)
        assert ranks is not None
        with ranks.together():
            images = streamed(source, 0)
            feed = ImageFeed(images, TRANSFORM, torch.arange(COUNT), 6, (1,), share=ranks.share(6))
            for _ in feed.epoch(0):
                pass
            trained = Counter(Watched.asked)
            Watched.asked.clear()
            views = views_of(images)
            return trained, Counter(Watched.asked), views

    (trained, tuned, views), (others, more, same) = on_ranks(counted)
    assert trained + others == Counter(range(COUNT))
    assert trained.total() == others.total() == COUNT // 2
    assert all(torch.equal(a, b) for a, b in zip(views, same, strict=True))
    Watched.asked.clear()
    alone = views_of(streamed(source, 0))
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(views, alone, strict=True))
    assert tuned + more == Watched.asked
    assert tuned.total() == more.total()
