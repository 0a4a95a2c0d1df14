"""``opencil doctor``: whether runs would work here, and what to do where they would not."""

from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from opencil.cli.guard import guarded
from opencil.errors import OpenCILError

_MARKS = {"good": ("✓", "green"), "note": ("!", "yellow"), "bad": ("✗", "red")}


@guarded
def doctor(
    data_root: Annotated[
        str | None, typer.Option(help="Folder of your downloads.", envvar="OPENCIL_DATA", metavar="DIR")
    ] = None,
    runs: Annotated[str, typer.Option(help="Folder that runs are stored in.", metavar="DIR")] = "runs",
) -> None:
    """Look at versions, devices, memory, data and folders, and say what to do.

    Exit code 0: 'opencil run --benchmark digits' would work. 1: it would not.

    Lines with ! are about what other runs may need.
    """
    from opencil.runs.checkup import checkup

    screen, group, bad = Console(highlight=False), "", []
    for finding in checkup(data_root, runs):
        if finding.group != group:
            group = finding.group
            screen.print(Text(group, style="bold"))
        mark, style = _MARKS[finding.state]
        screen.print(
            Text.assemble("  ", (mark, style), f" {finding.name:<11} {finding.found}"), soft_wrap=True
        )
        if finding.advice:
            screen.print(Text(f"{'':<16}→ {finding.advice}"), soft_wrap=True)
        bad += [finding.name] if finding.state == "bad" else []
    if bad:
        raise OpenCILError(f"runs would not work here: see {', '.join(bad)}, above")
    screen.print("'opencil run --benchmark digits' would work")
