"""Trees of image files, list files, and Tiny-ImageNet."""

import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from opencil.data.catalogue import TIN, ImageNet1k, ImageNetO, Places365, Texture, TinyImageNet
from opencil.data.readers.image_files import (
    annotated,
    read_class_folders,
    read_flat_folder,
    read_list,
    read_listed_images,
    read_shipped_list,
)
from opencil.data.readers.source import ImageSource
from opencil.errors import BadInput

Picture = Callable[..., Path]
Tree = Callable[[Path, Mapping[str, int]], Path]

# --- Tiny-ImageNet-200 -----------------------------------------------------------------------------


def test_tiny_imagenet_has_the_same_classes_in_both_splits(
    tree: Tree, picture: Picture, tmp_path: Path
) -> None:
    root = tmp_path / "tiny-imagenet-200"
    tree(root / "train", {"n01/images": 2, "n02/images": 1})
    for name in ("val_0.JPEG", "val_1.JPEG", "val_2.JPEG"):
        picture(root / "val" / "images" / name)
    (root / "val" / "val_annotations.txt").write_text(
        "val_0.JPEG\tn02\t0\t1\t2\t3\nval_2.JPEG\tn01\t0\t1\t2\t3\n"
    )
    train, test = (
        TinyImageNet().locate("tinyimagenet", split, tmp_path).source for split in ("train", "test")
    )
    assert train.classes == test.classes == ("n01", "n02")
    assert (train.labels.tolist(), test.labels.tolist()) == ([0, 0, 1], [1, 0])
    assert [path.name for path in test.paths] == ["val_0.JPEG", "val_2.JPEG"]


@pytest.mark.parametrize(("text", "key"), [("val_9.JPEG\tn01\n", "val_9"), ("\nval_0.JPEG\n", "line 1")])
def test_annotations_that_do_not_fit_are_refused(
    tmp_path: Path, picture: Picture, text: str, key: str
) -> None:
    picture(tmp_path / "images" / "val_0.JPEG")
    (tmp_path / "labels.txt").write_text(text)
    with pytest.raises(BadInput, match=key):
        annotated("labels.txt").read(tmp_path)


# --- folders ---------------------------------------------------------------------------------------


def test_labels_follow_the_sorted_names(tree: Tree, picture: Picture, tmp_path: Path) -> None:
    tree(tmp_path, {"dog": 1, "cat": 2})
    picture(tmp_path / "cat" / "images" / "deep.png")
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / "cat" / ".hidden.png").write_text("hidden")
    (tmp_path / "README.md").write_text("about")
    source = read_class_folders(tmp_path)
    assert source.classes == ("cat", "dog")
    assert source.labels.tolist() == [0, 0, 0, 1]
    names = [path.relative_to(tmp_path).as_posix() for path in source.paths]
    assert names == ["cat/0.png", "cat/1.png", "cat/images/deep.png", "dog/0.png"]
    flat = read_flat_folder(tmp_path)
    assert (list(flat.paths), flat.labels.tolist()) == (list(source.paths), [0] * 4)


@pytest.mark.parametrize(
    ("classes", "key"),
    [
        ({"cat": 1, "dog": 0}, "dog"),
        ({"cat": 1, "Cat": 1}, "Cat"),
        ({"cat": 1, "cat ": 1}, "cat "),
        ({}, "folders"),
    ],
)
def test_bad_classes_are_refused(tree: Tree, tmp_path: Path, classes: dict[str, int], key: str) -> None:
    with pytest.raises(BadInput, match=key):
        read_class_folders(tree(tmp_path, classes))


def test_images_outside_the_classes_are_refused(tree: Tree, picture: Picture, tmp_path: Path) -> None:
    picture(tree(tmp_path, {"cat": 1}) / "stray.png")
    with pytest.raises(BadInput, match=r"stray\.png"):
        read_class_folders(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="empty"):
        read_flat_folder(tmp_path / "empty")


def test_links_are_followed_but_not_in_circles(tree: Tree, tmp_path: Path) -> None:
    tree(tmp_path / "other", {"dog": 2})
    folder = tree(tmp_path / "images", {"cat": 1})
    (folder / "dog").symlink_to(tmp_path / "other" / "dog")
    assert len(read_class_folders(folder).paths) == 3
    (folder / "cat" / "again").symlink_to(folder / "cat")
    for read in (read_class_folders, read_flat_folder):
        with pytest.raises(BadInput, match="cat/again"):
            read(folder)


def test_pipes_are_no_images_and_broken_links_are_named(tree: Tree, tmp_path: Path) -> None:
    folder = tree(tmp_path / "images", {"cat": 1})
    os.mkfifo(folder / "cat" / "pipe.png")
    assert [path.name for path in read_class_folders(folder).paths] == ["0.png"]
    (folder / "cat" / "gone.png").symlink_to(tmp_path / "gone.png")
    with pytest.raises(BadInput, match=r"gone\.png"):
        read_class_folders(folder).pixels(1, 8)


# --- lists -----------------------------------------------------------------------------------------


def write_list(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "list.txt"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_the_lines_of_a_list(tmp_path: Path) -> None:
    text = "\ufeffa/b.png -1\r\n\n  c d.png   3 \ne.png\t2\nf g.png\na b.png\t3\nc\u2028d.png 4\r\n"
    (tmp_path / "list.txt").write_bytes(text.encode())
    assert [tuple(line) for line in read_list(tmp_path / "list.txt")] == [
        (1, "a/b.png", None),
        (3, "c d.png", 3),
        (4, "e.png", 2),
        (5, "f g.png", None),
        (6, "a b.png", 3),
        (7, "c\u2028d.png", 4),
    ]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (b"", "list.txt"),
        (b"\xff\xfe\x00a", "list.txt"),
        (b"a.png 0\n../b.png 1\n", "line 2"),
        (b"/etc/a.png 0\n", "line 1"),
        (b"C:\\a.png 0\n", "line 1"),
        (b"a.png -2\n", "line 1"),
        (b"a.png 2147483648\n", "line 1"),
        (b"a.png 0\nb.png 1\na.png 1\n", "lines 1 and 3"),
        (b"a.jpg 0\n./a.jpg 0\n", "lines 1 and 2"),
        (b"cat/0.png 0\ncat/1.png\n", "line 2"),
        (b"cat/0.png 0\ncat/7.png 0\ncat/x.png 0", "line 2 names 'cat/7.png'"),
        (b"cat/0.png 0\ncow/0.png 0\n", "line 2 names 'cow/0.png'"),
        (b"cat/0.png 0\ncat/ 0.png 0\n", "line 2 names 'cat/ 0.png'"),
    ],
)
def test_bad_lists_are_refused(tree: Tree, tmp_path: Path, text: bytes, key: str) -> None:
    folder = tree(tmp_path / "images", {"cat": 2})
    (tmp_path / "list.txt").write_bytes(text)
    with pytest.raises(BadInput, match=key):
        read_listed_images(tmp_path / "list.txt", (folder,))


@pytest.mark.parametrize(
    ("lines", "labels", "classes"),
    [
        (["dog/0.png 0", "cat/1.png 1", "cat/0.png 1"], [0, 1, 1], ("dog", "cat")),
        (["dog/0.png -1", "cat/0.png -1"], [1, 0], ("cat", "dog")),
        (["dog/0.png", "cat/0.png"], [1, 0], ("cat", "dog")),
        (["cat/0.png 0", "cat/1.png 1"], [0, 1], ()),
        (["cat/0.png 0", "dog/0.png 0"], [0, 0], ()),
    ],
    ids=["order and labels", "folders are classes", "no labels", "a folder twice", "a label twice"],
)
def test_labels_of_a_list(
    tree: Tree, tmp_path: Path, lines: list[str], labels: list[int], classes: tuple[str, ...]
) -> None:
    folder = tree(tmp_path / "images", {"cat": 2, "dog": 1})
    source = read_listed_images(write_list(tmp_path, *lines), (tmp_path / "none", folder))
    assert [p.relative_to(folder).as_posix() for p in source.paths] == [line.split()[0] for line in lines]
    assert (source.labels.tolist(), source.classes) == (labels, classes)


# --- layouts ---------------------------------------------------------------------------------------


def test_openood_lists_are_found_beside_their_images(tree: Tree, tmp_path: Path) -> None:
    tree(tmp_path / "images_classic" / "texture", {"banded": 1, "dotted": 1})
    lists = tmp_path / "benchmark_imglist" / "cifar100"
    lists.mkdir(parents=True)
    (lists / "test_texture.txt").write_text("texture/dotted/0.png -1\n")
    on_disk = Texture().locate("texture", "test", tmp_path)
    assert (on_disk.layout.name, len(on_disk.source)) == ("OpenOOD list", 1)
    (lists / "test_texture.txt").unlink()
    on_disk = Texture().locate("texture", "test", tmp_path)
    assert (on_disk.layout.name, on_disk.source.classes) == ("class folders", ("banded", "dotted"))


def test_openood_imagenet_labels_are_those_of_the_list(tree: Tree, picture: Picture, tmp_path: Path) -> None:
    images = tmp_path / "images_largescale" / "imagenet_1k"
    tree(images / "train", {"n01": 1, "n02": 1})
    picture(images / "val" / "v1.png")
    picture(images / "val" / "v2.png")
    lists = tmp_path / "benchmark_imglist" / "imagenet"
    lists.mkdir(parents=True)
    (lists / "test_imagenet.txt").write_text("imagenet_1k/val/v1.png 1\nimagenet_1k/val/v2.png 0\n")
    assert ImageNet1k().locate("imagenet1k", "train", tmp_path).source.classes == ("n01", "n02")
    test = ImageNet1k().locate("imagenet1k", "test", tmp_path).source
    assert (test.labels.tolist(), test.classes) == ([1, 0], ())


def test_flat_and_class_folders_are_distinguished(tree: Tree, picture: Picture, tmp_path: Path) -> None:
    picture(tmp_path / "flat" / "places365" / "val_256" / "a.png")
    tree(tmp_path / "classes" / "places365" / "val", {"bay": 1})
    layouts = [Places365().locate("p", "test", tmp_path / r).layout.name for r in ("flat", "classes")]
    assert layouts == ["flat folder", "class folders"]
    tree(tmp_path / "o" / "imagenet-o", {"n01": 2})
    assert len(ImageNetO().locate("o", "test", tmp_path / "o").source) == 2


def test_missing_datasets_are_named_with_place_and_home_page(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as raised:
        Texture().locate("texture", "test", tmp_path)
    for key in ("'texture'", str(tmp_path), "dtd/images", Texture.home):
        assert key in str(raised.value)
    with pytest.raises(BadInput, match="--data-root"):
        Texture().locate("texture", "test", None)
    with pytest.raises(BadInput, match="train"):
        Texture().locate("texture", "train", tmp_path)


# --- the selection of Tiny-ImageNet ----------------------------------------------------------------


def tin(root: Path) -> ImageSource:
    return TIN().locate("tin", "test", root).source


def test_the_shipped_list() -> None:
    names = read_shipped_list("tin")
    numbers = {int(name.removeprefix("val_").removesuffix(".JPEG")) for name in names}
    assert len(numbers) == len(names) == TIN.counts["test"] == 7498
    assert numbers <= set(range(10_000))


@pytest.mark.parametrize("packed", [False, True])
def test_it_is_applied_to_a_plain_download(
    picture: Picture, tmp_path: Path, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["val_9.png", "val_0.png", "val_3.png"]
    monkeypatch.setattr("opencil.data.readers.image_files.read_shipped_list", lambda name: names)
    for i in range(10):
        picture(tmp_path / "tiny-imagenet-200" / "val" / "images" / f"val_{i}.png", i)
    if packed:
        with zipfile.ZipFile(tmp_path / "tiny-imagenet-200.zip", "w") as archive:
            for path in (tmp_path / "tiny-imagenet-200").rglob("*.png"):
                archive.write(path, path.relative_to(tmp_path))
        (tmp_path / "tiny-imagenet-200").rename(tmp_path / "unpacked")
    source = tin(tmp_path)
    for i, seed in enumerate((9, 0, 3)):
        pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        np.testing.assert_array_equal(source.pixels(i, 8), pixels.transpose(2, 0, 1))
    names.append("val_10.png")
    with pytest.raises(BadInput, match=r"val_10\.png"):
        tin(tmp_path)


def test_bad_zips_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tiny-imagenet-200.zip").write_bytes(b"PK no")
    with pytest.raises(BadInput, match=r"tiny-imagenet-200\.zip"):
        tin(tmp_path)
