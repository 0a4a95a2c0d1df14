"""The measurements of a run: when, on which images. A subclass of ``Protocol`` measures otherwise."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from opencil.cil.learner import Task
from opencil.data.images import Images
from opencil.data.memory import Memory
from opencil.data.precision import to_float64_device
from opencil.data.stream import Step
from opencil.detectors.detector import Detector
from opencil.engine.loop import Diverged, Progress
from opencil.evaluation.metric import KEPT, chosen_metrics
from opencil.evaluation.metrics import accuracy
from opencil.evaluation.protocol import Measurement, measure, measure_model
from opencil.nets.model import Model
from opencil.runs.state import Run, StepOutputs


class Protocol:
    """The paper's protocol: after each step the model and every detector on all sets."""

    def during(self, run: Run, task: Task, progress: Progress) -> Iterable[Measurement]:
        """Measure in the middle of a training, after each iteration: here nothing.

        An online protocol measures every n images. Its measurements become rows of the model, and belong to
        checkpoints; they are not made again where the file of these rows is lost.
        """
        return ()

    def measure_model(self, task: Task, memory: Memory, outputs: StepOutputs) -> list[Measurement]:
        """Measure a trained model: accuracies, metrics of the model, and the bytes of model and memory."""
        run, step, test = outputs.run, task.step, outputs.test
        if not torch.isfinite(test.logits).all():
            raise Diverged(f"{run.spec.cil}, step {step.number}: the trained model's logits are not finite")
        assert test.labels is not None
        others = run.learner.other_predictions(task, memory, test)
        found = measure_accuracies({"accuracy": test.logits.argmax(dim=1), **others}, test.labels, step)
        more = measure_model(test, outputs.shifted, outputs.tasks, chosen_metrics(run.spec.metrics))
        found += [one for one in more if (one.ood, one.metric) != ("", "accuracy")]
        # A method with old images again, and without a memory of chosen ones, has kept all of them.
        kept = task.train_plus if run.learner.revisits and not run.learner.remembers else memory.indices
        return found + measure_bytes(task.model, len(kept), run.stream.train)

    def measure_detector(self, detector: Detector, outputs: StepOutputs) -> list[Measurement]:
        """Set a detector up and measure it on every OOD set, later classes and shifted set."""
        outputs.set_up(detector)
        names, scored = chosen_metrics(outputs.run.spec.metrics), outputs.scored(detector)
        test, shifted, outside = outputs.test, outputs.shifted, outputs.ood | outputs.future
        if len(scored) < len(test):
            test, of_shifted = outputs.test_part(scored), outputs.run.shifted
            shifted = {name: o.of(of_shifted[name], scored) or o for name, o in shifted.items()}
        return measure(detector, None, test, outside, outputs.tasks, shifted, names)


def measure_accuracies(predicted: Mapping[str, Tensor], labels: Tensor, step: Step) -> list[Measurement]:
    """Measure accuracies by metric on all seen classes (task 0) and on the classes of each step."""
    found, labels = [], to_float64_device(labels)
    for metric, guess in ((name, to_float64_device(guess)) for name, guess in predicted.items()):
        found.append(Measurement("", metric, accuracy(guess, labels)))
        for task, of_task in enumerate(step.tasks, start=1):
            rows = (labels >= of_task.start) & (labels < of_task.stop)
            found.append(Measurement("", metric, accuracy(guess[rows], labels[rows]), task))
    return found


def measure_bytes(model: Model, exemplars: int, images: Images) -> list[Measurement]:
    """Measure the bytes after a step: the model's tensors, and those of exemplars.

    The network behind stored features counts as a part of the model. For a model from elsewhere these are
    its own tensors; a function has none to count.
    """
    tensors = [t for t in nn.Module.state_dict(model).values() if isinstance(t, Tensor)]
    of_model = sum({t.data_ptr(): t.numel() * t.element_size() for t in tensors}.values())
    of_model += max((getattr(part, "network_bytes", 0) for part in model.modules()), default=0)
    counts = of_model if tensors else None, exemplars * images.bytes_of_each
    return [
        Measurement("", name, count) for name, count in zip(KEPT, counts, strict=True) if count is not None
    ]
