"""Checks that every method must pass, ours and a plugin's: what the contracts promise, as code.

A plugin's test suite needs two lines a method::

    def test_my_detector():
        check_detector("my-detector")       # from opencil.testing

    def test_my_cil_method():
        check_learner("my-method")

Each check is also callable by itself, by its name in ``DETECTOR_CHECKS`` or ``LEARNER_CHECKS``; a failure is
an ``AssertionError`` whose sentence says what was promised and what happened instead.
"""

from opencil.testing.detectors import DETECTOR_CHECKS, check_detector
from opencil.testing.learners import LEARNER_CHECKS, check_learner

__all__ = ["DETECTOR_CHECKS", "LEARNER_CHECKS", "check_detector", "check_learner"]
