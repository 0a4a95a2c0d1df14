"""``opencil check``: whether a plugin, or a benchmark of one's own, keeps what is promised."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from opencil.cli.guard import guarded
from opencil.errors import OpenCILError


@guarded
def check(
    files: Annotated[
        list[str],
        typer.Argument(
            help="Your Python files, or modules; or a YML, for its benchmark and the plugins it names.",
            metavar="FILE.py",
        ),
    ],
    data_root: Annotated[
        Path | None,
        typer.Option(help="Folder of your downloads.", envvar="OPENCIL_DATA", metavar="DIR"),
    ] = None,
    image_size: Annotated[
        int,
        typer.Option(
            help="Side of the images that backbones and datasets are tried on.", min=1, metavar="PIXELS"
        ),
    ] = 32,
) -> None:
    """Try what a file registers: detectors, CIL methods, backbones, datasets, metrics.

    Every check has a line, and one that fails has a reason and the places in your file. Exit code 0: all is
    as promised. 1: something is not.
    """
    from opencil.config import read_yaml, resolve
    from opencil.testing.verdicts import Check, checks_of, checks_of_benchmark, verdict

    screen, checks = Console(highlight=False), list[Check]()
    plugins = dict.fromkeys(file for file in files if not file.endswith((".yml", ".yaml")))
    with screen.status("importing"):
        for file in files:
            if file not in plugins:
                config = resolve(read_yaml(Path(file)))
                checks += checks_of_benchmark(config)
                plugins |= dict.fromkeys(config.plugins)
        checks += [one for plugin in plugins for one in checks_of(plugin, data_root, image_size)]
    width = max(len(one.name) for one in checks)
    subject, failed, tried = "", 0, 0
    for number, one in enumerate(checks, start=1):
        if one.subject != subject:
            subject = one.subject
            screen.print(f"[bold]{escape(subject)}[/]", soft_wrap=True)
        head = one.name.replace("_", " ").ljust(width)
        if one.left_out:
            _line(screen, "[yellow]–[/]", head, one.left_out)
            continue
        tried += 1
        with screen.status(f"{number} of {len(checks)}: {escape(subject)}, {escape(head.strip())}"):
            ended = verdict(one)
        failed += bool(ended.problem)
        _line(screen, "[red]✗[/]" if ended.problem else "[green]✓[/]", head, ended.problem or one.promise)
        for frame in ended.frames:
            _line(screen, " ", " " * width, frame)
    if failed:
        raise OpenCILError(f"{failed} of {tried} checks failed")
    left = f", {len(checks) - tried} left out" if tried < len(checks) else ""
    screen.print(f"all {tried} checks passed{left}")


def _line(screen: Console, mark: str, head: str, text: str) -> None:
    """A mark, a name and a sentence, which on a terminal has a column of its own to wrap in."""
    if not screen.is_terminal:
        screen.print(f"  {mark} {head}  {escape(text)}", soft_wrap=True)
        return
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(f"  {mark}", head, escape(text))
    screen.print(table)
