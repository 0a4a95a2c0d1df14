"""The Triton kernel under Triton's interpreter, on the CPU; test_convolution.py has it run on a GPU."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

#: Channels in and out, images, height, width, stride; the last three make every program loop.
SHAPES = [
    (16, 16, 3, 5, 7, 1),
    (16, 32, 3, 8, 4, 2),
    (64, 32, 1, 1, 1, 1),
    (32, 16, 2, 7, 5, 2),
    (16, 16, 9, 32, 32, 1),
    (32, 32, 17, 16, 16, 1),
    (64, 64, 40, 8, 8, 1),
]

INTERPRETED = f"""
import torch
from opencil.kernels.weight_gradient import launch

random = torch.Generator().manual_seed(0)
for inputs, outputs, images, height, width, stride in {SHAPES}:
    x = torch.randn(images, inputs, height, width, generator=random)
    gradient = torch.randn(images, outputs, -(-height // stride), -(-width // stride), generator=random)
    expected = torch.nn.grad.conv2d_weight(x, (outputs, inputs, 3, 3), gradient, stride=stride, padding=1)
    found = launch(x, gradient, stride)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="test_convolution.py has the kernel itself run here")
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_the_kernel_gives_torchs_weight_gradient() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", INTERPRETED], env=environment, check=True, timeout=300)
