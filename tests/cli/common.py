"""Calls of commands in this process."""

from typing import Any

from typer.testing import CliRunner

from opencil.cli import app


def call(*words: object, **env: str) -> Any:
    """Call ``opencil`` with some words, and return its output and exit code."""
    return CliRunner().invoke(app, list(map(str, words)), env=env or None)
