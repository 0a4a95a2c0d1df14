"""Read a user's images, in folders, lists, arrays or datasets, as preprocessed tensors with their names."""

import hashlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from opencil.arrays import dense
from opencil.data.foreign import IMAGE_KEYS, LABEL_KEYS
from opencil.data.images import Images
from opencil.data.readers.image_files import find_images, read_class_folders
from opencil.data.readers.source import LARGEST_IMAGE, CorruptImage, as_rgb
from opencil.data.streamed import count_workers
from opencil.errors import BadInput, shown
from opencil.openworld.preprocessing import decode_image

#: An image's name, the image in any form, and the name of its class; '' where it has none.
Item = tuple[str, Any, str]


@dataclass(frozen=True)
class Picture:
    """A preprocessed image, float32 [3, S, S]; without pixels it cannot be decoded, and ``problem`` says why.

    ``key`` identifies the decoded image.
    """

    name: str
    label: str
    pixels: Tensor | None
    key: int = 0
    problem: str = ""


def read_pictures(items: Iterable[Item], preprocess: Callable[[Tensor], Tensor]) -> Generator[Picture]:
    """Yield decoded and preprocessed images in order; threads work on those ahead."""

    def prepare(item: Item) -> Picture:
        name, image, label = item
        try:
            pixels = to_pixels(image, name)
        except CorruptImage as error:
            return Picture(name, label, None, problem=str(error))
        with torch.inference_mode():
            return Picture(name, label, preprocess(pixels[None])[0], find_key(pixels))

    workers, waiting = count_workers(), deque[Any]()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="opencil-decode")
    try:
        for item in items:
            waiting.append(pool.submit(prepare, item))
            if len(waiting) > 4 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def find_key(values: Tensor) -> int:
    """Return a number that identifies pixels or features: 63 bits of their SHA-256."""
    digest = hashlib.sha256(f"{list(values.shape)}".encode() + values.numpy().tobytes()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def find_items(
    images: Any, labels: Any = None, *, learning: bool = False
) -> tuple[Iterable[Item], int | None]:
    """Return images with their names and classes, and their number, None if it is unknown.

    ``images``: a folder, an image file, a list of images or files, an array [N, …], an image set of ours, a
    Dataset or a DataLoader. To learn, a folder has a folder for each class, and other images have labels.
    """
    if isinstance(images, str | Path):
        if labels is not None:
            raise BadInput("a folder has its classes as folders: leave labels out")
        found = _find_files(Path(images).expanduser(), learning)
        return found, len(found)
    if labels is not None:
        labels = labels.tolist() if isinstance(labels, Tensor | np.ndarray) else list(labels)
        if len(images) != len(labels):
            raise BadInput(f"{len(images)} images have {len(labels)} labels: one for each image is needed")
        pairs: Iterable[Any] = zip(images, labels, strict=True)
    elif isinstance(images, Images):
        batches = images.batches(torch.arange(len(images)), 64)
        pairs = zip((image for batch in batches for image in batch), images.labels.tolist(), strict=True)
    elif isinstance(images, Tensor | np.ndarray):
        pairs = ((image, None) for image in images)
    elif hasattr(images, "batch_sampler"):  # a DataLoader
        pairs = (pair for batch in images for pair in _split_batch(batch))
    elif hasattr(images, "__getitem__") and hasattr(images, "__len__") and not isinstance(images, Mapping):
        pairs = map(_split, map(images.__getitem__, range(len(images))))
    else:
        kind = type(images).__name__
        raise BadInput(
            f"images are a {kind}: a folder, a list, an array, a Dataset or a DataLoader is needed"
        )
    classes = getattr(images, "classes", None) or getattr(getattr(images, "dataset", None), "classes", None)
    number = None if hasattr(images, "batch_sampler") else len(images)
    return _name(pairs, classes), number


def _find_files(path: Path, learning: bool) -> list[Item]:
    if learning:
        if not path.is_dir():
            raise BadInput(f"there is no folder {path}: one with a folder of images for each class is needed")
        source = read_class_folders(path)
        pairs = zip(source.paths, source.labels, strict=True)
        return [(_name_file(p), p, source.classes[c]) for p, c in pairs]
    if not path.exists():
        raise BadInput(f"there is no folder {path}: a folder of images, or an image, is needed")
    found = list(find_images(path)) if path.is_dir() else [path]
    if not found:
        raise BadInput(f"{path} has no images")
    return [(_name_file(p), p, "") for p in found]


def _name_file(path: str | Path) -> str:
    """Return the name of a file as valid Unicode: what is not is escaped."""
    return str(path).encode(errors="backslashreplace").decode()


def _split(item: Any) -> tuple[Any, Any]:
    """Return the image and the label, or None, of a Dataset's item or of a batch."""
    if isinstance(item, Mapping):
        image, label = (
            next((item[key] for key in keys if key in item), None) for keys in (IMAGE_KEYS, LABEL_KEYS)
        )
        return image, label
    return (*item, None)[:2] if isinstance(item, tuple | list) and item else (item, None)


def _split_batch(batch: Any) -> Iterator[tuple[Any, Any]]:
    images, labels = _split(batch)
    if not isinstance(images, Tensor | np.ndarray | list | tuple):
        raise BadInput(f"a batch has a {type(images).__name__} as images: a tensor or a list is needed")
    return zip(images, [None] * len(images) if labels is None else labels, strict=True)


def _name(pairs: Iterable[tuple[Any, Any]], classes: Any) -> Iterator[Item]:
    """Yield items: files are named by their paths, other images by their number."""
    for number, (image, label) in enumerate(pairs):
        name = _name_file(image) if isinstance(image, str | Path) else str(number)
        if isinstance(label, Tensor | np.generic) and label.ndim == 0:
            label = label.item()
        if classes and type(label) is int and 0 <= label < len(classes):
            label = classes[label]
        if label is not None and not isinstance(label, str | int):
            raise BadInput(f"the label of image {name} is {shown(label)}: a text or a whole number is needed")
        yield name, Path(image) if isinstance(image, str) else image, "" if label is None else str(label)


def to_pixels(image: Any, name: str) -> Tensor:
    """Return an image as RGB, uint8 [3, H, W]: a file or its bytes, an image of Pillow's, an array, a tensor.

    Arrays are grey [H, W], or have 1, 3 or 4 channels first or last, of bytes or of numbers in 0 … 1.
    """
    from PIL import Image, ImageOps

    if isinstance(image, Path | bytes):
        return decode_image(image.read_bytes if isinstance(image, Path) else lambda: image, name)
    if isinstance(image, Image.Image):
        image = np.array(as_rgb(ImageOps.exif_transpose(image)))
    pixels = dense(image, f"image {name}")
    pixels = pixels[None] if pixels.ndim == 2 else pixels
    if pixels.ndim == 3 and pixels.shape[0] not in (1, 3, 4):
        pixels = pixels.permute(2, 0, 1)
    if pixels.ndim != 3 or pixels.shape[0] not in (1, 3, 4) or not pixels.numel():
        raise BadInput(f"image {name} is {list(pixels.shape)}: [H, W], or with 1, 3 or 4 channels, is needed")
    if pixels[0].numel() > LARGEST_IMAGE:
        raise CorruptImage(f"image {name} has {pixels[0].numel():,} pixels, more than {LARGEST_IMAGE:,}")
    if pixels.is_floating_point():
        if not (pixels.amin() >= 0 and pixels.amax() <= 1):
            raise BadInput(
                f"image {name} has numbers outside 0 … 1: leave normalisation out, the model has its own"
            )
        pixels = (pixels * 255).round().to(torch.uint8)
    if pixels.dtype != torch.uint8:
        raise BadInput(f"image {name} is {pixels.dtype}: bytes, or numbers in 0 … 1, are needed")
    return pixels[:3].expand(3, -1, -1).contiguous().cpu()
