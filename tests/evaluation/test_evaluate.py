"""``evaluate`` on a model that is not ours, with image sets and with plain tensors."""

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import opencil
from opencil import BadInput, ImageSet, Transform, create_detector, evaluate
from opencil.data.digits import Noise
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

    def classify(self, features: Tensor) -> Tensor:
        return self.head(features)


def image_set(name: str, count: int, seed: int) -> ImageSet:
    images = Noise(count=count, seed=seed).load("test", 8, None)
    return ImageSet(name, images.images, torch.arange(count) % 4)


TEST, SETUP = image_set("test", 40, 1), image_set("setup", 400, 2)
OOD = {"near": image_set("near", 30, 3), "far": image_set("far", 25, 4)}


def test_all_detectors_on_image_sets() -> None:
    table = evaluate(Stranger(), TEST, OOD, setup=SETUP, transform=TRANSFORM, tasks=[1, 1, 2, 2])
    assert list(table.columns) == ["detector", "ood", "task", "metric", "value"]
    assert set(table["detector"]) == {"", *opencil.list_detectors()}
    assert set(table["ood"]) == {"", "near", "far"}
    assert {"auc", "auc_old", "fpr_new", "oscr", "confidence", "ood_as_new"} <= set(table["metric"])
    assert not table["value"].isna().any()


def test_plain_tensors_give_what_image_sets_give() -> None:
    def normalised(images: ImageSet) -> Tensor:
        return TRANSFORM.test(images.images)

    sets = evaluate(Stranger(), TEST, OOD, setup=SETUP, transform=TRANSFORM)
    tensors = evaluate(
        Stranger(),
        normalised(TEST),
        {name: normalised(images) for name, images in OOD.items()},
        setup=normalised(SETUP),
        transform=TRANSFORM,
        labels=TEST.labels,
        setup_labels=SETUP.labels,
    )
    pd.testing.assert_frame_equal(sets, tensors)


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
    names = [n for n in opencil.list_detectors() if "images" not in DETECTORS.create(n).reads_to_set_up]
    evaluate(model, TEST, OOD, setup=SETUP, transform=TRANSFORM, detectors=names)
    assert model.seen == 40 + 30 + 25 + 400


def test_setup_images_are_not_read_where_no_detector_needs_them() -> None:
    model = Stranger()
    evaluate(model, TEST, OOD, setup=SETUP, transform=TRANSFORM, detectors=["msp", "gen"])
    assert model.seen == 40 + 30 + 25


def test_the_model_is_left_as_it_is() -> None:
    model = Stranger()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    evaluate(model, TEST, OOD, setup=SETUP, transform=TRANSFORM)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


FLOATS = torch.zeros(5, 3, 8, 8)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"detectors": ["react", "msp"]}, "react need set-up images: give setup="),
        ({"detectors": ["mps"]}, "did you mean 'msp'"),
        ({"ood": {}}, "at least one OOD set is needed"),
        ({"tasks": [1, 1, 2]}, "one for each of the 4 classes"),
        ({"tasks": [0, 1, 1, 2]}, "from 1 on"),
        ({"labels": torch.zeros(4, dtype=torch.int64)}, r"integers \[5\] are needed"),
        ({"labels": torch.full((5,), 4)}, "the model knows 0 to 3"),
        ({"test": FLOATS[0]}, r"floating-point \[N, channels, H, W\]"),
        ({"test": FLOATS.byte()}, r"floating-point \[N, channels, H, W\]"),
        ({"test": FLOATS + torch.nan}, "image 0 is not finite"),
        ({"test": TEST}, "'test' are bytes: a transform is needed"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(given: dict[str, object], sentence: str) -> None:
    arguments = {"test": FLOATS, "ood": {"far": FLOATS}, "detectors": ["msp"]} | given
    with pytest.raises(BadInput, match=sentence):
        evaluate(Stranger(), **arguments)  # type: ignore[arg-type]
