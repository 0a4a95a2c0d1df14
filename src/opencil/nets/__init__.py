"""Backbones, the growing head, and the model that joins them."""
