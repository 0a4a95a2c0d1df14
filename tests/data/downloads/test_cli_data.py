"""``opencil data``: what it prints, writes and answers."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from opencil.cli import app
from opencil.data.decoding import decoded
from opencil.data.readers.source import ImageSource

Tree = Callable[[Path, Mapping[str, int]], Path]

YML = """
benchmark:
  name: toys
  id: toys
  near: [texture]
  far: [mnist, noise]
  datasets: {toys: {path: toys, train: train, test: test}}
  image_size: 8
  transform: {mean: compute, std: compute, crop: 8}
  backbone: resnet8
  classes_per_step: 1
  memory: 4
"""


@pytest.fixture
def root(tree: Tree, mnist: Callable[..., Path], tmp_path: Path) -> Path:
    root = tmp_path / "downloads"
    tree(root / "toys" / "train", {"car": 3, "doll": 3})
    tree(root / "toys" / "test", {"car": 1, "doll": 1})
    tree(root / "dtd" / "images", {"banded": 2})
    return mnist(root)


@pytest.fixture
def yml(tmp_path: Path) -> str:
    (tmp_path / "toys.yml").write_text(YML)
    return str(tmp_path / "toys.yml")


def data(*words: object) -> Result:
    return CliRunner().invoke(app, ["data", *map(str, words)], env={"COLUMNS": "200"})


def test_check_says_what_is_there(root: Path, yml: str) -> None:
    result = data("check", root, "--config", yml)
    assert result.exit_code == 0, result.output
    for fragment in (
        "toys/train",
        "class folders",
        "dtd/images",
        "MNIST/raw/t10k-images-idx3-ubyte.gz",
        "idx",
    ):
        assert fragment in result.stdout
    assert "texture (test) has 2 of 5,640 images; usable" in result.stdout
    assert "mnist (test) has 5 of 10,000 images" in result.stdout
    assert "the files of mnist (test) are not byte for byte the published ones" in result.stdout
    assert "all 5 can be used" in result.stdout
    (noise,) = [line for line in result.stdout.splitlines() if " noise " in line]
    assert "in a package" in noise


def test_check_says_what_is_missing_and_where_it_comes_from(root: Path) -> None:
    result = data("check", root, "--benchmark", "cifar100")
    assert result.exit_code == 1
    assert "6 of 8 cannot be used" in result.stderr
    for fragment in (
        f"{root}/cifar-100-python/train or {root}/benchmark_imglist",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        f"{root}/svhn/test_32x32.mat",
        "http://ufldl.stanford.edu/housenumbers/",
        "places365 (test): expected at",
    ):
        assert fragment in result.stdout


def test_check_names_damage(root: Path, yml: str) -> None:
    path = root / "toys" / "train" / "car" / "1.png"
    path.write_bytes(b"")
    result = data("check", root, "--config", yml)
    assert result.exit_code == 1
    assert "1 corrupt" in result.stdout
    assert f"unusable: image {path} cannot be decoded" in result.stdout
    assert "1 of 5 cannot be used" in result.stderr


def test_prepare_then_nothing_is_decoded_again(root: Path, yml: str, monkeypatch: pytest.MonkeyPatch) -> None:
    result = data("prepare", root, "--config", yml)
    assert result.exit_code == 0, result.output
    assert "toys train: 6 images" in result.stdout
    assert f"MiB in {root / '.opencil-cache'}" in result.stdout
    monkeypatch.setattr("opencil.data.image_cache.decoded", None)
    assert data("prepare", root, "--config", yml).stdout == result.stdout


def test_prepare_stops_at_corrupt_images_or_counts_them(root: Path, yml: str, tmp_path: Path) -> None:
    path = root / "toys" / "train" / "car" / "1.png"
    path.write_bytes(path.read_bytes()[:50])
    result = data("prepare", root, "--config", yml, "--cache", tmp_path / "cache")
    assert result.exit_code == 2
    assert f"image {path} cannot be decoded" in result.stderr
    result = data("prepare", root, "--config", yml, "--cache", tmp_path / "cache", "--skip-corrupt")
    assert result.exit_code == 0, result.output
    assert "toys train: 5 images, 1 corrupt ones left out" in result.stdout
    assert f"left out: {path}" in result.stdout
    assert not (root / ".opencil-cache").exists()


def test_prepare_leaves_large_datasets_to_be_streamed(root: Path, yml: str) -> None:
    Path(yml).write_text(YML + "place: {store: streamed}\n")
    result = data("prepare", root, "--config", yml)
    assert result.exit_code == 0, result.output
    assert "toys train: 6 images, streamed from" in result.stdout
    (root / "toys" / "train" / "car" / "1.png").write_bytes(b"")
    result = data("prepare", root, "--config", yml, "--skip-corrupt")
    assert result.exit_code == 0, result.output
    assert "toys train: 5 images, 1 corrupt ones left out, streamed from" in result.stdout


def test_show_writes_a_picture(root: Path, tmp_path: Path, yml: str) -> None:
    save = tmp_path / "sheet.png"
    result = data("show", root, "toys", "--split", "train", "--config", yml, "--save", save)
    assert result.exit_code == 0, result.output
    with Image.open(save) as sheet:
        assert f"{sheet.width} × {sheet.height} pixels" in result.stdout
        assert len(np.unique(np.asarray(sheet).reshape(-1, 3), axis=0)) > 100
    assert data("show", root, "texture", "--save", save, "--size", 16).exit_code == 0
    assert data("show", root, "digits", "--save", save).exit_code == 0


def test_sets_that_come_with_a_package_are_checked_too() -> None:
    result = data("check", "--benchmark", "digits")
    assert result.exit_code == 0, result.output
    counts = {("digits", "train"): 965, ("digits", "test"): 478, ("digits-held-out", "test"): 354}
    for (name, split), count in counts.items():
        (line,) = [row for row in result.stdout.splitlines() if row.split()[1:4:2] == [name, split]]
        assert f" {count} " in line
    assert "all 5 can be used" in result.stdout


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["check", "ROOT"], "--benchmark names one of"),
        (["check", "ROOT/none", "--benchmark", "cifar100"], "there is no folder"),
        (["check", "ROOT", "--benchmark", "cifar10o"], "did you mean 'cifar100'"),
        (["check", "--benchmark", "cifar100"], "reads files: name the folder of your downloads"),
        (["prepare", "ROOT", "--benchmark", "digits"], "reads no files"),
        (["show", "ROOT", "textures"], "did you mean 'texture'"),
        (["show", "ROOT", "texture", "--split", "val"], "--split 'val' is not allowed"),
        (["show", "ROOT", "svhn"], "test images of dataset 'svhn' are not in"),
        (["prepare", "ROOT", "--benchmark", "cifar100"], "train images of dataset 'cifar100' are not in"),
    ],
)
def test_bad_input_is_a_sentence_and_exit_2(root: Path, words: list[str], reason: str) -> None:
    result = data(*(word.replace("ROOT", str(root)) for word in words))
    assert (result.exit_code, reason in result.stderr) == (2, True), result.output
    assert "Traceback" not in result.output


def test_prepare_takes_the_place_of_the_yml_where_no_flag_says_otherwise(
    root: Path, yml: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(yml).write_text(YML + f"place: {{cache: {tmp_path / 'kept'}, workers: 3}}\n")
    monkeypatch.setenv("OPENCIL_CACHE", str(tmp_path / "env"))
    used = set()

    def noted(source: ImageSource, indices: Sequence[int], side: int, size: int, workers: int) -> Any:
        used.add(workers)
        return decoded(source, indices, side, size, workers)

    monkeypatch.setattr("opencil.data.image_cache.decoded", noted)
    result = data("prepare", root, "--config", yml)
    assert f"MiB in {tmp_path / 'kept'}" in result.stdout
    assert (used, (tmp_path / "kept").is_dir(), (tmp_path / "env").exists()) == ({3}, True, False)
    result = data("prepare", root, "--config", yml, "--cache", tmp_path / "flag", "--workers", 2)
    assert f"MiB in {tmp_path / 'flag'}" in result.stdout
    assert used == {2, 3}


def test_paths_that_look_like_markup_are_printed_as_they_are(root: Path, yml: str, tmp_path: Path) -> None:
    (tmp_path / "d[").mkdir()
    root = root.rename(tmp_path / "d[" / "x] [red]")
    assert f"toys in {root}" in data("check", root, "--config", yml).stdout
    assert f"MiB in {root / '.opencil-cache'}" in data("prepare", root, "--config", yml).stdout
    (root / "dtd").rename(root / "gone")
    assert f"expected at {root}/benchmark_imglist" in data("check", root, "--config", yml).stdout
    Path(yml).write_text(YML + "place: {store: streamed}\n")
    (root / "gone").rename(root / "dtd")
    assert f"streamed from {root}" in data("prepare", root, "--config", yml).stdout


def test_show_says_that_it_needs_a_file(root: Path, tmp_path: Path) -> None:
    result = data("show", root, "texture", "--save", tmp_path)
    assert result.exit_code == 2
    assert f"--save {tmp_path} is a folder: name a file" in result.stderr
