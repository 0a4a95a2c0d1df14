"""The contact sheet: the images on it and their places."""

import numpy as np
import torch

from opencil.data.contact_sheet import contact_sheet
from opencil.data.images import ImageSet


def test_the_sheet_has_the_images_enlarged_in_rows() -> None:
    pixels = torch.randint(0, 256, (12, 3, 32, 32), dtype=torch.uint8)
    names = ("ant", "bee", "a-name-too-long-for-its-cell", "dog")
    images = ImageSet("toy", pixels, torch.arange(12) % 4, names)
    sheet = np.asarray(contact_sheet(images, "toy, test images", count=12))
    assert sheet.shape[1] == 10 * (96 + 10) + 10
    order = sorted(range(12), key=lambda i: (i % 4, i))
    few = contact_sheet(images, "toy, test images", count=4)
    assert few.width == 4 * (96 + 10) + 10
    for position in (0, 5, 7, 11):
        top, left = 62 + position // 10 * (96 + 18 + 10), 10 + position % 10 * (96 + 10)
        cell = sheet[top : top + 96, left : left + 96]
        np.testing.assert_array_equal(cell[1::3, 1::3], pixels[order[position]].permute(1, 2, 0).numpy())


def test_large_images_are_reduced_and_labels_need_no_names() -> None:
    images = ImageSet("toy", torch.zeros(2, 3, 200, 200, dtype=torch.uint8), torch.tensor([0, 7]))
    assert contact_sheet(images, "toy", count=5).width == 2 * (160 + 10) + 10
