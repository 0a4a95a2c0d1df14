"""Decoding a split once, before it is read: into the image cache or a pack, or to note what to leave out."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from opencil.data.check import Asked
from opencil.data.decoding import workers_here
from opencil.data.file_dataset import FileDataset, pack_of, usable
from opencil.data.image_cache import ProgressBar
from opencil.data.images import Access

if TYPE_CHECKING:
    from opencil.data.packs import Form


@dataclass(frozen=True)
class PreparedSplit:
    """What has become of a split: usable images, corrupt ones left out, and the bytes that are kept of it.

    A split that is too large to be kept is streamed from its own files or from its pack, ``streamed_from``;
    corrupt ones have names elsewhere.
    """

    images: int
    left_out: int
    skipped: tuple[str, ...] = ()
    size: int = 0
    streamed_from: Path | None = None


def prepare_split(
    asked: Asked,
    side: int,
    access: Access,
    skip_corrupt: bool,
    progress: ProgressBar,
    form: "Form | None" = None,
) -> PreparedSplit:
    """Decode a split that is not prepared yet; of one that is streamed, only to find corrupt images.

    With a ``form``, one that is streamed is packed.
    """
    dataset = asked.dataset
    assert isinstance(dataset, FileDataset), "nothing is to prepare of others"
    on_disk = dataset.locate(asked.name, asked.split, access.root)
    kept = dataset.cache_file(asked.name, asked.split, side, access, on_disk)
    workers, done = access.workers or workers_here(), usable(kept, access)
    if done is None and access.streams(len(on_disk.source), side):
        if skip_corrupt:
            kept.survey(workers, progress)
        pack = pack_of(asked.name, asked.split, kept)
        if form is not None:
            pack.make(form, workers, progress)
        images, is_used = len(pack.source), form is not None or pack.load() is not None
        size, place = (pack.size, pack.folder) if is_used else (0, on_disk.place)
        return PreparedSplit(images, len(on_disk.source) - images, (), size, place)
    done = done or kept.renew(workers, skip_corrupt, progress)
    size = kept.path.stat().st_size
    return PreparedSplit(len(done.labels), len(done.skipped), done.skipped, size)
