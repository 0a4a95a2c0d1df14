"""What a machine has of what runs need: versions, devices, memory, data, folders; and what to do."""

import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Literal

import torch

from opencil._version import __version__
from opencil.config import Config, list_benchmarks, resolve
from opencil.data.file_dataset import FileDataset
from opencil.data.image_cache import cache_folder
from opencil.data.images import Access
from opencil.data.kept_pixels import free_memory
from opencil.engine.arithmetic import has_bfloat16
from opencil.engine.device import resolve_device
from opencil.errors import OpenCILError
from opencil.registry import load_plugins
from opencil.runs.loading import splits
from opencil.runs.provenance import device_name

#: Packages that not everybody needs, and what for.
OPTIONAL = {
    "tensorboard": "training curves (--tensorboard)",
    "timm": "the backbones of timm (backbone: {name: timm})",
}
_GIB = 2**30
_ROOM = 2 * _GIB  #: below this, memory or disk is worth a word
_LEAST = 50 * 2**20  #: what the embedded benchmark's runs take on disk, and a little more


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at; ``bad`` is what the embedded benchmark could not run with."""

    group: str
    name: str
    found: str
    state: Literal["good", "note", "bad"] = "good"
    advice: str = ""


def checkup(data_root: str | None = None, runs: str = "runs") -> Iterator[Finding]:
    """Look at this machine as a run with these folders would find it; nothing is written."""
    yield from _versions()
    yield from _plugins()
    yield from _devices()
    yield _memory()
    root = Path(data_root).expanduser() if data_root else None
    if root is not None and not root.is_dir():
        advice = "name the folder of your downloads with --data-root or $OPENCIL_DATA, or none"
        yield Finding("data", "folder", f"there is no folder {root}", "bad", advice)
        root = None
    for name in list_benchmarks():
        yield _benchmark(name, root)
    outputs = resolve({"place": {"runs": runs}}).place
    yield _folder("runs", Path(runs).expanduser(), "bad", "name another folder with --runs")
    yield _folder("outputs", outputs.outputs_folder, "bad", "name another with --set place.outputs=DIR")
    cache = cache_folder(root)
    yield _folder("images", cache, "note", "name another folder for prepared images by $OPENCIL_CACHE")


def _versions() -> Iterator[Finding]:
    def of(package: str) -> str | None:
        try:
            return version(package)
        except PackageNotFoundError:
            return None

    yield Finding("versions", "opencil", __version__)
    yield Finding("versions", "python", f"{platform.python_version()} on {platform.platform(terse=True)}")
    built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    yield Finding("versions", "torch", f"{torch.__version__}, built {built}")
    if (triton := of("triton")) or not torch.cuda.is_available():
        yield Finding("versions", "triton", triton or "not installed; a GPU would want it")
    else:
        advice = "our kernels need it, and torch's take their place: pip install triton"
        yield Finding("versions", "triton", "not installed", "note", advice)
    for package, use in OPTIONAL.items():
        yield Finding("versions", package, of(package) or f"not installed; needed for {use}")


def _plugins() -> Iterator[Finding]:
    names = [point.name for point in entry_points(group="opencil.plugins")]
    try:
        load_plugins()
    except OpenCILError as error:
        advice = "mend it or uninstall it: every command imports it"
        yield Finding("versions", "plugins", str(error), "bad", advice)
    else:
        yield Finding("versions", "plugins", ", ".join(names) or "none installed")


def _devices() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding("devices", "cpu", f"cores: {cores}, threads: {torch.get_num_threads()}")
    for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        yield _gpu(torch.device("cuda", i))
    if torch.backends.mps.is_available():
        found = "there, float32 alone; asked for by --device mps, and never measured"
        yield Finding("devices", "mps", found, "note", "results of ours are of CPUs and CUDA's GPUs")
    yield from _missing_gpu()
    try:
        chosen = resolve_device("auto")
        image = torch.ones(1, 1, 3, 3, device=chosen)
        torch.nn.functional.conv2d(image, image).item()
    except (OpenCILError, RuntimeError) as error:
        advice = "use another with --device; --device cpu is always there"
        yield Finding("devices", "auto", str(error).split("\n")[0], "bad", advice)
    else:
        yield Finding("devices", "auto", f"{device_name(chosen)}, unless --device names another")


def _gpu(device: torch.device) -> Finding:
    name = f"cuda:{device.index}"
    try:
        free, total = torch.cuda.mem_get_info(device)
    except RuntimeError as error:
        advice = "is it in use by others, or in a state of its own? nvidia-smi says more"
        return Finding("devices", name, str(error).split("\n")[0], "note", advice)
    bf16 = has_bfloat16(device)
    found = f"{device_name(device)}, {free / _GIB:.1f} of {total / _GIB:.1f} GiB free, "
    found += "bfloat16" if bf16 else "no bfloat16"
    if free < _ROOM:
        return Finding("devices", name, found, "note", "other programs hold its memory: wait, or stop them")
    return Finding("devices", name, found, advice="" if bf16 else "trainings are in float32 there")


def _missing_gpu() -> Iterator[Finding]:
    """A GPU that the machine has and torch does not find."""
    driver = Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None
    if driver and not torch.cuda.is_available():
        reason = "torch finds no GPU" if torch.version.cuda else "torch was built without CUDA"
        advice = "install a build of torch for your driver: https://pytorch.org/get-started/locally"
        yield Finding("devices", "cuda", f"there is an NVIDIA driver, and {reason}", "note", advice)


def _memory() -> Finding:
    if (free := free_memory()) is None:
        return Finding("devices", "memory", "how much is free is not known on this system")
    found = f"{free / _GIB:.1f} GiB free"
    if free < _ROOM:
        return Finding("devices", "memory", found, "note", "stop other programs, or expect a crash")
    return Finding("devices", "memory", found)


def _benchmark(name: str, root: Path | None) -> Finding:
    config = resolve({"benchmark": name})
    asked = splits(config)
    in_files = [split for split in asked if isinstance(split.dataset, FileDataset)]
    if not in_files:
        return _embedded(name, config)
    if root is None:
        found = f"{len(in_files)} sets in files, and no folder of downloads is named"
        return Finding("data", name, found, "note", "name it with --data-root or $OPENCIL_DATA")
    missing = []
    for split in in_files:
        assert isinstance(split.dataset, FileDataset)
        try:
            if split.dataset.find(split.split, root) is None:
                missing.append(f"{split.name} ({split.split})")
        except (OpenCILError, OSError) as error:
            missing.append(f"{split.name} ({split.split}: {error})")
    found = f"{len(in_files) - len(missing)} of {len(in_files)} sets found in {root}"
    if not missing:
        return Finding("data", name, found)
    advice = f"'opencil data check {root} --benchmark {name}' says where to get them"
    return Finding("data", name, f"{found}; missing: {', '.join(missing)}", "note", advice)


def _embedded(name: str, config: Config) -> Finding:
    """A benchmark whose images come with packages: all of them are loaded."""
    try:
        counts = [
            len(split.dataset.serve(split.name, split.split, config.benchmark.image_size, Access()))
            for split in splits(config)
        ]
    except (OpenCILError, ImportError, OSError) as error:
        return Finding("data", name, str(error), "bad", "install scikit-learn and pillow again")
    return Finding("data", name, f"embedded, {sum(counts):,} images")


def _folder(name: str, path: Path, state: Literal["note", "bad"], elsewhere: str) -> Finding:
    """Whether a folder, or what would become its parent, can be written to and has room."""
    there = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not there.is_dir():
        return Finding("folders", name, f"{there} is a file", state, elsewhere)
    if not os.access(there, os.W_OK | os.X_OK):
        return Finding("folders", name, f"{there} cannot be written to", state, elsewhere)
    free = shutil.disk_usage(there).free
    found = f"{path}, {free / _GIB:.1f} GiB of disk free"
    if free < _ROOM:
        advice = f"free some, or {elsewhere}; --outputs-limit 0 keeps no outputs of models"
        return Finding("folders", name, found, state if free < _LEAST else "note", advice)
    return Finding("folders", name, found)
