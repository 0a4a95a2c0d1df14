"""The paper's datasets: what each is, how many images it has, and how people have it on disk."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, TypeVar

from opencil.data.file_dataset import FileDataset, search
from opencil.data.images import Split
from opencil.data.readers.folders import Flat, Folders
from opencil.data.readers.idx import Idx
from opencil.data.readers.lists import ImageList
from opencil.data.readers.mat import Mat
from opencil.data.readers.pickles import Pickles
from opencil.data.readers.selection import Selection
from opencil.data.readers.source import Layout, SplitOnDisk
from opencil.registry import register_dataset

D = TypeVar("D", bound="Download")


class Download(FileDataset):
    """A public dataset that users download themselves. Earlier layouts are preferred."""

    layouts: ClassVar[Mapping[str, tuple[Layout, ...]]] = {}

    def find(self, split: Split, root: Path | None) -> SplitOnDisk | None:
        """The split in the folder of downloads, in any of its layouts."""
        return search(self.layouts.get(split, ()), root)

    def places(self, split: Split) -> tuple[str, ...]:
        """One place of each layout first, then all others."""
        places = [layout.places for layout in self.layouts.get(split, ())]
        firsts = [p[0] for p in places]
        return tuple(dict.fromkeys([*firsts, *(place for p in places for place in p)]))


def _dataset(name: str) -> Callable[[type[D]], type[D]]:
    def add(cls: type[D]) -> type[D]:
        cls.name = name
        return register_dataset(name)(cls)

    return add


def _cifar(number: int, batches: tuple[str, ...], labels: str, meta: str, names: str, folder: str) -> Pickles:
    return Pickles(folder, f"cifar-{number}-python.tar.gz", batches, labels, meta, names)


def _cifar100(batch: str) -> Pickles:
    return _cifar(100, (batch,), "fine_labels", "meta", "fine_label_names", "cifar-100-python")


@_dataset("cifar100")
class CIFAR100(Download):
    """CIFAR-100: 100 classes of objects, 32 × 32 pixels; 50,000 training and 10,000 test images."""

    home = "https://www.cs.toronto.edu/~kriz/cifar.html"
    classes = 100
    counts = {"train": 50_000, "test": 10_000}
    checksums = {
        "cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85",
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    }
    layouts = {
        "train": (_cifar100("train"), ImageList(("cifar100/train_cifar100.txt",))),
        "test": (_cifar100("test"), ImageList(("cifar100/test_cifar100.txt",))),
    }


@_dataset("cifar10")
class CIFAR10(Download):
    """CIFAR-10: 10 classes of objects, 32 × 32 pixels; 50,000 training and 10,000 test images."""

    home = "https://www.cs.toronto.edu/~kriz/cifar.html"
    classes = 10
    counts = {"train": 50_000, "test": 10_000}
    checksums = {
        "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    }
    layouts = {
        "train": (
            _cifar(
                10,
                tuple(f"data_batch_{i}" for i in range(1, 6)),
                "labels",
                "batches.meta",
                "label_names",
                "cifar-10-batches-py",
            ),
            ImageList(("cifar10/train_cifar10.txt",)),
        ),
        "test": (
            _cifar(10, ("test_batch",), "labels", "batches.meta", "label_names", "cifar-10-batches-py"),
            ImageList(("cifar100/test_cifar10.txt", "cifar10/test_cifar10.txt")),
        ),
    }


@_dataset("tin")
class TIN(Download):
    """Tiny-ImageNet validation images, 64 × 64, less those that overlap CIFAR-100: 7,498."""

    home = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
    counts = {"test": 7_498}
    checksums = {"tiny-imagenet-200.zip": "90528d7ca1a48142e341f4ef8d21d0de"}
    layouts = {
        "test": (
            ImageList(("cifar100/test_tin.txt",)),
            Selection(
                "tin.txt",
                folders=("tiny-imagenet-200/val", "images_classic/tin/val"),
                zips=("tiny-imagenet-200.zip",),
            ),
        )
    }


@_dataset("mnist")
class MNIST(Download):
    """MNIST: handwritten digits, 28 × 28 grey pixels; 60,000 training and 10,000 test images."""

    home = "http://yann.lecun.com/exdb/mnist/"
    classes = 10
    counts = {"train": 60_000, "test": 10_000}
    checksums = {
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    }
    layouts = {
        split: (
            Idx(
                ("MNIST/raw", "MNIST", "mnist", "."),
                (f"{stem}-images-idx3-ubyte", f"{stem}-images.idx3-ubyte"),
                (f"{stem}-labels-idx1-ubyte", f"{stem}-labels.idx1-ubyte"),
            ),
            ImageList((f"cifar100/{split}_mnist.txt", f"imagenet/{split}_mnist.txt")),
        )
        for split, stem in (("train", "train"), ("test", "t10k"))
    }


@_dataset("svhn")
class SVHN(Download):
    """Street View House Numbers, cropped digits, 32 × 32; 26,032 test images."""

    home = "http://ufldl.stanford.edu/housenumbers/"
    classes = 10
    counts = {"test": 26_032}
    checksums = {"test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3"}
    layouts = {
        "test": (
            Mat(("svhn/test_32x32.mat", "SVHN/test_32x32.mat", "test_32x32.mat")),
            ImageList(("cifar100/test_svhn.txt",)),
        )
    }


@_dataset("texture")
class Texture(Download):
    """Describable Textures Dataset, all of it: 47 classes, 5,640 images."""

    home = "https://www.robots.ox.ac.uk/~vgg/data/dtd/"
    counts = {"test": 5_640}
    layouts = {
        "test": (
            ImageList(
                ("cifar100/test_texture.txt", "imagenet/test_texture.txt", "imagenet/test_textures.txt")
            ),
            Folders(("dtd/images", "dtd/dtd/images", "images_classic/texture", "texture")),
        )
    }


@_dataset("places365")
class Places365(Download):
    """Places365 validation photographs of scenes, less those that overlap CIFAR-100: 33,773."""

    home = "http://places2.csail.mit.edu/download.html"
    counts = {"test": 33_773}
    layouts = {
        "test": (
            ImageList(("cifar100/test_places365.txt",)),
            Folders(("places365_standard/val", "places365/val", "images_classic/places365")),
            Flat(("places365/val_256", "val_256", "images_classic/places365", "places365")),
        )
    }


_IMAGENET = ("imagenet", "ILSVRC2012", "imagenet_1k", "ILSVRC/Data/CLS-LOC", "images_largescale/imagenet_1k")


@_dataset("imagenet1k")
class ImageNet1k(Download):
    """ImageNet-1k (ILSVRC 2012): 1,281,167 training and 50,000 validation photographs, by wnid."""

    home = "https://www.image-net.org/download.php"
    counts = {"train": 1_281_167, "test": 50_000}
    layouts = {
        "train": (
            Folders(tuple(f"{folder}/train" for folder in _IMAGENET)),
            ImageList(("imagenet/train_imagenet.txt",)),
        ),
        "test": (
            Folders(tuple(f"{folder}/val" for folder in _IMAGENET)),
            ImageList(("imagenet/test_imagenet.txt",)),
        ),
    }


def _photographs(lists: tuple[str, ...], folders: tuple[str, ...]) -> Mapping[str, tuple[Layout, ...]]:
    """An OOD set for ImageNet: OpenOOD's list, else a folder of photographs, with or without classes."""
    lists = tuple(f"imagenet/test_{name}.txt" for name in lists)
    return {"test": (ImageList(lists), Folders(folders), Flat(folders))}


@_dataset("imagenet-o")
class ImageNetO(Download):
    """ImageNet-O: 2,000 photographs of ImageNet-22k classes that are not in ImageNet-1k."""

    home = "https://github.com/hendrycks/natural-adv-examples"
    counts = {"test": 2_000}
    layouts = _photographs(("imagenet_o",), ("imagenet-o", "imagenet_o", "images_largescale/imagenet_o"))


@_dataset("inaturalist")
class INaturalist(Download):
    """iNaturalist, 110 plant classes that are not in ImageNet-1k: 10,000 photographs."""

    home = "https://github.com/deeplearning-wisc/large_scale_ood"
    counts = {"test": 10_000}
    layouts = _photographs(
        ("inaturalist",), ("iNaturalist/images", "inaturalist", "images_largescale/inaturalist")
    )


@_dataset("openimage-o")
class OpenImageO(Download):
    """OpenImage-O: 15,869 photographs chosen by hand as out of ImageNet-1k's distribution."""

    home = "https://github.com/haoqiwang/vim"
    counts = {"test": 15_869}
    layouts = _photographs(("openimage_o",), ("openimage_o", "openimage-o", "images_largescale/openimage_o"))


@_dataset("species")
class Species(Download):
    """Species, a subset of it: 10,000 photographs of living things that are not in ImageNet."""

    home = "https://github.com/hendrycks/anomaly-seg"
    counts = {"test": 10_000}
    layouts = _photographs(
        ("species_sub", "species"), ("species_sub", "species", "images_largescale/species_sub")
    )
