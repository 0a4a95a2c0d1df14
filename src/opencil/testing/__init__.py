"""Check that methods, built in or from a plugin, keep the contracts that the benchmark relies on.

A plugin's test suite needs one call for each method::

    from opencil.testing import check_detector, check_learner

    def test_my_detector():
        check_detector("my-detector")

    def test_my_cil_method():
        check_learner("my-method")

``check_backbone``, ``check_dataset``, ``check_metric`` and ``check_benchmark`` do the same for the rest, and
``opencil check my_file.py`` for all that a file registers. ``DETECTOR_CHECKS``, … contain the single checks
by name. A failure raises an ``AssertionError`` with the broken promise.
"""

from opencil.testing.backbones import BACKBONE_CHECKS, check_backbone
from opencil.testing.benchmarks import BENCHMARK_CHECKS, check_benchmark
from opencil.testing.datasets import DATASET_CHECKS, check_dataset
from opencil.testing.detectors import DETECTOR_CHECKS, check_detector
from opencil.testing.learners import LEARNER_CHECKS, check_learner
from opencil.testing.metrics import METRIC_CHECKS, check_metric

__all__ = [
    "BACKBONE_CHECKS",
    "BENCHMARK_CHECKS",
    "DATASET_CHECKS",
    "DETECTOR_CHECKS",
    "LEARNER_CHECKS",
    "METRIC_CHECKS",
    "check_backbone",
    "check_benchmark",
    "check_dataset",
    "check_detector",
    "check_learner",
    "check_metric",
]
