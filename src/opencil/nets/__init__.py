"""Backbones, heads, and models made of both."""
