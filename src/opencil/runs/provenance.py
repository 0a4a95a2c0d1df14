"""What made a result: the source, the versions, the device and its precision, and when."""

import hashlib
import platform
import shlex
import sys
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from opencil._version import __version__
from opencil.engine.arithmetic import Arithmetic
from opencil.engine.ranks import several
from opencil.plugins import Notes

#: Beside torch and numpy, what reads or makes images and rows.
_PACKAGES = ("pandas", "pillow", "pyarrow", "safetensors", "scikit-learn", "scipy", "triton")


def environment(device: torch.device) -> dict[str, Any]:
    """Versions and device, for a run's record."""
    return {
        "opencil": __version__,
        "source": source_digest(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": platform.system(),
        "machine": platform.machine(),
        "device": device_name(device),
        **decides_bits(device),
        **{name: found for name in _PACKAGES if (found := _installed(name))},
        "command": command(),
    }


def decides_bits(device: torch.device) -> dict[str, Any]:
    """What beside versions and seeds decides the last bits of what is computed here."""
    found: dict[str, Any] = {
        "threads": torch.get_num_threads(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "only_deterministic": torch.are_deterministic_algorithms_enabled(),
        "ranks": 1 if (ranks := several()) is None else ranks.size,
    }
    if device.type == "cuda":
        found |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}  # type: ignore[no-untyped-call]
    return found


def command() -> str:
    """What the process was started with, as a shell takes it; without the folder that the program lies in."""
    program, *flags = sys.argv or [""]
    name = "opencil" if Path(program).name == "__main__.py" else Path(program).name
    text = shlex.join([name, *flags])
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def made_now(device: torch.device, training: Arithmetic, plugins: Notes) -> dict[str, Any]:
    """What makes rows at this moment, for their record; a run may be made in several calls."""
    digests = {plugin: note["sha256"] for plugin, note in plugins.items()}
    return ({"plugins": digests} if digests else {}) | {
        "source": source_digest(),
        "torch": torch.__version__,
        "device": device_name(device),
        "precision": training.on(device),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


@cache
def source_digest() -> str:
    """A digest of the package's source: what two runs have in common that the same code made."""
    package, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def device_name(device: torch.device) -> str:
    """A GPU's own name, or what kind of device it is."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
