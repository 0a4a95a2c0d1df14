"""One image: every kind of file ends as a square of RGB bytes, or as an error that names it."""

import io
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
from PIL.GifImagePlugin import GifImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from opencil.data.readers.decode import CorruptImage, fit, read_image
from opencil.data.readers.source import ZipSource
from opencil.errors import BadInput

Picture = Callable[..., Path]


def read(path: Path) -> np.ndarray:
    return np.asarray(read_image(path, path.name))


def test_rgb_is_kept(picture: Picture, tmp_path: Path) -> None:
    expected = np.random.default_rng(3).integers(0, 256, (5, 9, 3), dtype=np.uint8)
    np.testing.assert_array_equal(read(picture(tmp_path / "a.png", 3, 5, 9)), expected)


def test_grey_is_repeated(tmp_path: Path) -> None:
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8)
    Image.fromarray(grey).save(tmp_path / "a.png")
    np.testing.assert_array_equal(read(tmp_path / "a.png"), np.stack([grey] * 3, axis=-1))


def test_one_bit_is_black_and_white(tmp_path: Path) -> None:
    bits = np.eye(8, dtype=bool)
    Image.fromarray(bits).save(tmp_path / "a.png")
    np.testing.assert_array_equal(read(tmp_path / "a.png")[..., 0], bits * 255)


def test_sixteen_bits_are_scaled_not_clipped(tmp_path: Path) -> None:
    deep = (np.arange(64, dtype=np.uint16) * 1000).reshape(8, 8)
    for ending in ("png", "tiff"):
        Image.fromarray(deep).save(tmp_path / f"a.{ending}")
        np.testing.assert_array_equal(read(tmp_path / f"a.{ending}")[..., 1], deep // 256)


def test_transparency_is_dropped(tmp_path: Path) -> None:
    rgba = np.random.default_rng(0).integers(0, 256, (8, 8, 4), dtype=np.uint8)
    Image.fromarray(rgba).save(tmp_path / "a.png")
    np.testing.assert_array_equal(read(tmp_path / "a.png"), rgba[..., :3])
    Image.fromarray(rgba[..., :2], "LA").save(tmp_path / "b.png")
    np.testing.assert_array_equal(read(tmp_path / "b.png"), np.stack([rgba[..., 0]] * 3, axis=-1))


def test_palettes_with_transparency_are_read_without_a_warning(tmp_path: Path) -> None:
    colours = Image.fromarray(np.full((8, 8, 3), (200, 30, 40), np.uint8)).quantize(4)
    colours.save(tmp_path / "a.png", transparency=bytes([0, 255, 255, 255]))
    np.testing.assert_array_equal(read(tmp_path / "a.png")[0, 0], (200, 30, 40))


def test_cmyk_becomes_the_colour_it_prints(tmp_path: Path) -> None:
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / "a.jpg", quality=100)
    red, green, blue = read(tmp_path / "a.jpg")[8, 8]
    assert (red > 240, green < 15, blue < 15) == (True, True, True)


def test_floating_point_pixels_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.ones((4, 4), np.float32)).save(tmp_path / "a.tiff")
    with pytest.raises(CorruptImage, match=r"a\.tiff cannot be decoded: .*floating-point"):
        read(tmp_path / "a.tiff")


@pytest.mark.parametrize("ending", ["png", "jpg"])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.9])
def test_truncated_files_are_named(picture: Picture, tmp_path: Path, ending: str, share: float) -> None:
    path = picture(tmp_path / f"half.{ending}", 0, 64, 64)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(CorruptImage, match=f"image half.{ending} cannot be decoded"):
        read(path)


def test_files_that_are_no_images_are_named(tmp_path: Path) -> None:
    (tmp_path / "page.jpg").write_text("<html>404</html>")
    with pytest.raises(CorruptImage, match=r"image page\.jpg cannot be decoded: it is no image"):
        read(tmp_path / "page.jpg")


@pytest.mark.parametrize("size", [(12_000, 12_000), (7072, 7072), (16_000, 16_000)])
@pytest.mark.parametrize("ending", ["png", "gif", "bmp", "webp", "tiff", "ppm", "jpg"])
def test_images_of_too_many_pixels_are_refused_before_they_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int], ending: str
) -> None:
    """Of the largest Pillow refuses to tell the size, it warns of the next, and takes the smallest."""
    path = tmp_path / f"bomb.{ending}"
    path.write_bytes(announcing(*size, ending))
    for kind in (ImageFile.ImageFile, TiffImageFile, WebPImageFile, GifImageFile):
        monkeypatch.setattr(kind, "load", None)
    with pytest.raises(CorruptImage, match=rf"bomb\.{ending} is refused: it has .*more than 50,000,000"):
        read(path)


def announcing(width: int, height: int, ending: str) -> bytes:
    """A file of a small image whose header says that it is a large one."""
    small = io.BytesIO()
    kind = {"jpg": "JPEG", "tiff": "TIFF"}.get(ending, ending.upper())
    Image.new("RGB", (1021, 1019)).save(small, kind, **({"lossless": True} if ending == "webp" else {}))
    content = small.getvalue()
    if ending == "ppm":
        return content.replace(b"1021 1019", f"{width} {height}".encode())
    if ending == "webp":  # two times 14 bits, less one, after the signature
        at = content.index(b"VP8L") + 9
        bits = int.from_bytes(content[at : at + 4], "little") & ~(2**28 - 1)
        bits |= (width - 1) | (height - 1) << 14
        return content[:at] + bits.to_bytes(4, "little") + content[at + 4 :]
    code = {"png": ">I", "bmp": "<i", "gif": "<H", "tiff": "<H", "jpg": ">H"}[ending]
    for old, new in ((1021, width), (1019, height)):
        content = content.replace(struct.pack(code, old), struct.pack(code, new))
    if ending == "png":  # its header has a checksum
        content = content[:29] + struct.pack(">I", zlib.crc32(content[12:29])) + content[33:]
    return content


def test_an_image_with_hardly_any_bytes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.png").write_bytes(announcing(4000, 4000, "png"))
    with pytest.raises(
        CorruptImage, match=r"announces 4000 x 4000 pixels and has [\d,]+ bytes, less than one"
    ):
        read(tmp_path / "empty.png")


def test_an_image_of_one_colour_is_no_bomb(tmp_path: Path) -> None:
    Image.new("RGB", (2048, 2048)).save(tmp_path / "black.png")
    assert read(tmp_path / "black.png").shape == (2048, 2048, 3)


def test_an_image_file_of_too_many_bytes_is_not_read(
    picture: Picture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = picture(tmp_path / "a.png")
    monkeypatch.setattr("opencil.data.readers.decode._LARGEST", path.stat().st_size - 1)
    with pytest.raises(CorruptImage, match=r"a\.png is refused: it has more than"):
        read(path)
    with path.open("rb") as file, pytest.raises(CorruptImage, match="a is refused: it has more than"):
        read_image(file, "a")


@given(width=st.integers(1, 40), height=st.integers(1, 40), side=st.integers(1, 24))
def test_the_shorter_side_is_resized_and_the_centre_kept(width: int, height: int, side: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    short = min(width, height)
    image = Image.fromarray(pixels)
    if short != side:
        size = (int(side * width / short), int(side * height / short))
        image = image.resize(size, Image.Resampling.BILINEAR)
    resized = np.asarray(image)
    top, left = round((resized.shape[0] - side) / 2), round((resized.shape[1] - side) / 2)
    expected = resized[top : top + side, left : left + side].transpose(2, 0, 1)
    fitted = fit(Image.fromarray(pixels), side, "a")
    assert fitted.shape == (3, side, side)
    np.testing.assert_array_equal(fitted, expected)


def test_an_image_of_the_right_size_is_not_touched(picture: Picture, tmp_path: Path) -> None:
    image = read_image(picture(tmp_path / "a.png", 1, 8, 8), "a")
    np.testing.assert_array_equal(fit(image, 8, "a"), np.asarray(image).transpose(2, 0, 1))


def test_a_file_that_cannot_be_read_is_no_corrupt_image(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"image a\.png cannot be read: No such file") as raised:
        read(tmp_path / "a.png")
    assert not isinstance(raised.value, CorruptImage)


def test_long_thin_images_are_refused_before_they_are_enlarged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("RGB", (8_000_000, 1)).save(tmp_path / "thread.png")
    image = read_image(tmp_path / "thread.png", "thread.png")
    monkeypatch.setattr(Image.Image, "resize", None)
    with pytest.raises(CorruptImage, match=r"image thread\.png is refused: .* 256000000 x 32 of them"):
        fit(image, 32, "thread.png")


def test_formats_that_start_other_programs_are_no_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "page.eps")
    (tmp_path / "page.eps").rename(tmp_path / "page.png")
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", None)
    with pytest.raises(CorruptImage, match=r"image page\.png cannot be decoded: it is no image"):
        read(tmp_path / "page.png")


def test_wide_integers_that_hold_bytes_are_not_scaled(tmp_path: Path) -> None:
    values = np.arange(64, dtype=np.int32).reshape(8, 8)
    Image.fromarray(values).save(tmp_path / "a.tiff")
    np.testing.assert_array_equal(read(tmp_path / "a.tiff")[..., 0], values)
    Image.fromarray(values * 256).save(tmp_path / "b.tiff")
    np.testing.assert_array_equal(read(tmp_path / "b.tiff")[..., 0], values)


@pytest.mark.parametrize(
    "how", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
)
def test_damaged_members_of_a_zip_are_named(picture: Picture, tmp_path: Path, how: int) -> None:
    image = picture(tmp_path / "a.png", 0, 64, 64).read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip", "w", how) as archive:
        archive.writestr("in/a.png", image)
    content = bytearray((tmp_path / "a.zip").read_bytes())
    for at in range(60, 3000):
        content[at] ^= 255
    (tmp_path / "a.zip").write_bytes(content)
    source = ZipSource(np.zeros(1, np.int64), ("a",), tmp_path / "a.zip", ["in/a.png"])
    with pytest.raises(CorruptImage, match=r"a\.zip:in/a\.png cannot be decoded"):
        source.pixels(0, 8)
