"""The Triton kernel under Triton's interpreter, on the CPU; test_convolution.py has it run on a GPU."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

INTERPRETED = """
import itertools
import torch
from opencil.kernels.weight_gradient import launch

random = torch.Generator().manual_seed(0)
for (inputs, outputs), (height, width), stride in itertools.product(
    [(16, 16), (16, 32), (64, 32)], [(5, 7), (8, 4)], [1, 2]
):
    x = torch.randn(3, inputs, height, width, generator=random)
    gradient = torch.randn(3, outputs, -(-height // stride), -(-width // stride), generator=random)
    expected = torch.nn.grad.conv2d_weight(x, (outputs, inputs, 3, 3), gradient, stride=stride, padding=1)
    torch.testing.assert_close(launch(x, gradient, stride), expected, rtol=1e-4, atol=1e-4)
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_the_kernel_gives_torchs_weight_gradient() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", INTERPRETED], env=environment, check=True, timeout=300)
