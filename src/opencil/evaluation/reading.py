"""Provide the inputs of metrics: the samples of one comparison, computed on first access."""

from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from opencil.evaluation.ranking import Ranking


@dataclass(frozen=True)
class Samples:
    """A set of samples: logits [N, C] and, if known, labels and a detector's scores [N].

    ``tasks`` [C] is the task of each class, counted from 1. Everything is None for no samples.
    """

    logits: Tensor | None = None
    labels: Tensor | None = None
    scores: Tensor | None = None
    tasks: Tensor | None = None

    @cached_property
    def predicted(self) -> Tensor | None:
        """Return the class with the largest logit [N]."""
        return None if self.logits is None else self.logits.argmax(dim=1)

    @property
    def correct(self) -> Tensor | None:
        """Return which samples are classified correctly."""
        return None if self.predicted is None or self.labels is None else self.predicted == self.labels

    @property
    def own_tasks(self) -> Tensor | None:
        """Return the task of each sample's class."""
        return None if self.labels is None or self.tasks is None else self.tasks[self.labels]

    @property
    def predicted_tasks(self) -> Tensor | None:
        """Return the task of each sample's predicted class."""
        return None if self.tasks is None else self.tasks[self.predicted]


def concatenate(sets: list[Samples]) -> Samples:
    """Concatenate sets, with labels and scores if all have them."""
    columns = zip(*((samples.logits, samples.labels, samples.scores) for samples in sets), strict=True)
    joined = (None if any(part is None for part in parts) else torch.cat(parts) for parts in columns)
    return Samples(*joined)


def _part(path: str, about: str) -> property:
    """Create a property for an attribute of one of a reading's sets."""
    return property(attrgetter(path), doc=about)


@dataclass(frozen=True)
class Reading:
    """ID samples, alone or with the samples of an OOD set or of shifted sets.

    Its properties are the possible parameters of a metric's function; None if unknown.
    """

    test: Samples
    ood: Samples = Samples()
    shifted: Samples = Samples()

    id_scores = _part("test.scores", "Scores of the ID test images [N], larger for ID.")
    id_logits = _part("test.logits", "Logits of the ID test images [N, C].")
    labels = _part("test.labels", "Labels of the ID test images [N].")
    correct = _part("test.correct", "Which ID test images are classified correctly, bool [N].")
    id_tasks = _part("test.own_tasks", "The task of each ID test image [N], counted from 1.")

    @property
    def old(self) -> Tensor | None:
        """Which ID test images are of old classes, bool [N]."""
        return None if self.id_tasks is None else self.id_tasks != self.tasks.max()

    @property
    def new(self) -> Tensor | None:
        """Which ID test images are of new classes, bool [N]."""
        return None if self.id_tasks is None else self.id_tasks == self.tasks.max()

    tasks = _part("test.tasks", "The task of each class [C], counted from 1; the highest is the new one.")
    ood_scores = _part("ood.scores", "Scores of the OOD images [M].")
    ood_logits = _part("ood.logits", "Logits of the OOD images [M, C].")
    ood_tasks = _part("ood.predicted_tasks", "The task of each OOD image's predicted class [M].")

    @cached_property
    def ranking(self) -> Ranking | None:
        """ID and OOD scores sorted together: counts for every threshold."""
        known = self.id_scores is not None and self.ood_scores is not None
        return Ranking(self.id_scores, self.ood_scores) if known else None

    shifted_scores = _part(
        "shifted.scores", "Scores of the shifted ID images [S]; with an OOD set, of all shifted sets."
    )
    shifted_logits = _part("shifted.logits", "Logits of the shifted ID images [S, C].")
    shifted_labels = _part("shifted.labels", "Labels of the shifted ID images [S].")
    shifted_correct = _part("shifted.correct", "Which shifted ID images are classified correctly, bool [S].")

    @cached_property
    def full_ranking(self) -> Ranking | None:
        """Scores of ID and shifted ID together, and of OOD, sorted."""
        if self.ranking is None or self.shifted_scores is None:
            return None
        return Ranking(torch.cat([self.id_scores, self.shifted_scores]), self.ood_scores)

    @property
    def scores(self) -> Any:
        """Scores of the OOD set or, without one, of the ID test images."""
        return self.id_scores if self.ood_scores is None else self.ood_scores

    @property
    def sample_tasks(self) -> Any:
        """The tasks of these images; for OOD images the tasks of their predicted classes."""
        return self.id_tasks if self.ood_tasks is None else self.ood_tasks


#: All inputs of metrics, with their descriptions.
READABLE = {
    name: member.__doc__ or ""
    for name, member in vars(Reading).items()
    if isinstance(member, property | cached_property)
}
