"""Use your own image files as an ID or OOD dataset, from a config alone."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from opencil.data.file_dataset import FileDataset
from opencil.data.images import Split
from opencil.data.readers.folders import flat, folders
from opencil.data.readers.lists import read_listed_images
from opencil.data.readers.source import Layout, SplitOnDisk
from opencil.errors import BadInput


@dataclass(frozen=True)
class OwnDataset(FileDataset):
    """Your images: a folder per class (``folders``), a single folder (``flat``), or images named by a list.

    ``path`` and the lists are absolute or relative to the folder of downloads. ``train`` and ``test`` are
    folders in ``path``, and lists name images relative to them. An OOD dataset needs no training images.
    """

    path: str
    layout: Literal["folders", "flat"] = "folders"
    train: str | None = None
    test: str = "."
    train_list: str | None = None
    test_list: str | None = None

    def places(self, split: Split) -> tuple[str, ...]:
        """Return the place that the config names; none for a dataset without training images."""
        if split == "train" and self.train is None and self.train_list is None:
            return ()
        inner = (self.train or ".") if split == "train" else self.test
        return ((Path(self.path).expanduser() / inner).as_posix(),)

    def find(self, split: Split, root: Path | None) -> SplitOnDisk | None:
        """Return the split in the config's folder or list, if the folder exists."""
        for inner in map(Path, self.places(split)):
            folder = (root or Path()) / inner
            if (root is None and not inner.is_absolute()) or not folder.is_dir():
                continue
            images = self.train_list if split == "train" else self.test_list
            if images is None:
                return SplitOnDisk(flat() if self.layout == "flat" else folders(), folder)
            place = (root or Path()) / images
            if not place.is_file():
                raise BadInput(f"{split}_list = {images!r} is not allowed: there is no file {place}")
            return SplitOnDisk(Layout("list", (), partial(read_listed_images, folders=(folder,))), place)
        return None
