"""Provenance of a result: source, versions, device, precision and time."""

import hashlib
import platform
import shlex
import sys
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from opencil._version import __version__
from opencil.engine.arithmetic import Arithmetic
from opencil.engine.ranks import current
from opencil.plugins import Notes

#: Packages beside torch and numpy that images and rows depend on.
_PACKAGES = ("pandas", "pillow", "pyarrow", "safetensors", "scikit-learn", "scipy", "triton")


def environment(device: torch.device) -> dict[str, Any]:
    """Return versions and device, for a run's record."""
    return {
        "opencil": __version__,
        "source": source_digest(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": platform.system(),
        "machine": platform.machine(),
        "device": device_name(device),
        **describe_arithmetic(device),
        **{name: version(name) for name in _PACKAGES if name != "triton" or find_spec("triton")},
        "command": command(),
    }


def describe_arithmetic(device: torch.device) -> dict[str, Any]:
    """Return the settings behind the last bits of results, beside versions and seeds."""
    cudnn: Any = torch.backends.cudnn
    return {
        "threads": torch.get_num_threads(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "only_deterministic": torch.are_deterministic_algorithms_enabled(),
        "ranks": 1 if (ranks := current()) is None else ranks.size,
    } | ({"cuda": torch.version.cuda, "cudnn": cudnn.version()} if device.type == "cuda" else {})


def command() -> str:
    """Return the command line of this process, without the folder of the program."""
    program, *flags = sys.argv
    name = "opencil" if Path(program).name == "__main__.py" else Path(program).name
    return shlex.join([name, *flags])


def describe_maker(device: torch.device, training: Arithmetic, plugins: Notes) -> dict[str, Any]:
    """Return the provenance of new rows."""
    return ({"plugins": plugins} if plugins else {}) | {
        "source": source_digest(),
        "torch": torch.__version__,
        "device": device_name(device),
        "precision": training.on(device),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


@cache
def source_digest() -> str:
    """Return a digest of the package's source."""
    package, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def device_name(device: torch.device) -> str:
    """Return a GPU's name, or the kind of another device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
