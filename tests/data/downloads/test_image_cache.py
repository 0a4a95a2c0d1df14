"""Prepared images: the same bytes, made once, made again when need be, never half-written."""

import errno
import json
import logging
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from opencil.data.catalogue import CIFAR100, Texture
from opencil.data.image_cache import CacheFile, cache_folder
from opencil.data.images import Access
from opencil.data.readers.decode import CorruptImage
from opencil.errors import BadInput, OpenCILError

Picture = Callable[..., Path]
Tree = Callable[[Path, Mapping[str, int]], Path]


@pytest.fixture
def root(tree: Tree, tmp_path: Path) -> Path:
    tree(tmp_path / "dtd" / "images", {"banded": 3, "dotted": 2})
    return tmp_path


def cache_file(root: Path, side: int = 8) -> CacheFile:
    return CacheFile.of(root / "cache", "texture", "test", Texture().locate("texture", "test", root), side)


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".held")


def pair(file: CacheFile) -> list[str]:
    """Its two files."""
    return [file.path.with_suffix(".json").name, file.path.name]


@pytest.mark.parametrize("side", [4, 8, 11])
def test_prepared_images_are_the_sources(root: Path, side: int) -> None:
    prepared = cache_file(root, side).prepare(workers=2)
    source = Texture().locate("texture", "test", root).source
    assert prepared.labels.tolist() == [0, 0, 0, 1, 1]
    assert prepared.classes == ("banded", "dotted")
    assert prepared.skipped == ()
    np.testing.assert_array_equal(prepared.images, [source.pixels(i, side) for i in range(5)])


def test_a_second_start_maps_the_file_and_decodes_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = cache_file(root).prepare(workers=1)
    monkeypatch.setattr("opencil.data.image_cache.decoded", None)
    again = cache_file(root).load()
    assert again is not None
    assert isinstance(again.images, np.memmap)
    np.testing.assert_array_equal(again.images, first.images)
    tensor = torch.from_numpy(again.images)
    assert tensor.shape == (5, 3, 8, 8)


def test_nothing_is_there_before(root: Path) -> None:
    assert cache_file(root).load() is None


def touch(root: Path) -> None:
    os.utime(root / "dtd" / "images" / "banded" / "0.png", ns=(1, 1))


def grow(root: Path) -> None:
    path = root / "dtd" / "images" / "banded" / "0.png"
    state = path.stat()
    path.write_bytes(path.read_bytes() + b"\0")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def add(root: Path) -> None:
    path = root / "dtd" / "images" / "banded" / "0.png"
    (path.parent / "9.png").write_bytes(path.read_bytes())


@pytest.mark.parametrize("change", [touch, grow, add], ids=lambda f: f.__name__)
def test_changed_files_are_prepared_again(
    root: Path, change: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    cache_file(root).prepare(workers=1)
    change(root)
    with caplog.at_level(logging.WARNING):
        assert cache_file(root).load() is None
    assert "was made from other files" in caplog.text
    prepared = cache_file(root).prepare(workers=1)
    assert len(prepared.labels) == (6 if change is add else 5)
    assert files_in(root / "cache") == pair(cache_file(root)), "the new ones take the place of the old"


def test_sizes_and_places_have_files_of_their_own(root: Path, tree: Tree, tmp_path: Path) -> None:
    other = tmp_path / "other"
    tree(other / "dtd" / "images", {"banded": 1})
    cache_file(root, 8).prepare(1)
    cache_file(root, 4).prepare(1)
    elsewhere = CacheFile.of(root / "cache", "texture", "test", Texture().locate("t", "test", other), 8)
    elsewhere.prepare(1)
    assert len(files_in(root / "cache")) == 6
    loaded = cache_file(root, 8).load()
    assert loaded is not None
    assert len(loaded.labels) == 5


def flip_byte(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def relabel(record: Path, labels: list[int]) -> None:
    record.write_text(json.dumps(of_before_seals(record) | {"labels": labels}))


def of_before_seals(record: Path) -> dict[str, Any]:
    return {key: value for key, value in json.loads(record.read_text()).items() if key != "seal"}


def rename_class(record: Path) -> None:
    record.write_text(record.read_text().replace('"banded"', '"bended"'))


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: flip_byte(path, -1),
        lambda path: flip_byte(path, 3),
        lambda path: flip_byte(path, 70),
        lambda path: path.write_bytes(path.read_bytes()[:-200]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"x" + path.read_bytes()),
        lambda path: path.write_bytes(path.read_bytes()[:128] + bytes(960) + path.read_bytes()[128:]),
        lambda path: np.save(path, np.zeros((5, 3, 8, 8), np.float32)),
        lambda path: np.save(path, np.zeros((4, 3, 8, 8), np.uint8)),
        lambda path: path.with_suffix(".json").unlink(),
        lambda path: path.with_suffix(".json").write_text("[]"),
        lambda path: relabel(path.with_suffix(".json"), [0, 0, 0, 1, 0]),
        lambda path: relabel(path.with_suffix(".json"), [0, 0, 0, 1, 2**70]),
        lambda path: rename_class(path.with_suffix(".json")),
    ],
    ids=[
        *("image", "magic", "header", "truncated", "empty", "shifted", "longer", "floats", "fewer"),
        *("no record", "another record", "label", "impossible label", "class name"),
    ],
)
def test_a_damaged_file_is_told_and_made_again(
    root: Path, damage: Callable[[Path], Any], caplog: pytest.LogCaptureFixture
) -> None:
    file = cache_file(root)
    expected = np.array(file.prepare(workers=1).images)
    damage(file.path)
    with caplog.at_level(logging.WARNING):
        prepared = cache_file(root).prepare(workers=1)
    assert f"cache {file.path} is damaged" in caplog.text
    np.testing.assert_array_equal(prepared.images, expected)


class FullDisk:
    """Writes of more than some bytes fail, as on a full disk."""

    def __init__(self, room: int) -> None:
        self.room = room

    def opener(self, opened: Callable[..., Any]) -> Callable[..., Any]:
        disk = self

        def open_(path: Path, mode: str = "r", *rest: Any, **more: Any) -> Any:
            file = opened(path, mode, *rest, **more)
            if "w" not in mode or "part" not in path.suffix:
                return file

            class Wrapped:
                def write(self, content: Any) -> int:
                    disk.room -= len(content)
                    if disk.room < 0:
                        raise OSError(errno.ENOSPC, "No space left on device")
                    return int(file.write(content))

                def seek(self, place: int) -> None:
                    file.seek(place)

                def __enter__(self) -> "Wrapped":
                    return self

                def __exit__(self, *_: object) -> None:
                    file.close()

            return Wrapped()

        return open_


@pytest.mark.parametrize("room", [0, 500, 1000, 1100, 1250])
def test_a_full_disk_leaves_the_old_file(root: Path, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    file = cache_file(root)
    file.prepare(workers=1)
    before = file.path.read_bytes()
    touch(root)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", FullDisk(room).opener(Path.open))
        with pytest.raises(OpenCILError, match=r"the disk is full.*unchanged.*--cache"):
            cache_file(root).prepare(workers=1)
    assert file.path.read_bytes() == before
    assert files_in(root / "cache") == pair(file)
    assert len(cache_file(root).prepare(workers=1).labels) == 5


def test_a_folder_that_cannot_be_made_is_an_error_with_a_way_out(root: Path) -> None:
    (root / "cache").write_text("a file")
    with pytest.raises(OpenCILError, match=r"cannot be written.*\$OPENCIL_CACHE"):
        cache_file(root).prepare(workers=1)


def test_images_that_no_disk_takes_are_decoded_into_memory(
    root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = Access(root, cache=str(root / "cache"))
    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(Path, "open", FullDisk(500).opener(Path.open))
        without = Texture().serve("texture", "test", 8, access)
    assert "the disk is full" in caplog.text
    assert "decoded into memory" in caplog.text
    assert list((root / "cache").glob("*.npy*")) == []
    kept = Texture().serve("texture", "test", 8, access)
    assert without.fingerprint == kept.fingerprint
    assert without.labels.tolist() == kept.labels.tolist()
    assert without.classes == kept.classes


def test_prepared_images_that_a_disk_does_not_give_are_prepared_again(
    root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = cache_file(root)
    expected = np.array(file.prepare(workers=1).images)

    def fail(*_: object) -> str:
        raise OSError(errno.EIO, "Input/output error")

    checksum = CacheFile._checksum
    left = [fail, fail]  # before the lock is taken, and after
    monkeypatch.setattr(CacheFile, "_checksum", lambda *given: (left.pop() if left else checksum)(*given))
    with caplog.at_level(logging.WARNING):
        again = cache_file(root).prepare(workers=1)
    assert "cannot be read ([Errno 5] Input/output error): it is prepared again" in caplog.text
    np.testing.assert_array_equal(again.images, expected)


def corrupt(root: Path, name: str = "banded/1.png") -> Path:
    path = root / "dtd" / "images" / name
    path.write_bytes(path.read_bytes()[:40])
    return path


def test_a_corrupt_image_is_named_and_nothing_is_left(root: Path) -> None:
    path = corrupt(root)
    with pytest.raises(CorruptImage, match=f"image {path} cannot be decoded"):
        cache_file(root).prepare(workers=2)
    assert files_in(root / "cache") == []


def test_corrupt_images_are_left_out_and_counted_on_request(root: Path) -> None:
    paths = [corrupt(root), corrupt(root, "dotted/0.png")]
    prepared = cache_file(root).prepare(workers=2, skip_corrupt=True)
    source = Texture().locate("texture", "test", root).source
    assert prepared.skipped == tuple(map(str, paths))
    assert prepared.labels.tolist() == [0, 0, 1]
    np.testing.assert_array_equal(prepared.images, [source.pixels(i, 8) for i in (0, 2, 4)])
    again = cache_file(root).load()
    assert again is not None
    assert again.skipped == prepared.skipped


def test_nothing_but_corrupt_images_is_refused(root: Path) -> None:
    for path in (root / "dtd" / "images").rglob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(BadInput, match="no image that can be decoded"):
        cache_file(root).prepare(workers=1, skip_corrupt=True)


def test_progress_is_told_up_to_the_end(root: Path) -> None:
    told: list[tuple[int, int]] = []
    cache_file(root).prepare(1, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (5, 5)


def test_two_at_once_make_it_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    make = CacheFile._make
    monkeypatch.setattr(CacheFile, "_make", lambda *a: (made.append(1), make(*a)))
    threads = [threading.Thread(target=lambda: cache_file(root).prepare(1)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]


def test_only_who_prepares_images_says_so(
    root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = Access(root)
    first = Texture().serve("texture", "test", 8, access)
    said = f"preparing test images of texture, once, into {root / '.opencil-cache'}"
    assert caplog.messages == [said]
    # Another rank looks before they are there, and waits for the lock until they are.
    load = CacheFile.load
    monkeypatch.setattr(CacheFile, "load", lambda file, quiet=False: load(file, quiet) if quiet else None)
    second = Texture().serve("texture", "test", 8, access)
    assert second.fingerprint == first.fingerprint
    assert caplog.messages == [said]


def test_where_the_cache_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder(tmp_path) == tmp_path / ".opencil-cache"
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert cache_folder(tmp_path) == tmp_path / "home" / "opencil", "the downloads cannot be written to"
    monkeypatch.setenv("OPENCIL_CACHE", str(tmp_path / "set"))
    assert cache_folder(tmp_path) == tmp_path / "set"
    assert cache_folder(tmp_path, str(tmp_path / "given")) == tmp_path / "given"


def test_a_registered_dataset_loads_through_it(cifar: Callable[..., Path], tmp_path: Path) -> None:
    root = cifar(tmp_path)
    images = CIFAR100().load("train", 32, root)
    source = CIFAR100().locate("cifar100", "train", root).source
    assert (images.name, len(images), images.side) == ("cifar100", 6, 32)
    assert torch.equal(images.images, torch.from_numpy(np.stack([source.pixels(i, 32) for i in range(6)])))
    served = CIFAR100().serve("cifar100", "train", 32, Access(root))
    assert torch.equal(next(served.batches(torch.arange(6), 6)), images.images)
    assert len(files_in(root / ".opencil-cache")) == 2


def test_the_spelling_of_the_root_does_not_matter(
    root: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path_factory.mktemp("links") / "downloads"
    link.symlink_to(root)
    monkeypatch.chdir(root.parent)
    spellings = [root, link, Path(root.name), root / "dtd" / ".."]
    keys = {cache_file(spelling).key() for spelling in spellings}
    assert len(keys) == 1
    (root / "dtd" / "images" / "banded").rename(root / "dtd" / "images" / "barred")
    assert cache_file(root).key() not in keys, "names count"


@pytest.mark.parametrize("lacking", ["key", "sha256", "classes", "skipped", "labels"])
def test_a_record_that_lacks_something_is_damaged(
    root: Path, lacking: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = cache_file(root)
    file.prepare(workers=1)
    record = file.path.with_suffix(".json")
    record.write_text(json.dumps({k: v for k, v in of_before_seals(record).items() if k != lacking}))
    assert len(cache_file(root).prepare(workers=1).labels) == 5
    assert f"cache {file.path} is damaged" in caplog.text
    assert f"argument: {lacking!r}" in caplog.text


def test_a_file_of_an_earlier_version_is_told_and_replaced(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = cache_file(root)
    earlier = file.path.with_suffix(".images")
    earlier.parent.mkdir()
    earlier.write_bytes(b"pixels, labels, footer")
    assert len(file.prepare(workers=1).labels) == 5
    assert caplog.text.count(f"cache {earlier} is of an earlier version: it is prepared again") == 1
    assert files_in(root / "cache") == pair(file)


def test_numpy_reads_it(root: Path) -> None:
    corrupt(root)
    prepared = cache_file(root).prepare(workers=1, skip_corrupt=True)
    np.testing.assert_array_equal(np.load(cache_file(root).path), prepared.images)


def test_a_stale_file_is_told_once(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    Texture().load("test", 8, root)
    touch(root)
    Texture().load("test", 8, root)
    assert caplog.text.count("was made from other files") == 1


def test_files_that_cannot_be_read_are_not_skipped_as_corrupt(root: Path) -> None:
    file = cache_file(root)
    assert len(file.on_disk.source) == 5
    (root / "dtd" / "images" / "banded" / "1.png").unlink()
    (root / "dtd" / "images" / "banded" / "1.png").mkdir()
    with pytest.raises(BadInput, match=r"banded/1\.png cannot be read: Is a directory"):
        file.prepare(workers=1, skip_corrupt=True)
