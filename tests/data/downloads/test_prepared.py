"""Prepared images: the same bytes, made once, made again when necessary, never half-written."""

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from opencil.data.catalogue import CIFAR100, Texture
from opencil.data.file_dataset import OwnDataset
from opencil.data.images import Access, ImageSet
from opencil.data.prepared import PreparedFile, cache_folder
from opencil.data.readers.source import CorruptImage
from opencil.data.streamed import StreamedImages
from opencil.errors import BadInput, OpenCILError
from opencil.files import DiskError

Tree = Callable[[Path, Mapping[str, int]], Path]


@pytest.fixture
def root(tree: Tree, tmp_path: Path) -> Path:
    tree(tmp_path / "dtd" / "images", {"banded": 3, "dotted": 2})
    return tmp_path


def prepared_file(root: Path, side: int = 8) -> PreparedFile:
    return Texture().prepared_file("texture", "test", side, Access(root, cache=str(root / "cache")))


@pytest.mark.parametrize("side", [4, 8, 11])
def test_prepared_images_are_those_of_the_source(
    root: Path, side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = prepared_file(root, side)
    assert file.load() is None
    prepared = file.make(workers=2)
    source = Texture().locate("texture", "test", root).source
    assert prepared.labels.tolist() == [0, 0, 0, 1, 1]
    assert (prepared.classes, prepared.left_out) == (("banded", "dotted"), {})
    expected = np.stack([source.pixels(i, side) for i in range(5)])
    np.testing.assert_array_equal([prepared.pixels(i, side) for i in range(5)], expected)
    assert torch.equal(load_file(file.path)["images"], torch.from_numpy(expected))  # the Safetensors format
    monkeypatch.setattr("opencil.data.prepared.decode_batches", None)
    again = file.load(verify=True, writable=True)
    assert again is not None
    assert isinstance(again.images, np.memmap)
    assert torch.equal(torch.from_numpy(again.images), torch.from_numpy(expected))


def touch(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def grow(path: Path) -> None:
    state = path.stat()
    path.write_bytes(path.read_bytes() + b"\0")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def add(path: Path) -> None:
    (path.parent / "9.png").write_bytes(path.read_bytes())


@pytest.mark.parametrize("change", [touch, grow, add], ids=lambda f: f.__name__)
def test_changed_files_are_prepared_again(root: Path, change: Callable[[Path], None]) -> None:
    prepared_file(root).make(workers=1)
    change(root / "dtd" / "images" / "banded" / "0.png")
    assert prepared_file(root).load() is None
    assert len(prepared_file(root).make(workers=1)) == (6 if change is add else 5)
    assert [path.name for path in (root / "cache").iterdir()] == [prepared_file(root).path.name]


def test_sizes_and_places_have_files_of_their_own(root: Path, tree: Tree, tmp_path: Path) -> None:
    tree(tmp_path / "other" / "dtd" / "images", {"banded": 1})
    other = Access(tmp_path / "other", cache=str(root / "cache"))
    files = [prepared_file(root, 8), prepared_file(root, 4), Texture().prepared_file("t", "test", 8, other)]
    assert [len(file.make(1)) for file in files] == [5, 5, 1]
    assert len(list((root / "cache").iterdir())) == 3


def test_the_spelling_of_the_root_does_not_matter(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root.parent)
    keys = {prepared_file(spelling).key for spelling in [root, Path(root.name), root / "dtd" / ".."]}
    assert len(keys) == 1
    (root / "dtd" / "images" / "banded").rename(root / "dtd" / "images" / "barred")
    assert prepared_file(root).key not in keys


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_damaged_files_are_noticed(root: Path) -> None:
    file = prepared_file(root)
    file.make(workers=1)
    whole = file.path.read_bytes()
    for at in [0, 20, len(whole) - 1, *np.random.default_rng(0).integers(0, len(whole), 100).tolist()]:
        flip(file.path, at)
        assert file.load(verify=True) is None, f"byte {at}"
        file.path.write_bytes(whole)
    for damaged in (whole[:-200], b"", b"x" + whole, whole + b"x"):
        file.path.write_bytes(damaged)
        assert file.load(verify=True) is None
    for damaged in (whole + b"x", whole[:-1] + bytes([whole[-1] ^ 1])):
        file.path.write_bytes(damaged)
        Texture().serve("texture", "test", 8, Access(root, cache=str(root / "cache")))
        assert file.path.read_bytes() == whole


def test_swapped_images_are_noticed(root: Path) -> None:
    file, size = prepared_file(root), 3 * 8 * 8
    content = file.make(workers=1).place.read_bytes()
    rest, images = content[: -5 * size], content[-5 * size :]
    file.path.write_bytes(rest + images[size : 2 * size] + images[:size] + images[2 * size :])
    assert file.load(verify=True) is None
    streamed = file.load()
    assert streamed is not None
    with pytest.raises(OpenCILError, match="damaged"):
        streamed.pixels(0, 8)


def test_renamed_files_are_noticed(tree: Tree, tmp_path: Path) -> None:
    """Two splits may have images of the same names, sizes and times, as archives unpack them."""
    files = []
    for split in ("train", "test"):
        for path in tree(tmp_path / split, {"a": 2}).rglob("*.png"):
            Image.new("RGB", (8, 8), (len(files), 0, 0)).save(path.with_suffix(".bmp"))
            path.unlink()
            os.utime(path.with_suffix(".bmp"), (0, 0))
        dataset = OwnDataset(path=str(tmp_path), train="train", test="test")
        files.append(dataset.prepared_file("own", split, 8, Access(tmp_path)))
        files[-1].make(workers=1)
    assert files[0].key == files[1].key
    files[0].path.replace(files[1].path)
    assert files[1].load() is None


def test_a_damaged_image_stops_a_stream(root: Path) -> None:
    access = Access(root, cache=str(root / "cache"), store="streamed")
    prepared_file(root).make(workers=1)
    flip(prepared_file(root).path, -400)
    images = Texture().serve("texture", "test", 8, access)
    with pytest.raises(OpenCILError, match=prepared_file(root).path.name):
        list(images.batches(torch.arange(5), 2))
    Texture().prepare("texture", "test", 8, access, False, lambda *_: None)
    assert len(list(Texture().serve("texture", "test", 8, access).batches(torch.arange(5), 2))) == 3


def test_the_prepared_and_the_original_files_stream_the_same(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = Access(root, cache=str(root / "cache"), store="streamed")
    before = Texture().serve("texture", "test", 8, access)
    expected = torch.cat(list(before.batches(torch.tensor([4, 0, 2]), 2)))
    prepared_file(root).make(workers=1)
    monkeypatch.setattr("opencil.data.readers.source.read_image", None)
    after = Texture().serve("texture", "test", 8, access)
    assert after.fingerprint == before.fingerprint
    assert torch.equal(torch.cat(list(after.batches(torch.tensor([4, 0, 2]), 2))), expected)
    assert isinstance(after, StreamedImages)
    assert isinstance(Texture().serve("texture", "test", 8, Access(root, access.cache)), ImageSet)


def test_a_full_disk_leaves_the_old_file(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    file = prepared_file(root)
    file.make(workers=1)
    before = file.path.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(PreparedFile, "_write", refuse)
        with pytest.raises(DiskError, match="--cache"):
            prepared_file(root).make(workers=1)
    monkeypatch.setattr("opencil.data.prepared.shutil.disk_usage", lambda _: type("Usage", (), {"free": 100}))
    monkeypatch.setattr("opencil.data.prepared.decode_batches", None)
    with pytest.raises(DiskError, match="100 B are free"):
        prepared_file(root).make(workers=1)
    assert file.path.read_bytes() == before
    assert len(list((root / "cache").iterdir())) == 1


def corrupt(root: Path, name: str = "banded/1.png") -> Path:
    path = root / "dtd" / "images" / name
    path.write_bytes(path.read_bytes()[:40])
    return path


def test_a_corrupt_image_is_named_and_nothing_is_left(root: Path) -> None:
    path = corrupt(root)
    with pytest.raises(CorruptImage, match=str(path)):
        prepared_file(root).make(workers=2)
    assert list((root / "cache").iterdir()) == []


def test_corrupt_images_are_left_out_on_request(root: Path) -> None:
    access = Access(root, cache=str(root / "cache"))
    whole = Texture().serve("texture", "test", 8, Access(root, access.cache, "streamed")).fingerprint
    paths = [corrupt(root), corrupt(root, "dotted/0.png")]
    done = Texture().prepare("texture", "test", 8, access, True, lambda *_: None)
    source = Texture().locate("texture", "test", root).source
    expected = torch.from_numpy(np.stack([source.pixels(i, 8) for i in (0, 2, 4)]))
    assert (len(done), done.left_out) == (3, {1: str(paths[0]), 3: str(paths[1])})
    resident = Texture().serve("texture", "test", 8, access)
    streamed = Texture().serve("texture", "test", 8, Access(root, access.cache, "streamed"))
    for images in (resident, streamed):
        assert images.labels.tolist() == [0, 0, 1]
        assert torch.equal(torch.cat(list(images.batches(torch.arange(3), 2))), expected)
    assert streamed.fingerprint != whole
    for path in (root / "dtd" / "images").rglob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(BadInput):
        prepared_file(root).make(workers=1, skip_corrupt=True)


def test_the_folder_of_prepared_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder(tmp_path) == tmp_path / ".opencil-cache"
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert cache_folder(tmp_path) == tmp_path / "home" / "opencil"
    monkeypatch.setenv("OPENCIL_CACHE", str(tmp_path / "set"))
    assert cache_folder(tmp_path) == tmp_path / "set"
    assert cache_folder(tmp_path, str(tmp_path / "chosen")) == tmp_path / "chosen"


def test_a_registered_dataset_is_prepared_on_loading(cifar: Callable[..., Path], tmp_path: Path) -> None:
    root = cifar(tmp_path)
    images = CIFAR100().load("train", 32, root)
    source = CIFAR100().locate("cifar100", "train", root).source
    assert (images.name, len(images), images.side) == ("cifar100", 6, 32)
    assert torch.equal(images.images, torch.from_numpy(np.stack([source.pixels(i, 32) for i in range(6)])))
    assert len(list((root / ".opencil-cache").iterdir())) == 1
