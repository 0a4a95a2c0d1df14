"""Check this machine for runs: versions, devices, memory, data and folders."""

import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import torch

from opencil._version import __version__
from opencil.config import Config, list_benchmarks
from opencil.config.resolving import describe_benchmark
from opencil.data.file_dataset import FileDataset
from opencil.engine.arithmetic import has_bfloat16
from opencil.engine.device import resolve_device
from opencil.errors import OpenCILError
from opencil.files import size_in_words
from opencil.registry import load_plugins
from opencil.runs.loading import splits
from opencil.runs.provenance import device_name

#: Optional packages, and their use.
OPTIONAL = {
    "triton": "kernels of ours on a GPU",
    "tensorboard": "curves of runs (--log tensorboard)",
    "wandb": "curves of runs (--log wandb)",
    "mlflow-skinny": "curves of runs (--log mlflow)",
    "timm": "the backbones of timm (backbone: {name: timm})",
    "ray": "a grid on a cluster (--launcher ray)",
}
_ROOM = 2 * 2**30  #: disk or GPU memory below this is reported
_BUILT = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"


@dataclass(frozen=True)
class Finding:
    """One checked item; with a ``bad`` item not even the embedded benchmark runs."""

    group: str
    name: str
    found: str
    state: Literal["good", "note", "bad"] = "good"
    advice: str = ""


def checkup(data_root: str | None = None, runs: str = "runs") -> Iterator[Finding]:
    """Yield findings about this machine, and about these folders; nothing is written."""
    yield Finding("versions", "opencil", __version__)
    yield Finding("versions", "python", f"{platform.python_version()} on {platform.platform(terse=True)}")
    yield Finding("versions", "torch", f"{torch.__version__}, {_BUILT}")
    for package, use in OPTIONAL.items():
        found = version(package) if find_spec(package.removesuffix("-skinny")) else f"not installed ({use})"
        yield Finding("versions", package, found)
    yield _check_plugins()
    yield from _check_devices()
    root = Path(data_root).expanduser() if data_root else None
    if root is not None and not root.is_dir():
        advice = "name the folder of your downloads with --data-root or $OPENCIL_DATA, or none"
        yield Finding("data", "folder", f"there is no folder {root}", "bad", advice)
        root = None
    for name in list_benchmarks():
        yield _check_benchmark(name, root)
    yield _check_folder(Path(runs).expanduser())


def _check_plugins() -> Finding:
    try:
        load_plugins()
    except OpenCILError as error:
        return Finding("versions", "plugins", str(error), "bad", "repair or uninstall it")
    names = [point.name for point in entry_points(group="opencil.plugins")]
    return Finding("versions", "plugins", ", ".join(names) or "none installed")


def _check_devices() -> Iterator[Finding]:
    yield Finding("devices", "cpu", f"cores: {os.cpu_count()}, threads: {torch.get_num_threads()}")
    for device in (torch.device("cuda", i) for i in range(torch.cuda.device_count())):
        free, total = torch.cuda.mem_get_info(device)
        precision = "bfloat16" if has_bfloat16(device) else "no bfloat16, so trainings are in float32"
        found = f"{device_name(device)}, {size_in_words(free)} of {size_in_words(total)} free, {precision}"
        full = ("note", "other programs use its memory: wait, or stop them") if free < _ROOM else ()
        yield Finding("devices", str(device), found, *full)
    if shutil.which("nvidia-smi") and not torch.cuda.is_available():
        found = f"there is an NVIDIA driver, and torch is {_BUILT}"
        advice = "install a build of torch for your driver: https://pytorch.org/get-started/locally"
        yield Finding("devices", "cuda", found, "note", advice)
    try:
        chosen = resolve_device("auto")
        image = torch.ones(1, 1, 3, 3, device=chosen)
        torch.nn.functional.conv2d(image, image).item()
    except (OpenCILError, RuntimeError) as error:
        advice = "use another with --device; --device cpu is always there"
        yield Finding("devices", "auto", str(error).split("\n")[0], "bad", advice)
    else:
        yield Finding("devices", "auto", f"{device_name(chosen)}, unless --device names another")


def _check_benchmark(name: str, root: Path | None) -> Finding:
    """Check whether a benchmark's datasets are embedded, or in the folder of downloads."""
    read = splits(Config(describe_benchmark(name), {}, {}))
    in_files = [(s.name, s.split, d) for s in read if isinstance(d := s.dataset, FileDataset)]
    if not in_files:
        return Finding("data", name, "embedded")
    if root is None:
        sets = f"{len(in_files)} sets in files, and no folder of downloads is named"
        return Finding("data", name, sets, "note", "name it with --data-root or $OPENCIL_DATA")
    missing = [f"{each} ({split})" for each, split, d in in_files if d.find(split, root) is None]
    sets = f"{len(in_files) - len(missing)} of {len(in_files)} sets found in {root}"
    if not missing:
        return Finding("data", name, sets)
    advice = f"'opencil data check {root} --benchmark {name}' says where to get them"
    return Finding("data", name, f"{sets}; missing: {', '.join(missing)}", "note", advice)


def _check_folder(path: Path) -> Finding:
    """Check whether a folder, or its future parent, can be written to and has room."""
    there = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        advice = "name another folder with --runs"
        return Finding("folders", "runs", f"{there} is not a folder that can be written to", "bad", advice)
    free = shutil.disk_usage(there).free
    found = f"{path}, {size_in_words(free)} of disk free"
    return Finding("folders", "runs", found, *(("note", "free some space") if free < _ROOM else ()))
