"""Run ``python -m opencil``."""

from opencil.cli import main

main()
