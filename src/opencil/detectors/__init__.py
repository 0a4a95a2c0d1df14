"""OOD detectors: ``posthoc`` reads a trained model's outputs, one method per file."""
