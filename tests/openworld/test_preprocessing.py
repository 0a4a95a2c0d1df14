"""Preprocessing: against Pillow and the benchmark's transform, the same in torch and in exported graphs."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from opencil.data.readers.source import CorruptImage
from opencil.data.transforms import Transform, resize_shorter_side
from opencil.errors import BadInput
from opencil.openworld.export import to_onnx, trace
from opencil.openworld.preprocessing import Preprocessing, decode_image, resize_in_strips

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
SIZES = [(32, 32), (24, 24), (90, 120), (33, 17), (200, 131), (1, 1), (1, 3), (24, 500)]


def transform(interpolation: str = "bicubic", resize: int | None = 24, crop: int = 20) -> Transform:
    return Transform(MEAN, STD, crop, resize=resize, interpolation=interpolation)  # type: ignore[arg-type]


def smooth_images(count: int, height: int, width: int) -> Tensor:
    """Return waves with some noise: of pure noise, Pillow's two roundings add up."""
    rows, columns = torch.arange(height)[:, None] / 7, torch.arange(width) / 5
    phases = torch.arange(3 * count).view(count, 3, 1, 1)
    noise = torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(height * width))
    return (110 + 90 * torch.sin(rows + columns + phases) + 40 * noise).to(torch.uint8)


def by_pillow(image: Tensor, values: Transform) -> Tensor:
    """Resize and crop with Pillow, and normalise pixel after pixel."""
    kind = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}[values.interpolation]
    picture = Image.fromarray(image.permute(1, 2, 0).numpy())
    width, height = picture.size
    left, top = max(0, width - 4 * height) // 2, max(0, height - 4 * width) // 2
    picture = picture.crop((left, top, left + min(width, 4 * height), top + min(height, 4 * width)))
    assert values.resize
    sides = [int(side * values.resize / min(picture.size) + 0.5) for side in picture.size]
    left, top = ((side - values.crop) // 2 for side in sides)
    box = (left, top, left + values.crop, top + values.crop)
    pixels = np.asarray(picture.resize((sides[0], sides[1]), kind).crop(box)) / 255
    return torch.from_numpy((pixels - MEAN) / STD).permute(2, 0, 1).float()


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_it_resizes_like_pillow(height: int, width: int, interpolation: str) -> None:
    images, values = smooth_images(2, height, width), transform(interpolation)
    found, expected = Preprocessing(values)(images), torch.stack([by_pillow(i, values) for i in images])
    assert found.shape == (2, 3, 20, 20)
    assert found.dtype == torch.float32
    apart = (found - expected).abs() * torch.tensor(STD).view(3, 1, 1) * 255
    assert float(apart.max()) < 1.51  # Pillow rounds to bytes, once for rows and once for columns


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_strips_have_the_bits_of_the_whole_and_take_less(interpolation: str) -> None:
    class Largest(TorchDispatchMode):
        found = 0

        def __torch_dispatch__(self, call, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = call(*args, **(kwargs or {}))
            if isinstance(result, Tensor) and result.is_floating_point():
                self.found = max(self.found, result.numel())
            return result

    for height, width in [*SIZES, (1100, 900)]:
        images = smooth_images(2, height, width)
        with Largest() as largest:
            found = resize_in_strips(images, 24, interpolation)
        assert torch.equal(found, resize_shorter_side(images.double(), 24, interpolation))
    assert largest.found < images.numel() / 4


def test_it_is_the_transform_of_the_benchmark() -> None:
    images, small = smooth_images(2, 30, 30), smooth_images(2, 20, 20)
    found, expected = Preprocessing(transform())(images), transform().test(images)
    assert float(((found - expected).abs() * torch.tensor(STD).view(3, 1, 1) * 255).max()) < 0.51
    values = transform(resize=None)  # images of the network's own size stay as they are
    assert torch.equal(Preprocessing(values)(small), values.test(small))


@pytest.mark.parametrize(("resize", "interpolation"), [(20, "bilinear"), (24, "bicubic")])
def test_exported_graphs_have_the_same_numbers(resize: int, interpolation: str) -> None:
    runtime = pytest.importorskip("onnxruntime")
    module = Preprocessing(transform(interpolation, resize))
    program = trace(module, smooth_images(2, 40, 30))
    model = to_onnx(program)
    session = runtime.InferenceSession(model.SerializeToString())
    for height, width in SIZES:
        images = smooth_images(3, height, width)
        expected = module(images)
        torch.testing.assert_close(program.module()(images), expected, rtol=0, atol=3e-6)
        (found,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), expected, rtol=0, atol=3e-6)


def test_impossible_values_are_refused() -> None:
    with pytest.raises(BadInput, match="crop"):
        Preprocessing(transform(resize=10))
    with pytest.raises(BadInput, match="mean"):
        Preprocessing(Transform("compute", STD, 8))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_images_are_turned_upright(kind: str) -> None:
    picture, exif, file = Image.new("L", (16, 8)), Image.Exif(), io.BytesIO()
    picture.paste(255, (0, 0, 8, 8))  # its left half is white
    exif[0x0112] = 6  # the camera was held so that this side is the top
    picture.save(file, kind, exif=exif)
    pixels = decode_image(file.getvalue, "it").int()
    assert pixels.shape == (3, 16, 8)
    assert int(pixels[:, :7].min()) > 200
    assert int(pixels[:, 9:].max()) < 50


def test_broken_files_are_named() -> None:
    file = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(file, "PNG")
    for content in (b"", b"GIF89a", file.getvalue()[:300], b"<svg/>"):
        with pytest.raises(CorruptImage, match="this-bird"):
            decode_image(lambda content=content: content, "this-bird")
    bomb = io.BytesIO()
    Image.new("1", (10_000, 6_000)).save(bomb, "PNG")
    with pytest.raises(CorruptImage, match="pixels"):
        decode_image(bomb.getvalue, "bomb.png")
