"""Decode an image: every kind of file becomes a square of RGB bytes, or an error that names the file."""

import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFile

from opencil.data.readers.source import CorruptImage, FileSource, crop_square, read_image
from opencil.errors import BadInput

Picture = Callable[..., Path]
RANDOM = np.random.default_rng(3).integers(0, 256, (8, 8, 4), dtype=np.uint8)
DEEP = (np.arange(64, dtype=np.uint16) * 1000).reshape(8, 8)
WIDE = np.arange(3, 259, 4, dtype=np.int32).reshape(8, 8)  # up to 255


def read(path: Path) -> np.ndarray:
    return np.asarray(read_image(path.read_bytes, path.name))


def grey(values: np.ndarray) -> np.ndarray:
    return np.stack([values] * 3, axis=-1)


@pytest.mark.parametrize(
    ("image", "ending", "expected"),
    [
        (Image.fromarray(RANDOM[..., :3]), "png", RANDOM[..., :3]),
        (Image.fromarray(RANDOM[..., 0]), "png", grey(RANDOM[..., 0])),
        (Image.fromarray(np.eye(8, dtype=bool)), "png", grey(np.eye(8) * 255)),
        (Image.fromarray(RANDOM), "png", RANDOM[..., :3]),
        (Image.fromarray(RANDOM[..., :2], "LA"), "png", grey(RANDOM[..., 0])),
        (Image.fromarray(DEEP), "png", grey(DEEP // 256)),
        (Image.fromarray(DEEP), "tiff", grey(DEEP // 256)),
        (Image.fromarray(WIDE), "tiff", grey(WIDE)),
        (Image.fromarray(WIDE * 256), "tiff", grey(WIDE)),
        (Image.fromarray(WIDE.astype(np.uint16)), "tiff", grey(WIDE * 0)),
        (Image.fromarray(WIDE), "pgm", grey(WIDE * 0)),
    ],
    ids=[
        "rgb",
        "grey",
        "1 bit",
        "rgba",
        "grey and alpha",
        "16 bits",
        "tiff",
        "bytes in integers",
        "integers",
        "dark 16 bits",
        "dark pgm",
    ],
)
def test_all_kinds_become_rgb(image: Image.Image, ending: str, expected: np.ndarray, tmp_path: Path) -> None:
    image.save(tmp_path / f"a.{ending}")
    np.testing.assert_array_equal(read(tmp_path / f"a.{ending}"), expected)


def test_palettes_and_ink_become_rgb(tmp_path: Path) -> None:
    colours = Image.fromarray(np.full((8, 8, 3), (200, 30, 40), np.uint8)).quantize(4)
    colours.save(tmp_path / "a.png", transparency=bytes([0, 255, 255, 255]))  # no warning either
    np.testing.assert_array_equal(read(tmp_path / "a.png")[0, 0], (200, 30, 40))
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / "a.jpg", quality=100)
    red, green, blue = read(tmp_path / "a.jpg")[8, 8]
    assert (red > 240, green < 15, blue < 15) == (True, True, True)


@pytest.mark.parametrize("ending", ["png", "jpg"])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.9])
def test_truncated_files_are_named(picture: Picture, tmp_path: Path, ending: str, share: float) -> None:
    path = picture(tmp_path / f"half.{ending}", 0, 64, 64)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(CorruptImage, match=f"half.{ending}"):
        read(path)


def test_files_that_are_no_images_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "page.jpg").write_text("<html>404</html>")
    Image.fromarray(np.ones((4, 4), np.float32)).save(tmp_path / "floats.tiff")
    Image.new("RGB", (8, 8)).save(tmp_path / "page.eps")
    (tmp_path / "page.eps").rename(tmp_path / "page.png")
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", None)  # no other program is started
    for name in ("page.jpg", "floats.tiff", "page.png"):
        with pytest.raises(CorruptImage, match=name):
            read(tmp_path / name)


def test_a_file_that_cannot_be_read_is_not_corrupt(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"a\.png") as raised:
        read(tmp_path / "a.png")
    assert not isinstance(raised.value, CorruptImage)


def test_images_of_too_many_pixels_are_refused_before_decoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "bomb.png")
    content = (tmp_path / "bomb.png").read_bytes()
    content = content[:16] + struct.pack(">II", 7072, 7072) + content[24:]
    (tmp_path / "bomb.png").write_bytes(
        content[:29] + struct.pack(">I", zlib.crc32(content[12:29])) + content[33:]
    )
    monkeypatch.setattr(ImageFile.ImageFile, "load", None)
    with pytest.raises(CorruptImage, match=r"bomb\.png.*7072"):
        read(tmp_path / "bomb.png")


def test_long_thin_images_are_refused_before_they_are_enlarged(monkeypatch: pytest.MonkeyPatch) -> None:
    image = Image.new("RGB", (8_000_000, 1))
    monkeypatch.setattr(Image.Image, "resize", None)
    with pytest.raises(CorruptImage, match="thread"):
        crop_square(image, 32, "thread.png")


@given(width=st.integers(1, 40), height=st.integers(1, 40), side=st.integers(1, 24))
def test_the_shorter_side_is_resized_and_the_centre_cropped(width: int, height: int, side: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    short = min(width, height)
    image = Image.fromarray(pixels)
    if short != side:
        size = (int(side * width / short), int(side * height / short))
        image = image.resize(size, Image.Resampling.BILINEAR)
    resized = np.asarray(image)
    top, left = round((resized.shape[0] - side) / 2), round((resized.shape[1] - side) / 2)
    expected = resized[top : top + side, left : left + side].transpose(2, 0, 1)
    np.testing.assert_array_equal(crop_square(Image.fromarray(pixels), side, "a"), expected)


@pytest.mark.parametrize(
    "how", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
)
def test_damaged_members_of_a_zip_are_named(picture: Picture, tmp_path: Path, how: int) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", how) as archive:
        archive.writestr("in/a.png", picture(tmp_path / "a.png", 0, 64, 64).read_bytes())
    content = bytearray((tmp_path / "a.zip").read_bytes())
    for at in range(60, 3000):
        content[at] ^= 255
    (tmp_path / "a.zip").write_bytes(content)
    source = FileSource(np.zeros(1, np.int64), ("a",), [zipfile.Path(tmp_path / "a.zip", "in/a.png")])
    with pytest.raises(CorruptImage, match=r"a\.zip/in/a\.png"):
        source.pixels(0, 8)
