"""The version, readable without importing torch."""

__version__ = "1.0.0rc1"
