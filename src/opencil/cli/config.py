"""``opencil config``."""

from typing import TYPE_CHECKING

import typer

from opencil.cli.flags import takes_config

if TYPE_CHECKING:  # imported where it is used, so that --help and --version answer at once
    from opencil.config import Config


@takes_config
def show_config(config: "Config") -> None:
    """Print one YML with every value that 'opencil run' with the same flags will use."""
    typer.echo(config.to_yaml(), nl=False)
