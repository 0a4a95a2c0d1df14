"""Datasets in files: found in a folder of downloads, prepared once, served resident or streamed."""

import hashlib
import logging
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch

from opencil.data.images import Access, Dataset, Images, ImageSet, Progress, Split
from opencil.data.prepared import PreparedFile, PreparedSource, cache_folder
from opencil.data.readers.image_files import flat, folders, list_folder, read_listed_images, read_part
from opencil.data.readers.source import FileSource, Layout, SplitOnDisk
from opencil.data.streamed import StreamedImages, count_workers
from opencil.data.transforms import Transform
from opencil.errors import BadInput, not_allowed
from opencil.validation import ProperFraction, Values, Whole

_log = logging.getLogger("opencil.data")


@dataclass(frozen=True)
class FileDataset(Dataset):
    """A dataset in files."""

    #: Name of the dataset where no benchmark names it.
    name: ClassVar[str] = "images"
    #: The dataset's home page; empty for a user's own images.
    home: ClassVar[str] = ""
    #: Images of each split in the paper.
    counts: ClassVar[Mapping[str, int]] = {}
    #: MD5 of the files of the dataset's authors, by file name.
    checksums: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def find(self, split: Split, root: Path | None) -> SplitOnDisk | None:
        """Return where the split is stored, or None."""

    @abstractmethod
    def places(self, split: Split) -> tuple[str, ...]:
        """Return the expected paths relative to the folder of downloads; none if there is no such split."""

    def locate(self, name: str, split: Split, root: Path | None) -> SplitOnDisk:
        """Return where the split is stored; raise an error with the expected places and the home page."""
        if on_disk := self.find(split, root):
            return on_disk
        places = self.places(split)
        missing = f"{split} images of dataset {name!r}"
        if not places:
            raise BadInput(f"there are no {missing}: it has only {', '.join(self.counts) or 'test'} images")
        if root is None:
            raise BadInput(f"{missing}: name the folder of your downloads with --data-root or $OPENCIL_DATA")
        source = f"; its home page is {self.home}" if self.home else ""
        raise BadInput(f"{missing} are not in {root}: expected at {' or at '.join(places[:3])}{source}")

    def load(self, split: Split, size: int, root: Path | None) -> ImageSet:
        """Return the images of a split in memory, prepared in the folder of downloads."""
        images = self.serve(self.name, split, size, Access(root, store="resident"))
        assert isinstance(images, ImageSet)
        return images

    def serve(self, name: str, split: Split, size: int, access: Access) -> Images:
        """Return the images of a split, resident or streamed as ``access`` says."""
        file, workers = self.prepared_file(name, split, size, access), access.workers or count_workers()
        original, key = file.on_disk.source, file.key
        resident = not access.streams(len(original), size)
        prepared = file.load(verify=resident, writable=resident)
        if resident and prepared is None:
            _log.warning("preparing %s images of %s, once, into %s", split, name, file.path.parent)
            file.make(workers)
            prepared = file.load(writable=True)
        if prepared and prepared.left_out:
            _log.warning("%s: %d corrupt %s images are left out", name, len(prepared.left_out), split)
            key = hashlib.sha256(f"{key} without {[*prepared.left_out]}".encode()).hexdigest()
        source = prepared or original
        labels = torch.from_numpy(source.labels)
        if prepared and resident:
            pixels = prepared.images[prepared.rows] if prepared.left_out else prepared.images
            return ImageSet(name, torch.from_numpy(pixels), labels, source.classes)
        return StreamedImages(name, source, labels, size, workers, key, source.classes)

    def prepare(
        self, name: str, split: Split, size: int, access: Access, skip_corrupt: bool, progress: Progress
    ) -> PreparedSource:
        """Decode a split into its prepared file, unless an undamaged one is there."""
        file = self.prepared_file(name, split, size, access)
        return file.load(verify=True) or file.make(access.workers or count_workers(), skip_corrupt, progress)

    def prepared_file(self, name: str, split: Split, size: int, access: Access) -> PreparedFile:
        """Return the file for the split's prepared images of a size; each place of a dataset has its own."""
        on_disk = self.locate(name, split, access.root)
        place = hashlib.sha256(f"{on_disk.layout.name}:{on_disk.place.resolve()}".encode()).hexdigest()[:8]
        folder = cache_folder(access.root, access.cache)
        return PreparedFile(folder / f"{name}-{split}-{size}px-{place}.safetensors", on_disk, size)


@dataclass(frozen=True)
class HeldOut(Values):
    """A split of class folders: the share of test images of each class, drawn by a seed."""

    share: ProperFraction = 0.2
    seed: Whole = 0


@dataclass(frozen=True)
class OwnDataset(FileDataset):
    """Your images: a folder per class (``folders``), a single folder (``flat``), or images named by a list.

    ``path`` and the lists are absolute or relative to the folder of downloads. ``train`` and ``test`` are
    folders in ``path``, and lists name images relative to them. An OOD dataset needs no training images. With
    ``split``, the class folders are in ``path`` itself, and a part of each class's images is for testing.
    """

    path: str
    layout: Literal["folders", "flat"] = "folders"
    train: str | None = None
    test: str = "."
    train_list: str | None = None
    test_list: str | None = None
    split: HeldOut | None = None

    def __post_init__(self) -> None:
        if self.split is not None and not self._whole:
            raise not_allowed("split", self.split, "class folders without train, test and lists can be split")

    @property
    def _whole(self) -> bool:
        """Return whether there are class folders alone, not divided into training and test images."""
        stated = self.train, self.train_list, self.test_list
        return self.layout == "folders" and self.test == "." and stated == (None, None, None)

    def divide(self) -> "OwnDataset":
        """Return the dataset with its classes split, if it states no training images."""
        return replace(self, split=HeldOut()) if self._whole and self.split is None else self

    def places(self, split: Split) -> tuple[str, ...]:
        """Return the place in the config; none for a dataset without training images."""
        if split == "train" and self.train is None and self.train_list is None and self.split is None:
            return ()
        inner = (self.train or ".") if split == "train" else self.test
        return ((Path(self.path).expanduser() / inner).as_posix(),)

    def count_classes(self, root: Path | None) -> int | None:
        """Return the number of folders of classes to train on, at the moment; None if there are none."""
        on_disk = self.find("train", root)
        classes = list_folder(on_disk.place)[0] if on_disk and on_disk.place.is_dir() else ()
        return len(classes) if classes and self.layout == "folders" else None

    def find(self, split: Split, root: Path | None) -> SplitOnDisk | None:
        """Return the split in the config's folder or list, if the folder exists."""
        for place in self.places(split):
            base, images = root or Path(), self.train_list if split == "train" else self.test_list
            folder = base / place
            if not folder.is_dir() or (root is None and not Path(place).is_absolute()):
                return None
            if self.split is not None:
                read = partial(read_part, part=split, share=self.split.share, seed=self.split.seed)
                name = f"class folders, {self.split.share:.0%} for testing, seed {self.split.seed}"
                return SplitOnDisk(Layout(name, (), read), folder)
            if images is None:
                return SplitOnDisk(flat() if self.layout == "flat" else folders(), folder)
            if not (base / images).is_file():
                raise not_allowed(f"{split}_list", images, f"there is no file {base / images}")
            return SplitOnDisk(
                Layout("list", (), partial(read_listed_images, folders=(folder,))), base / images
            )
        return None


def serve_path(
    path: str | Path, name: str, transform: Transform | None, labelled: bool, side: int | None = None
) -> Images:
    """Return the images of a folder: a folder per class if they are labelled, or all images below it.

    An unlabelled image may be a file. Images have ``side`` pixels, by default those that the transform needs.
    """
    if transform is None:
        raise BadInput(f"{name} is a path, of images as bytes: a transform is needed with it")
    side = side or transform.resize or transform.crop
    if (folder := Path(path).expanduser()).is_file() and not labelled:
        source = FileSource(np.zeros(1, np.int64), (folder.name,), [folder])
        pixels = torch.tensor(source.pixels(0, side))[None]
        return ImageSet(name, pixels, torch.from_numpy(source.labels), source.classes)
    if not folder.is_dir():
        raise BadInput(f"{name} is {str(path)!r}: there is no such folder of images")
    dataset = OwnDataset(path=str(folder.absolute()), layout="folders" if labelled else "flat")
    return dataset.serve(name, "test", side, Access(store="streamed"))
