"""``evaluate`` on a model that is not ours, with image sets and with plain tensors."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

import opencil
from opencil import BadInput, ImageSet, Transform, create_detector, evaluate
from opencil.data.digits import Noise
from opencil.detectors.detector import LogitDetector
from opencil.detectors.posthoc.gram import Gram
from opencil.registry import DETECTORS

TRANSFORM = Transform(mean=(0.5, 0.5, 0.5), std=(0.25, 0.3, 0.35), crop=8, flip=False)


class Stranger(nn.Module):
    """Not one of our models: any module with ``features`` and ``classify``; counts the images it sees."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.body, self.head = nn.Linear(3 * 8 * 8, 16), nn.Linear(16, 4)
        self.seen = 0

    def features(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        return self.body(images.flatten(1)).relu()

    def maps(self, images: Tensor) -> list[Tensor]:
        return [images, self.features(images)[:, :, None, None]]

    def last_stage(self, maps: Tensor) -> Tensor:
        return self.features(maps)

    def classify(self, features: Tensor) -> Tensor:
        return self.head(features)


def image_set(name: str, count: int, seed: int) -> ImageSet:
    images = Noise(count=count, seed=seed).load("test", 8, None)
    return ImageSet(name, images.images, torch.arange(count) % 4)


TEST, SETUP = image_set("test", 40, 1), image_set("setup", 400, 2)
OOD = {"near": image_set("near", 30, 3), "far": image_set("far", 25, 4)}


def test_all_detectors_on_image_sets_leave_the_model_as_it_is() -> None:
    model = Stranger()
    table = evaluate(model, TEST, OOD, detectors="all", setup=SETUP, transform=TRANSFORM, tasks=[1, 1, 2, 2])
    assert list(table.columns) == ["detector", "ood", "task", "metric", "value"]
    assert set(table["detector"]) == set(opencil.list_detectors())
    accuracies = table[table["metric"] == "accuracy"]
    assert list(accuracies["detector"]) == opencil.list_detectors(), "the model's accuracy is with each"
    assert accuracies["value"].nunique() == 1
    assert set(table["ood"]) == {"", "near", "far"}
    assert {"auc", "auc_old", "fpr_new", "oscr", "confidence", "ood_as_new"} <= set(table["metric"])
    assert not table["value"].isna().any()
    before = Stranger().state_dict()
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_values_are_those_of_the_detectors_and_metrics_by_hand() -> None:
    model, energy = Stranger(), create_detector("energy", temperature=2.0)
    table = evaluate(model, TEST, OOD, detectors={"warm": energy}, transform=TRANSFORM)
    inside, outside = (opencil.forward(model, images, TRANSFORM) for images in (TEST, OOD["near"]))
    expected = opencil.ood_metrics(energy.score(inside), energy.score(outside))
    rows = table[(table["detector"] == "warm") & (table["ood"] == "near")].set_index("metric")["value"]
    assert rows["auc"] == expected.auc
    assert rows["fpr"] == expected.fpr
    (accuracy,) = table.loc[table["metric"] == "accuracy", "value"]
    assert accuracy == opencil.accuracy(inside.logits.argmax(dim=1), TEST.labels)


def test_by_default_one_pass_serves_all_detectors_that_read_outputs() -> None:
    model = Stranger()
    made = {name: DETECTORS.create(name) for name in opencil.list_detectors()}
    names = [n for n, d in made.items() if not {"images", "layers"} & (d.reads | d.reads_to_set_up)]
    table = evaluate(model, TEST, OOD, setup=SETUP, transform=TRANSFORM, tasks=[1, 1, 2, 2])
    assert model.seen == 40 + 30 + 25 + 400
    assert list(table["detector"].unique()) == names
    unready = {name for name in names if made[name].needs_setup}
    table = evaluate(model, TEST, OOD, transform=TRANSFORM)
    assert set(table["detector"]) == {*names} - unready
    of_logits = evaluate(lambda images: images.flatten(1)[:, :4], normalised(TEST), {"far": normalised(TEST)})
    assert {"msp", "energy"} < set(of_logits["detector"]) < set(table["detector"])


def test_folders_are_images_as_image_sets_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for number, pixels in enumerate(TEST.images):
        for folder in (f"test/{TEST.labels[number]}", "mine"):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            image = Image.fromarray(pixels.permute(1, 2, 0).numpy())
            image.save(tmp_path / folder / f"{number:02d}.png")
    rows = TEST.labels.argsort(stable=True)  # as files are sorted
    sets = [ImageSet("test", TEST.images[rows], TEST.labels[rows]), {"mine": TEST, "far": OOD["far"]}]
    given: dict[str, Any] = {"transform": TRANSFORM, "detectors": "msp"}
    expected = evaluate(Stranger(), *sets, **given)
    ood = {"mine": tmp_path / "mine", "far": OOD["far"]}
    found = evaluate(Stranger(), str(tmp_path / "test"), ood, **given)
    pd.testing.assert_frame_equal(found, expected)
    assert capsys.readouterr() == ("", ""), "a bar is for terminals"
    assert not (tmp_path / "cache").exists()
    with pytest.raises(BadInput, match="transform"):
        evaluate(Stranger(), TEST, {"mine": tmp_path / "mine"}, detectors="msp")
    with pytest.raises(BadInput, match="ood 'mine' is 'nowhere'"):
        evaluate(Stranger(), TEST, {"mine": "nowhere"}, **given)
    with pytest.raises(BadInput, match="folders of classes"):
        evaluate(Stranger(), tmp_path / "mine", OOD, **given)
    outputs = opencil.forward(Stranger(), tmp_path / "mine", TRANSFORM)
    assert outputs.labels is None
    torch.testing.assert_close(outputs.logits, opencil.forward(Stranger(), TEST, TRANSFORM).logits)
    single = opencil.forward(Stranger(), str(tmp_path / "mine/03.png"), TRANSFORM)
    torch.testing.assert_close(single.logits, outputs.logits[3:4])
    with pytest.raises(BadInput, match="transform"):
        opencil.forward(Stranger(), tmp_path / "mine")


def test_detectors_without_maps_are_left_out_of_a_group() -> None:
    class Blind(Stranger):
        maps = None  # type: ignore[assignment]

    @opencil.register_detector("later")
    @dataclass
    class Later(Gram):
        """Reads maps when it scores alone."""

        setup_reads = frozenset({"logits"})

        def set_up(self, outputs: opencil.Outputs) -> None:
            pass

    given: dict[str, Any] = {"setup": SETUP, "transform": TRANSFORM, "tasks": [1, 1, 2, 2]}
    left_out = r"^(gram|later|rankfeat) is left out: Blind has no method maps"
    with pytest.warns(UserWarning, match=left_out) as warned:
        table = evaluate(Blind(), TEST, OOD, detectors="all", **given)
    assert [warning.filename for warning in warned] == [__file__] * 3, "where the user's line is"
    assert {*opencil.list_detectors()} - {*table["detector"]} == {"gram", "later", "rankfeat"}
    with pytest.raises(BadInput, match="Blind has no method maps"):
        evaluate(Blind(), TEST, OOD, setup=SETUP, transform=TRANSFORM, detectors=["msp", "gram"])


def test_a_model_is_not_scored_by_the_set_up_of_the_one_before() -> None:
    knn = create_detector("knn", neighbours=3)
    given: dict[str, Any] = {"setup": SETUP, "transform": TRANSFORM}
    with torch.no_grad():
        first, second = Stranger(), Stranger()
        for parameter in second.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)))
    evaluate(first, TEST, OOD, detectors=knn, **given)
    found = evaluate(second, TEST, OOD, detectors=knn, **given)
    expected = evaluate(second, TEST, OOD, detectors=create_detector("knn", neighbours=3), **given)
    pd.testing.assert_frame_equal(found, expected)
    assert not knn.ready
    ready = knn.fit(opencil.forward(first, SETUP, TRANSFORM))  # by the user, who knows by which model
    as_it_is = evaluate(second, TEST, OOD, detectors=ready, **given)
    assert not as_it_is["value"].equals(expected["value"])


def test_detectors_with_too_few_set_up_images_are_left_out_by_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: dict[str, Any] = {"setup": image_set("few", 20, 2), "transform": TRANSFORM}
    monkeypatch.setattr(DETECTORS, "names", lambda: ["msp", "nnguide"])
    with pytest.warns(UserWarning, match="nnguide is left out"):
        table = evaluate(Stranger(), TEST, OOD, **given)
    assert list(table["detector"].unique()) == ["msp"]
    with pytest.raises(BadInput, match="nnguide:"):
        evaluate(Stranger(), TEST, OOD, detectors=["msp", "nnguide"], **given)
    monkeypatch.setattr(DETECTORS, "names", lambda: ["nnguide"])
    with pytest.raises(BadInput, match="nnguide:"):
        evaluate(Stranger(), TEST, OOD, **given)


def test_detectors_are_left_out_where_the_model_gives_no_gradient() -> None:
    class Frozen(Stranger):
        features, classify = torch.no_grad()(Stranger.features), torch.no_grad()(Stranger.classify)

    given: dict[str, Any] = {"setup": SETUP, "transform": TRANSFORM}
    with pytest.warns(UserWarning, match="is left out") as warned:
        table = evaluate(Frozen(), TEST, OOD, detectors="post-hoc", **given)
    left_out = {str(warning.message).split()[0] for warning in warned}
    assert {*opencil.list_detectors("post-hoc")} - {*table["detector"]} == left_out == {"odin", "adascale"}
    with pytest.raises(BadInput, match="odin:"):
        evaluate(Frozen(), TEST, OOD, detectors="odin", **given)


@pytest.mark.parametrize("labels", [[0] * 39, [0.5] * 40, [-1] * 40])
def test_wrong_labels_are_refused_before_the_forward_pass(labels: list[Any]) -> None:
    for images in (TEST, normalised(TEST), TensorDataset(normalised(TEST))):
        model = Stranger()
        with pytest.raises(BadInput, match="labels"):
            evaluate(model, images, OOD, detectors="msp", labels=labels, transform=TRANSFORM)
        assert not model.seen


SLOW = ["augmix", "ber", "more", "npos", "oe", "regmix", "t2fnorm", "vos"]
QUICK = [name for name in opencil.list_detectors() if name not in SLOW]  #: logitnorm stands for the tuners


class Pairs(Dataset):  # type: ignore[type-arg]
    """A map-style dataset of (image, label) that counts the items read."""

    def __init__(self, images: Tensor, labels: Tensor | None) -> None:
        self.images, self.labels, self.seen = images, labels, 0

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        self.seen += 1
        return self.images[index] if self.labels is None else (self.images[index], int(self.labels[index]))


def normalised(images: ImageSet) -> Tensor:
    return TRANSFORM.test(images.images)


def dictionaries(images: Tensor, labels: Tensor) -> Any:
    return DataLoader(
        Pairs(images, labels),
        batch_size=16,
        collate_fn=lambda items: dict(zip(("data", "label"), default_collate(items), strict=True)),
    )


class Streamed(IterableDataset):  # type: ignore[type-arg]
    """One item after the other."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.items = list(zip(images, labels.tolist(), strict=True))

    def __iter__(self) -> Any:
        return iter(self.items)


GIVEN: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "arrays": lambda images, labels: images.numpy(),
    "a Dataset": Pairs,
    "a DataLoader": lambda images, labels: DataLoader(Pairs(images, labels), batch_size=16),
    "a DataLoader of dictionaries": dictionaries,
    "a list of items": lambda images, labels: list(zip(images, labels.tolist(), strict=True)),
}
ONE_BY_ONE: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "a list of batches": lambda images, labels: list(zip(images.split(16), labels.split(16), strict=True)),
    "an IterableDataset": Streamed,
}


@pytest.fixture(scope="module")
def of_tensors() -> pd.DataFrame:
    return evaluate(
        Stranger(),
        normalised(TEST),
        {name: normalised(images) for name, images in OOD.items()},
        setup=normalised(SETUP),
        detectors=QUICK,
        labels=TEST.labels,
        setup_labels=SETUP.labels,
        batch_size=16,
    )


@pytest.mark.parametrize("kind", [*GIVEN, *ONE_BY_ONE])
def test_images_from_elsewhere_give_what_tensors_give(kind: str, of_tensors: pd.DataFrame) -> None:
    given = (GIVEN | ONE_BY_ONE)[kind]
    names = QUICK if kind in GIVEN else [name for name in QUICK if name != "logitnorm"]
    found = evaluate(
        Stranger(),
        given(normalised(TEST), TEST.labels),
        {name: given(normalised(images), images.labels) for name, images in OOD.items()},
        setup=given(normalised(SETUP), SETUP.labels),
        detectors=names,
        labels=TEST.labels.numpy() if kind == "arrays" else None,
        setup_labels=SETUP.labels.tolist() if kind == "arrays" else None,
        batch_size=16,
    )
    expected = of_tensors[of_tensors["detector"].isin(names)].reset_index(drop=True)
    pd.testing.assert_frame_equal(found, expected)


def test_a_shuffled_loader_keeps_one_order() -> None:
    """ODIN reads the images a second time: their scores must meet their own labels."""
    torch.manual_seed(3)
    shuffled = DataLoader(Pairs(normalised(TEST), TEST.labels), batch_size=7, shuffle=True)
    ood = {"far": normalised(OOD["far"])}
    found = evaluate(Stranger(), shuffled, ood, detectors=["odin"]).set_index(["metric", "ood"])["value"]
    tensors = evaluate(Stranger(), normalised(TEST), ood, detectors=["odin"], labels=TEST.labels)
    for metric in ("auc", "oscr", "accuracy_with_rejection"):
        expected = tensors.set_index(["metric", "ood"])["value"][metric, "far"]
        assert found[metric, "far"] == pytest.approx(expected, abs=1e-6)


def test_images_are_read_in_batches_and_not_kept() -> None:
    """At most one batch is read in advance."""
    model = Stranger()
    asked = []

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels in zip(normalised(TEST).split(10), TEST.labels.split(10), strict=True):
            asked.append(model.seen)
            yield images, labels

    evaluate(model, batches(), {"far": iter([normalised(OOD["far"])])}, detectors=["msp"])
    assert asked == [0, 10, 20, 30]


def test_detectors_beside_names() -> None:
    ood, warm = {"far": normalised(OOD["far"])}, create_detector("energy@warm", temperature=9.0)
    found = evaluate(Stranger(), normalised(TEST), ood, detectors=(one for one in ("energy", warm)))
    assert list(found["detector"].unique()) == ["energy", "energy@warm"]
    (alone,) = evaluate(Stranger(), normalised(TEST), ood, detectors=warm)["detector"].unique()
    assert alone == "energy@warm"
    own = evaluate(Stranger(), normalised(TEST), ood, detectors={"mine": warm, "plain": "energy"})
    assert list(own["detector"].unique()) == ["mine", "plain"]
    assert list(own["value"]) != list(found["value"])


def test_a_fitted_detector_needs_only_what_it_reads_to_score() -> None:
    """The set-up reads features, the score does not; an iterator suffices for the set-up images."""

    @dataclass
    class Shifted(LogitDetector):
        needs_setup = True
        setup_reads = frozenset({"features"})

        def set_up(self, outputs: opencil.Outputs) -> None:
            self.mean = outputs.features.mean()

        def scores(self, outputs: opencil.Outputs) -> Tensor:
            return outputs.logits.amax(dim=1) - self.mean

    model, ood, detector = Stranger(), {"far": normalised(OOD["far"])}, Shifted()
    expected = evaluate(model, normalised(TEST), ood, detectors=detector, setup=iter([normalised(SETUP)]))
    detector.fit(opencil.forward(model, normalised(SETUP)))
    found = evaluate(lambda x: model.classify(model.features(x)), normalised(TEST), ood, detectors=detector)
    pd.testing.assert_frame_equal(found, expected)
    with pytest.raises(BadInput, match="shifted reads features"):
        evaluate(lambda x: x.flatten(1), normalised(TEST), ood, detectors=Shifted(), setup=FLOATS)


def test_shifted_images_from_elsewhere_have_their_labels() -> None:
    ood, data = {"far": normalised(OOD["far"])}, TensorDataset(normalised(TEST), TEST.labels)
    given = {"labels": TEST.labels, "detectors": "energy"}
    as_set = evaluate(Stranger(), TEST, OOD, shifted={"s": TEST}, transform=TRANSFORM, detectors="energy")
    found = evaluate(Stranger(), normalised(TEST), ood, shifted={"s": data}, **given)
    accuracy = [t.loc[t["metric"] == "accuracy_shifted", "value"].tolist() for t in (as_set, found)]
    assert len(accuracy[0]) == 1
    assert accuracy[0] == accuracy[1]


@dataclass
class Answer:
    logits: Tensor


def test_a_function_to_logits_serves_the_detectors_that_read_them() -> None:
    model = Stranger()
    names = ["energy", "gen", "klm", "maxlogit", "msp"]
    given = {
        "test": normalised(TEST),
        "ood": {"far": normalised(OOD["far"])},
        "labels": TEST.labels,
        "setup": normalised(SETUP),
        "detectors": names,
    }
    expected = evaluate(model, **given)
    functions: list[Callable[[Tensor], Any]] = [
        lambda images: model.classify(model.features(images)),
        lambda images: model.classify(model.features(images)).detach().numpy(),
        lambda images: Answer(model.classify(model.features(images))),
        lambda images: {"logits": model.classify(model.features(images)), "loss": None},
        lambda images: (model.classify(model.features(images)), "more"),
        nn.Sequential(nn.Flatten(), model.body, nn.ReLU(), model.head, nn.Dropout(0.9)),
    ]
    for function in functions:
        pd.testing.assert_frame_equal(evaluate(function, **given), expected)


def test_detectors_that_read_more_than_logits_are_refused_for_a_function() -> None:
    def ask(images: Tensor) -> Tensor:
        raise AssertionError("nothing runs")

    with pytest.raises(BadInput) as caught:
        evaluate(ask, FLOATS, {"far": FLOATS}, detectors=["msp", "react", "odin", "ber"], setup=FLOATS)
    for key in ("ask", "react reads features and head"):
        assert key in str(caught.value)


FLOATS = torch.zeros(5, 3, 8, 8)


class Restless(IterableDataset):  # type: ignore[type-arg]
    """Other images every time."""

    def __iter__(self) -> Any:
        return iter([(torch.randn(3, 8, 8), 1) for _ in range(4)])


@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("react", {"detectors": ["react", "msp"]}),
        ("msp", {"detectors": ["mps"]}),
        ("mahalanobis", {"detectors": "mahalanobis", "setup": FLOATS}),
        ("3", {"detectors": ["msp", 3]}),
        ("msp", {"detectors": [create_detector("msp"), "msp"]}),
        ("detectors", {"detectors": 3}),
        ("detectors", {"detectors": []}),
        ("odin", {"detectors": "odin", "test": iter([FLOATS])}),
        ("gram", {"detectors": "gram", "setup": iter([(FLOATS, [0, 1, 2, 3, 0])])}),
        ("test", {"detectors": "odin", "test": Restless()}),
        ("ber", {"detectors": "ber", "setup": [FLOATS]}),
        ("tasks", {"tasks": [1, 1, 2]}),
        ("tasks", {"tasks": [0, 1, 1, 2]}),
        ("tasks", {"tasks": "ab"}),
        ("labels", {"labels": torch.zeros(4, dtype=torch.int64)}),
        ("labels", {"labels": [0, 0, 0, 0, 4]}),
        ("labels", {"labels": [-1, 0, 0, 0, 3]}),
        ("labels", {"labels": torch.zeros(5).long().to_sparse()}),
        ("labels", {"labels": ["cat"] * 5}),
        ("N, channels, H, W", {"test": FLOATS[0]}),
        ("image 0", {"test": FLOATS + torch.nan}),
        ("transform", {"test": TEST}),
        ("test", {"test": "photos"}),
        ("ood", {"ood": {"far": None}}),
        ("ood", {"ood": {}}),
        ("ood", {"ood": FLOATS}),
        ("ood", {"ood": {"": FLOATS}}),
        ("shifted", {"shifted": [FLOATS]}),
        ("shifted", {"shifted": {"far": FLOATS}}),
        ("batch_size", {"batch_size": 0}),
        ("batch_size", {"batch_size": FLOATS}),
        ("metric", {"metrics": FLOATS}),
        ("metric", {"metrics": [["auc"]]}),
        ("test", {"test": torch.tensor(1.0)}),
        ("transform", {"transform": lambda images: images}),
        ("model", {"model": None}),
        ("logits", {"model": lambda images: images}),
    ],
)
def test_invalid_arguments_are_refused(key: str, given: dict[str, object]) -> None:
    arguments = {"model": Stranger(), "test": FLOATS, "ood": {"far": FLOATS}, "detectors": ["msp"]} | given
    with pytest.raises(BadInput, match=key):
        evaluate(**arguments)  # type: ignore[arg-type]


def test_labels_of_a_series_are_in_its_order() -> None:
    given = {"ood": OOD, "detectors": "msp", "transform": TRANSFORM}
    table = pd.Series(TEST.labels.tolist(), index=range(len(TEST), 0, -1))
    pd.testing.assert_frame_equal(
        evaluate(Stranger(), TEST, labels=table, **given),  # type: ignore[arg-type]
        evaluate(Stranger(), TEST, **given),  # type: ignore[arg-type]
    )


def test_an_exit_inside_a_model_is_an_error() -> None:
    def leave(_: Tensor) -> Tensor:
        raise SystemExit(0)

    with pytest.raises((RuntimeError, BadInput), match=r"SystemExit\(0\)"):
        evaluate(leave, FLOATS, {"far": FLOATS}, detectors="msp")


@pytest.mark.parametrize(
    "images", [torch.rand(6, 8, 8, 3), torch.rand(6, 1, 8, 8)], ids=["channels last", "grey"]
)
def test_images_that_a_model_fails_on_are_named(images: Tensor) -> None:
    convolution = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    good = torch.rand(6, 3, 8, 8)
    model = opencil.wrap(convolution, head="3")
    with pytest.raises(BadInput, match="far") as raised:
        evaluate(model, good, {"far": images}, detectors="msp", labels=[0, 1] * 3)
    assert isinstance(raised.value.__cause__, RuntimeError), "whose traceback says where in the model"
