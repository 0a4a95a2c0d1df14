"""What happens to stored files: bits flip, ends are lost, other things lie in their places.

``DAMAGES`` are all kinds of damage but flips, each a function of the file and of one of the same kind from
elsewhere; ``flips`` are positions of single bits, random ones and every one of the first bytes.
"""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from safetensors.torch import load_file, save_file

from opencil.runs import file_formats

Damage = Callable[[Path, Path], None]

#: The kinds of files that a run stores, as patterns below its folder.
KINDS = (
    "config.yml",
    "environment.json",
    "data.json",
    "step*/step.json",
    "step*/model.safetensors",
    "step*/memory.safetensors",
    "step*/accuracy.parquet",
    "step*/checkpoint.safetensors",
    "step*/heads/*[!t].safetensors",
    "step*/heads/*.checkpoint.safetensors",
    "step*/detectors/*.parquet",
)


def stored(run: Path, kind: str) -> list[Path]:
    """The files of a kind in a run's folder."""
    return sorted(run.glob(kind))


def flip(path: Path, position: int) -> None:
    """Flip one bit of a file, counted from its first byte's lowest; again, and it is as it was."""
    with path.open("r+b", buffering=0) as file:  # in place: a file that is cut and written anew takes long
        file.seek(position // 8)
        (byte,) = file.read(1)
        file.seek(position // 8)
        file.write(bytes([byte ^ 1 << position % 8]))


def flips(path: Path, count: int, seed: object, header: int = 0) -> Iterator[int]:
    """Positions of bits in a file: ``count`` random ones, and one in each of the first ``header`` bytes."""
    size, drawn = path.stat().st_size, random.Random(f"{path.name} {seed}")
    yield from (drawn.randrange(8 * size) for _ in range(count))
    yield from (8 * byte + drawn.randrange(8) for byte in range(min(size, header)))


def _truncated(path: Path, other: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: 2 * len(content) // 3])


def _empty(path: Path, other: Path) -> None:
    path.write_bytes(b"")


def _zeros(path: Path, other: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _swapped(path: Path, other: Path) -> None:
    path.write_bytes(other.read_bytes())


def _folder(path: Path, other: Path) -> None:
    path.unlink()
    (path / "inside").mkdir(parents=True)


def _link_elsewhere(path: Path, other: Path) -> None:
    path.unlink()
    path.symlink_to(other)


def _link_to_nothing(path: Path, other: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent / "nothing")


def _link_to_itself(path: Path, other: Path) -> None:
    """The file is there, and its place is a link to it, as where somebody moves files to another disk."""
    moved = path.with_name(f"moved-{path.name}.elsewhere")
    path.rename(moved)
    path.symlink_to(moved)


def _unreadable(path: Path, other: Path) -> None:
    """A device that gives errors is what root, too, cannot read; a file's permissions are not."""
    path.unlink()
    path.symlink_to("/proc/self/mem")


DAMAGES: dict[str, Damage] = {
    "truncated": _truncated,
    "empty": _empty,
    "zeros": _zeros,
    "swapped": _swapped,
    "folder": _folder,
    "link elsewhere": _link_elsewhere,
    "link to nothing": _link_to_nothing,
    "link to itself": _link_to_itself,
    "unreadable": _unreadable,
}


def unseal(path: Path) -> None:
    """Make a JSON or YML file one from before there were seals, which somebody may write anything into."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        content = {key: value for key, value in json.loads(text).items() if key != "seal"}
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    elif text.startswith("# <sha256"):
        path.write_text(text.partition("\n")[2], encoding="utf-8")


def unseal_run(run: Path) -> None:
    """Make a run one from before there were seals, when rows and heads did not say whose they are."""
    import pandas as pd

    models = {}
    for path in sorted(run.rglob("*.safetensors")):
        notes = file_formats.metadata(path) or {}
        if "elsewhere" in notes:
            raise ValueError(f"{path} refers to another file by its checksum")
        kept = {key: value for key, value in notes.items() if key in ("made_of", "seconds")}
        if path.name == "checkpoint.safetensors":
            kept.pop("made_of", None)
        save_file(load_file(path), path, kept or None)
        models[path] = file_formats.read_checked(path)[2]
    for path in run.rglob("*.parquet"):
        rows = pd.read_parquet(path)
        rows.attrs.pop("model", None)
        rows.to_parquet(path, index=False)
    for path in [run / "config.yml", *run.rglob("*.json")]:
        unseal(path)
        if path.suffix == ".json":
            content = json.loads(path.read_text(encoding="utf-8"))
            content.pop("run", None)
            if content.pop("memory_sha256", None):
                content["weights_sha256"] = models[path.parent / "model.safetensors"]
            path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def copy_of(run: Path, to: Path) -> Path:
    """A copy of a run's folder to damage."""
    return Path(shutil.copytree(run, to, symlinks=True))
