"""Post-hoc detectors: scores from the outputs of an unchanged model."""
