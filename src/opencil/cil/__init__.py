"""CIL pre-training: one method per file, on the shared loop."""
