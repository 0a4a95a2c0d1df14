"""Metrics as pure functions, and the protocol that applies them to a step."""
