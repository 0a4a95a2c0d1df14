"""OOD detectors, one per file: ``posthoc`` scores a model's outputs, ``finetune`` tunes an extra head."""
