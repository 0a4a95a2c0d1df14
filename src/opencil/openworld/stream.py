"""The open-world protocol: unknown images arrive, and rejected ones are labelled and learned."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from opencil.data.images import FeatureImages, Images
from opencil.data.stream import Step, Stream
from opencil.engine.seeding import generator
from opencil.errors import BadInput
from opencil.openworld.classifier import OpenWorldClassifier
from opencil.openworld.fitting import UNKNOWN
from opencil.validation import Bound, Count, Values, Whole


@dataclass(frozen=True)
class OpenWorld(Values):
    """The values of the protocol.

    ``start`` images of each class of the first step are learned with their labels. Then each later step has
    ``rounds``. In a round ``arrivals`` images arrive, the share ``new`` of them of the step's classes, the
    others of classes of earlier steps. The classifier rejects some; of these an oracle labels the ``budget``
    with the lowest p-values, and they are learned, but never set the threshold. No image arrives twice.
    """

    start: Count = 100
    rounds: Count = 2  #: of each later step
    arrivals: Count = 500  #: images of a round
    new: Annotated[float, Bound(gt=0, lt=1)] = 0.5  #: share of arrivals of the step's own classes
    budget: Count = 100  #: labels of a round
    seed: Whole = 0


def play(classifier: OpenWorldClassifier, stream: Stream, values: OpenWorld) -> Iterator[dict[str, Any]]:
    """Yield a row after the start and after each round; the classifier learns along the stream.

    Images of ``stream`` are features of the classifier's network. The columns:

    - ``found``: share of the arrived images of classes not learned yet that were rejected
    - ``false_alarms``: share of the arrived images of learned classes that were rejected
    - ``labels``: labels spent so far, on rejected images
    - ``classes_found``: classes of later steps that have been learned so far
    - ``labels_per_class``: the ratio of both
    - ``accuracy``: on the test images of all classes that have arrived, of the best class of each image;
      classes that were not learned count as wrong
    """
    waiting, spent = _Arrivals(stream, values), 0
    classifier.fit(_select(stream.train, waiting.draw_start()))
    yield {"step": 1, "round": 0, **_measure_state(classifier, stream, stream[0], spent)}
    for step in list(stream)[1:]:
        for number in range(1, values.rounds + 1):
            arrived = waiting.draw(step)
            found = classifier.predict(_select(stream.train, arrived))
            rejected = (found["label"] == UNKNOWN).to_numpy()
            learned = np.isin(_names_of(stream.train, arrived), classifier.classes_)
            asked = found[rejected].sort_values(["p_value", "score"]).index[: values.budget]
            if len(asked):
                classifier.learn(_select(stream.train, arrived[asked.tolist()]), calibrate=False)
            spent += len(asked)
            parts = {"found": rejected[~learned], "false_alarms": rejected[learned]}
            shares = {name: float(part.mean()) if len(part) else float("nan") for name, part in parts.items()}
            state = _measure_state(classifier, stream, step, spent)
            yield {"step": step.number, "round": number, **shares, **state}


class _Arrivals:
    """Training images in a random order, each of which arrives at most once."""

    def __init__(self, stream: Stream, values: OpenWorld) -> None:
        self.values, self.sizes = values, stream.sizes
        self.numbers = generator(values.seed, "arrivals")
        labels = stream.train.labels.cpu()
        members = [(labels == label).nonzero().flatten() for label in range(sum(stream.sizes))]
        self.waiting = [rows[torch.randperm(len(rows), generator=self.numbers)] for rows in members]

    def draw_start(self) -> Tensor:
        """Return the images of the first step's classes that are learned with their labels."""
        return torch.cat([self._take(label, self.values.start) for label in range(self.sizes[0])])

    def draw(self, step: Step) -> Tensor:
        """Return the images of a round: of the step's classes, and of classes of earlier steps."""
        new = round(self.values.new * self.values.arrivals)
        drawn = [
            torch.randint(low, high, (count,), generator=self.numbers)
            for low, high, count in ((step.old, step.seen, new), (0, step.old, self.values.arrivals - new))
        ]
        counts = torch.bincount(torch.cat(drawn), minlength=step.seen).tolist()
        return torch.cat([self._take(label, count) for label, count in enumerate(counts)])

    def _take(self, label: int, count: int) -> Tensor:
        taken, self.waiting[label] = self.waiting[label][:count], self.waiting[label][count:]
        if len(taken) < count:
            text = f"class {label} has too few training images for these arrivals"
            raise BadInput(f"{text}: make start, rounds or arrivals smaller")
        return taken


def _measure_state(
    classifier: OpenWorldClassifier, stream: Stream, step: Step, spent: int
) -> dict[str, float]:
    """Return what has been learned so far, and the accuracy on all classes that have arrived."""
    new = len(classifier.classes_) - stream.sizes[0]
    best = classifier.predict(_select(stream.test, step.test))["best"].str[0].to_numpy()
    accuracy = float((best == _names_of(stream.test, step.test)).mean())
    each = spent / new if new else float("nan")
    return {"labels": spent, "classes_found": new, "labels_per_class": each, "accuracy": accuracy}


def _select(images: Images, rows: Tensor) -> FeatureImages:
    """Return some images of features, with the names of their classes."""
    if not isinstance(images, FeatureImages):
        raise BadInput("the open-world protocol needs features of a frozen network in place of images")
    return replace(images, features=images.features[rows], labels=images.labels[rows])


def _names_of(images: Images, rows: Tensor) -> "np.ndarray[Any, Any]":
    names: np.ndarray[Any, Any] = np.array(images.classes)[images.labels[rows].numpy()]
    return names
