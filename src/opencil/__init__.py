"""OpenCIL: out-of-distribution detection in class-incremental learning.

The public names, all here::

    detector = opencil.create_detector("energy", temperature=2.0)
    scores = detector.score(logits=logits)                  # larger = more in-distribution
    opencil.ood_metrics(detector.score(logits=id_logits), scores)

    data = opencil.benchmark("digits")                      # images, OOD sets, the class-incremental stream
    results = opencil.run(benchmark="digits", cil="icarl", detector="all")
    print(results.table())

Importing this costs next to nothing; torch, and what else a name needs, is imported when it is first used.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from opencil._version import __version__
from opencil.errors import BadInput, OpenCILError
from opencil.plugins import load_plugin
from opencil.registry import (
    BACKBONES,
    DATASETS,
    DETECTORS,
    LEARNERS,
    METRICS,
    Paper,
    register_backbone,
    register_dataset,
    register_detector,
    register_learner,
)

if TYPE_CHECKING:
    from opencil.cil.learner import Learner, Task, distillation
    from opencil.config import Config, list_benchmarks, resolve
    from opencil.creating import create_detector, create_learner
    from opencil.data.benchmark import OOD, BenchmarkData
    from opencil.data.images import Access, Dataset, Images, ImageSet
    from opencil.data.memory import Memory
    from opencil.data.stream import Step, Stream
    from opencil.data.streamed import StreamedImages
    from opencil.data.transforms import Transform
    from opencil.detectors.detector import Detector, LogitDetector, SetUpDetector
    from opencil.detectors.finetune.tuner import Tuner
    from opencil.engine.forward import Inputs, Outputs, forward
    from opencil.engine.loop import Stage
    from opencil.engine.schedule import Schedule
    from opencil.evaluation.evaluate import evaluate
    from opencil.evaluation.metric import Metric, register_metric
    from opencil.evaluation.metrics import OODMetrics, accuracy, joint_metrics, ood_metrics
    from opencil.front import Results, evaluate_steps, run
    from opencil.nets.adapter import AdaptedBackbone
    from opencil.nets.create import create_backbone
    from opencil.nets.model import Backbone, Model
    from opencil.nets.wrap import WrappedModel, wrap
    from opencil.openood import Evaluator
    from opencil.published import published_results
    from opencil.runs.loading import benchmark
    from opencil.runs.reading import read_study
    from opencil.runs.run import Run, open_run
    from opencil.runs.runner import execute
    from opencil.runs.store import read_rows
    from opencil.study.study import Study

list_learners, list_detectors = LEARNERS.names, DETECTORS.names
create_dataset, list_datasets = DATASETS.create, DATASETS.names
list_backbones = BACKBONES.names
list_metrics = METRICS.names

#: Names whose modules need more than Python, torch at least.
_LATER = {
    "Access": "opencil.data.images",
    "AdaptedBackbone": "opencil.nets.adapter",
    "Backbone": "opencil.nets.model",
    "BenchmarkData": "opencil.data.benchmark",
    "Config": "opencil.config",
    "Dataset": "opencil.data.images",
    "Detector": "opencil.detectors.detector",
    "Evaluator": "opencil.openood",
    "ImageSet": "opencil.data.images",
    "Images": "opencil.data.images",
    "Inputs": "opencil.engine.forward",
    "Learner": "opencil.cil.learner",
    "LogitDetector": "opencil.detectors.detector",
    "Memory": "opencil.data.memory",
    "Metric": "opencil.evaluation.metric",
    "Model": "opencil.nets.model",
    "OOD": "opencil.data.benchmark",
    "OODMetrics": "opencil.evaluation.metrics",
    "Outputs": "opencil.engine.forward",
    "Results": "opencil.front",
    "Run": "opencil.runs.run",
    "Schedule": "opencil.engine.schedule",
    "SetUpDetector": "opencil.detectors.detector",
    "Stage": "opencil.engine.loop",
    "Step": "opencil.data.stream",
    "Stream": "opencil.data.stream",
    "StreamedImages": "opencil.data.streamed",
    "Study": "opencil.study.study",
    "Task": "opencil.cil.learner",
    "Transform": "opencil.data.transforms",
    "Tuner": "opencil.detectors.finetune.tuner",
    "WrappedModel": "opencil.nets.wrap",
    "accuracy": "opencil.evaluation.metrics",
    "benchmark": "opencil.runs.loading",
    "create_backbone": "opencil.nets.create",
    "create_detector": "opencil.creating",
    "create_learner": "opencil.creating",
    "distillation": "opencil.cil.learner",
    "evaluate": "opencil.evaluation.evaluate",
    "evaluate_steps": "opencil.front",
    "execute": "opencil.runs.runner",
    "forward": "opencil.engine.forward",
    "joint_metrics": "opencil.evaluation.metrics",
    "list_benchmarks": "opencil.config",
    "ood_metrics": "opencil.evaluation.metrics",
    "open_run": "opencil.runs.run",
    "published_results": "opencil.published",
    "read_rows": "opencil.runs.store",
    "read_study": "opencil.runs.reading",
    "register_metric": "opencil.evaluation.metric",
    "resolve": "opencil.config",
    "run": "opencil.front",
    "wrap": "opencil.nets.wrap",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    if not name.startswith("_") and find_spec(f"opencil.{name}"):
        return import_module(f"opencil.{name}")
    raise AttributeError(f"module 'opencil' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "OOD",
    "Access",
    "AdaptedBackbone",
    "Backbone",
    "BadInput",
    "BenchmarkData",
    "Config",
    "Dataset",
    "Detector",
    "Evaluator",
    "ImageSet",
    "Images",
    "Inputs",
    "Learner",
    "LogitDetector",
    "Memory",
    "Metric",
    "Model",
    "OODMetrics",
    "OpenCILError",
    "Outputs",
    "Paper",
    "Results",
    "Run",
    "Schedule",
    "SetUpDetector",
    "Stage",
    "Step",
    "Stream",
    "StreamedImages",
    "Study",
    "Task",
    "Transform",
    "Tuner",
    "WrappedModel",
    "__version__",
    "accuracy",
    "benchmark",
    "create_backbone",
    "create_dataset",
    "create_detector",
    "create_learner",
    "distillation",
    "evaluate",
    "evaluate_steps",
    "execute",
    "forward",
    "joint_metrics",
    "list_backbones",
    "list_benchmarks",
    "list_datasets",
    "list_detectors",
    "list_learners",
    "list_metrics",
    "load_plugin",
    "ood_metrics",
    "open_run",
    "published_results",
    "read_rows",
    "read_study",
    "register_backbone",
    "register_dataset",
    "register_detector",
    "register_learner",
    "register_metric",
    "resolve",
    "run",
    "wrap",
]
