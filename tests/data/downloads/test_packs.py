"""Packs: the bytes of the files, whole or absent, gone on with after a kill, refused where damaged."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from opencil.cli import app
from opencil.data import packs
from opencil.data.catalogue import Texture
from opencil.data.file_dataset import pack_of
from opencil.data.images import Access
from opencil.data.packs import Form, Pack, PackedSource, shard_path
from opencil.data.readers.decode import CorruptImage
from opencil.data.readers.source import ArraySource, FileSource
from opencil.data.streamed import StreamedImages
from opencil.disk import DiskError
from opencil.seals import Damaged

Tree = Callable[[Path, Mapping[str, int]], Path]
COUNT = 10


@pytest.fixture
def downloads(tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ten images in shards of four."""
    monkeypatch.setattr(packs, "SHARD", 4)
    tree(tmp_path / "dtd" / "images", {"banded": 6, "dotted": 4})
    return tmp_path


def pack(downloads: Path, side: int = 6) -> Pack:
    access, dataset = Access(downloads), Texture()
    on_disk = dataset.locate("texture", "test", downloads)
    return pack_of("texture", "test", dataset.cache_file("texture", "test", side, access, on_disk))


def served(downloads: Path, side: int = 6) -> StreamedImages:
    images = Texture().serve("texture", "test", side, Access(downloads, store="streamed", workers=2))
    assert isinstance(images, StreamedImages)
    return images


def pixels(images: StreamedImages) -> torch.Tensor:
    return torch.cat(list(images.batches(torch.arange(COUNT).flip(0), 3)))


@pytest.mark.parametrize("form", ["pixels", "files"])
def test_a_run_is_served_the_same_bytes_from_a_pack(downloads: Path, form: Form) -> None:
    before = served(downloads)
    assert isinstance(before.source, FileSource)
    expected = pixels(before)
    pack(downloads).make(form, workers=2)
    after = served(downloads)
    assert isinstance(after.source, PackedSource)
    assert torch.equal(pixels(after), expected)
    # As far as a stored run is concerned they are the same images.
    assert after.fingerprint == before.fingerprint
    assert torch.equal(after.labels, before.labels)
    assert (after.classes, after.source.name(3)) == (before.classes, before.source.name(3))
    assert sorted(p.name for p in pack(downloads).folder.glob("*.shard")) == [
        f"{i:05}.shard" for i in range(3)
    ]
    assert after.source.at_hand(6) == (form == "pixels")


def test_images_that_are_no_files_are_packed_as_pixels(tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 256, (COUNT, 9, 9), dtype=np.uint8)
    source = ArraySource(np.zeros(COUNT, np.int64), ("a",), Path("array"), array)
    made = Pack(tmp_path / "a.pack", source, "key", 8)
    made.make("files", workers=1)
    found = made.load()
    assert found is not None
    assert found.form == "pixels"
    assert all(np.array_equal(found.pixels(i, 8), source.pixels(i, 8)) for i in range(COUNT))


def test_packing_goes_on_after_a_kill(downloads: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, expected = pack(downloads), pixels(served(downloads))
    true_write = packs.write

    def killed(path: Path, fill: Any) -> None:
        if path.name == "00001.shard":
            path.with_suffix(".shard.aaaa.part").write_bytes(b"half")
            raise KeyboardInterrupt
        true_write(path, fill)

    monkeypatch.setattr(packs, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        made.make("pixels", workers=1)
    assert isinstance(served(downloads).source, FileSource), "half a pack is none"
    monkeypatch.setattr(packs, "write", true_write)
    first, seen = shard_path(made.folder, 0).stat().st_mtime_ns, list[int]()
    made.make("pixels", workers=1, progress=lambda done, total: seen.append(done))
    assert shard_path(made.folder, 0).stat().st_mtime_ns == first, "what was packed stays"
    assert seen == [4, 8, 10]
    assert not list(made.folder.glob("*.part"))
    assert torch.equal(pixels(served(downloads)), expected)


def test_one_process_at_a_time_packs_on_a_shared_disk_too(downloads: Path) -> None:
    made, holders = pack(downloads), list[int]()

    def look(*_: int) -> None:
        holders.append(json.loads((made.folder / ".held").read_text())["process"])

    made.make("pixels", workers=1, progress=look)
    assert set(holders) == {os.getpid()}
    assert not (made.folder / ".held").exists()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="a system that does not count open files")
def test_no_file_of_a_pack_stays_open(downloads: Path) -> None:
    pack(downloads).make("pixels", workers=1)
    images = served(downloads)

    def opened() -> list[str]:
        return [str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]

    pixels(images)
    assert not [name for name in opened() if name.endswith(".shard")]


def test_a_damaged_image_is_named_and_packed_again(downloads: Path) -> None:
    made, expected = pack(downloads), pixels(served(downloads))
    made.make("pixels", workers=1)
    path = shard_path(made.folder, 1)
    content = bytearray(path.read_bytes())
    content[3 * 36 + 5] ^= 1  # the shard's second image
    path.write_bytes(content)
    images = served(downloads)
    list(images.batches(torch.tensor([0, 4, 6, 9]), 2))
    name = images.source.name(5)
    with pytest.raises(
        Damaged, match=f"00001.shard cannot be used .image {name} is not .* 'opencil data pack'"
    ):
        pixels(images)
    made.make("pixels", workers=1)
    assert torch.equal(pixels(served(downloads)), expected)


@pytest.mark.parametrize("name", ["pack.json", "00002.json", "00002.shard"])
def test_a_pack_with_a_damaged_file_is_refused(downloads: Path, name: str) -> None:
    made, expected = pack(downloads), pixels(served(downloads))
    made.make("files", workers=1)
    path = made.folder / name
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(Damaged, match=f"{name} cannot be used .* 'opencil data pack' makes it again"):
        served(downloads)
    made.make("files", workers=1)
    assert torch.equal(pixels(served(downloads)), expected)


def test_a_pack_of_other_files_is_not_used(
    downloads: Path, picture: Any, caplog: pytest.LogCaptureFixture
) -> None:
    pack(downloads).make("pixels", workers=1)
    picture(downloads / "dtd" / "images" / "banded" / "0.png", seed=99)
    images = served(downloads)
    assert isinstance(images.source, FileSource)
    assert "was made from other files" in caplog.text
    pack(downloads).make("pixels", workers=1)
    assert torch.equal(pixels(served(downloads)), pixels(images))
    assert isinstance(served(downloads).source, PackedSource)


def test_another_form_replaces_the_first(downloads: Path) -> None:
    for form in packs.FORMS:
        pack(downloads).make(form, workers=1)
        assert json.loads((pack(downloads).folder / "pack.json").read_text())["form"] == form
        assert isinstance(served(downloads).source, PackedSource)


def test_a_disk_without_room_is_told_before_anything_is_packed(
    downloads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(downloads)
    monkeypatch.setattr(packs.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(
        DiskError, match=r"takes 1\.1 KiB more, and 1000 B are free: --form files takes .*--cache"
    ):
        pack(downloads).make("pixels", workers=1)
    assert not list(pack(downloads).folder.glob("*.shard"))


def test_a_corrupt_image_stops_the_packing_of_pixels(downloads: Path) -> None:
    (downloads / "dtd" / "images" / "dotted" / "1.png").write_bytes(b"broken")
    with pytest.raises(CorruptImage, match=r"dotted.1\.png cannot be decoded"):
        pack(downloads).make("pixels", workers=1)
    assert pack(downloads).load() is None


CONFIG = """
benchmark:
  name: toy
  id: cloth
  near: [others]
  far: []
  datasets: {cloth: {path: dtd, train: images, test: images}, others: {path: dtd/images}}
  image_size: 6
  transform: {mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5], crop: 6}
  backbone: resnet8
  memory: 2
  classes_per_step: 1
place: {store: streamed}
"""


def test_the_command(downloads: Path) -> None:
    config, command = downloads / "toy.yml", CliRunner()
    config.write_text(CONFIG)
    asked = ["data", "pack", str(downloads), "--config", str(config)]
    (downloads / "dtd" / "images" / "dotted" / "1.png").write_bytes(b"broken")
    done = command.invoke(app, [*asked, "--skip-corrupt"])
    assert done.exit_code == 0, done.output
    assert "cloth train: 9 images, 1 corrupt ones left out, streamed from" in done.output
    folders = sorted((downloads / ".opencil-cache").glob("*.pack"))
    assert [folder.name[:11] for folder in folders] == ["cloth-test-", "cloth-train", "others-test"]
    prepare = ["data", "prepare", *asked[2:]]
    prepared = command.invoke(app, prepare)
    assert prepared.output == done.output, "the same is said, of the packs, which a run would use"
    (folders[1] / "pack.json").unlink()
    prepared = command.invoke(app, prepare)
    assert f"cloth train: 9 images, 1 corrupt ones left out, streamed from {downloads / 'dtd/images'}\n" in (
        prepared.output
    )
    refused = command.invoke(app, [*asked, "--form", "pixel"])
    assert refused.exit_code == 2
    assert "--form 'pixel' is not allowed: pixels and files are; did you mean 'pixels'?" in refused.output
