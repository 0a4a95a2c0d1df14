"""NVIDIA's Multi-Process Service: kernels of several processes run on one GPU at the same time."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from opencil.config import PlaceConfig


@contextmanager
def shared_gpu(places: Sequence[PlaceConfig]) -> Iterator[dict[str, str]]:
    """Start the service where several processes share a GPU; yield their environment variables.

    Without the service, or where one runs already, processes go without: the GPU gives them time in turn.
    """
    devices = [place.device for place in places if place.device.startswith("cuda")]
    control = shutil.which("nvidia-cuda-mps-control")
    if len(devices) == len(set(devices)) or control is None or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="opencil-mps-") as folder:
        variables = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        environment = {**os.environ, **variables}
        started = subprocess.run([control, "-d"], env=environment, check=False, capture_output=True)
        try:
            yield variables if started.returncode == 0 else {}
        finally:
            subprocess.run([control], input=b"quit\n", env=environment, check=False, capture_output=True)
