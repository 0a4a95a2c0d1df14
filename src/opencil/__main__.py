"""Run ``python -m opencil``."""

from opencil.cli import app

app()
