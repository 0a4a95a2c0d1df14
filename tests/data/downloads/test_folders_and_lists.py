"""Trees of image files, list files, and the selection of Tiny-ImageNet."""

import os
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencil.data.catalogue import TIN, ImageNet1k, ImageNetO, Places365, Texture
from opencil.data.readers.archives import points_outside
from opencil.data.readers.folders import class_folders, flat_folder
from opencil.data.readers.lists import listed_source, read_list
from opencil.data.readers.selection import shipped_list
from opencil.errors import BadInput

Picture = Callable[..., Path]
Tree = Callable[[Path, Mapping[str, int]], Path]

# --- folders ---------------------------------------------------------------------------------------


def test_labels_follow_the_sorted_names(tree: Tree, tmp_path: Path) -> None:
    source = class_folders(tree(tmp_path, {"dog": 1, "cat": 2}))
    assert source.classes == ("cat", "dog")
    assert source.labels.tolist() == [0, 0, 1]
    assert [p.relative_to(tmp_path).as_posix() for p in source.paths] == [
        "cat/0.png",
        "cat/1.png",
        "dog/0.png",
    ]


def test_images_may_lie_deeper_and_other_files_do_not_count(
    tree: Tree, picture: Picture, tmp_path: Path
) -> None:
    tree(tmp_path, {"cat": 1})
    picture(tmp_path / "cat" / "images" / "deep.PNG".lower())
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / "cat" / ".hidden.png").write_text("not shown")
    (tmp_path / "README.md").write_text("about")
    assert [p.name for p in class_folders(tmp_path).paths] == ["0.png", "deep.png"]


def test_an_empty_class_is_named(tree: Tree, tmp_path: Path) -> None:
    tree(tmp_path, {"cat": 1, "dog": 0})
    with pytest.raises(BadInput, match=r"class 'dog' of .* is empty"):
        class_folders(tmp_path)


@pytest.mark.parametrize("other", ["Cat", "cat "])
def test_a_class_that_stands_there_twice_is_named(tree: Tree, tmp_path: Path, other: str) -> None:
    tree(tmp_path, {"cat": 1, other: 1})
    with pytest.raises(BadInput, match=f"has the class '({other}|cat)' twice"):
        class_folders(tmp_path)


def test_images_outside_the_classes_are_named(tree: Tree, picture: Picture, tmp_path: Path) -> None:
    picture(tree(tmp_path, {"cat": 1}) / "stray.png")
    with pytest.raises(BadInput, match=r"images outside its 1 folders of classes, such as 'stray\.png'"):
        class_folders(tmp_path)


def test_folders_without_anything_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no folders of classes"):
        class_folders(tmp_path)
    with pytest.raises(BadInput, match="has no images"):
        flat_folder(tmp_path)


def test_a_flat_folder_is_one_class(picture: Picture, tmp_path: Path) -> None:
    for name in ("b.png", "a.jpg", "inner/c.bmp"):
        picture(tmp_path / name)
    source = flat_folder(tmp_path)
    assert [p.name for p in source.paths] == ["a.jpg", "b.png", "c.bmp"]
    assert source.labels.tolist() == [0, 0, 0]


def test_an_unreadable_folder_is_named(tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, {"cat": 1, "dog": 1})
    scandir = os.scandir

    def refuse(folder: Path) -> object:
        if Path(folder).name == "dog":
            raise PermissionError(13, "Permission denied")
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refuse)  # to root, every folder is readable
    with pytest.raises(BadInput, match=r"folder .*dog cannot be read: Permission denied"):
        class_folders(tmp_path)


# --- lists -----------------------------------------------------------------------------------------


def test_the_lines_of_a_list(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_bytes("\ufeffa/b.png -1\r\n\n  c d.png   3 \ne.png\t2\nf g.png\n".encode())
    assert [tuple(line) for line in read_list(path)] == [
        (1, "a/b.png", None),
        (3, "c d.png", 3),
        (4, "e.png", 2),
        (5, "f g.png", None),
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "names no images"),
        ("a.png 0\n../b.png 1\n", "line 2: '../b.png' points outside"),
        ("/etc/a.png 0\n", "line 1: '/etc/a.png' points outside"),
        ("a.png -2\n", "line 1: 'a.png -2' is not understood"),
        ("a.png 0\nb.png 1\na.png 1\n", "names 'a.png' twice: in lines 1 and 3"),
    ],
    ids=["empty", "up", "absolute", "label", "twice"],
)
def test_bad_lists_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "list.txt"
    path.write_text(text)
    with pytest.raises(BadInput, match=f"list .*list.txt.*{reason}"):
        read_list(path)


def test_a_list_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_bytes(b"\xff\xfe\x00a")
    with pytest.raises(BadInput, match="not UTF-8"):
        read_list(tmp_path / "list.txt")


def write_list(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "list.txt"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_a_list_gives_order_and_labels(tree: Tree, tmp_path: Path) -> None:
    folder = tree(tmp_path / "images", {"cat": 2, "dog": 1})
    source = listed_source(write_list(tmp_path, "dog/0.png 0", "cat/1.png 1", "cat/0.png 1"), (folder,))
    assert [p.relative_to(folder).as_posix() for p in source.paths] == ["dog/0.png", "cat/1.png", "cat/0.png"]
    assert source.labels.tolist() == [0, 1, 1]
    assert source.classes == ("dog", "cat")


def test_without_labels_the_folders_are_the_classes(tree: Tree, tmp_path: Path) -> None:
    folder = tree(tmp_path / "images", {"cat": 1, "dog": 1})
    source = listed_source(write_list(tmp_path, "dog/0.png -1", "cat/0.png -1"), (folder,))
    assert (source.classes, source.labels.tolist()) == (("cat", "dog"), [1, 0])


def test_labels_without_folders_of_their_own_have_no_names(tree: Tree, tmp_path: Path) -> None:
    folder = tree(tmp_path / "images", {"all": 3})
    source = listed_source(write_list(tmp_path, "all/0.png 0", "all/1.png 1"), (folder,))
    assert source.classes == ()


def test_some_labels_and_some_not_is_refused(tree: Tree, tmp_path: Path) -> None:
    folder = tree(tmp_path / "images", {"cat": 2})
    with pytest.raises(BadInput, match="line 2: it has no label"):
        listed_source(write_list(tmp_path, "cat/0.png 0", "cat/1.png"), (folder,))


@pytest.mark.parametrize("name", ["cat/7.png", "cow/0.png", "cat/ 0.png", "cat /0.png"])
def test_absent_images_are_named_with_their_line(tree: Tree, tmp_path: Path, name: str) -> None:
    folder = tree(tmp_path / "images", {"cat": 2})
    with pytest.raises(
        BadInput, match=f"line 2 names '{name}', which is not in .*images, and 1 more of its 3"
    ):
        listed_source(write_list(tmp_path, "cat/0.png 0", f"{name} 0", "cat/x.png 0"), (folder,))


@given(st.lists(st.sampled_from(["a", "..", ".", "b.png", ""]), max_size=5))
def test_paths_that_stay_inside_are_told_from_others(parts: list[str]) -> None:
    path = "/".join(parts)
    assert points_outside(path) == (path.startswith("/") or ".." in parts)


# --- layouts ---------------------------------------------------------------------------------------


def test_openood_lists_are_found_beside_their_images(tree: Tree, tmp_path: Path) -> None:
    tree(tmp_path / "images_classic" / "texture", {"banded": 1, "dotted": 1})
    lists = tmp_path / "benchmark_imglist" / "cifar100"
    lists.mkdir(parents=True)
    (lists / "test_texture.txt").write_text("texture/dotted/0.png -1\n")
    on_disk = Texture().locate("texture", "test", tmp_path)
    assert (on_disk.layout, len(on_disk.source)) == ("OpenOOD list", 1)
    (lists / "test_texture.txt").unlink()
    on_disk = Texture().locate("texture", "test", tmp_path)
    assert (on_disk.layout, on_disk.source.classes) == ("class folders", ("banded", "dotted"))


def test_openood_imagenet_labels_win_over_flat_validation_images(
    tree: Tree, picture: Picture, tmp_path: Path
) -> None:
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


def test_downloads_may_lie_one_folder_deeper(tree: Tree, tmp_path: Path) -> None:
    tree(tmp_path / "vision" / "dtd" / "images", {"banded": 1})
    assert Texture().locate("texture", "test", tmp_path).place == tmp_path / "vision" / "dtd" / "images"


def test_somebody_elses_folder_beside_the_downloads_is_passed_over(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a-private").mkdir()
    tree(tmp_path / "vision" / "dtd" / "images", {"banded": 1})
    is_dir = Path.is_dir

    def refuse(path: Path) -> bool:
        if "a-private" in path.parts[:-1]:
            raise PermissionError(13, "Permission denied")
        return is_dir(path)

    monkeypatch.setattr(Path, "is_dir", refuse)
    assert Texture().find("test", tmp_path) is not None


def test_flat_and_class_folders_are_told_apart(tree: Tree, picture: Picture, tmp_path: Path) -> None:
    picture(tmp_path / "flat" / "places365" / "val_256" / "a.png")
    tree(tmp_path / "classes" / "places365" / "val", {"bay": 1})
    layouts = [Places365().locate("p", "test", tmp_path / r).layout for r in ("flat", "classes")]
    assert layouts == ["flat folder", "class folders"]
    tree(tmp_path / "o" / "imagenet-o", {"n01": 2})
    assert len(ImageNetO().locate("o", "test", tmp_path / "o").source) == 2


def test_what_is_missing_is_named_with_its_place_and_home(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as raised:
        Texture().locate("texture", "test", tmp_path)
    for fragment in ("test images of dataset 'texture'", str(tmp_path), "dtd/images", Texture.home):
        assert fragment in str(raised.value)
    with pytest.raises(BadInput, match="--data-root"):
        Texture().locate("texture", "test", None)
    with pytest.raises(BadInput, match="no train images of dataset 'texture'"):
        Texture().locate("texture", "train", tmp_path)


# --- the selection of Tiny-ImageNet ----------------------------------------------------------------


def test_the_shipped_list() -> None:
    names = shipped_list("tin.txt")
    numbers = [int(name.removeprefix("val_").removesuffix(".JPEG")) for name in names]
    assert len(set(names)) == len(names) == TIN.counts["test"] == 7498
    assert min(numbers) >= 0
    assert max(numbers) < 10_000


@pytest.fixture
def three_kept(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names = ["val_9.png", "val_0.png", "val_3.png"]
    monkeypatch.setattr("opencil.data.readers.selection.shipped_list", lambda name: names)
    return names


@pytest.mark.parametrize("inner", ["images", "n01/images"])
def test_it_is_applied_to_a_plain_download(
    three_kept: list[str], picture: Picture, tmp_path: Path, inner: str
) -> None:
    for i in range(10):
        picture(tmp_path / "tiny-imagenet-200" / "val" / inner / f"val_{i}.png", i)
    source = TIN().locate("tin", "test", tmp_path).source
    assert [p.name for p in source.files] == three_kept


def test_it_is_applied_inside_the_zip(three_kept: list[str], picture: Picture, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "tiny-imagenet-200.zip", "w") as archive:
        for i in range(10):
            path = picture(tmp_path / "loose" / f"{i}.png", i)
            archive.write(path, f"tiny-imagenet-200/val/images/val_{i}.png")
    on_disk = TIN().locate("tin", "test", tmp_path)
    assert on_disk.layout == "zip, shipped list"
    expected = [np.random.default_rng(i).integers(0, 256, (8, 8, 3), dtype=np.uint8) for i in (9, 0, 3)]
    for i, pixels in enumerate(expected):
        np.testing.assert_array_equal(on_disk.source.pixels(i, 8), pixels.transpose(2, 0, 1))


@pytest.mark.parametrize("name", ["../val_0.png", "/val_0.png", "a/../../val_0.png"])
def test_zip_members_that_point_outside_are_refused(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "tiny-imagenet-200.zip", "w") as archive:
        archive.writestr(name, b"x")
    with pytest.raises(BadInput, match=r"tiny-imagenet-200\.zip is refused: its member .* points outside"):
        TIN().locate("tin", "test", tmp_path).source  # noqa: B018


def test_bombs_in_a_zip_are_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tiny-imagenet-200.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("small.JPEG", b"x")
    content = path.read_bytes()
    monkeypatch.setattr(zipfile.ZipFile, "open", None)
    at = content.index(b"PK\x01\x02")
    for field, said in ((20, "announce 134,217,728 bytes, and it has"), (24, "'small.JPEG' has more than")):
        announced = content[: at + field] + struct.pack("<I", 2**27) + content[at + field + 4 :]
        path.write_bytes(announced)
        with pytest.raises(BadInput, match=rf"tiny-imagenet-200\.zip is refused: .*{said}"):
            TIN().locate("tin", "test", tmp_path).source  # noqa: B018


def test_a_zip_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tiny-imagenet-200.zip").write_bytes(b"PK no")
    with pytest.raises(BadInput, match=r"archive .* cannot be read"):
        TIN().locate("tin", "test", tmp_path).source  # noqa: B018


def test_a_download_that_lacks_images_is_refused(
    three_kept: list[str], picture: Picture, tmp_path: Path
) -> None:
    picture(tmp_path / "tiny-imagenet-200" / "val" / "images" / "val_0.png")
    with pytest.raises(BadInput, match=r"has no 'val_9\.png': 2 of the 3"):
        TIN().locate("tin", "test", tmp_path).source  # noqa: B018


# --- strange files ---------------------------------------------------------------------------------


def test_a_folder_that_links_to_one_above_it_is_refused(tree: Tree, tmp_path: Path) -> None:
    tree(tmp_path, {"cat": 1})
    (tmp_path / "cat" / "again").symlink_to(tmp_path / "cat")
    for read in (class_folders, flat_folder):
        with pytest.raises(BadInput, match=r"folder .*cat/again.* is a link to a folder that it lies in"):
            read(tmp_path)


def test_a_link_to_itself_is_refused_and_a_link_elsewhere_is_followed(tree: Tree, tmp_path: Path) -> None:
    tree(tmp_path / "other", {"dog": 2})
    tree(tmp_path / "images", {"cat": 1})
    (tmp_path / "images" / "dog").symlink_to(tmp_path / "other" / "dog")
    assert len(class_folders(tmp_path / "images").paths) == 3
    (tmp_path / "images" / "self").symlink_to(tmp_path / "images" / "self")
    with pytest.raises(BadInput, match="cannot be read"):
        class_folders(tmp_path / "images")


def test_pipes_are_no_images_and_links_to_nowhere_are_not_lost(tree: Tree, tmp_path: Path) -> None:
    folder = tree(tmp_path / "images", {"cat": 1})
    os.mkfifo(folder / "cat" / "pipe.png")
    assert [path.name for path in class_folders(folder).paths] == ["0.png"]
    with pytest.raises(BadInput, match=r"line 2 names 'cat/pipe\.png', which is not in"):
        listed_source(write_list(tmp_path, "cat/0.png", "cat/pipe.png"), (folder,))
    (folder / "cat" / "gone.png").symlink_to(tmp_path / "gone.png")
    source = class_folders(folder)
    assert [path.name for path in source.paths] == ["0.png", "gone.png"]
    with pytest.raises(BadInput, match=r"gone\.png cannot be read: No such file"):
        source.pixels(1, 8)


def test_names_with_spaces_before_a_tab_and_with_odd_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_bytes("a b.png\t3\nc\u2028d.png 4\r\n".encode())
    assert [tuple(line) for line in read_list(path)] == [(1, "a b.png", 3), (2, "c\u2028d.png", 4)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a.jpg 0\n./a.jpg 0\n", "names './a.jpg' twice: in lines 1 and 2"),
        ("b/a.jpg 0\nb//a.jpg 0\n", "names 'b//a.jpg' twice"),
        (f"a.png {2**31}\n", "is not understood"),
        (f"a.png {2**70}\n", "is not understood"),
        (f"{'n' * 256}.png 0\n", "line 1: the name 'nnn.* is too long"),
        ("d/" * 2500 + "a.png\n", "line 1: the name 'd/d.* is too long"),
    ],
    ids=["dot", "slashes", "label", "huge label", "name", "path"],
)
def test_stranger_lists_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "list.txt"
    path.write_text(text)
    with pytest.raises(BadInput, match=f"list .*list.txt.*{reason}"):
        listed_source(path, (tmp_path,))


def test_a_folder_that_may_not_be_read_is_named_where_nothing_else_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> bool:
        if path.name == "images":
            raise PermissionError(13, "Permission denied", str(path))
        return False

    monkeypatch.setattr(Path, "is_dir", refuse)
    with pytest.raises(BadInput, match=r"dtd/images cannot be read: Permission denied"):
        Texture().find("test", tmp_path)
