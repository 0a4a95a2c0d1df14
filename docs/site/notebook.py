"""Run a notebook's cells in order in one namespace, as Jupyter does, and turn them into Markdown."""

import ast
import contextlib
import io
import json
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Cell:
    """A cell with its output: printed text, and the value of its last line."""

    kind: str
    text: str
    printed: str = ""
    value: Any = None


def read_cells(path: Path) -> list[Cell]:
    """Return the cells of a notebook, without output."""
    stored = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [Cell(cell["cell_type"], "".join(cell["source"])) for cell in stored]


def run_cells(path: Path) -> Iterator[Cell]:
    """Yield the cells, each after it has run in the current folder."""
    module = types.ModuleType(path.stem)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        for number, cell in enumerate(read_cells(path), start=1):
            yield cell if cell.kind != "code" else _run(cell, f"{path.name}, cell {number}", vars(module))
    finally:
        del sys.modules[module.__name__]


def _run(cell: Cell, where: str, names: dict[str, Any]) -> Cell:
    tree, value, printed = ast.parse(cell.text, where), None, io.StringIO()
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, where, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), where, "eval"), names)
    return replace(cell, printed=printed.getvalue(), value=value)


def render(cells: list[Cell]) -> str:
    """Return cells as Markdown, with their output."""
    return "\n\n".join(part for cell in cells for part in _render(cell)) + "\n"


def _render(cell: Cell) -> Iterator[str]:
    yield cell.text if cell.kind != "code" else f"```python\n{cell.text}\n```"
    if cell.printed:
        yield f"```text\n{cell.printed.rstrip()}\n```"
    if hasattr(cell.value, "_repr_html_"):
        lines = [line for line in cell.value._repr_html_().splitlines() if line.strip()]
        yield "\n".join(['<div class="outputs">', *lines, "</div>"])
    elif cell.value is not None:
        yield f"```text\n{cell.value!r}\n```"
