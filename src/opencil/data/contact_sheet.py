"""Draw a contact sheet: some images of a dataset on one picture, each with its label."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from opencil.data.images import Images

if TYPE_CHECKING:
    from PIL import Image

_GAP, _TITLE, _CAPTION = 10, 52, 18
_INK, _FAINT, _PAPER = (28, 28, 30), (110, 110, 115), (250, 250, 248)


def choose_images(labels: Sequence[int], count: int) -> list[int]:
    """Return the indices of at most ``count`` images: one of every class, then a second of every class, …

    Within a class they are at even distances: a sorted dataset is shown from end to end.
    """
    members: dict[int, list[int]] = {}
    for index, label in enumerate(labels):
        members.setdefault(label, []).append(index)
    classes = [members[label] for label in sorted(members)]
    if len(classes) > count:
        classes = [classes[i * len(classes) // count] for i in range(count)]
    rounds = -(-count // len(classes))
    picks = [rows[turn * len(rows) // rounds] for turn in range(rounds) for rows in classes]
    picks = list(dict.fromkeys(picks))  # a small class repeats images
    return sorted(picks[:count], key=lambda index: (labels[index], index))


def contact_sheet(images: Images, title: str, count: int = 60, columns: int = 10) -> "Image.Image":
    """Draw ``count`` images in rows, class after class, with a title and the class names."""
    from PIL import Image, ImageDraw, ImageFont

    labels = images.labels.tolist()
    rows = choose_images(labels, count)
    columns = min(columns, len(rows))
    cell = min(max(96, images.side), 160)
    pixels = torch.cat(list(images.batches(torch.tensor(rows), 64))).cpu().permute(0, 2, 3, 1).numpy()
    height = -(-len(rows) // columns) * (cell + _CAPTION + _GAP) + _TITLE + _GAP
    sheet = Image.new("RGB", (columns * (cell + _GAP) + _GAP, height), _PAPER)
    pen = ImageDraw.Draw(sheet)
    large, small = ImageFont.load_default(20), ImageFont.load_default(12)
    pen.text((_GAP, 8), _shorten(pen, title, large, sheet.width - 2 * _GAP), fill=_INK, font=large)
    about = f"{len(images):,} images of {images.side} x {images.side} pixels, {len(set(labels)):,} classes"
    pen.text((_GAP, 32), about, fill=_FAINT, font=small)
    # Small images are enlarged by a whole factor and not smoothed.
    shown = cell // images.side * images.side if images.side <= cell else cell
    method = Image.Resampling.NEAREST if images.side <= cell else Image.Resampling.BILINEAR
    for position, index in enumerate(rows):
        left = _GAP + position % columns * (cell + _GAP)
        top = _TITLE + _GAP + position // columns * (cell + _CAPTION + _GAP)
        picture = Image.fromarray(pixels[position]).resize((shown, shown), method)
        sheet.paste(picture, (left + (cell - shown) // 2, top + (cell - shown) // 2))
        label = labels[index]
        caption = images.classes[label] if 0 <= label < len(images.classes) else str(label)
        pen.text((left, top + cell + 2), _shorten(pen, caption, small, cell), fill=_INK, font=small)
    return sheet


def _shorten(pen: Any, text: str, font: Any, width: int) -> str:
    """Shorten a text with dots if it is too wide."""
    texts = [text, *(text[:end] + "..." for end in range(len(text) - 1, 0, -1))]
    return next((t for t in texts if pen.textlength(t, font) <= width), "")
