"""Downloads of every kind that is read, damaged or forged.

``python -m tests.siege.fuzz_readers --count 10000 --seed 1``. Small valid files are changed by flipped bits,
bytes put in, left out, doubled and exchanged, by numbers in their headers, by parts of other files; some
before they are compressed or packed, or with their checksums set right again, so that not only the first
check sees them. What is taken must deliver images of the right shape and labels that fit.
"""

import gzip
import io
import pickle
import random
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save
from scipy.io import savemat

from opencil.data.catalogue import CIFAR10, CIFAR100, MNIST, SVHN, TIN, Texture
from opencil.data.decoding import decoded
from opencil.data.images import ImageSet
from opencil.data.own_dataset import OwnDataset
from opencil.data.readers.source import ImageSource
from opencil.data.shifted import ShiftedSet
from opencil.nets.create import pinned
from opencil.runs.model_files import read_weights_file
from tests.siege.fuzz import Input, main

Random = random.Random
SIDE = 8
NUMBERS = [0, 1, 2, 3, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**24, 2**27, 2**31 - 1, 2**31, 2**32 - 1, 2**63]


def pixels(seed: int, *shape: int) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """Random bytes."""
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


# --- damages ---------------------------------------------------------------------------------------


def damaged(random: Random, content: bytes) -> bytes:
    """Bytes with some of them changed, in one of many ways."""
    array = bytearray(content)
    for _ in range(random.choice([1, 1, 1, 2, 4, 16])):
        at = (
            random.randrange(len(array) + 1)
            if random.random() < 0.5
            else random.randrange(min(len(array), 64) + 1)
        )
        length = random.choice([1, 2, 4, 8, 64, 512])
        kind = random.randrange(10)
        if kind <= 1 and at < len(array):
            array[at] ^= 1 << random.randrange(8)
        elif kind == 2 and at < len(array):
            array[at] = random.choice([0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)])
        elif kind <= 4:
            code = random.choice(["<H", ">H", "<I", ">I", "<Q", ">Q"])
            number = random.choice(NUMBERS) % 2 ** (8 * struct.calcsize(code))
            array[at : at + struct.calcsize(code)] = struct.pack(code, number)
        elif kind == 5:
            del array[at : at + length]
        elif kind == 6:
            array[at:at] = random.choice([random.randbytes(length), bytes(length), array[at : at + length]])
        elif kind == 7:
            del array[at:]
        elif kind == 8:
            other = random.randrange(len(array) + 1)
            array[at : at + length], array[other : other + length] = (
                array[other : other + length],
                array[at : at + length],
            )
        else:
            other_file = random.choice(everything())
            start = random.randrange(len(other_file))
            array[at : at + length] = other_file[start : start + length]
    return bytes(array)


def with_checksums(content: bytes) -> bytes:
    """A PNG whose chunks have the checksums that they ought to have."""
    whole, at = bytearray(content), 8
    while at + 12 <= len(whole):
        end = at + 8 + int.from_bytes(whole[at : at + 4], "big")
        if end + 4 > len(whole):
            break
        whole[end : end + 4] = zlib.crc32(whole[at + 4 : end]).to_bytes(4, "big")
        at = end + 4
    return bytes(whole)


def retyped(random: Random, content: bytes) -> bytes:
    """A list file with lines changed, as by hand."""
    lines = content.decode().split("\n")
    for _ in range(random.choice([1, 2, 5])):
        at = random.randrange(len(lines))
        word = random.choice(
            ["../", "/", "\\", "\t", " -1", " 3", " 99999999999", "9" * 5000, "x" * 300, "x/" * 3000]
        )
        other = random.choice(["\0", "\x85", "\u2028", "é", "\r", " ", "C:", "..", ".", "٣", "\ufeff", word])
        cut = random.randrange(len(lines[at]) + 1)
        lines[at] = random.choice(
            [lines[at][:cut] + other + lines[at][cut:], lines[at][:cut], other, lines[at - 1]]
        )
    return "\n".join(lines).encode()


# --- files that are valid --------------------------------------------------------------------------


@cache
def pictures() -> dict[str, bytes]:
    """Image files of many kinds, by name."""
    rgb = Image.fromarray(pixels(0, 13, 17, 3))
    deep = Image.fromarray(pixels(1, 13, 17).astype(np.uint16) << 7)
    made: dict[str, tuple[Image.Image, dict[str, Any]]] = {
        "a.png": (rgb, {}),
        "grey.png": (rgb.convert("L"), {}),
        "bits.png": (rgb.convert("1"), {}),
        "palette.png": (rgb.quantize(8), {"transparency": b"\0\x80"}),
        "alpha.png": (rgb.convert("RGBA"), {}),
        "deep.png": (deep, {}),
        "a.jpg": (rgb, {}),
        "progressive.jpg": (rgb, {"progressive": True}),
        "ink.jpg": (rgb.convert("CMYK"), {}),
        "a.bmp": (rgb, {}),
        "few.bmp": (rgb.quantize(16), {}),
        "a.gif": (rgb.quantize(32), {}),
        "moving.gif": (rgb.quantize(4), {"save_all": True, "append_images": [rgb.quantize(8)]}),
        "a.webp": (rgb, {}),
        "exact.webp": (rgb, {"lossless": True}),
        "moving.webp": (rgb, {"save_all": True, "append_images": [rgb]}),
        "a.tiff": (rgb, {}),
        "deep.tiff": (deep, {}),
        "packed.tiff": (rgb, {"compression": "tiff_adobe_deflate"}),
        "lzw.tiff": (rgb, {"compression": "tiff_lzw"}),
        "fax.tiff": (rgb.convert("1"), {"compression": "group4"}),
        "photo.tiff": (rgb, {"compression": "jpeg"}),
        "a.ppm": (rgb, {}),
        "a.pgm": (rgb.convert("L"), {}),
    }
    files = {}
    for name, (image, values) in made.items():
        file = io.BytesIO()
        kind = {"jpg": "JPEG", "pgm": "PPM"}.get(name[-3:], name.rpartition(".")[2].upper())
        image.save(file, kind, **values)
        files[name] = file.getvalue()
    return files


@cache
def batch(protocol: int, labels: str = "fine_labels") -> bytes:
    """A CIFAR batch of three images."""
    content = {b"data": pixels(2, 3, 3072), labels.encode(): [0, 1, 1], b"filenames": [b"a", b"b", b"c"]}
    return pickle.dumps(content, protocol=protocol)


@cache
def meta(protocol: int) -> bytes:
    """The names of CIFAR's classes."""
    return pickle.dumps({b"fine_label_names": [b"cat", b"dog"]}, protocol=protocol)


@cache
def mat(packed: bool) -> bytes:
    """An SVHN file of three images."""
    file = io.BytesIO()
    savemat(file, {"X": pixels(3, 8, 8, 3, 3), "y": np.array([[1], [10], [3]])}, do_compression=packed)
    return file.getvalue()


IDX_IMAGES = struct.pack(">IIII", 2051, 3, 9, 7) + pixels(4, 3, 9, 7).tobytes()
IDX_LABELS = struct.pack(">II", 2049, 3) + bytes([0, 9, 4])
LIST = b"cat/0.png 0\ncat/1.png 0\ndog/2.png 1\n"


def array(content: Any) -> bytes:
    """An .npy file."""
    file = io.BytesIO()
    np.save(file, content)
    return file.getvalue()


def tar(files: dict[str, bytes]) -> bytes:
    """A tar of files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def zipped(files: dict[str, bytes], how: int) -> bytes:
    """A zip of files."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", how) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


@cache
def everything() -> list[bytes]:
    """A file of each kind, to take parts from."""
    packed = zipped({"a": b"b"}, zipfile.ZIP_DEFLATED)
    return [
        *pictures().values(),
        batch(2),
        batch(4),
        mat(True),
        mat(False),
        IDX_IMAGES,
        LIST,
        packed,
        tar({"a": LIST}),
    ]


# --- kinds of downloads ----------------------------------------------------------------------------


def write(path: Path, content: bytes) -> None:
    """A file and the folders that it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def images(source: ImageSource) -> None:
    """All images of a source are squares, and their labels have names."""
    for part in decoded(source, range(len(source)), SIDE, 4, 1):
        assert part.pixels.shape[1:] == (3, SIDE, SIDE)
        for error in part.corrupt.values():
            raise error
    assert len(source.labels) == len(source)
    assert not source.classes or (source.labels >= 0).all()
    assert not source.classes or (source.labels < len(source.classes)).all()


def read(dataset: Any, root: Path, split: str = "test") -> None:
    """Find a dataset and read all of it."""
    images(dataset.locate("it", split, root).source)


def picture(random: Random, root: Path) -> None:
    """An image in a folder, under its own name or that of another kind."""
    name = random.choice(list(pictures()))
    content = damaged(random, pictures()[name])
    if name.endswith("png") and random.random() < 0.7:
        content = with_checksums(content)
    if random.random() < 0.1:
        name = random.choice(list(pictures()))
    layout = random.choice(["flat", "folders"])
    write(root / "mine" / ("cat" if layout == "folders" else ".") / name, content)
    read(OwnDataset("mine", layout=layout), root)  # type: ignore[arg-type]


def tree(random: Random, root: Path) -> None:
    """Folders of classes with odd names, files that are none, links."""
    names = [
        "cat",
        "dog",
        "Cat",
        " cat",
        ".hidden",
        "é",
        "-",
        "a" * 250,
        "new\nline",
        "x.png",
        "\udcff",
        "%s",
    ]
    for i, name in enumerate(random.sample(names, random.randrange(1, 6))):
        for j in range(random.randrange(3)):
            file = random.choice(
                ["a.png", "b.PNG", "c.txt", ".d.png", "e.jpeg", "f\n.png", "sub/g.png", "\udcfe.png"]
            )
            write(root / "dtd" / "images" / name / file, pictures()[random.choice(["a.png", "a.jpg"])])
            if random.random() < 0.1:
                target = random.choice(
                    [root, root / "gone", root / "dtd", Path("/dev/zero"), Path("/dev/stdin")]
                )
                (root / "dtd" / "images" / name / f"link{i}{j}.png").symlink_to(target)
    read(Texture(), root)


def listed(random: Random, root: Path) -> None:
    """A list of images."""
    for i, folder in enumerate(("cat", "cat", "dog")):
        write(root / "mine" / folder / f"{i}.png", pictures()["a.png"])
    write(root / "list.txt", random.choice([retyped, damaged])(random, LIST))
    read(OwnDataset("mine", test_list="list.txt"), root)


def idx(random: Random, root: Path) -> None:
    """MNIST, damaged before or after it is compressed."""
    packed = random.random() < 0.6
    files = {"images-idx3": IDX_IMAGES, "labels-idx1": IDX_LABELS}
    one = random.choice(list(files))
    within = random.random() < 0.6
    for name, content in files.items():
        content = damaged(random, content) if name == one and (within or not packed) else content
        content = gzip.compress(content) if packed else content
        content = damaged(random, content) if name == one and packed and not within else content
        write(root / "mnist" / f"t10k-{name}-ubyte{'.gz' if packed else ''}", content)
    read(MNIST(), root)


def matlab(random: Random, root: Path) -> None:
    """SVHN."""
    content = mat(random.random() < 0.3)
    if content == mat(True) and random.random() < 0.7:  # change what is compressed: the first element
        length = int.from_bytes(content[132:136], "little")
        inner = zlib.compress(damaged(random, zlib.decompress(content[136 : 136 + length])))
        content = content[:132] + struct.pack("<I", len(inner)) + inner + content[136 + length :]
    else:
        content = damaged(random, content)
    write(root / "svhn" / "test_32x32.mat", content)
    read(SVHN(), root)


def pickled(random: Random, root: Path) -> None:
    """CIFAR's folder."""
    protocol = random.randrange(6)
    files = {"test": batch(protocol), "meta": meta(protocol)}
    for name in random.sample(list(files), random.choice([1, 1, 2])):
        files[name] = damaged(random, files[name])
    for name, content in files.items():
        write(root / "cifar-100-python" / name, content)
    read(CIFAR100(), root)


def archived(random: Random, root: Path) -> None:
    """CIFAR's archive, damaged in its members, in its headers or once it is compressed."""
    where = random.choice(["member", "tar", "tar", "gzip", "headers"])
    member = batch(2, "labels")
    member = damaged(random, member) if where == "member" else member
    content = tar({"cifar-10-batches-py/test_batch": member, "cifar-10-batches-py/batches.meta": meta(2)})
    content = damaged(random, content) if where == "tar" else content
    if where == "headers":
        block = bytearray(content[:512])
        for _ in range(random.choice([1, 2, 4])):
            at = random.randrange(512)
            field = random.choice([(124, 136), (156, 157), (0, 100), (345, 500), (at, at + 8)])
            block[slice(*field)] = random.choice(
                [b"\x80" + bytes(11), b"\xff" * 12, b"7" * 11 + b"\0", b"xgLKSx12345", random.randbytes(12)]
            )[: field[1] - field[0]].ljust(field[1] - field[0], b"\0")
        block[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(block))[0]  # type: ignore[attr-defined]
        content = bytes(block) + content[512:]
    content = gzip.compress(content, 1) if random.random() < 0.7 else content
    content = damaged(random, content) if where == "gzip" else content
    write(root / "cifar-10-python.tar.gz", content)
    read(CIFAR10(), root)


def selected(random: Random, root: Path) -> None:
    """Tiny-ImageNet's zip."""
    name = random.choice(list(pictures()))
    within = random.random() < 0.4
    content = damaged(random, pictures()[name]) if within else pictures()[name]
    how = random.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    packed = zipped({"tiny/a.JPEG": content, "tiny/b.JPEG": pictures()["a.jpg"]}, how)
    write(root / "tiny-imagenet-200.zip", packed if within else damaged(random, packed))
    with patch("opencil.data.readers.selection.shipped_list", lambda name: ["a.JPEG", "b.JPEG"]):
        read(TIN(), root)


def corrupted(random: Random, root: Path) -> None:
    """CIFAR-100-C."""
    test = ImageSet("t", torch.from_numpy(pixels(5, 4, 3, SIDE, SIDE)), torch.arange(4))
    files = {"labels": array(np.tile(np.arange(4), 5)), "fog": array(pixels(6, 20, SIDE, SIDE, 3))}
    one = random.choice(list(files))
    files[one] = random.choice(
        [damaged(random, files[one]), zipped({"a.npy": files[one]}, zipfile.ZIP_STORED)]
    )
    for name, content in files.items():
        write(root / "C" / f"{name}.npy", content)
    made = ShiftedSet(("fog",), files="C").make("shifted", test, root)
    assert made.images.shape == (4, 3, SIDE, SIDE)


def prepared(random: Random, root: Path) -> None:
    """The cache of prepared images: what is damaged is made again, and the images are the same."""
    for i in range(3):
        write(root / "mine" / "cat" / f"{i}.png", pictures()["a.png"])
    write(root / "mine" / "dog" / "3.png", pictures()["a.png"])
    dataset = OwnDataset("mine")
    # A copy: the images are the file itself, mapped into memory.
    expected = dataset.load("test", SIDE, root).images.clone()
    one = random.choice(
        sorted(path for path in (root / ".opencil-cache").iterdir() if path.suffix != ".held")
    )
    one.write_bytes(damaged(random, one.read_bytes()))
    assert torch.equal(dataset.load("test", SIDE, root).images, expected)


def weights(random: Random, root: Path) -> None:
    """Files of weights."""
    tensors = {"weight": torch.zeros(3, 4), "bias": torch.ones(3)}
    if random.random() < 0.5:
        write(root / "w.safetensors", damaged(random, save(tensors)))
        pinned({"name": "resnet8", "weights": str(root / "w.safetensors")})
    else:
        file = io.BytesIO()
        torch.save(tensors, file, _use_new_zipfile_serialization=random.random() < 0.7)
        write(root / "w.pt", damaged(random, file.getvalue()))
        read_weights_file(root / "w.pt")


KINDS: list[Callable[[Random, Path], None]] = [
    *(picture, picture, picture, picture, tree, listed, idx, matlab, pickled, pickled, archived, selected),
    *(corrupted, prepared, weights),
]


def trial(random: Random, folder: Path) -> str:
    """Make a download and read it."""
    kind = random.choice(KINDS)
    try:
        kind(random, folder)
    except Exception as error:
        raise Input(kind.__name__, error) from None
    return kind.__name__


if __name__ == "__main__":
    main("reader inputs", trial)
