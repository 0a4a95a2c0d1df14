"""Detectors and CIL methods by name; the stub beside this file, made of the registry, lets editors complete
their names and values."""

from opencil.registry import DETECTORS, LEARNERS

create_detector, create_learner = DETECTORS.create, LEARNERS.create
