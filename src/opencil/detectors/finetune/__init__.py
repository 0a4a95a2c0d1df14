"""Fine-tuning detectors: an extra head on frozen features, one loss per file."""
