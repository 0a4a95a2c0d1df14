"""OpenCIL: out-of-distribution detection in class-incremental learning.

The public names, all here::

    detector = opencil.create_detector("energy", temperature=2.0)
    scores = detector.score(logits=logits)                  # larger = more in-distribution
    opencil.ood_metrics(detector.score(logits=id_logits), scores)

    data = opencil.benchmark("digits")                      # images, OOD sets, the class-incremental stream
    results = opencil.run(benchmark="digits", cil="icarl", detector="all")
    print(results.table())

Importing the package is fast: torch and other libraries are imported when a name that needs them is used.
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
    from opencil.cil.learner import Learner, Setting, Task, distillation
    from opencil.config import Config, list_benchmarks, resolve
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
    from opencil.openworld.classifier import OpenWorldClassifier
    from opencil.published import published_results
    from opencil.runs.launch import execute
    from opencil.runs.loading import benchmark
    from opencil.runs.reading import read_rows, read_study
    from opencil.runs.state import Run, open_run
    from opencil.study.study import Study
    from opencil.submissions.hub import load_published

create_learner, list_learners = LEARNERS.create, LEARNERS.names
create_detector, list_detectors = DETECTORS.create, DETECTORS.names
create_dataset, list_datasets = DATASETS.create, DATASETS.names
list_backbones = BACKBONES.names
list_metrics = METRICS.names

#: Names by the module that is imported when they are first used, since it needs torch.
_LATER = {
    "cil.learner": "Learner Setting Task distillation",
    "config": "Config list_benchmarks resolve",
    "data.benchmark": "BenchmarkData OOD",
    "data.images": "Access Dataset ImageSet Images",
    "data.memory": "Memory",
    "data.stream": "Step Stream",
    "data.streamed": "StreamedImages",
    "data.transforms": "Transform",
    "detectors.detector": "Detector LogitDetector SetUpDetector",
    "detectors.finetune.tuner": "Tuner",
    "engine.forward": "Inputs Outputs forward",
    "engine.loop": "Stage",
    "engine.schedule": "Schedule",
    "evaluation.evaluate": "evaluate",
    "evaluation.metric": "Metric register_metric",
    "evaluation.metrics": "OODMetrics accuracy joint_metrics ood_metrics",
    "front": "Results evaluate_steps run",
    "nets.adapter": "AdaptedBackbone",
    "nets.create": "create_backbone",
    "nets.model": "Backbone Model",
    "nets.wrap": "WrappedModel wrap",
    "openood": "Evaluator",
    "openworld.classifier": "OpenWorldClassifier",
    "published": "published_results",
    "runs.launch": "execute",
    "runs.loading": "benchmark",
    "runs.reading": "read_rows read_study",
    "runs.state": "Run open_run",
    "study.study": "Study",
    "submissions.hub": "load_published",
}
_MODULES = {name: f"opencil.{module}" for module, names in _LATER.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    if not name.startswith("_") and find_spec(f"opencil.{name}"):
        return import_module(f"opencil.{name}")
    raise AttributeError(f"module 'opencil' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = ["Access", "AdaptedBackbone", "Backbone", "BadInput", "BenchmarkData", "Config", "Dataset"]
__all__ += ["Detector", "Evaluator", "ImageSet", "Images", "Inputs", "Learner", "LogitDetector", "Memory"]
__all__ += ["OOD", "Metric", "Model", "OODMetrics", "OpenCILError", "OpenWorldClassifier", "Outputs"]
__all__ += ["Paper", "Results", "Run"]
__all__ += ["Schedule", "SetUpDetector", "Setting", "Stage", "Step", "Stream", "StreamedImages", "Study"]
__all__ += ["Task", "Transform", "Tuner", "WrappedModel"]
__all__ += ["create_backbone", "create_dataset", "create_detector", "create_learner"]
__all__ += ["list_backbones", "list_benchmarks", "list_datasets", "list_detectors", "list_learners"]
__all__ += ["list_metrics"]
__all__ += ["register_backbone", "register_dataset", "register_detector", "register_learner"]
__all__ += ["register_metric"]
__all__ += ["__version__", "accuracy", "benchmark", "distillation", "evaluate", "evaluate_steps", "execute"]
__all__ += ["forward", "joint_metrics", "load_plugin", "load_published", "ood_metrics", "open_run"]
__all__ += ["published_results", "read_rows", "read_study", "resolve", "run", "wrap"]
