"""Describe the paper's public datasets: numbers of images, checksums, and layouts on disk."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from opencil.data.file_dataset import FileDataset
from opencil.data.images import Split
from opencil.data.readers.arrays import idx, mat
from opencil.data.readers.image_files import (
    annotated,
    flat,
    folders,
    image_list,
    list_folder,
    shipped_list,
)
from opencil.data.readers.pickles import cifar
from opencil.data.readers.source import Layout, SplitOnDisk
from opencil.registry import register_dataset


class Download(FileDataset):
    """A public dataset that users download themselves; the first layout that is found is read."""

    layouts: ClassVar[Mapping[str, tuple[Layout, ...]]] = {}

    def __init_subclass__(cls, name: str) -> None:
        super().__init_subclass__()
        cls.name = name
        register_dataset(name)(cls)

    def find(self, split: Split, root: Path | None) -> SplitOnDisk | None:
        """Return the split in the folder of downloads or in one of its sub-folders, in any of its layouts."""
        if root is None:
            return None
        for base in (root, *(root / name for name in list_folder(root)[0])):
            with suppress(PermissionError):
                for layout in self.layouts.get(split, ()):
                    if on_disk := layout.find(base):
                        return on_disk
        return None

    def places(self, split: Split) -> tuple[str, ...]:
        """Return the first place of each layout."""
        return tuple(layout.places[0] + layout.inside for layout in self.layouts.get(split, ()))


class CIFAR100(Download, name="cifar100"):
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
        split: (
            *cifar("cifar-100-python", "cifar-100-python", "fine_label", "meta", split),
            image_list(f"cifar100/{split}_cifar100"),
        )
        for split in ("train", "test")
    }


class CIFAR10(Download, name="cifar10"):
    """CIFAR-10: 10 classes of objects, 32 × 32 pixels; 50,000 training and 10,000 test images."""

    home = "https://www.cs.toronto.edu/~kriz/cifar.html"
    classes = 10
    counts = {"train": 50_000, "test": 10_000}
    checksums = {
        "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    }
    layouts = {
        split: (
            *cifar("cifar-10-batches-py", "cifar-10-python", "label", "batches.meta", *batches),
            image_list(f"cifar100/{split}_cifar10", f"cifar10/{split}_cifar10"),
        )
        for split, batches in (("train", [f"data_batch_{i}" for i in range(1, 6)]), ("test", ["test_batch"]))
    }


class TIN(Download, name="tin"):
    """Tiny-ImageNet: 7,498 validation images, 64 × 64 pixels, without overlap with CIFAR-100."""

    home = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
    counts = {"test": 7_498}
    checksums = {"tiny-imagenet-200.zip": "90528d7ca1a48142e341f4ef8d21d0de"}
    layouts = {
        "test": (
            image_list("cifar100/test_tin"),
            *shipped_list("tin", "tiny-imagenet-200.zip", "tiny-imagenet-200/val", "images_classic/tin/val"),
        )
    }


class TinyImageNet(Download, name="tinyimagenet"):
    """Tiny-ImageNet-200: 200 classes of ImageNet, 64 × 64 pixels; 100,000 training and 10,000 test images.

    The labelled validation images are the test images: those of the file's own test split have no labels.
    """

    home = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
    classes = 200
    counts = {"train": 100_000, "test": 10_000}
    layouts = {
        "train": (folders("tiny-imagenet-200/train"),),
        "test": (annotated("val_annotations.txt", "tiny-imagenet-200/val"),),
    }


class ImageNetOther(Download, name="imagenet-other"):
    """Photographs of the 800 classes of ImageNet-1k that Tiny-ImageNet lacks: 4,000 validation images."""

    home = "https://github.com/ndb796/Small-ImageNet-Validation-Dataset-1000-Classes"
    counts = {"test": 4_000}
    layouts = {
        "test": shipped_list(
            "imagenet-other",
            "ILSVRC2012_img_val_subset.zip",
            "ILSVRC2012_img_val_subset",
            "Small-ImageNet-Validation-Dataset-1000-Classes/ILSVRC2012_img_val_subset",
            "ILSVRC2012/val",
            "imagenet/val",
        )
    }


class MNIST(Download, name="mnist"):
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
            idx(stem, "MNIST/raw", "MNIST", "mnist", "."),
            image_list(f"cifar100/{split}_mnist", f"imagenet/{split}_mnist"),
        )
        for split, stem in (("train", "train"), ("test", "t10k"))
    }


class SVHN(Download, name="svhn"):
    """Street View House Numbers, cropped digits, 32 × 32; 26,032 test images."""

    home = "http://ufldl.stanford.edu/housenumbers/"
    classes = 10
    counts = {"test": 26_032}
    checksums = {"test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3"}
    layouts = {
        "test": (
            mat("svhn/test_32x32.mat", "SVHN/test_32x32.mat", "test_32x32.mat"),
            image_list("cifar100/test_svhn"),
        )
    }


class Texture(Download, name="texture"):
    """Describable Textures Dataset: all 47 classes, 5,640 images."""

    home = "https://www.robots.ox.ac.uk/~vgg/data/dtd/"
    counts = {"test": 5_640}
    layouts = {
        "test": (
            image_list("cifar100/test_texture", "imagenet/test_texture", "imagenet/test_textures"),
            folders("dtd/images", "dtd/dtd/images", "images_classic/texture", "texture"),
        )
    }


class Places365(Download, name="places365"):
    """Places365: 33,773 validation photographs of scenes, without overlap with CIFAR-100."""

    home = "http://places2.csail.mit.edu/download.html"
    counts = {"test": 33_773}
    layouts = {
        "test": (
            image_list("cifar100/test_places365"),
            folders("places365_standard/val", "places365/val", "images_classic/places365"),
            flat("places365/val_256", "val_256", "images_classic/places365", "places365"),
        )
    }


_IMAGENET = ("imagenet", "ILSVRC2012", "imagenet_1k", "ILSVRC/Data/CLS-LOC", "images_largescale/imagenet_1k")


class ImageNet1k(Download, name="imagenet1k"):
    """ImageNet-1k (ILSVRC 2012): 1,281,167 training and 50,000 validation photographs, by wnid."""

    home = "https://www.image-net.org/download.php"
    counts = {"train": 1_281_167, "test": 50_000}
    layouts = {
        split: (
            folders(*(f"{place}/{folder}" for place in _IMAGENET)),
            image_list(f"imagenet/{split}_imagenet"),
        )
        for split, folder in (("train", "train"), ("test", "val"))
    }


def _photographs(names: list[str], *places: str) -> Mapping[str, tuple[Layout, ...]]:
    """Return the layouts of an OOD set for ImageNet: OpenOOD's list, or a folder with or without classes."""
    places = (*places, f"images_largescale/{names[0]}")
    files = (f"imagenet/test_{name}" for name in names)
    return {"test": (image_list(*files), folders(*places), flat(*places))}


class ImageNetO(Download, name="imagenet-o"):
    """ImageNet-O: 2,000 photographs of ImageNet-22k classes that are not in ImageNet-1k."""

    home = "https://github.com/hendrycks/natural-adv-examples"
    counts = {"test": 2_000}
    layouts = _photographs(["imagenet_o"], "imagenet-o", "imagenet_o")


class INaturalist(Download, name="inaturalist"):
    """iNaturalist, 110 plant classes that are not in ImageNet-1k: 10,000 photographs."""

    home = "https://github.com/deeplearning-wisc/large_scale_ood"
    counts = {"test": 10_000}
    layouts = _photographs(["inaturalist"], "iNaturalist/images", "inaturalist")


class OpenImageO(Download, name="openimage-o"):
    """OpenImage-O: 15,869 photographs chosen by hand as out of ImageNet-1k's distribution."""

    home = "https://github.com/haoqiwang/vim"
    counts = {"test": 15_869}
    layouts = _photographs(["openimage_o"], "openimage_o", "openimage-o")


class Species(Download, name="species"):
    """Species: a subset of 10,000 photographs of living things that are not in ImageNet."""

    home = "https://github.com/hendrycks/anomaly-seg"
    counts = {"test": 10_000}
    layouts = _photographs(["species_sub", "species"], "species_sub", "species")
