"""Checks that every method must pass, ours and a plugin's: what the contracts promise, as code.

A plugin's test suite needs two lines a method::

    def test_my_detector():
        check_detector("my-detector")       # from opencil.testing

    def test_my_cil_method():
        check_learner("my-method")

    def test_my_backbone():
        check_backbone("my-backbone")

``check_dataset``, ``check_metric`` and ``check_benchmark`` do the same for the rest, and ``opencil check
my_file.py`` runs those of all that a file registers. Each check is also callable by itself, by its name in
``DETECTOR_CHECKS``, ``LEARNER_CHECKS``, …; a failure is an ``AssertionError`` whose sentence says what was
promised and what happened instead.
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
