"""Write small folders of downloads in all layouts, and unpack the real datasets if they are present."""

import gzip
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from PIL import Image

Picture = Callable[..., Path]
Tree = Callable[[Path, Mapping[str, int]], Path]


@pytest.fixture(autouse=True)
def _no_user_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENCIL_CACHE", raising=False)


def pixels_of(seed: int, height: int = 8, width: int = 8) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.fixture(scope="session")
def picture() -> Picture:
    """Write an image file of random pixels: ``picture(path, seed, height, width)``; PNG is lossless."""

    def write(path: Path, seed: int = 0, height: int = 8, width: int = 8) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels_of(seed, height, width)).save(path)
        return path

    return write


@pytest.fixture(scope="session")
def tree(picture: Picture) -> Tree:
    """Write a folder per class with a number of images: ``tree(folder, {"cat": 2, "dog": 3})``."""

    def write(folder: Path, classes: Mapping[str, int]) -> Path:
        seed = 0
        for name, count in classes.items():
            (folder / name).mkdir(parents=True)
            for i in range(count):
                picture(folder / name / f"{i}.png", seed)
                seed += 1
        return folder

    return write


@pytest.fixture(scope="session")
def cifar() -> Callable[..., Path]:
    """Write CIFAR-100's folder with a few random images per split; return the folder of downloads."""

    def write(root: Path, train: int = 6, test: int = 4, classes: int = 2, protocol: int = 2) -> Path:
        folder = root / "cifar-100-python"
        folder.mkdir(parents=True, exist_ok=True)
        for split, count in (("train", train), ("test", test)):
            rows = np.random.default_rng(count).integers(0, 256, (count, 3072), dtype=np.uint8)
            labels = [i % classes for i in range(count)]
            content = {b"data": rows, b"fine_labels": labels, b"batch_label": split.encode()}
            (folder / split).write_bytes(pickle.dumps(content, protocol=protocol))
        names = [f"class {c}".encode() for c in range(classes)]
        (folder / "meta").write_bytes(pickle.dumps({b"fine_label_names": names}, protocol=protocol))
        return root

    return write


@pytest.fixture(scope="session")
def mnist() -> Callable[..., Path]:
    """Write MNIST's test files with a few random images; return the folder of downloads."""

    def write(root: Path, count: int = 5, compress: bool = True) -> Path:
        raw = root / "MNIST" / "raw"
        raw.mkdir(parents=True, exist_ok=True)
        images = np.random.default_rng(7).integers(0, 256, (count, 28, 28), dtype=np.uint8).tobytes()
        labels = bytes(i % 10 for i in range(count))
        for name, head, content in (
            ("t10k-images-idx3-ubyte", struct.pack(">IIII", 2051, count, 28, 28), images),
            ("t10k-labels-idx1-ubyte", struct.pack(">II", 2049, count), labels),
        ):
            whole = head + content
            path = raw / (f"{name}.gz" if compress else name)
            path.write_bytes(gzip.compress(whole) if compress else whole)
        return root

    return write


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of the real data, or skip the test."""
    chosen = os.environ.get("OPENCIL_SHARED")
    folder = Path(chosen) if chosen else Path(__file__).resolve().parents[3].parent / "shared"
    if not (folder / "tools" / "unpack-data").is_file():
        pytest.skip("no ../shared/tools/unpack-data, and $OPENCIL_SHARED is not set")
    return folder


@pytest.fixture(scope="session")
def real(shared: Path, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Callable[..., Path]:
    """Unpack parts of the real data: ``real("mnist", "tin")`` returns the folder of downloads.

    Test processes share the folder, and each part is unpacked once.
    """
    own = tmp_path_factory.getbasetemp()
    common = own if worker_id == "master" else own.parent
    root, done = common / "real", common / "unpacked"
    done.mkdir(exist_ok=True)

    def unpack(*parts: str) -> Path:
        with FileLock(done / "lock", timeout=600):
            missing = [part for part in parts if not (done / part).exists()]
            if missing:
                tool = shared / "tools" / "unpack-data"
                subprocess.run([sys.executable, tool, root, *missing], check=True, stdout=subprocess.DEVNULL)
            for part in missing:
                (done / part).touch()
        return root

    return unpack
