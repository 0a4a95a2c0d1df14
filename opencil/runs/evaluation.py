"""The evaluation of a run's steps: outputs once, or from the cache, then the rows of every detector."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import pandas as pd
import torch
from torch import Tensor

from opencil.data.benchmark import BenchmarkData
from opencil.data.images import Images
from opencil.data.stream import Step, Stream
from opencil.detectors.detector import Detector, Setup
from opencil.engine.forward import Inputs, Outputs, forward
from opencil.errors import BadInput
from opencil.evaluation.protocol import Measurement, measure
from opencil.nets.model import Classifier
from opencil.runs.cache import OutputsCache
from opencil.runs.plan import RunSpec
from opencil.study.rows import COLUMNS


@dataclass(frozen=True)
class Evaluation:
    """How the steps of one run are evaluated."""

    spec: RunSpec
    data: BenchmarkData
    stream: Stream
    cache: OutputsCache

    def outputs_of_test(self, model: Classifier, step: Step) -> Outputs:
        """Outputs of all test images of seen classes, of a model that is not stored yet."""
        return forward(model, self.stream.test, self.data.transform, step.test)

    def detect(
        self,
        model: Classifier,
        weights: str,
        step: Step,
        setup: Callable[[Setup], Tensor],
        detectors: Mapping[str, Detector],
        computed: Outputs | None = None,
    ) -> Iterator[tuple[str, pd.DataFrame | BadInput]]:
        """Rows of each detector on a step's model, as they are found, or why it has none.

        ``weights`` is the digest of the model's weights; ``setup`` gives the indices of the training images
        that detectors are set up on; ``computed`` are the outputs of the test images, where they are at hand.
        """

        def outputs(images: Images, indices: Tensor, computed: Outputs | None = None) -> Outputs:
            # The method's values decide with the weights what its model computes.
            identity = f"{weights} {self.spec.cil} {self.spec.values}"
            return self.cache.outputs(identity, Inputs(model, images, self.data.transform, indices), computed)

        test = outputs(self.stream.test, step.test, computed)
        ood = {
            name: outputs(o.images, self.spec.ood_seen(name, len(o.images), step))
            for name, o in self.data.ood.items()
        }
        of_setup = cache(lambda which: outputs(self.stream.train, setup(which)))
        tasks = torch.arange(step.seen, device=test.logits.device) // self.stream.per_step + 1
        for name, detector in detectors.items():
            try:
                learned_from = None if detector.ready else of_setup(detector.set_up_on)
                yield name, self.rows(step, name, measure(detector, learned_from, test, ood, tasks))
            except BadInput as error:  # one detector's trouble is not the others'
                yield name, error

    def rows(self, step: Step, detector: str, found: list[Measurement]) -> pd.DataFrame:
        """Rows of measurements; ``detector`` is empty where they are of the CIL model itself."""
        spec = self.spec
        distance = {"": ""} | {name: ood.distance for name, ood in self.data.ood.items()}
        head = (spec.benchmark.name, spec.classes_per_step, spec.cil, spec.seeds.run, step.number, detector)
        return pd.DataFrame(
            [(*head, m.ood, distance[m.ood], m.task, m.metric, m.value) for m in found], columns=COLUMNS
        )
