"""Images in any form: the same pixels, or one sentence."""

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import opencil
from opencil.data.readers.source import CorruptImage
from opencil.openworld.inputs import find_items, find_key, read_pictures, to_pixels
from tests.openworld.conftest import picture

COLOUR = picture(1, 0, 12)[:, :7]  # not square


def as_file(image: Image.Image, path: Path, **values: Any) -> Path:
    image.save(path, **values)
    return path


def test_forms_of_one_image(tmp_path: Path) -> None:
    pixels = torch.from_numpy(COLOUR.copy()).permute(2, 0, 1)
    image = Image.fromarray(COLOUR)
    turned = Image.Exif()
    turned[0x0112] = 6  # to be turned by 90 degrees
    sideways = as_file(image.rotate(90, expand=True), tmp_path / "turned.png", exif=turned)
    with Image.open(sideways) as opened:
        forms = [
            as_file(image, tmp_path / "plain.png"),
            sideways,
            opened,
            image,
            image.convert("RGBA"),
            COLOUR,
            COLOUR.astype(np.float32) / 255,
            pixels,
            torch.cat([pixels, pixels[:1]]),  # with transparency
            pixels.double() / 255,
        ]
        for form in forms:
            assert torch.equal(to_pixels(form, "x"), pixels), form


def test_grey_images_are_repeated(tmp_path: Path) -> None:
    grey = COLOUR[:, :, 0]
    image = Image.fromarray(grey)
    for form in (grey, grey[:, :, None], grey[None], image, as_file(image, tmp_path / "grey.png")):
        assert torch.equal(to_pixels(form, "x"), torch.from_numpy(grey.copy()).expand(3, -1, -1))
    assert to_pixels(np.zeros((1, 1), np.uint8), "x").shape == (3, 1, 1)


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((2, 5, 5), np.uint8),
        np.zeros((5,), np.uint8),
        np.zeros((3, 0, 5), np.uint8),
        np.zeros((5, 5, 3), np.int64),
        np.full((5, 5, 3), 1.5),
        np.full((5, 5, 3), np.nan),
        torch.randn(3, 5, 5),
        "text",
        None,
    ],
)
def test_what_is_no_image(image: Any) -> None:
    with pytest.raises(opencil.BadInput, match="image"):
        to_pixels(image, "7")


def bomb() -> bytes:
    """A PNG of 40,000 × 40,000 pixels in 1 KB."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 40_000, 40_000, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


def test_a_folder_is_read_in_order_and_broken_files_are_noted(tmp_path: Path) -> None:
    for n in range(9):
        as_file(Image.fromarray(picture(n % 3, n)), tmp_path / f"{n}.png")
    content = (tmp_path / "3.png").read_bytes()
    (tmp_path / "3.png").write_bytes(content[: len(content) // 2])
    (tmp_path / "5.png").write_bytes(b"<html>")
    (tmp_path / "7.png").write_bytes(bomb())
    (tmp_path / "notes.txt").write_text("no image")
    items, number = find_items(tmp_path)
    assert number == 9
    found = list(read_pictures(items, lambda images: images[:, :, :4, :4].float()))
    assert [Path(each.name).name for each in found] == [f"{n}.png" for n in range(9)]
    broken = {n for n, each in enumerate(found) if each.problem}
    assert broken == {3, 5, 7}
    for n, each in enumerate(found):
        assert (each.pixels is None) == (n in broken)
        if n not in broken:
            assert each.key == find_key(torch.from_numpy(picture(n % 3, n)).permute(2, 0, 1).contiguous())
        else:
            assert f"{n}.png" in each.problem
    with pytest.raises(CorruptImage, match="pixels"):
        to_pixels(tmp_path / "7.png", "7.png")


@pytest.mark.parametrize(
    ("images", "labels"),
    [
        (7, None),
        (iter([]), None),
        ({}, None),
        ([np.zeros((4, 4), np.uint8)], ["a", "b"]),
        ([(np.zeros((4, 4), np.uint8), 0.5)], None),
        ([(np.zeros((4, 4), np.uint8), ["a"])], None),
        ([(np.zeros((4, 4), np.uint8), torch.zeros(2))], None),
    ],
)
def test_what_are_no_images(images: Any, labels: Any) -> None:
    with pytest.raises(opencil.BadInput):
        list(find_items(images, labels)[0])


def test_mappings_as_of_hugging_face() -> None:
    buffer = io.BytesIO()
    Image.fromarray(COLOUR).save(buffer, "PNG")
    rows = [{"image": Image.open(buffer), "label": 4}, {"image": COLOUR, "label": np.int64(5)}]
    items = list(find_items(rows)[0])
    assert [(name, label) for name, _, label in items] == [("0", "4"), ("1", "5")]
    assert torch.equal(to_pixels(items[0][1], "0"), to_pixels(items[1][1], "1"))
