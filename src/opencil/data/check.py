"""What of a benchmark's data is there, whole, and as the paper counts it."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from opencil.atomic_files import digest
from opencil.data.decoding import decoded, workers_here
from opencil.data.file_dataset import FileDataset
from opencil.data.image_cache import SURVEY_SIDE
from opencil.data.images import Access, Dataset, Split
from opencil.data.roles import Role
from opencil.errors import BadInput

if TYPE_CHECKING:
    from opencil.data.readers.source import SplitOnDisk


#: Of more images than this, so many at even distances are decoded, unless all are asked for.
SAMPLE = 20_000
_BATCH = 256


@dataclass(frozen=True)
class Asked:
    """A split that a benchmark reads, and as what."""

    name: str
    dataset: Dataset
    split: Split
    role: Role | Literal["ID"]


@dataclass
class Checked:
    """What was found of a split; ``problem`` says why it cannot be used."""

    asked: Asked
    on_disk: "SplitOnDisk | None" = None
    images: int | None = None
    decoded: int = 0
    corrupt: list[str] = field(default_factory=list)
    checksum: Literal["", "canonical", "differs"] = ""
    problem: str = ""

    @property
    def expected(self) -> int | None:
        """Images in the paper."""
        dataset = self.asked.dataset
        return dataset.counts.get(self.asked.split) if isinstance(dataset, FileDataset) else None

    @property
    def differs(self) -> bool:
        """Whether it has another number of images than the paper: worth knowing, and no failure."""
        return self.images is not None and self.expected is not None and self.images != self.expected

    @property
    def usable(self) -> bool:
        """Whether a run could use it."""
        return self.images is not None and not self.problem and not self.corrupt


def check(
    asked: Asked,
    root: Path | None,
    size: int,
    full: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Checked:
    """Find a split, count its images, compare checksums and decode it, or a sample of it.

    One that lies in no files, but in an installed package, is loaded at ``size`` pixels.
    """
    result = Checked(asked)
    try:
        if not isinstance(asked.dataset, FileDataset):
            result.images = len(asked.dataset.serve(asked.name, asked.split, size, Access(root)))
            result.decoded = result.images
            return result
        result.on_disk = asked.dataset.find(asked.split, root)
        if result.on_disk is None:
            return result
        source = result.on_disk.source
        result.images = len(source)
        result.checksum = _checksum(result.on_disk, asked.dataset)
        for done, errors in _decoding(result.on_disk, full):
            result.decoded = done
            result.corrupt += errors
            if progress:
                progress(done, _tries(result.on_disk, full))
    except BadInput as error:
        result.problem = str(error)
    except OSError as error:  # of this split alone: the others are still looked at
        result.problem = f"{error.filename or asked.name} cannot be read: {error.strerror or error}"
    return result


def describe(dataset: Dataset, split: Split, root: Path | None) -> dict[str, Any]:
    """What to note about a split that a run reads: how many images the paper has, and whose files these are.

    ``files`` is ``canonical`` where they are, byte for byte, those that the dataset's makers distribute,
    ``differs`` where they are not, and empty where that is not known.
    """
    if not isinstance(dataset, FileDataset):
        return {"paper": None, "files": ""}
    place = dataset.find(split, root) if dataset.checksums else None
    return {"paper": dataset.counts.get(split), "files": _checksum(place, dataset) if place else ""}


def _checksum(on_disk: "SplitOnDisk", dataset: FileDataset) -> Literal["", "canonical", "differs"]:
    """Whether the files are those that the dataset's makers distribute; empty where that is not known."""
    known = [path for path in on_disk.parts if path.name in dataset.checksums]
    if not known:
        return ""
    same = all(digest(path, "md5") == dataset.checksums[path.name] for path in known)
    return "canonical" if same else "differs"


def _tries(on_disk: "SplitOnDisk", full: bool) -> int:
    """How many images are decoded; those of one file have been read anyway."""
    everything = full or not on_disk.separate
    return len(on_disk.source) if everything else min(len(on_disk.source), SAMPLE)


def _decoding(on_disk: "SplitOnDisk", full: bool) -> Iterator[tuple[int, list[str]]]:
    """After each batch: images decoded so far, and the batch's errors."""
    source = on_disk.source
    count = _tries(on_disk, full)
    chosen = [i * len(source) // count for i in range(count)]
    done = 0
    with closing(decoded(source, chosen, SURVEY_SIDE, _BATCH, workers_here())) as batches:
        for batch in batches:
            done += len(batch.pixels)
            yield done, [str(error) for error in batch.corrupt.values()]
