"""The streamed store: the resident one's bytes for any number of workers, and nothing left behind."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opencil.data.catalogue import Texture
from opencil.data.decoding import decoded, workers_here
from opencil.data.images import Access, Images, ImageSet
from opencil.data.readers.decode import CorruptImage
from opencil.data.readers.source import ArraySource, ImageSource
from opencil.data.streamed import StreamedImages
from opencil.data.transforms import Transform
from opencil.engine.forward import forward
from opencil.nets.model import Model
from opencil.registry import BACKBONES

Tree = Callable[[Path, Mapping[str, int]], Path]
COUNT = 23


@pytest.fixture(scope="module")
def source() -> ArraySource:
    array = np.random.default_rng(0).integers(0, 256, (COUNT, 9, 9, 3), dtype=np.uint8)
    return ArraySource(np.arange(COUNT) % 3, ("a", "b", "c"), Path("array"), array)


def streamed(source: ImageSource, workers: int = 2, side: int = 8) -> StreamedImages:
    return StreamedImages(
        "toy", source, torch.from_numpy(source.labels), side, workers, "key", source.classes
    )


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
    chosen = torch.tensor(indices, dtype=torch.int64)
    ours = list(streamed(source, workers).batches(chosen, size))
    if not indices:
        assert ours == []
        return
    expected = list(resident(source).batches(chosen, size))
    assert [len(batch) for batch in ours] == [len(batch) for batch in expected]
    assert all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True))
    assert all(batch.dtype == torch.uint8 and batch.is_contiguous() for batch in ours)


def test_everything_else_is_alike_too(source: ArraySource) -> None:
    one, other = streamed(source), resident(source)
    for images in (one, other):
        assert isinstance(images, Images)
        assert (len(images), images.side, images.device.type) == (COUNT, 8, "cpu")
    again = one.relabelled([2, 0, 1])
    assert torch.equal(again.labels, other.relabelled([2, 0, 1]).labels)
    assert again.classes == ("c", "a", "b")
    assert again.to(torch.device("cpu")).name == "toy"


def test_a_model_gives_the_same_outputs_from_either(source: ArraySource) -> None:
    torch.manual_seed(0)
    model = Model(BACKBONES.create("resnet8"), 3)
    transform = Transform((0.5,) * 3, (0.25,) * 3, crop=8)
    one = forward(model, streamed(source), transform, batch_size=7)
    other = forward(model, resident(source), transform, batch_size=7)
    assert torch.equal(one.logits, other.logits)
    assert one.labels is not None
    assert torch.equal(one.labels, torch.from_numpy(source.labels))


def test_threads_end_with_the_last_batch(source: ArraySource) -> None:
    for _ in streamed(source).batches(torch.arange(COUNT), 4):
        pass
    assert decoding_threads() == []


def test_threads_end_when_the_consumer_stops_early(source: ArraySource) -> None:
    batches = streamed(source, workers=3).batches(torch.arange(COUNT), 2)
    next(batches)
    assert decoding_threads() != []
    batches.close()  # type: ignore[attr-defined]
    assert decoding_threads() == []


class Counted(ArraySource):
    """Notes which images have been asked for."""

    asked: list[int] = []  # noqa: RUF012

    def pixels(self, index: int, side: int) -> Any:
        self.asked.append(index)
        return super().pixels(index, side)


def test_only_a_few_batches_are_decoded_ahead(source: ArraySource) -> None:
    counted = Counted(source.labels, source.classes, source.place, source.array)
    Counted.asked = []
    batches = decoded(counted, range(COUNT), 8, 2, workers=4)
    next(batches)
    batches.close()
    assert len(Counted.asked) <= 6, "the batch served and the two ahead of it"


@pytest.fixture
def photographs(tree: Tree, tmp_path: Path) -> Path:
    tree(tmp_path / "dtd" / "images", {"banded": 12, "dotted": 8})
    return tmp_path


def test_a_corrupt_image_is_named_and_threads_end(photographs: Path) -> None:
    path = photographs / "dtd" / "images" / "banded" / "7.png"
    path.write_bytes(b"broken")
    images = Texture().serve("texture", "test", 8, Access(photographs, store="streamed", workers=2))
    with pytest.raises(CorruptImage, match=f"image {path} cannot be decoded"):
        list(images.batches(torch.arange(20), 4))
    assert decoding_threads() == []


def test_a_survey_notes_corrupt_images_and_they_are_left_out(
    photographs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = photographs / "dtd" / "images" / "banded" / "7.png"
    intact = path.read_bytes()
    path.write_bytes(b"broken")
    access = Access(photographs, store="streamed", workers=2)
    on_disk = Texture().locate("texture", "test", photographs)
    bad = next(i for i in range(20) if on_disk.source.name(i) == str(path))
    assert Texture().cache_file("texture", "test", 8, access, on_disk).survey(workers=2) == [bad]
    images = Texture().serve("texture", "test", 8, access)
    assert "texture: 1 corrupt test images are left out" in caplog.text
    kept = [i for i in range(20) if i != bad]
    assert images.labels.tolist() == on_disk.source.labels[kept].tolist()
    expected = np.stack([on_disk.source.pixels(i, 8) for i in kept])
    assert torch.equal(torch.cat(list(images.batches(torch.arange(19), 4))), torch.from_numpy(expected))
    path.write_bytes(intact)
    assert len(Texture().serve("texture", "test", 8, access)) == 20, "a survey of other files does not count"


def test_errors_of_another_kind_are_not_lost(source: ArraySource) -> None:
    class Broken(ArraySource):
        def pixels(self, index: int, side: int) -> Any:
            raise ZeroDivisionError("a bug")

    broken = Broken(source.labels, source.classes, source.place, source.array)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        list(streamed(broken).batches(torch.arange(3), 2))
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
def test_which_store_serves(photographs: Path, store: Any, megabytes: int, kind: type) -> None:
    access = Access(photographs, store=store, resident_mb=megabytes, workers=1)
    images = Texture().serve("texture", "test", 8, access)
    assert isinstance(images, kind)
    assert (images.name, images.classes, len(images)) == ("texture", ("banded", "dotted"), 20)


def test_what_is_prepared_is_used_however_large(photographs: Path) -> None:
    Texture().load("test", 8, photographs)
    assert isinstance(Texture().serve("texture", "test", 8, Access(photographs, resident_mb=0)), ImageSet)


def test_workers_are_at_least_one() -> None:
    assert 1 <= workers_here() <= 16


def test_a_stale_cache_does_not_make_a_large_set_resident(photographs: Path) -> None:
    Texture().load("test", 8, photographs)
    (photographs / "dtd" / "images" / "banded" / "0.png").touch()
    images = Texture().serve("texture", "test", 8, Access(photographs, resident_mb=0))
    assert isinstance(images, StreamedImages)


def test_images_that_are_left_out_change_the_fingerprint(photographs: Path) -> None:
    (photographs / "dtd" / "images" / "banded" / "7.png").write_bytes(b"broken")
    access = Access(photographs, store="streamed", workers=2)
    before = Texture().serve("texture", "test", 8, access).fingerprint
    on_disk = Texture().locate("texture", "test", photographs)
    Texture().cache_file("texture", "test", 8, access, on_disk).survey(workers=2)
    after = Texture().serve("texture", "test", 8, access).fingerprint
    assert after != before
    assert after == Texture().serve("texture", "test", 8, access).fingerprint


def test_the_benchmark_of_the_store_runs(tree: Tree, tmp_path: Path) -> None:
    tree(tmp_path / "imagenet" / "train", {"n01": 2, "n02": 1})
    top = Path(__file__).resolve().parents[3]
    tiny = ["--images", "5", "--workers", "1", "--repeats", "1"]
    done = subprocess.run(
        [sys.executable, top / "benchmarks" / "streamed_store.py", tmp_path, *tiny],
        env={**os.environ, "PYTHONPATH": str(top)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "5 images of 3 photographs" in done.stdout
