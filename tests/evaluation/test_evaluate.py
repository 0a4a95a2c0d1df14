"""``evaluate`` on a model that is not ours, with image sets and with plain tensors."""

import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
)

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
    table = evaluate(model, TEST, OOD, setup=SETUP, transform=TRANSFORM, tasks=[1, 1, 2, 2])
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


def test_one_pass_serves_all_detectors_that_read_outputs() -> None:
    model = Stranger()
    made = {name: DETECTORS.create(name) for name in opencil.list_detectors()}
    names = [n for n, d in made.items() if not {"images", "layers"} & (d.reads | d.reads_to_set_up)]
    evaluate(model, TEST, OOD, setup=SETUP, transform=TRANSFORM, detectors=names)
    assert model.seen == 40 + 30 + 25 + 400


def test_what_nobody_named_and_a_model_has_no_maps_for_is_left_out_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Blind(Stranger):
        maps = None  # type: ignore[assignment]

    @opencil.register_detector("later")
    @dataclass
    class Later(Gram):
        """Reads maps when it scores alone."""

        setup_reads = frozenset({"logits"})

        def set_up(self, outputs: opencil.Outputs) -> None:
            pass

    monkeypatch.setattr(DETECTORS, "names", lambda: ["gram", "later", "msp", "rankfeat", "vim"])
    left_out = r"^(gram|later|rankfeat) is left out: Blind has no maps of its"
    with pytest.warns(UserWarning, match=left_out) as told:
        table = evaluate(Blind(), TEST, OOD, setup=SETUP, transform=TRANSFORM)
    assert [warning.filename for warning in told] == [__file__] * 3, "where the user's line is"
    assert list(table["detector"].unique()) == ["msp", "vim"]
    with pytest.raises(BadInput, match="Blind has no maps of its stages"):
        evaluate(Blind(), TEST, OOD, setup=SETUP, transform=TRANSFORM, detectors=["msp", "gram"])


def test_what_nobody_named_and_reads_a_linear_head_is_left_out_where_it_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Curved(Stranger):
        def classify(self, features: Tensor) -> Tensor:
            return super().classify(features).tanh()

    monkeypatch.setattr(DETECTORS, "names", lambda: ["dice", "msp", "vim"])
    with pytest.warns(UserWarning, match=r"^(dice|vim) is left out: the head is not linear") as told:
        table = evaluate(Curved(), TEST, OOD, setup=SETUP, transform=TRANSFORM)
    assert len(told) == 2
    assert list(table["detector"].unique()) == ["msp"]
    with pytest.raises(BadInput, match=r"^vim: the head is not linear"):
        evaluate(Curved(), TEST, OOD, setup=SETUP, transform=TRANSFORM, detectors=["msp", "vim"])


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


def test_a_detector_that_cannot_be_copied_is_taken_by_name_or_ready() -> None:
    @opencil.register_detector("locked")
    @dataclass
    class Locked(opencil.LogitDetector):
        """Holds what cannot be copied."""

        needs_setup = True

        def __post_init__(self) -> None:
            self.lock = threading.Lock()

        def scores(self, outputs: opencil.Outputs) -> Tensor:
            return outputs.logits[:, 0]

    given: dict[str, Any] = {"setup": SETUP, "transform": TRANSFORM}
    by_name = evaluate(Stranger(), TEST, OOD, detectors="locked", **given)
    ready = create_detector("locked").fit(opencil.forward(Stranger(), SETUP, TRANSFORM))
    pd.testing.assert_frame_equal(evaluate(Stranger(), TEST, OOD, detectors=ready, **given), by_name)
    with pytest.raises(BadInput, match=r"locked cannot be copied, .*: set it up by fit, or register it"):
        evaluate(Stranger(), TEST, OOD, detectors=create_detector("locked"), **given)


def test_what_nobody_named_and_refuses_the_set_up_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {"setup": image_set("few", 20, 2), "transform": TRANSFORM}
    monkeypatch.setattr(DETECTORS, "names", lambda: ["msp", "nnguide"])
    with pytest.warns(UserWarning, match="^nnguide is left out: NNGuide needs at least 100 samples"):
        table = evaluate(Stranger(), TEST, OOD, **given)
    assert list(table["detector"].unique()) == ["msp"]
    with pytest.raises(BadInput, match=r"^nnguide: NNGuide needs at least 100 samples"):
        evaluate(Stranger(), TEST, OOD, detectors=["msp", "nnguide"], **given)
    monkeypatch.setattr(DETECTORS, "names", lambda: ["nnguide"])
    with pytest.raises(BadInput, match=r"^nnguide: NNGuide needs at least 100 samples"):
        evaluate(Stranger(), TEST, OOD, **given)


def test_setup_images_are_not_read_where_no_detector_needs_them() -> None:
    model = Stranger()
    evaluate(model, TEST, OOD, setup=SETUP, transform=TRANSFORM, detectors=["msp", "gen"])
    assert model.seen == 40 + 30 + 25


# --- images from elsewhere -------------------------------------------------------------------------

SLOW = ["augmix", "ber", "more", "npos", "oe", "regmix", "t2fnorm", "vos"]
QUICK = [name for name in opencil.list_detectors() if name not in SLOW]  #: logitnorm stands for the tuners


class Pairs(Dataset):  # type: ignore[type-arg]
    """A map-style dataset of (image, label); counts how many are asked for at a time."""

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
    "a TensorDataset": TensorDataset,
    "a DataLoader": lambda images, labels: DataLoader(Pairs(images, labels), batch_size=16),
    "a DataLoader of dictionaries": dictionaries,
    "a list of items": lambda images, labels: list(zip(images, labels.tolist(), strict=True)),
}
ONE_BY_ONE: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "a list of batches": lambda images, labels: list(zip(images.split(16), labels.split(16), strict=True)),
    "an IterableDataset": Streamed,
    "a DataLoader over an IterableDataset": lambda images, labels: DataLoader(
        Streamed(images, labels), batch_size=16
    ),
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


def test_plain_tensors_give_what_image_sets_give() -> None:
    sets = evaluate(Stranger(), TEST, OOD, setup=SETUP, transform=TRANSFORM, detectors=QUICK)
    tensors = evaluate(
        Stranger(),
        normalised(TEST),
        {name: normalised(images) for name, images in OOD.items()},
        setup=normalised(SETUP),
        transform=TRANSFORM,
        detectors=QUICK,
        labels=TEST.labels,
        setup_labels=SETUP.labels,
    )
    pd.testing.assert_frame_equal(sets, tensors)


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


def test_a_loaders_subset_is_what_is_read() -> None:
    some = SubsetRandomSampler([3, 1, 7, 30], generator=torch.Generator().manual_seed(1))
    data = Pairs(normalised(TEST), TEST.labels)
    outputs = opencil.forward(Stranger(), DataLoader(data, batch_size=3, sampler=some))
    assert data.seen == 4 + 1, "one image was looked at to see what they are"
    assert outputs.labels is not None
    assert sorted(outputs.labels.tolist()) == sorted(TEST.labels[[3, 1, 7, 30]].tolist())


def test_images_are_read_in_batches_and_not_kept() -> None:
    """At most one batch is asked for beyond what the model has seen, of any kind of images."""
    model = Stranger()
    asked = []

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels in zip(normalised(TEST).split(10), TEST.labels.split(10), strict=True):
            asked.append(model.seen)
            yield images, labels

    evaluate(model, batches(), {"far": iter([normalised(OOD["far"])])}, detectors=["msp"])
    assert asked == [0, 10, 20, 30]


def test_the_users_random_numbers_stay() -> None:
    before = torch.random.get_rng_state()
    opencil.forward(Stranger(), DataLoader(Pairs(normalised(TEST), TEST.labels), batch_size=9))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_detectors_beside_names() -> None:
    ood, warm = {"far": normalised(OOD["far"])}, create_detector("energy@warm", temperature=9.0)
    found = evaluate(Stranger(), normalised(TEST), ood, detectors=(one for one in ("energy", warm)))
    assert list(found["detector"].unique()) == ["energy", "energy@warm"]
    (alone,) = evaluate(Stranger(), normalised(TEST), ood, detectors=warm)["detector"].unique()
    assert alone == "energy@warm"
    own = evaluate(Stranger(), normalised(TEST), ood, detectors={"mine": warm, "plain": "energy"})
    assert list(own["detector"].unique()) == ["mine", "plain"]
    assert list(own["value"]) != list(found["value"])


def test_a_detector_that_is_set_up_needs_no_more_than_it_scores_by() -> None:
    """Its set-up read features, of which a function has none; and set-up images that come once are enough."""

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


def test_labels_of_ood_images_are_not_read() -> None:
    assert len(evaluate(Stranger(), FLOATS, {"far": WORDS}, detectors="msp"))


def test_every_class_may_be_a_task_of_its_own() -> None:
    found = evaluate(Stranger(), TEST, OOD, transform=TRANSFORM, tasks=[4, 2, 3, 1], detectors="msp")
    assert set(found["task"]) == {0, 1, 2, 3, 4}


def test_batches_are_as_large_as_everywhere() -> None:
    sizes = [inspect.signature(call).parameters["batch_size"].default for call in (evaluate, opencil.Inputs)]
    assert sizes == [512, 512]


def test_words_for_several_detectors_are_written_out() -> None:
    module = sys.modules["opencil.evaluation.evaluate"]
    assert list(module._detectors(["energy", "continual"])) == [
        "energy",
        *opencil.list_detectors("continual"),
    ]


def test_shifted_images_from_elsewhere_have_their_labels() -> None:
    ood, data = {"far": normalised(OOD["far"])}, TensorDataset(normalised(TEST), TEST.labels)
    given = {"labels": TEST.labels, "detectors": "energy"}
    as_set = evaluate(Stranger(), TEST, OOD, shifted={"s": TEST}, transform=TRANSFORM, detectors="energy")
    found = evaluate(Stranger(), normalised(TEST), ood, shifted={"s": data}, **given)
    accuracy = [t.loc[t["metric"] == "accuracy_shifted", "value"].tolist() for t in (as_set, found)]
    assert len(accuracy[0]) == 1
    assert accuracy[0] == accuracy[1]


# --- logits alone ----------------------------------------------------------------------------------


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


def test_what_reads_more_than_logits_is_named_with_what_it_needs() -> None:
    def ask(images: Tensor) -> Tensor:
        raise AssertionError("nothing runs")

    with pytest.raises(BadInput) as caught:
        evaluate(ask, FLOATS, {"far": FLOATS}, detectors=["msp", "react", "odin", "ber"], setup=FLOATS)
    sentence = str(caught.value)
    assert "ask gives logits alone" in sentence
    assert "react reads features and head, odin reads images, ber reads features and images:" in sentence
    assert "opencil.wrap(model, head=…)" in sentence
    assert sentence.endswith("that read logits, such as msp")
    outputs = opencil.forward(lambda images: images.flatten(1)[:, :4], FLOATS)
    assert outputs.features.shape == (5, 0)
    with pytest.raises(BadInput, match="NNGuide reads the features: missing here"):
        create_detector("nnguide").fit(outputs)
    with pytest.raises(BadInput, match="ODIN reads the images: missing here"):
        create_detector("odin").score(outputs)


# --- what is refused -------------------------------------------------------------------------------


def test_a_model_in_training_mode_is_read_in_eval_mode_throughout() -> None:
    """As every network is that has just been made: its normalisation neither reads a batch nor changes."""
    body = [nn.Conv2d(3, 4, 8), nn.Flatten(), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.5)]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = opencil.wrap(nn.Sequential(*body, nn.Linear(4, 4)), head="5")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    given = {"ood": {"far": normalised(OOD["far"])}, "setup": normalised(SETUP), "setup_labels": SETUP.labels}
    names = ["react", "odin", "logitnorm", "ber"]
    training = evaluate(model.train(), normalised(TEST), detectors=names, **given)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    pd.testing.assert_frame_equal(
        training, evaluate(model.eval(), normalised(TEST), detectors=names, **given)
    )


FLOATS = torch.zeros(5, 3, 8, 8)
WORDS = [(FLOATS[:2], ["cat", "dog"])]


class Restless(IterableDataset):  # type: ignore[type-arg]
    """Other images every time."""

    def __iter__(self) -> Any:
        return iter([(torch.randn(3, 8, 8), 1) for _ in range(4)])


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"detectors": ["react", "msp"]}, "set-up images are needed for react: give setup="),
        ({"detectors": ["mps"]}, "did you mean 'msp'"),
        ({"ood": {}}, "at least one OOD set is needed"),
        ({"tasks": [1, 1, 2]}, "one for each of the 4 classes"),
        ({"tasks": [0, 1, 1, 2]}, "from 1 on"),
        ({"tasks": [1, 1, 2, 5]}, "tasks has a number 5: 4 classes come in 4 tasks at most"),
        ({"labels": torch.zeros(4, dtype=torch.int64)}, r"integers \[5\] are needed"),
        ({"labels": [0, 0, 0, 0, 4]}, "labels range from 0 to 4: the model knows 0 to 3"),
        ({"labels": [-1, 0, 0, 0, 3]}, "labels range from -1 to 3: the model knows 0 to 3"),
        ({"labels": torch.zeros(5).long().to_sparse()}, "labels of test images are sparse_coo"),
        ({"tasks": torch.ones(4).long().to_sparse()}, "tasks are sparse_coo"),
        ({"detectors": "mahalanobis", "setup": FLOATS}, "mahalanobis learn from the labels of set-up images"),
        ({"test": FLOATS[0]}, r"floating-point \[N, channels, H, W\]"),
        ({"test": FLOATS.byte()}, r"floating-point \[N, channels, H, W\]"),
        ({"test": FLOATS + torch.nan}, "image 0 is not finite"),
        ({"test": TEST}, "'test' are bytes: a transform is needed"),
        ({"test": FLOATS.double().numpy()[0]}, r"images of test are float64 \[3, 8, 8\]: floating-point"),
        ({"test": FLOATS.byte().numpy()}, r"uint8 \[5, 3, 8, 8\]: floating-point .* or an ImageSet"),
        ({"test": "photos"}, "test is a str: images are a tensor or array"),
        ({"test": 7}, "test is a int: images are"),
        ({"test": []}, "test has no images"),
        ({"test": iter([])}, "test has no images"),
        ({"test": DataLoader(Pairs(FLOATS[:0], None))}, "test has no images"),
        ({"test": ["a", "b"]}, "test gives a str as image: a tensor or an array is needed"),
        ({"test": [{"picture": FLOATS}]}, "mappings with picture: images are looked for under images, image"),
        ({"test": WORDS}, r"test has labels that are no numbers: whole numbers \[B\] are needed"),
        ({"test": [(FLOATS, torch.zeros(5))]}, r"labels that are torch.float32 \[5\]"),
        ({"test": [(FLOATS, torch.zeros(3).long())]}, "a batch of 5 images and 3 labels"),
        ({"test": [FLOATS, FLOATS + torch.inf]}, "image 5 of test is not finite"),
        ({"test": [FLOATS.byte()]}, "normalised floating-point .* are needed"),
        ({"ood": {"far": FLOATS.numpy()[:0]}}, "images of ood 'far' are float32"),
        ({"ood": {"far": None}}, "ood 'far' is a NoneType"),
        ({"ood": FLOATS}, "ood should map names"),
        ({"ood": {"": FLOATS}}, "ood should map names, none of them empty"),
        ({"ood": {3: FLOATS}}, "ood should map names"),
        ({"shifted": [FLOATS]}, "shifted should map names"),
        ({"shifted": {"": FLOATS}}, "shifted should map names, none of them empty"),
        ({"shifted": {"far": FLOATS}}, "shifted should map names, none of them .* an OOD set's"),
        ({"labels": ["cat"] * 5}, "labels of test images are no numbers"),
        ({"detectors": ["msp", 3]}, "3 is no detector: a name, or what create_detector makes"),
        ({"detectors": [create_detector("msp"), "msp"]}, "two detectors are called 'msp'"),
        ({"detectors": 3}, "detectors = 3 is not allowed: names or detectors are needed"),
        ({"detectors": []}, r"detectors = \[\] is not allowed"),
        ({"detectors": "odin", "test": iter([FLOATS])}, "odin read images again, and test is an iterator"),
        (
            {"detectors": "gram", "setup": iter([(FLOATS, [0, 1, 2, 3, 0])])},
            "gram read .* setup is an iterator",
        ),
        ({"detectors": "odin", "test": Restless()}, "test gave other images, or the same in another order"),
        ({"detectors": "ber", "setup": [FLOATS]}, "ber train on set-up images in an order of their own"),
        ({"batch_size": 0}, "batch_size = 0 is not allowed"),
        ({"transform": lambda images: images}, "transform is a function: an opencil.Transform is needed"),
        ({"tasks": "ab"}, "tasks = 'ab' is not allowed: whole numbers are"),
        ({"model": None}, "None is no model: a module with features"),
        ({"model": opencil.create_backbone("resnet8")}, "ResNet8? is a backbone, which gives features"),
        ({"model": Stranger}, "the class Stranger is no model"),
        (
            {"model": opencil.Model(opencil.create_backbone("resnet8"), 4).half()},
            "has weights in float16, and",
        ),
        ({"model": lambda images: images}, r"gives torch.float32 \[5, 3, 8, 8\]: logits \[5, classes\]"),
        ({"model": lambda images: {"scores": images}}, "gives a dict with scores: logits"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(given: dict[str, object], sentence: str) -> None:
    arguments = {"model": Stranger(), "test": FLOATS, "ood": {"far": FLOATS}, "detectors": ["msp"]} | given
    with pytest.raises(BadInput, match=sentence):
        evaluate(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("images", "why"),
    [
        (torch.rand(6, 8, 8, 3), "weight of size .* expected input.* to have 3 channels, but got 8"),
        (torch.rand(6, 1, 8, 8), "expected input.* to have 3 channels, but got 1"),
    ],
)
def test_images_that_a_model_fails_on_are_named(images: Tensor, why: str) -> None:
    convolution = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    good = torch.rand(6, 3, 8, 8)
    model = opencil.wrap(convolution, head="3")
    with pytest.raises(BadInput, match=f"the model fails on the images of ood 'far': .*{why}") as raised:
        evaluate(model, good, {"far": images}, detectors="msp", labels=[0, 1] * 3)
    assert isinstance(raised.value.__cause__, RuntimeError), "whose traceback says where in the model"
