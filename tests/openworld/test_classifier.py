"""The classifier: what it learns does not depend on calls, and what it rejects is bounded."""

import copy
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import ks_2samp
from sklearn.base import clone
from torch.utils.data import DataLoader, Dataset

import opencil
from opencil.data.images import FeatureImages
from opencil.openworld.fitting import fit_temperature
from opencil.registry import LEARNERS
from tests.openworld.conftest import Pixels, picture, pictures

Make = Callable[..., opencil.OpenWorldClassifier]
ON_FEATURES = [name for name in opencil.list_learners() if not LEARNERS.entry(name).make.needs_images]


def test_learning_in_steps_gives_what_learning_at_once_gives(make: Make) -> None:
    images, labels = pictures([0, 1, 2, 3], 12)
    test, _ = pictures([0, 1, 2, 3, 4], 6, start=50)
    once = make(reject=0.2).learn(images, labels).predict(test)
    steps = make(reject=0.4)
    for rows in (slice(24, 48), slice(6, 24), slice(0, 8)):  # other order, classes in parts, images twice
        steps.learn(images[rows], labels[rows])
    steps.set_params(reject=0.2)
    pd.testing.assert_frame_equal(steps.predict(test), once)
    known = [f"class {label}" for label in range(4) for _ in range(6)]
    assert (once["label"][:24] == known).mean() > 0.7
    assert len(steps.calibration_.scores) == 4 * 2  # a fifth of each class


@pytest.mark.parametrize("name", ON_FEATURES)
def test_every_learner_of_features_learns_and_predicts(name: str, make: Make) -> None:
    learner = {"name": name, "epochs": 2}
    classifier = make(learner=learner, detector="msp", held_out=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # few images
        classifier.learn(*pictures([0, 1], 6)).learn(*pictures([2], 6))
        again = make(learner=learner, detector="msp", held_out=0.5).learn(*pictures([0, 1, 2], 6))
    test, _ = pictures([0, 1, 2], 3, start=40)
    assert np.allclose(classifier.predict_proba(test).sum(axis=1), 1)
    pd.testing.assert_frame_equal(classifier.predict(test), again.predict(test))


@pytest.mark.parametrize(
    "name", ["combined", "knn", "mahalanobis-pp", "nnguide", "fecam-distance", "energy", "tood", "kernel-pca"]
)
def test_detectors_of_features_and_logits_reject_other_things(name: str, make: Make) -> None:
    values = {"neighbours": 5} if name in ("knn", "nnguide") else {}
    classifier = make(detector={"name": name, **values}, held_out=0.5).learn(*pictures([0, 1, 2, 3], 12))
    noise = [np.random.default_rng(n).integers(0, 256, (20, 20, 3), np.uint8) for n in range(20)]
    known, _ = pictures([0, 1, 2, 3], 10, start=60)
    found = classifier.predict([*known, *noise])
    assert found["score"].notna().all()
    rejected = (found["label"] == "unknown").to_numpy()
    assert (rejected == (found["p_value"] <= classifier.reject)).all()
    assert (rejected == (classifier.decision_function([*known, *noise]) < 0)).all()


def test_over_20_draws_at_most_the_share_of_known_images_is_rejected(make: Make) -> None:
    """And for images predicted as each class, where every class has a threshold of its own."""
    shares: dict[str, list[float]] = {"all": [], "class": []}
    test, _ = pictures([0, 1, 2, 3], 40, start=1000)
    for seed in range(20):
        images, labels = pictures([0, 1, 2, 3], 30, start=30 * seed)
        for per, found in shares.items():
            classifier = make(per=per, reject=0.2, held_out=0.4, seed=seed).learn(images, labels)
            found.append(float((classifier.predict(test)["label"] == "unknown").mean()))
    for found in shares.values():
        error = (np.std(found, ddof=1) ** 2 / 20 + 0.2 * 0.8 / len(test)) ** 0.5
        assert np.mean(found) <= 0.2 + 3 * error
        assert np.mean(found) > 0.05


def test_a_correction_moves_an_image_to_another_class(make: Make) -> None:
    images, labels = pictures([0, 1, 2], 8)
    classifier = make(reject=0.3).learn(images, labels)
    classifier.learn(images[16:], ["other"] * 8)
    assert classifier.classes_ == ["class 0", "class 1", "other"]
    assert len(classifier._ready().known) == 24


class Items(Dataset[tuple[Pixels, int]]):
    classes = ("zero", "one")

    def __init__(self) -> None:
        self.images, self.labels = pictures([0, 1], 12)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Pixels, int]:
        if index >= len(self):
            raise IndexError
        return self.images[index], int(self.labels[index] == "class 1")


def test_forms_of_images_are_the_same_images(make: Make, folder: Path) -> None:
    items = Items()
    labels = ["zero"] * 12 + ["one"] * 12
    stacked = np.stack(items.images)
    tensor = torch.from_numpy(stacked).permute(0, 3, 1, 2)
    for images, given in (
        (items, None),
        (DataLoader(items, batch_size=5), None),
        (DataLoader(items, batch_size=5, collate_fn=lambda pairs: tuple(zip(*pairs, strict=True))), None),
        (items.images, labels),
        (stacked, np.array(labels)),
        (tensor.float() / 255, labels),
        (opencil.ImageSet("mine", tensor, torch.tensor([0] * 12 + [1] * 12), ("zero", "one")), None),
    ):
        classifier = make(reject=0.3).learn(images, given)
        assert classifier.classes_ == ["one", "zero"]
        keys = classifier._ready().known.keys
        assert torch.equal(keys, make(reject=0.3).learn(items)._ready().known.keys)
    of_files = make(reject=0.3).learn(folder)
    assert of_files.classes_ == [f"class {label}" for label in range(4)]
    files = sorted((folder / "class 0").iterdir())
    assert list(of_files.predict(folder / "class 0")["file"]) == list(map(str, files))
    assert len(of_files.predict([str(files[0]), files[1]])) == len(of_files.predict(tensor[:2])) == 2


def test_features_stand_for_images_and_need_no_network(make: Make) -> None:
    images, labels = pictures([0, 1, 2], 10)
    classifier = make(reject=0.3).learn(images, labels)
    known = classifier._ready().known
    other = make(reject=0.3, backbone="efficientnet-lite0", transform=None)
    other.learn(FeatureImages("mine", known.features, known.labels, "", known.classes))
    assert other.classes_ == classifier.classes_
    assert len(other.predict(FeatureImages("mine", known.features[:5], known.labels[:5], ""))) == 5
    assert "frozen" not in vars(other._network)


def test_it_has_the_habits_of_scikit_learn(make: Make) -> None:
    classifier = make(reject=0.1, per="task", held_out=0.4)
    other = clone(classifier)
    assert other.get_params() == classifier.get_params()
    with pytest.raises(opencil.BadInput, match="learn first"):
        other.predict([picture(0, 0)])
    images, labels = pictures([0, 1], 20)
    assert other.partial_fit(images, labels) is other
    assert other.fit(*pictures([2, 3], 15)).classes_ == ["class 2", "class 3"]
    known = copy.deepcopy(other)
    other.learn(images, labels)
    assert known.classes_ == ["class 2", "class 3"]  # a copy is not changed
    assert other.threshold_[0] == other.threshold_[1] != other.threshold_[2] == other.threshold_[3]
    assert other.model_.classify(torch.zeros(1, 64)).shape == (1, 4)


@pytest.mark.parametrize("runtime", ["torch", "onnx"])
def test_it_is_pickled_after_predicting(runtime: str, make: Make, tmp_path: Path) -> None:
    if runtime == "onnx":
        pytest.importorskip("onnxruntime")
    share = np.float32(0.3)
    classifier = make(reject=share, held_out=share, runtime=runtime).learn(*pictures([0, 1], 10))
    test, _ = pictures([0, 1, 2], 4, start=30)
    expected = classifier.predict(test)
    pd.testing.assert_frame_equal(pickle.loads(pickle.dumps(classifier)).predict(test), expected)
    classifier.save(tmp_path / "a.opencil")
    assert opencil.OpenWorldClassifier.load(tmp_path / "a.opencil").reject == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"reject": 0.0}, "reject"),
        ({"reject": "5 %"}, "reject"),
        ({"held_out": 1.0}, "held_out"),
        ({"per": "image"}, "per"),
        ({"learner": "ranpack"}, "ranpac"),
        ({"learner": "podnet"}, "podnet"),
        ({"learner": {"width": 3}}, "name"),
        ({"detector": "odin"}, "odin"),
        ({"detector": "ber"}, "ber"),
        ({"backbone": "resnet8"}, "resnet8"),
        ({"backbone": {"name": "resnet8"}}, "weights"),
        ({"transform": None}, "transform"),
        ({"transform": {"mean": [0.5] * 3}}, "transform"),
    ],
)
def test_values_that_cannot_be(values: dict[str, object], key: str, make: Make) -> None:
    with pytest.raises(opencil.BadInput, match=key):
        make(**values).learn(*pictures([0, 1], 10))


def test_what_cannot_be_learned_changes_nothing(make: Make, folder: Path, tmp_path: Path) -> None:
    classifier = make(reject=0.3).learn(folder)
    before = classifier._ready()
    images, labels = pictures([5], 3)
    (tmp_path / "bad" / "five").mkdir(parents=True)
    (tmp_path / "bad" / "five" / "cut.png").write_bytes((folder / "class 0" / "0.png").read_bytes()[:60])
    for given, of, key in (
        (tmp_path / "bad", None, "cut.png"),
        (images, ["unknown"] * 3, "reserved"),
        (images, [" Unknown"] * 3, "reserved"),
        (images, None, "no class"),
        (images, labels[:2], "labels"),
        (images, [0.5, 1.5, 2.5], "label"),
        (tmp_path / "none", None, "none"),
        (folder, labels, "labels"),
        ([], [], "no images"),
        (7, None, "int"),
        (images[:1] * 2, ["five", "six"], "images 0 and 1 are the same image"),
    ):
        with pytest.raises(opencil.BadInput, match=key):
            classifier.learn(given, of)
    assert classifier._ready() is before
    with pytest.raises(opencil.BadInput, match="backbone"):
        classifier.set_params(backbone="efficientnet-lite0").learn(images, labels)


@pytest.mark.parametrize("unreadable", [1, 32, 40])
def test_batches_without_a_readable_image_are_notes(unreadable: int, make: Make) -> None:
    """Thirty-two images pass through the network together."""
    classifier = make(reject=0.3).learn(*pictures([0, 1], 10))
    files: list[Any] = [b"no image"] * unreadable
    found = classifier.predict([*files, picture(0, 50)])
    assert (found["note"] != "").tolist() == [True] * unreadable + [False]
    assert found["score"].iloc[-1] == classifier.predict([picture(0, 50)])["score"].iloc[0]
    only = classifier.predict(files)
    assert (only["note"] != "").all()
    assert only["p_value"].isna().all()


def test_names_that_are_not_valid_unicode(make: Make, folder: Path, tmp_path: Path) -> None:
    classifier = make(reject=0.3).learn(folder)
    images, _ = pictures([5], 3)
    for name in ("caf\udce9", "\ud800"):
        with pytest.raises(opencil.BadInput, match="Unicode") as error:
            classifier.learn(images, [name] * 3)
        str(error.value).encode()
    file, none = tmp_path / "caf\udce9.png", "\ud800.png"
    file.write_bytes((folder / "class 0" / "0.png").read_bytes())
    found = classifier.predict([file, none])
    assert found["note"].iloc[1]
    assert [name.rsplit("/")[-1] for name in found["file"]] == [r"caf\udce9.png", r"\ud800.png"]
    assert found["label"].iloc[0] == classifier.predict(folder / "class 0" / "0.png")["label"].iloc[0]
    found.to_csv().encode()


def test_images_that_may_not_calibrate_are_never_held_out(make: Make, tmp_path: Path) -> None:
    parts = [(*pictures([0, 1], 10), True), (*pictures([1, 2], 10, start=20), False)]
    found = []
    for order in (1, -1):
        classifier = make(reject=0.4).learn(*pictures([3], 10))
        for images, labels, calibrate in parts[::order]:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # none of class 2 is held out
                classifier.learn(images, labels, calibrate=calibrate)
            classifier.save(tmp_path / "a.opencil")
            classifier = opencil.OpenWorldClassifier.load(tmp_path / "a.opencil", runtime="torch")
        found.append(classifier._ready().known)
    known, other = found
    assert known.held.sum() == 2 + 2 + 2
    assert not (known.held & ~known.calibrate).any()
    assert known.labels[~known.calibrate].bincount().tolist() == [0, 10, 10]
    for key in ("keys", "labels", "held", "calibrate", "features"):
        assert torch.equal(getattr(known, key), getattr(other, key))
    with pytest.warns(UserWarning, match="1 of 4 classes"):
        classifier.learn(*pictures([0], 10, start=70))


def test_classes_without_a_held_out_image_are_counted(make: Make) -> None:
    images, labels = pictures([0, 1], 20)
    single, names = pictures([2, 3, 4], 1)
    classifier = make(reject=0.2).learn(images, labels)
    assert classifier.calibration_.promise(0.2).holds
    with pytest.warns(UserWarning, match="no image is held out of 3 of 5 classes"):
        classifier.learn(single, names)
    second, _ = pictures([2, 3, 4], 1, start=9)
    assert classifier.learn(second, names).calibration_.promise(0.2).holds


def test_few_images_are_a_warning_and_a_single_one_is_refused(make: Make) -> None:
    with pytest.warns(UserWarning, match="nothing is rejected"):
        classifier = make().learn(*pictures([0, 1], 5))
    assert (classifier.predict([picture(9, 9)])["label"] != "unknown").all()
    with pytest.raises(opencil.BadInput, match="two images"):
        make().learn(*pictures([0, 1], 1))


def test_the_temperature_has_the_largest_likelihood() -> None:
    numbers = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 4, (200,), generator=numbers)
    logits = 0.02 * (torch.randn(200, 4, generator=numbers) + 2 * torch.eye(4)[labels])

    def likelihood(temperature: float) -> float:
        probabilities = (logits.double() / temperature).softmax(dim=1)
        return float(probabilities.gather(1, labels[:, None]).log().sum())

    best = fit_temperature(logits, labels)
    assert likelihood(best) >= max(likelihood(t) for t in np.geomspace(1e-4, 1, 200)) - 1e-3


def test_a_window_is_compared_with_calibration(make: Make) -> None:
    name = 'stripes "a"\n\\ <b>'
    images, labels = pictures([0, 1], 20)
    classifier = make(reject=0.2).learn(images, [name if label == "class 0" else label for label in labels])
    found = classifier.predict([picture(0, n) for n in range(30, 50)])
    report = classifier.report(found)
    values = {(m, c): v for m, c, v in report.table.itertuples(index=False)}
    test = ks_2samp(found["score"].to_numpy(float), classifier.calibration_.scores.numpy())
    assert values["ks_statistic", ""] == pytest.approx(test.statistic)
    assert values["ks_p_value", ""] == pytest.approx(test.pvalue)
    assert values["rejected", ""] == pytest.approx((found["label"] == "unknown").mean())
    assert values["share", name] == pytest.approx((found["label"] == name).mean())
    lines = report.prometheus().splitlines()
    assert rf'opencil_share{{class="stripes \"a\"\n\\ <b>"}} {values["share", name]:.10g}' in lines
    assert all(line.startswith(("# HELP opencil_", "# TYPE opencil_", "opencil_")) for line in lines)
    with pytest.raises(opencil.BadInput, match="label"):
        classifier.report(found[[]])
    empty = classifier.report(found[:0]).table
    assert list(empty["measure"]) == ["images", "unreadable", "expected"]
