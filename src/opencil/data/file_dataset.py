"""Datasets that lie in files: found in a folder of downloads, prepared once, served resident or streamed."""

import hashlib
import logging
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch

from opencil.data.decoding import workers_here
from opencil.data.image_cache import CacheFile, Prepared, ProgressBar, cache_folder, no_progress
from opencil.data.images import Access, Dataset, Images, ImageSet, Split
from opencil.data.streamed import StreamedImages
from opencil.disk import DiskError
from opencil.errors import BadInput

if TYPE_CHECKING:
    from opencil.data.packs import Pack
    from opencil.data.readers.source import Layout, SplitOnDisk

_log = logging.getLogger("opencil.data")


@dataclass(frozen=True)
class FileDataset(Dataset):
    """A dataset in files."""

    #: What it is called where no benchmark gives it a name.
    name: ClassVar[str] = "images"
    #: The dataset's own site; empty for a user's own images.
    home: ClassVar[str] = ""
    #: Images of each split in the paper.
    counts: ClassVar[Mapping[str, int]] = {}
    #: MD5 of files as their makers distribute them, by file name.
    checksums: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def find(self, split: Split, root: Path | None) -> "SplitOnDisk | None":
        """Where the split lies, or None."""

    @abstractmethod
    def places(self, split: Split) -> tuple[str, ...]:
        """Where the split is looked for, relative to the folder of downloads; empty: it has no such split."""

    def locate(self, name: str, split: Split, root: Path | None) -> "SplitOnDisk":
        """Where the split lies; an error that says where it was expected and where to get it."""
        on_disk = self.find(split, root)
        if on_disk is not None:
            return on_disk
        places = self.places(split)
        what = f"{split} images of dataset {name!r}"
        if not places:
            raise BadInput(f"there are no {what}: it has only {', '.join(self.counts) or 'test'} images")
        if root is None:
            raise BadInput(
                f"{what} are in your downloads: name their folder with --data-root, $OPENCIL_DATA or "
                "place.data_root"
            )
        source = f"; its home page is {self.home}" if self.home else ""
        raise BadInput(f"{what} are not in {root}: expected at {' or at '.join(places[:3])}{source}")

    def load(self, split: Split, size: int, root: Path | None) -> ImageSet:
        """Images of a split, resident and through the cache in the folder of downloads."""
        return self.resident(self.name, split, size, Access(root))

    def resident(
        self,
        name: str,
        split: Split,
        size: int,
        access: Access,
        skip_corrupt: bool = False,
        progress: ProgressBar = no_progress,
    ) -> ImageSet:
        """Images of a split in memory, decoded now or before."""
        file = self.cache_file(name, split, size, access, self.locate(name, split, access.root))
        prepared = file.load() or _renewed(name, split, file, access, skip_corrupt, progress)
        return _in_memory(name, split, prepared)

    def serve(self, name: str, split: Split, size: int, access: Access) -> Images:
        """Images of a split, resident or streamed as the access says."""
        on_disk = self.locate(name, split, access.root)
        file = self.cache_file(name, split, size, access, on_disk)
        prepared = usable(file, access)
        if prepared is not None or not access.streams(len(on_disk.source), size):
            prepared = prepared or _renewed(name, split, file, access)
            return _in_memory(name, split, prepared)
        pack = pack_of(name, split, file)
        source = pack.load() or pack.source
        labels, workers = torch.from_numpy(source.labels), access.workers or workers_here()
        return StreamedImages(name, source, labels, size, workers, pack.key, source.classes, access.kept)

    def cache_file(
        self, name: str, split: Split, size: int, access: Access, on_disk: "SplitOnDisk"
    ) -> CacheFile:
        """The file that keeps the split's images of a size."""
        return CacheFile.of(cache_folder(access.root, access.cache), name, split, on_disk, size)


def pack_of(name: str, split: Split, file: CacheFile) -> "Pack":
    """The pack of a split that is streamed, made or not: all its images but those a survey has noted."""
    from opencil.data.packs import Pack
    from opencil.data.readers.source import Subset

    source, key = file.on_disk.source, file.key()
    if left_out := file.left_out():
        _log.warning("%s: %d corrupt %s images are left out", name, len(left_out), split)
        source = Subset.without(source, left_out)
        key = hashlib.sha256(f"{key} without {left_out}".encode()).hexdigest()
    return Pack(file.path.with_suffix(".pack"), source, key, file.side)


def usable(file: CacheFile, access: Access) -> Prepared | None:
    """What was prepared before and still holds, however large; nothing where streaming is asked for."""
    return None if access.store == "streamed" else file.load()


def _renewed(
    name: str,
    split: Split,
    file: CacheFile,
    access: Access,
    skip_corrupt: bool = False,
    progress: ProgressBar = no_progress,
) -> Prepared:
    def begin() -> None:
        _log.warning("preparing %s images of %s, once, into %s", split, name, file.path.parent)

    workers = access.workers or workers_here()
    try:
        return file.renew(workers, skip_corrupt, progress, begin)
    except DiskError as error:
        _log.warning("%s. They are decoded into memory for now, and so again at the next start", error)
        return file.in_memory(workers, skip_corrupt, progress)


def _in_memory(name: str, split: Split, prepared: Prepared) -> ImageSet:
    if prepared.skipped:
        _log.warning("%s: %d corrupt %s images are left out", name, len(prepared.skipped), split)
    images, labels = torch.from_numpy(prepared.images), torch.from_numpy(prepared.labels)
    return ImageSet(name, images, labels, prepared.classes)


def search(layouts: "tuple[Layout, ...]", root: Path | None) -> "SplitOnDisk | None":
    """The first layout that is there, in a folder of downloads or in one of the folders in it.

    A folder that may not be read is passed over, as it may be somebody else's; but where nothing else is
    found either, it is named.
    """
    if root is None:
        return None
    closed: PermissionError | None = None
    for base in _bases(root):
        for layout in layouts:
            try:
                on_disk = layout.find(base)
            except PermissionError as error:
                closed = closed or error
                continue
            if on_disk is not None:
                return on_disk
    if closed is not None:
        raise BadInput(f"{closed.filename or root} cannot be read: {closed.strerror}; it may be there")
    return None


def _bases(root: Path) -> Iterator[Path]:
    yield root
    try:
        inner = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError as error:
        raise BadInput(f"folder {root} cannot be read: {error.strerror}") from None
    yield from inner
