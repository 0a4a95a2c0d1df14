"""A notebook's cells, run in order in one namespace, as Jupyter runs them; and as a page of Markdown."""

import ast
import contextlib
import io
import json
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Cell:
    """A cell, and what running it showed: what was printed, then the value of its last line."""

    kind: str
    text: str
    printed: str = ""
    value: Any = None


def cells(notebook: Path) -> list[Cell]:
    """The cells as they are stored."""
    stored = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [Cell(cell["cell_type"], "".join(cell["source"])) for cell in stored]


def ran(notebook: Path) -> Iterator[Cell]:
    """The cells, each after it has been run; the working folder is the caller's matter."""
    module = types.ModuleType(notebook.stem)
    sys.modules[module.__name__] = module
    try:
        for number, cell in enumerate(cells(notebook), start=1):
            yield cell if cell.kind != "code" else _ran(cell, f"{notebook.name}, cell {number}", vars(module))
    finally:
        del sys.modules[module.__name__]


def _ran(cell: Cell, where: str, names: dict[str, Any]) -> Cell:
    tree = ast.parse(cell.text, where)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, where, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), where, "eval"), names)
    return Cell(cell.kind, cell.text, printed.getvalue(), value)


def page(shown: list[Cell]) -> str:
    """The cells as Markdown, with what they showed where they were run."""
    return "\n\n".join(part for cell in shown for part in _parts(cell)) + "\n"


def _parts(cell: Cell) -> Iterator[str]:
    if cell.kind != "code":
        yield cell.text
        return
    yield f"```python\n{cell.text}\n```"
    if cell.printed:
        yield f"```text\n{cell.printed.rstrip()}\n```"
    if hasattr(cell.value, "_repr_html_"):
        html = "\n".join(line for line in cell.value._repr_html_().splitlines() if line.strip())
        yield f'<div class="outputs">\n{html}\n</div>'
    elif cell.value is not None:
        yield f"```text\n{cell.value!r}\n```"
