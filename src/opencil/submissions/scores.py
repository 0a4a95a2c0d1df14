"""Store the scores behind rows, and compute the rows again from them, without images or models.

A step's file has, for each set of images, ``SET/predicted``, ``SET/labels`` if they are known and
``SET/scores/DETECTOR``; the test images are the set ``""``. ``/scored/DETECTOR`` marks the test images that
are measured, where the detector was set up on the others. Scores keep their type: as float16 they tie or
overflow, and more than half of the values of the embedded benchmark are not computed again to 1e-6.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from opencil.data.roles import FUTURE
from opencil.data.stream import Step, StepSizes
from opencil.errors import BadInput
from opencil.evaluation.metric import Samples, metric_of
from opencil.evaluation.protocol import measure_samples
from opencil.files import read_bytes, write_bytes
from opencil.registry import DETECTORS
from opencil.runs.protocol import measure_accuracies
from opencil.runs.state import Run, StepOutputs, draw_held_out
from opencil.runs.store import pack
from opencil.study.records import RunRecord, identity, name_of
from opencil.submissions.track import MOST_STEPS, count_classes

#: Largest difference of a value computed again.
TOLERANCE = 1e-6
_LARGEST = 2**28  # images times classes: ImageNet-1K's test images have 5 · 10^7
_LOGITS = {"id_logits", "ood_logits", "shifted_logits"}
_KEYS = ["step", "detector", "ood", "task", "metric"]


@dataclass(frozen=True)
class Recomputed:
    """The values of a run computed again from scores: how many agree, and a sentence for each difference."""

    compared: int
    rows: int
    problems: list[str]


def scores_file(folder: Path, run: RunRecord, step: int) -> Path:
    """Return the path of a step's scores in a submission."""
    return folder / "scores" / name_of(*identity(run)) / f"step{step:02d}.safetensors"


def store_scores(folder: Path, run: Run, record: RunRecord) -> Iterator[int]:
    """Compute the scores of a stored run with its models, and write a file for each step; yield the step."""
    for step in run.stream:
        outputs = StepOutputs(run, step)
        sets = {"": outputs.test, **outputs.ood, **outputs.future, **outputs.shifted}
        tensors = {f"{name}/predicted": of.logits.argmax(dim=1).to(torch.int16) for name, of in sets.items()}
        for name in ("", *outputs.shifted):
            labels = sets[name].labels
            assert labels is not None
            tensors[f"{name}/labels"] = labels.to(torch.int16)
        for detector in record["detectors"]:
            made = run.detector(detector, step.number, outputs)
            tensors |= {f"{name}/scores/{detector}": made.score(of) for name, of in sets.items()}
            if len(scored := outputs.scored(made)) < len(outputs.test):
                tensors[f"/scored/{detector}"] = torch.isin(step.test, scored)
        write_bytes(scores_file(folder, record, step.number), pack(tensors))
        yield step.number


def recompute(folder: Path, run: RunRecord, rows: pd.DataFrame) -> Recomputed:
    """Compute all rows of a run that follow from its stored scores, and compare them."""
    found, problems = [], list[str]()
    metrics = {detector: [*part] for detector, part in rows.groupby("detector")["metric"].unique().items()}
    for number in range(1, min(run["steps"] or 0, count_classes(run) or MOST_STEPS) + 1):
        path = scores_file(folder, run, number)
        try:
            tensors = load(read_bytes(path, most=2**30))
            found += [(number, *values) for values in _measure_step(tensors, run, number, metrics)]
        except (BadInput, SafetensorError, KeyError, ValueError, IndexError, RuntimeError) as error:
            reason = f"{error} is missing in it" if isinstance(error, KeyError) else error
            problems.append(f"{reason} (step {number})")
    again = pd.DataFrame(found, columns=[*_KEYS, "again"])
    both = rows.merge(again, on=_KEYS)
    size = both["value"].abs().clip(lower=1)
    differing = both[(both["value"] - both["again"]).abs() > TOLERANCE * size]
    for _, part in differing.groupby("detector"):
        worst = part.iloc[int((part["value"] - part["again"]).abs().argmax())]
        where = f"{worst['metric']}{' on ' * bool(worst['ood'])}{worst['ood']} at step {worst['step']}"
        problems.append(
            f"{len(part)} values of {worst['detector'] or 'the model'} are not those of its scores: {where} "
            f"is {worst['value']:.6g} in the rows and {worst['again']:.6g} from the scores"
        )
    if not problems and len(again) > len(both):
        problems.append(f"{len(again) - len(both)} values that follow from its scores have no row")
    return Recomputed(len(both), len(rows), problems)


def _measure_step(
    tensors: Mapping[str, Tensor], run: RunRecord, number: int, metrics: Mapping[Any, list[str]]
) -> Iterator[tuple[str, str, int, str, float]]:
    """Yield detector, set, task, metric and value of all that follows from a step's scores."""
    benchmark = run["config"]["benchmark"]
    labels = tensors["/labels"].long()
    if len(labels) * max(count_classes(run) or 0, int(labels.max()) + 1) > _LARGEST:
        raise BadInput("more images and classes than can be are in it")
    sizes = StepSizes.parse(run["k"]).of(count_classes(run) or int(labels.max()) + 1)
    step = Step(sizes[:number], max(len(sizes), number), labels[:0], labels[:0])
    tasks = torch.tensor(step.task_of_class)
    shifted = [name for name in benchmark["shifted"] if f"{name}/predicted" in tensors]
    future = [FUTURE] if f"{FUTURE}/predicted" in tensors else []
    for split in run["data"]:
        if (split["name"], split["split"]) == (benchmark["id"], "test"):
            seen = sum(len(tensors[f"{name}/predicted"]) for name in ("", *future))
            if seen != split["images"]:
                raise BadInput(f"it has scores of {seen} of {split['images']} test images")
        else:
            _check_count(tensors, split["name"], split["images"], number, len(sizes))

    def read(name: str, detector: str) -> Samples:
        predicted, of = tensors[f"{name}/predicted"].long(), tensors.get(f"{name}/labels")
        if len(predicted) * step.seen > _LARGEST:
            raise BadInput(f"{name} has more predictions than can be")
        scores = tensors[f"{name}/scores/{detector}"] if detector else None
        if of is not None and scores is not None:
            scored = _find_scored(tensors, detector, run, step)
            predicted, of, scores = predicted[scored], of[scored], scores[scored]
        # A one stands where the largest logit was; metrics that read other logits are left out.
        logits = F.one_hot(predicted, step.seen).to(torch.uint8)
        return Samples(logits, None if of is None else of.long(), scores, tasks)

    for detector in ("", *run["detectors"]):
        of_shifted = {name: read(name, detector) for name in shifted}
        outside = (*benchmark["near"], *benchmark["far"], *future)
        of_ood = ((name, read(name, detector)) for name in outside)
        names = [name for name in metrics.get(detector, []) if not _LOGITS & {*metric_of(name).reads}]
        sets = of_ood if detector else ()
        found = measure_samples(read("", detector), sets, of_shifted, names, of_model=not detector)
        if not detector:
            found = [one for one in found if (one.ood, one.metric) != ("", "accuracy")]
            found += measure_accuracies({"accuracy": tensors["/predicted"].long()}, labels, step)
        for m in found:
            yield detector, m.ood, m.task, m.metric, m.value


def _find_scored(tensors: Mapping[str, Tensor], detector: str, run: RunRecord, step: Step) -> Tensor:
    """Return which test images count for a detector: not those that it was set up on, drawn as in the run."""
    labels = tensors["/labels"].long()
    scored = torch.ones(len(labels), dtype=torch.bool)
    stored = tensors.get(f"/scored/{detector}", scored)
    if DETECTORS.translate(detector).partition("@")[0] not in DETECTORS.names():
        if not stored.all():
            raise BadInput(f"{detector} leaves out test images, and is not known here: give its --plugin")
        return scored
    config = run["config"]
    if DETECTORS.create(detector, **config["detector"][detector]).set_up_on == "memory+test":
        numbers = torch.tensor(range(len(labels)))
        scored = ~torch.isin(numbers, draw_held_out(numbers, labels, config["seed"]["data_order"], step))
    if not stored.equal(scored):
        raise BadInput(f"{detector} leaves out other test images than those that it is set up on")
    return scored


def _check_count(tensors: Mapping[str, Tensor], name: str, images: int, step: int, steps: int) -> None:
    """Refuse scores of another number of images than a step's share of a set, or its test images shifted."""
    if (stored := tensors.get(f"{name}/predicted")) is None:
        return
    share = len(tensors["/labels"]) if f"{name}/labels" in tensors else max(1, round(images * step / steps))
    if len(stored) != share:
        raise BadInput(f"{name} has {len(stored)} scores, and its share of {images} images is {share}")
