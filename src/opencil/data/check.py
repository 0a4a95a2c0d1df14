"""Check which of a benchmark's data are present and can be decoded, and compare them with the paper."""

import hashlib
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from opencil.data.file_dataset import FileDataset
from opencil.data.images import Access, Dataset, Progress, Split
from opencil.data.readers.source import FileSource, SplitOnDisk
from opencil.data.roles import Role
from opencil.data.streamed import count_workers, decode_batches
from opencil.errors import BadInput

#: Images to decode of a larger split, at even distances, unless all are requested.
SAMPLE = 20_000
_SIDE, _BATCH = 32, 256  # a small side makes decoding cheap
#: Whether files have the checksums of the authors' files; empty if none is known.
Checksum = Literal["", "canonical", "differs"]


@dataclass(frozen=True)
class BenchmarkSplit:
    """A split that a benchmark reads, and its role."""

    name: str
    dataset: Dataset
    split: Split
    role: Role | Literal["ID"]


@dataclass
class CheckResult:
    """The result of checking a split; ``problem`` is the reason why it cannot be used."""

    entry: BenchmarkSplit
    on_disk: SplitOnDisk | None = None
    images: int | None = None
    decoded: int = 0
    corrupt: list[str] = field(default_factory=list)
    checksum: Checksum = ""
    problem: str = ""

    @property
    def expected(self) -> int | None:
        """Return the number of images in the paper."""
        dataset = self.entry.dataset
        return dataset.counts.get(self.entry.split) if isinstance(dataset, FileDataset) else None

    @property
    def usable(self) -> bool:
        """Return whether a run can use the split."""
        return self.images is not None and not self.problem and not self.corrupt


def check(entry: BenchmarkSplit, root: Path | None, size: int, full: bool, progress: Progress) -> CheckResult:
    """Find a split, count its images, compare checksums and decode all images or a sample."""
    result = CheckResult(entry)
    try:
        if not isinstance(entry.dataset, FileDataset):
            images = entry.dataset.serve(entry.name, entry.split, size, Access(root))
            result.images = result.decoded = len(images)
            return result
        result.on_disk = entry.dataset.locate(entry.name, entry.split, root)
        source = result.on_disk.source
        result.images = len(source)
        result.checksum = _compare_checksums(result.on_disk, entry.dataset)
        # Images of a single file are in memory already: all of them are decoded.
        sampled = isinstance(source, FileSource) and not full
        count = min(len(source), SAMPLE) if sampled else len(source)
        rows = [i * len(source) // count for i in range(count)]
        with closing(decode_batches(source, rows, _SIDE, _BATCH, count_workers())) as batches:
            for pixels, errors in batches:
                result.decoded += len(pixels)
                result.corrupt += map(str, errors.values())
                progress(result.decoded, count)
    except (BadInput, OSError) as error:  # other splits are checked all the same
        result.problem = str(error)
    return result


def describe(dataset: Dataset, split: Split, root: Path | None) -> dict[str, Any]:
    """Return a record of a split: the paper's number of images, and whether its files are the authors'."""
    if not isinstance(dataset, FileDataset):
        return {"paper": None, "files": ""}
    place = dataset.find(split, root) if dataset.checksums else None
    return {"paper": dataset.counts.get(split), "files": _compare_checksums(place, dataset)}


def _compare_checksums(place: SplitOnDisk | None, dataset: FileDataset) -> Checksum:
    parts = place.layout.parts(place.place) if place else ()
    known = [path for path in parts if path.name in dataset.checksums]
    same = all(hashlib.md5(path.read_bytes()).hexdigest() == dataset.checksums[path.name] for path in known)
    return ("canonical" if same else "differs") if known else ""
