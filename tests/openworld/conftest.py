"""A small network with fixed weights, and photographs of coloured patterns."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import opencil
from opencil.engine.seeding import generator, seeded
from opencil.nets.create import create_backbone

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


@pytest.fixture(scope="session")
def network(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Arguments of a classifier with a tiny backbone."""
    path = tmp_path_factory.mktemp("weights") / "resnet8.safetensors"
    with seeded("small network"):
        save_file(create_backbone("resnet8").state_dict(), path)
    transform = {"mean": [0.5] * 3, "std": [0.25] * 3, "crop": 16, "resize": 16}
    return {
        "backbone": {"name": "resnet8", "weights": str(path)},
        "transform": transform,
        "runtime": "torch",
        "learner": {"name": "ranpac", "width": 300},
    }


@pytest.fixture
def make(network: dict[str, Any]) -> Callable[..., opencil.OpenWorldClassifier]:
    return lambda **values: opencil.OpenWorldClassifier(**{**network, **values})


def picture(label: int, number: int, side: int = 20) -> Pixels:
    """An image of a class: a direction of stripes in a colour, with noise."""
    numbers = generator("picture", label, number)
    x, y = np.meshgrid(np.arange(side), np.arange(side))
    wave = np.sin((x * np.cos(label) + y * np.sin(label)) * (0.4 + 0.25 * label))
    colour = np.array([np.cos(2.1 * label + shift) for shift in (0, 2, 4)])
    noise = torch.randn(side, side, 3, generator=numbers).numpy()
    return (128 + 55 * wave[..., None] + 45 * colour + 18 * noise).clip(0, 255).astype(np.uint8)


def pictures(labels: list[int], each: int, start: int = 0) -> tuple[list[Pixels], list[str]]:
    pairs = [(picture(label, n), f"class {label}") for label in labels for n in range(start, start + each)]
    return [image for image, _ in pairs], [name for _, name in pairs]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four folders of ten images each."""
    for label in range(4):
        (tmp_path / "photos" / f"class {label}").mkdir(parents=True)
        for n in range(10):
            Image.fromarray(picture(label, n)).save(tmp_path / "photos" / f"class {label}" / f"{n}.png")
    return tmp_path / "photos"
