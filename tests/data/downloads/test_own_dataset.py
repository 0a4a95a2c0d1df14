"""Folders of a user's images as ID and OOD datasets, from a YML alone."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

import opencil
from opencil.config import Config, parse_yaml
from opencil.data.streamed import StreamedImages
from opencil.data.transforms import Transform, statistics
from opencil.errors import BadInput
from opencil.runs.loading import load
from opencil.runs.outlook import measure, outlook
from opencil.runs.spec import plan

Picture = Callable[..., Path]
Tree = Callable[[Path, Mapping[str, int]], Path]

YML = """
benchmark:
  name: birds
  id: birds
  near: [other-birds]
  far: [noise, scans]
  datasets:
    birds: {path: birds, train: train, test: test}
    other-birds: {path: others, test_list: keep.txt}
    scans: {path: scans, layout: flat}
  image_size: 8
  transform: {mean: compute, std: compute, crop: 8, padding: 1}
  backbone: resnet8
  batch_size: 4
  classes_per_step: 2
  memory: 8
cil: {icarl: {epochs: 1}}
detector: msp
"""


@pytest.fixture
def root(tree: Tree, picture: Picture, tmp_path: Path) -> Path:
    root = tmp_path / "downloads"
    classes = ("crow", "jay", "owl", "tit")
    tree(root / "birds" / "train", dict.fromkeys(classes, 4))
    tree(root / "birds" / "test", dict.fromkeys(classes, 2))
    tree(root / "others", {"emu": 3})
    (root / "keep.txt").write_text("emu/2.png\nemu/0.png\n")
    for i in range(3):
        picture(root / "scans" / f"{i}.jpg", i, 12, 20)
    return root


def config(root: Path, text: str = YML, *settings: str) -> Config:
    place = {"data_root": str(root), "runs": str(root / "runs"), "device": "cpu"}
    return opencil.resolve(parse_yaml(text, "test"), flags={"place": place}, settings=settings)


def test_they_serve_as_id_and_ood(root: Path) -> None:
    data = load(config(root))
    assert (len(data.train), len(data.test)) == (16, 8)
    assert data.train.classes == ("crow", "jay", "owl", "tit")
    kinds = {name: (len(ood.images), ood.distance) for name, ood in data.ood.items()}
    assert kinds == {"other-birds": (2, "near"), "noise": (500, "far"), "scans": (3, "far")}
    streamed = load(config(root, YML, "place.store=streamed"))
    assert isinstance(streamed.train, StreamedImages)
    assert isinstance(streamed.ood["noise"].images, opencil.ImageSet)
    absolute = YML.replace("path: birds,", f"path: {root / 'birds'},")
    assert len(load(config(root, absolute)).train) == 16


def test_other_classes_in_training_and_test_images_are_refused_in_a_line(root: Path) -> None:
    test = root / "birds" / "test"
    (test / "owl").rename(test / "b\narn owl")
    with pytest.raises(BadInput, match="the classes of 'birds'") as raised:
        load(config(root))
    assert "\n" not in str(raised.value)


def test_stores_give_the_same_rows_and_other_images_are_refused(root: Path, picture: Picture) -> None:
    tables = []
    for store, workers in (("resident", 1), ("streamed", 3)):
        settings = [f"place.store={store}", f"place.workers={workers}", f"place.runs={root / store}"]
        for _ in opencil.execute(config(root, YML, *settings)):
            pass
        rows = opencil.read_rows(root / store)
        assert set(rows["ood"]) == {"", "other-birds", "noise", "scans", "future"}
        tables.append(rows["value"].tolist())
    assert tables[0] == tables[1]
    record = parse_yaml((root / "resident/birds/k2/icarl/seed0/config.yml").read_text(), "record")[
        "benchmark"
    ]
    mean, std = statistics(load(config(root)).train)
    assert (record["transform"]["mean"], record["transform"]["std"]) == (list(mean), list(std))
    for path in (root / "birds" / "train").rglob("*.png"):
        picture(path, 99)
    with pytest.raises(BadInput, match=r"transform\.mean"):
        list(opencil.execute(config(root, YML, f"place.runs={root / 'resident'}")))


def test_class_folders_alone_are_split_by_a_recorded_seed(root: Path, tree: Tree) -> None:
    tree(root / "all", {"crow": 9, "jay": 2, "owl": 10, "tit": 20})
    text = YML.replace("{path: birds, train: train, test: test}", "{path: all}")

    def parts(*settings: str) -> tuple[list[str], list[str]]:
        own = config(root, text, *settings).benchmark.datasets["birds"]
        found = [own.locate("birds", split, root).source for split in ("train", "test")]
        return tuple([f"{path.parent.name}/{path.name}" for path in part.paths] for part in found)

    train, test = parts()
    assert not {*train} & {*test}
    assert len({*train, *test}) == 41
    assert [sum(name.startswith(c) for name in test) for c in ("crow", "jay", "owl", "tit")] == [2, 1, 2, 4]
    assert parts() == (train, test)
    assert parts("benchmark.datasets.birds.split={seed: 1}")[1] != test
    assert len(parts("benchmark.datasets.birds.split={share: 0.5}")[1]) == 4 + 1 + 5 + 10
    tree(root / "all", {"auk": 3})
    assert [name for name in parts()[1] if not name.startswith("auk")] == test, "others stay as they were"
    (spec,) = plan(config(root, text))
    record = spec.record()["benchmark"]["datasets"]
    assert record["birds"]["split"] == {"share": 0.2, "seed": 0}
    assert "split" not in record["other-birds"], "as an OOD set all images are for testing"
    assert len(load(config(root, text)).train) == 34
    tree(root / "all", {"emu": 1})
    with pytest.raises(BadInput, match=r"'emu' .* 1 image"):
        load(config(root, text))


def test_a_class_more_than_a_finished_run_has_learned_is_noticed(root: Path, tree: Tree) -> None:
    def made(overwrite: bool = False) -> opencil.Results:
        return opencil.run(config(root), overwrite=overwrite)

    assert len(made().runs[0].stream) == 2
    for part in ("train", "test"):
        tree(root / "birds" / part, {"wren": 2})
    for _ in range(2):
        with pytest.raises(BadInput, match="4 classes, and 'birds' has 5 now"):
            made()
        with pytest.raises(BadInput, match="--overwrite"):
            outlook(config(root))
    assert len(made(overwrite=True).runs[0].stream) == 3
    assert outlook(config(root)).done == 1
    ahead = measure(config(root, YML, "seed.runs=1"), outlook(config(root, YML, "seed.runs=1")))
    assert ahead.training, "by the images that are there"


def test_statistics_are_the_plain_ones(root: Path) -> None:
    train = load(config(root)).train
    pixels = torch.cat(list(train.batches(torch.arange(16), 3))).double() / 255
    mean, std = statistics(train)
    for channel in range(3):
        assert mean[channel] == pytest.approx(float(pixels[:, channel].mean()), abs=5e-5)
        assert std[channel] == pytest.approx(float(pixels[:, channel].std(correction=0)), abs=5e-5)
    computed = Transform("compute", (0.5, 0.5, 0.5), crop=8).fit(train)
    assert (computed.mean, computed.std) == (mean, (0.5, 0.5, 0.5))
    with pytest.raises(BadInput):
        Transform("compute", "compute", crop=8).test(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
    flat = opencil.ImageSet("flat", torch.full((3, 3, 4, 4), 7, dtype=torch.uint8), torch.zeros(3).long())
    with pytest.raises(BadInput, match="'flat'"):
        statistics(flat)


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ("benchmark.datasets.birds.paht=x", "benchmark.datasets.birds.paht"),
        ("benchmark.datasets.birds.layout=tree", "benchmark.datasets.birds.layout"),
        ("benchmark.datasets.birds.train=null", "'birds'"),
        ("benchmark.datasets.birds.split={seed: 1}", "benchmark.datasets.birds.split"),
        ("benchmark.datasets.cifar10={path: x}", "'cifar10'"),
        ("benchmark.datasets.Birds={path: x}", "benchmark.datasets.Birds"),
        ("benchmark.near=[other-brids]", "'other-birds'"),
        ("benchmark.transform.mean=[0.5, 0.5]", "benchmark.transform.mean"),
        ("benchmark.transform.mean=computed", "benchmark.transform.mean"),
        ("place.workers=0", "place.workers"),
        ("place.store=disk", "place.store"),
        ("benchmark.datasets.scans.path=scan", "'scans'"),
        ("benchmark.datasets.other-birds.test_list=no.txt", "no.txt"),
        ("benchmark.datasets.birds.train=test/../none", "'birds'"),
        ("benchmark.datasets.birds.train=../others", "emu"),
    ],
)
def test_wrong_values_and_places_are_refused(root: Path, setting: str, key: str) -> None:
    with pytest.raises(BadInput) as raised:
        load(config(root, YML, setting))
    assert key in str(raised.value)


def test_the_example_in_the_docs_is_valid(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
    example = page.partition("```yaml\n")[2].partition("```")[0]
    benchmark = config(tmp_path, example).benchmark
    assert set(benchmark.datasets) == {"birds", "other-birds", "scans"}
    assert benchmark.transform.computes
