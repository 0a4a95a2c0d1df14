"""The Triton kernels under Triton's interpreter; tests/nets/test_fused.py has them run on a GPU."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch


@pytest.mark.skipif(torch.cuda.is_available(), reason="test_fused.py has the kernels themselves run here")
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_the_kernels_compute_what_torch_does() -> None:
    script = Path(__file__).parent / "against_torch.py"
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, script], env=environment, timeout=600, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
