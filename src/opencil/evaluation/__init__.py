"""Evaluation: metrics as pure functions, and the protocol that applies them."""
