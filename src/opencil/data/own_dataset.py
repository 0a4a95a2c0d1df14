"""Bring your own: image files of any kind as an ID or OOD dataset, from a config alone."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from opencil.data.file_dataset import FileDataset
from opencil.data.images import Split
from opencil.errors import BadInput

if TYPE_CHECKING:
    from opencil.data.readers.source import SplitOnDisk


@dataclass(frozen=True)
class OwnDataset(FileDataset):
    """Your images: a folder per class (``folders``) or all in one (``flat``), or those that a list names.

    ``path`` and the lists are relative to the folder of downloads, or absolute; ``train`` and ``test`` are
    folders in ``path``, and lists name images relative to those. An OOD dataset needs no training images.
    """

    path: str
    layout: Literal["folders", "flat"] = "folders"
    train: str | None = None
    test: str = "."
    train_list: str | None = None
    test_list: str | None = None

    @property
    def has_train(self) -> bool:
        """Whether it can be learned, not only detected."""
        return self.train is not None or self.train_list is not None

    def places(self, split: Split) -> tuple[str, ...]:
        """The one place that the config names."""
        if split == "train" and not self.has_train:
            return ()
        return (self._inner(split).as_posix(),)

    def find(self, split: Split, root: Path | None) -> "SplitOnDisk | None":
        """The folder or the list, where it is there."""
        from opencil.data.readers.folders import class_folders, flat_folder, split_in_folder
        from opencil.data.readers.lists import split_by_list

        inner = self._inner(split)
        if not self.places(split) or (root is None and not inner.is_absolute()):
            return None
        folder = (root / inner) if root else inner
        if not folder.is_dir():
            return None
        named = self.train_list if split == "train" else self.test_list
        if named is not None:
            place = (root / named) if root else Path(named)
            if not place.is_file():
                raise BadInput(f"{split}_list = {named!r} is not allowed: there is no file {place}")
            return split_by_list("list", place, (folder,))
        if self.layout == "flat":
            return split_in_folder("flat folder", folder, flat_folder)
        return split_in_folder("class folders", folder, class_folders)

    def _inner(self, split: Split) -> Path:
        return Path(self.path).expanduser() / ((self.train or ".") if split == "train" else self.test)
