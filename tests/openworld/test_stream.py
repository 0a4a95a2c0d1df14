"""The open-world protocol, on features of well separated classes."""

import numpy as np
import pandas as pd
import pytest
import torch

from opencil.data.images import FeatureImages
from opencil.data.stream import Stream
from opencil.errors import BadInput
from opencil.openworld.classifier import OpenWorldClassifier
from opencil.openworld.stream import OpenWorld, play

CLASSES, SIZES = 6, (2, 2, 2)


@pytest.fixture(scope="module")
def stream() -> Stream:
    numbers = torch.Generator().manual_seed(0)
    centres = 3 * torch.randn(CLASSES, 8, generator=numbers)

    def draw(name: str, each: int) -> FeatureImages:
        labels = torch.arange(CLASSES).repeat_interleave(each)
        features = centres[labels] + 0.3 * torch.randn(len(labels), 8, generator=numbers)
        return FeatureImages(name, features, labels, name, tuple("abcdef"))

    return Stream(draw("train", 60), draw("test", 20), SIZES)


class Recorder(OpenWorldClassifier):
    """Note the rows of features that are learned and predicted."""

    def learn(self, images, labels=None, **values):
        vars(self).setdefault("learned", []).append(images)
        return super().learn(images, labels, **values)

    def predict(self, images, **values):
        found = super().predict(images, **values)
        vars(self).setdefault("predicted", []).append((images, found))
        return found


def create() -> Recorder:
    return Recorder(reject=0.1, learner="slda", detector="mahalanobis-pp")


VALUES = OpenWorld(start=25, rounds=2, arrivals=20, budget=6)


def test_shares_and_labels_are_those_of_a_naive_count(stream: Stream) -> None:
    classifier = create()
    played = pd.DataFrame(play(classifier, stream, VALUES))
    assert list(zip(played["step"], played["round"], strict=True)) == [(1, 0), (2, 1), (2, 2), (3, 1), (3, 2)]
    arrivals = [(images, found) for images, found in classifier.predicted if images.name == "train"]
    known, learned, spent = {"a", "b"}, iter(classifier.learned), 0
    for (_, row), (images, found) in zip(list(played.iterrows())[1:], arrivals, strict=True):
        names = [images.classes[label] for label in images.labels]
        rejected = (found["label"] == "unknown").tolist()
        new = [no for no, name in zip(rejected, names, strict=True) if name not in known]
        old = [no for no, name in zip(rejected, names, strict=True) if name in known]
        assert len(names) == VALUES.arrivals
        assert row["false_alarms"] == pytest.approx(np.mean(old))
        assert row["found"] == pytest.approx(np.mean(new)) if new else np.isnan(row["found"])
        lowest = found[rejected].sort_values(["p_value", "score"]).index[: VALUES.budget]
        if len(lowest):
            asked = next(learned)
            assert torch.equal(asked.features, images.features[lowest.tolist()])
            known |= {names[at] for at in lowest}
        spent += len(lowest)
        assert (row["labels"], row["classes_found"]) == (spent, len(known) - 2)
    assert len(classifier.calibration_.scores) == 2 * 5, "rejected images set no threshold"
    assert played["found"].iloc[1] > 0.9, "classes far apart are found"
    assert played["accuracy"].iloc[-1] > 0.9


def test_no_image_arrives_twice_and_a_seed_decides_all(stream: Stream) -> None:
    first, again = create(), create()
    rows = [pd.DataFrame(play(classifier, stream, VALUES)) for classifier in (first, again)]
    pd.testing.assert_frame_equal(*rows)
    arrived = [images.features for images, _ in first.predicted if images.name == "train"]
    start = stream.train.features[(stream.train.labels < 2)]
    every = torch.cat([*arrived, start])
    assert len(torch.unique(torch.cat(arrived), dim=0)) == 4 * VALUES.arrivals
    assert len(torch.unique(every, dim=0)) < len(every), "images of the first classes arrive too"
    other = pd.DataFrame(play(create(), stream, OpenWorld(**{**vars(VALUES), "seed": 1})))
    assert not rows[0].equals(other)


def test_too_many_arrivals_are_refused(stream: Stream) -> None:
    with pytest.raises(BadInput, match="class 0"):
        list(play(create(), stream, OpenWorld(start=61)))
