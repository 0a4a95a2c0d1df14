"""A contact sheet: some images of a dataset on one picture, each with its label."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from opencil.data.images import Images

if TYPE_CHECKING:
    from PIL import Image, ImageDraw, ImageFont

_GAP, _TITLE, _CAPTION = 10, 52, 18
_INK, _FAINT, _PAPER = (28, 28, 30), (110, 110, 115), (250, 250, 248)


def chosen(labels: Sequence[int], count: int) -> list[int]:
    """Indices of at most ``count`` images: one of every class in turn, then a second of every class, …

    Within a class they lie at even distances, so that a sorted dataset is shown from end to end.
    """
    members: dict[int, list[int]] = {}
    for index, label in enumerate(labels):
        members.setdefault(label, []).append(index)
    classes = [members[label] for label in sorted(members)]
    if len(classes) > count:
        classes = [classes[i * len(classes) // count] for i in range(count)]
    rounds = -(-count // len(classes))
    picks = [
        rows[turn * len(rows) // rounds]
        for turn in range(rounds)
        for rows in classes
        if turn == 0 or turn * len(rows) // rounds != (turn - 1) * len(rows) // rounds
    ]
    return sorted(picks[:count], key=lambda index: (labels[index], index))


def contact_sheet(images: Images, title: str, count: int = 60, columns: int = 10) -> "Image.Image":
    """A picture of ``count`` images in rows, class after class, with a title and the class names."""
    from PIL import Image, ImageDraw, ImageFont

    labels = images.labels.tolist()
    rows = chosen(labels, count)
    columns = min(columns, len(rows))
    cell = min(max(96, images.side), 160)
    pixels = torch.cat(list(images.batches(torch.tensor(rows), 64))).cpu().permute(0, 2, 3, 1).numpy()
    height = -(-len(rows) // columns) * (cell + _CAPTION + _GAP) + _TITLE + _GAP
    sheet = Image.new("RGB", (columns * (cell + _GAP) + _GAP, height), _PAPER)
    pen = ImageDraw.Draw(sheet)
    large, small = ImageFont.load_default(20), ImageFont.load_default(12)
    pen.text((_GAP, 8), _cut(pen, title, large, sheet.width - 2 * _GAP), fill=_INK, font=large)
    about = f"{len(images):,} images of {images.side} x {images.side} pixels, {len(set(labels)):,} classes"
    pen.text((_GAP, 32), _cut(pen, about, small, sheet.width - 2 * _GAP), fill=_FAINT, font=small)
    # Small images are enlarged by whole numbers of pixels where they fit, and never smoothed.
    shown = cell // images.side * images.side if images.side <= cell else cell
    method = Image.Resampling.NEAREST if images.side <= cell else Image.Resampling.BILINEAR
    for position, index in enumerate(rows):
        left = _GAP + position % columns * (cell + _GAP)
        top = _TITLE + _GAP + position // columns * (cell + _CAPTION + _GAP)
        picture = Image.fromarray(pixels[position]).resize((shown, shown), method)
        sheet.paste(picture, (left + (cell - shown) // 2, top + (cell - shown) // 2))
        label = labels[index]
        caption = images.classes[label] if 0 <= label < len(images.classes) else str(label)
        pen.text((left, top + cell + 2), _cut(pen, caption, small, cell), fill=_INK, font=small)
    return sheet


def _cut(
    pen: "ImageDraw.ImageDraw", text: str, font: "ImageFont.FreeTypeFont | ImageFont.ImageFont", width: int
) -> str:
    """The text, shortened with dots where it is too wide."""
    if pen.textlength(text, font) <= width:
        return text
    while text and pen.textlength(text + "...", font) > width:
        text = text[:-1]
    return text + "..."
