"""``opencil data``: output, files and exit codes."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from opencil.cli import app

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


def test_check_prints_the_splits(root: Path, yml: str) -> None:
    result = data("check", root, "--config", yml)
    assert result.exit_code == 0, result.output
    for key in ("toys/train", "class folders", "dtd/images", "MNIST/raw/t10k-images-idx3-ubyte.gz", "idx"):
        assert key in result.stdout
    (noise,) = [line for line in result.stdout.splitlines() if " noise " in line]
    assert "in a package" in noise
    assert "965" in data("check", "--benchmark", "digits").stdout


def test_check_names_missing_and_damaged_splits(root: Path, yml: str) -> None:
    result = data("check", root, "--benchmark", "cifar100")
    assert result.exit_code == 1
    for key in ("svhn/test_32x32.mat", "https://www.cs.toronto.edu/~kriz/cifar.html", "places365"):
        assert key in result.stdout
    path = root / "toys" / "train" / "car" / "1.png"
    path.write_bytes(b"")
    result = data("check", root, "--config", yml)
    assert result.exit_code == 1
    assert str(path) in result.stdout


def test_prepare_decodes_only_once(root: Path, yml: str, monkeypatch: pytest.MonkeyPatch) -> None:
    result = data("prepare", root, "--config", yml)
    assert result.exit_code == 0, result.output
    assert "toys train: 6 images" in result.stdout
    assert str(root / ".opencil-cache") in result.stdout
    assert len(list((root / ".opencil-cache").iterdir())) == 4
    monkeypatch.setattr("opencil.data.prepared.decode_batches", None)
    assert data("prepare", root, "--config", yml, "--workers", 2).stdout == result.stdout


def test_prepare_stops_at_corrupt_images_or_leaves_them_out(root: Path, yml: str, tmp_path: Path) -> None:
    path = root / "toys" / "train" / "car" / "1.png"
    path.write_bytes(path.read_bytes()[:50])
    words = ["prepare", root, "--config", yml, "--cache", tmp_path / "cache"]
    result = data(*words)
    assert result.exit_code == 2
    assert str(path) in result.stderr
    result = data(*words, "--skip-corrupt")
    assert result.exit_code == 0, result.output
    assert "toys train: 5 images, 1 corrupt" in result.stdout
    assert str(path) in result.stdout
    assert not (root / ".opencil-cache").exists()


def test_show_writes_a_picture(root: Path, tmp_path: Path, yml: str) -> None:
    save = tmp_path / "sheet.png"
    result = data("show", root, "toys", "--split", "train", "--config", yml, "--save", save)
    assert result.exit_code == 0, result.output
    with Image.open(save) as sheet:
        assert f"{sheet.width} × {sheet.height} pixels" in result.stdout
        assert len(np.unique(np.asarray(sheet).reshape(-1, 3), axis=0)) > 100
    assert data("show", root, "texture", "--save", save, "--size", 16).exit_code == 0
    assert data("show", root, "digits", "--save", save).exit_code == 0


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["check", "ROOT"], "--benchmark"),
        (["check", "ROOT/none", "--benchmark", "cifar100"], "Invalid value"),
        (["check", "ROOT", "--benchmark", "cifar10o"], "'cifar100'"),
        (["check", "--benchmark", "cifar100"], "cifar100"),
        (["prepare", "ROOT", "--benchmark", "digits"], "digits"),
        (["show", "ROOT", "textures"], "'texture'"),
        (["show", "ROOT", "texture", "--split", "val"], "--split"),
        (["show", "ROOT", "svhn"], "'svhn'"),
        (["show", "ROOT", "texture", "--save", "ROOT"], "ROOT"),
        (["prepare", "ROOT", "--benchmark", "cifar100"], "'cifar100'"),
    ],
)
def test_bad_input_is_a_sentence_and_exit_2(root: Path, words: list[str], key: str) -> None:
    result = data(*(word.replace("ROOT", str(root)) for word in words))
    assert (result.exit_code, key.replace("ROOT", str(root)) in result.stderr) == (2, True), result.output
    assert "Traceback" not in result.output


def test_paths_that_look_like_markup_are_printed_unchanged(root: Path, yml: str, tmp_path: Path) -> None:
    (tmp_path / "d[").mkdir()
    root = root.rename(tmp_path / "d[" / "x] [red]")
    assert f"toys in {root}" in data("check", root, "--config", yml).stdout
    assert str(root / ".opencil-cache") in data("prepare", root, "--config", yml).stdout
    (root / "dtd").rename(root / "gone")
    assert f"not in {root}: expected at" in data("check", root, "--config", yml).stdout
