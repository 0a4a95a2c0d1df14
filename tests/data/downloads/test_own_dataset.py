"""Bring your own: folders of images as ID and OOD datasets, from a YML alone."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

import opencil
from opencil.config import Config, parse_yaml
from opencil.data.images import Images
from opencil.data.streamed import StreamedImages
from opencil.data.transforms import Transform, statistics
from opencil.errors import BadInput
from opencil.runs.loading import load

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


def test_a_whole_run_on_them(root: Path) -> None:
    resolved = config(root)
    events = list(opencil.execute(resolved))
    assert isinstance(events[-1], opencil.runs.events.Finished)
    rows = opencil.read_rows(root / "runs")
    assert set(rows["ood"]) == {"", "other-birds", "noise", "scans"}
    assert set(rows["step"]) == {1, 2}


def test_stores_give_the_same_rows(root: Path) -> None:
    tables = []
    for store, workers in (("resident", 1), ("streamed", 1), ("streamed", 3)):
        runs = root / f"{store}{workers}"
        settings = [f"place.store={store}", f"place.workers={workers}", f"place.runs={runs}"]
        for _ in opencil.execute(config(root, YML, *settings)):
            pass
        tables.append(opencil.read_rows(runs)["value"].tolist())
    assert tables[0] == tables[1] == tables[2]


def test_computed_statistics_and_paths_are_in_the_record(root: Path) -> None:
    for _ in opencil.execute(config(root)):
        pass
    record = parse_yaml((root / "runs" / "birds/k2/icarl/seed0/config.yml").read_text(), "record")[
        "benchmark"
    ]
    mean, std = statistics(load(config(root)).train)
    assert (record["transform"]["mean"], record["transform"]["std"]) == (list(mean), list(std))
    assert record["datasets"]["scans"]["path"] == "scans"
    with pytest.raises(BadInput, match=r"other-birds\.test_list: 'keep.txt' in the stored run, None now"):
        list(opencil.execute(config(root, YML, "benchmark.datasets.other-birds.test_list=null")))


def test_other_images_are_other_statistics_and_refused(root: Path, picture: Picture) -> None:
    for _ in opencil.execute(config(root)):
        pass
    for path in (root / "birds" / "train").rglob("*.png"):
        picture(path, 99)
    with pytest.raises(BadInput, match=r"exists with another config.*\n.*transform.mean"):
        list(opencil.execute(config(root)))


def test_statistics_are_the_plain_ones(root: Path) -> None:
    train: Images = load(config(root)).train
    pixels = torch.cat(list(train.batches(torch.arange(16), 3))).double() / 255
    mean, std = statistics(train)
    for channel in range(3):
        assert mean[channel] == pytest.approx(float(pixels[:, channel].mean()), abs=5e-5)
        assert std[channel] == pytest.approx(float(pixels[:, channel].std(correction=0)), abs=5e-5)


def test_a_transform_computes_only_what_it_is_asked_to(root: Path) -> None:
    train = load(config(root)).train
    fitted = Transform("compute", (0.5, 0.5, 0.5), crop=8).fitted(train)
    assert (fitted.mean, fitted.std) == (statistics(train)[0], (0.5, 0.5, 0.5))
    given = Transform((0.0,) * 3, (1.0,) * 3, crop=8)
    assert given.fitted(train) is given
    with pytest.raises(BadInput, match="still to be computed"):
        Transform("compute", "compute", crop=8).test(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))


def test_images_of_one_colour_have_no_std() -> None:
    images = opencil.ImageSet("flat", torch.full((3, 3, 4, 4), 7, dtype=torch.uint8), torch.zeros(3).long())
    with pytest.raises(BadInput, match="std cannot be computed from 'flat'"):
        statistics(images)


def test_absolute_paths_need_no_data_root(root: Path) -> None:
    text = YML.replace("path: birds,", f"path: {root / 'birds'},").replace("[other-birds]", "[]")
    text = text.replace("far: [noise, scans]", "far: [noise]")
    resolved = opencil.resolve(
        parse_yaml(text, "test"), flags={"place": {"cache": str(root / "cache"), "device": "cpu"}}
    )
    assert len(load(resolved).train) == 16


def test_streamed_own_images(root: Path) -> None:
    data = load(config(root, YML, "place.store=streamed"))
    assert isinstance(data.train, StreamedImages)
    assert data.ood["noise"].images.name == "noise", "what comes with a package is resident anyway"


@pytest.mark.parametrize(
    ("setting", "fragments"),
    [
        ("benchmark.datasets.birds.paht=x", ["benchmark.datasets.birds.paht", "did you mean 'path'"]),
        ("benchmark.datasets.birds.layout=tree", ["benchmark.datasets.birds.layout", "'folders' or 'flat'"]),
        ("benchmark.datasets.birds.train=null", ["id = 'birds' has no training images"]),
        ("benchmark.datasets.cifar10={path: x}", ["the name 'cifar10' is not allowed", "are taken"]),
        ("benchmark.datasets.Birds={path: x}", ["the name 'Birds' is not allowed"]),
        ("benchmark.near=[other-brids]", ["'other-brids' is unknown", "did you mean 'other-birds'"]),
        ("benchmark.transform.mean=[0.5, 0.5]", ["benchmark.transform.mean[2] is missing"]),
        ("benchmark.transform.mean=computed", ["benchmark.transform.mean", "'compute'"]),
        ("place.workers=0", ["place.workers"]),
        ("place.store=disk", ["'auto', 'resident' or 'streamed'"]),
    ],
)
def test_wrong_values_are_refused_with_a_sentence(root: Path, setting: str, fragments: list[str]) -> None:
    with pytest.raises(BadInput) as raised:
        config(root, YML, setting)
    assert [f for f in fragments if f not in str(raised.value)] == [], str(raised.value)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        (
            "benchmark.datasets.scans.path=scan",
            "test images of dataset 'scans' are not in .*: expected at scan",
        ),
        (
            "benchmark.datasets.other-birds.test_list=no.txt",
            "test_list = 'no.txt' is not allowed: there is no",
        ),
        ("benchmark.datasets.birds.train=test/../none", "train images of dataset 'birds' are not in"),
    ],
)
def test_wrong_places_are_refused_when_they_are_read(root: Path, setting: str, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        load(config(root, YML, setting))


def test_splits_must_mean_the_same_classes(root: Path) -> None:
    (root / "birds" / "test" / "tit").rename(root / "birds" / "test" / "wren")
    with pytest.raises(
        BadInput, match="4 classes in training and 4 in test images, and they differ: tit, wren"
    ):
        load(config(root))


def test_the_example_in_the_docs_is_understood(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
    example = page.partition("```yaml\n")[2].partition("```")[0]
    benchmark = config(tmp_path, example).benchmark
    assert set(benchmark.datasets) == {"birds", "other-birds", "scans"}
    assert benchmark.transform.computes
