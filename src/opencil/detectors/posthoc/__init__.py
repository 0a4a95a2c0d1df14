"""Post-hoc detectors: scores from the outputs of a model that is left as it is."""
