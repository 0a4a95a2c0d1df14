"""Draw a contact sheet: some images of a dataset on one picture, each with its label."""

from typing import TYPE_CHECKING, Any

import torch

from opencil.data.images import Images

if TYPE_CHECKING:
    from PIL import Image

_GAP, _TITLE, _CAPTION = 10, 52, 18
_INK, _FAINT, _PAPER = (28, 28, 30), (110, 110, 115), (250, 250, 248)


def contact_sheet(images: Images, title: str, count: int = 60) -> "Image.Image":
    """Draw ``count`` images in rows, class after class at even distances, with a title and class names."""
    from PIL import Image, ImageDraw, ImageFont

    count = min(count, len(images))
    order = images.labels.cpu().argsort(stable=True)
    rows = order[torch.arange(count) * len(images) // count]
    pixels = torch.cat(list(images.batches(rows, 64))).cpu().permute(0, 2, 3, 1).numpy()
    columns, cell = min(count, 10), min(max(96, images.side), 160)
    height = -(-count // columns) * (cell + _CAPTION + _GAP) + _TITLE + _GAP
    sheet = Image.new("RGB", (columns * (cell + _GAP) + _GAP, height), _PAPER)
    pen = ImageDraw.Draw(sheet)
    large, small = ImageFont.load_default(20), ImageFont.load_default(12)
    pen.text((_GAP, 8), _shorten(pen, title, large, sheet.width - 2 * _GAP), fill=_INK, font=large)
    classes = len(torch.unique(images.labels))
    about = f"{len(images):,} images of {images.side} x {images.side} pixels, {classes:,} classes"
    pen.text((_GAP, 32), about, fill=_FAINT, font=small)
    # Small images are enlarged by a whole factor and not smoothed.
    shown = cell // images.side * images.side if images.side <= cell else cell
    method = Image.Resampling.NEAREST if images.side <= cell else Image.Resampling.BILINEAR
    for position, label in enumerate(images.labels.cpu()[rows].tolist()):
        left = _GAP + position % columns * (cell + _GAP)
        top = _TITLE + _GAP + position // columns * (cell + _CAPTION + _GAP)
        picture = Image.fromarray(pixels[position]).resize((shown, shown), method)
        sheet.paste(picture, (left + (cell - shown) // 2, top + (cell - shown) // 2))
        caption = images.classes[label] if 0 <= label < len(images.classes) else str(label)
        pen.text((left, top + cell + 2), _shorten(pen, caption, small, cell), fill=_INK, font=small)
    return sheet


def _shorten(pen: Any, text: str, font: Any, width: int) -> str:
    """Shorten a text with dots if it is too wide."""
    texts = [text, *(text[:end] + "..." for end in range(len(text) - 1, 0, -1))]
    return next((t for t in texts if pen.textlength(t, font) <= width), "")
