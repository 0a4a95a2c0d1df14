"""OpenCIL: out-of-distribution detection in class-incremental learning."""

from opencil._version import __version__
