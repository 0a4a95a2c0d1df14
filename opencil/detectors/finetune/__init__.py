"""Fine-tuning detectors: scores from a head that is trained next to the model's own."""
