"""The quick-start notebook: its cells run in order and show their output."""

import json
from pathlib import Path

import pytest

from docs.site import notebook

QUICKSTART = Path(__file__).parents[2] / "docs" / "quickstart.ipynb"


def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = notebook.render(list(notebook.run_cells(QUICKSTART)))
    assert "margin" in shown.split("## A detector of your own")[1], "the own detector is in a table"


def test_jupyter_can_open_it() -> None:
    stored = json.loads(QUICKSTART.read_text(encoding="utf-8"))
    assert (stored["nbformat"], stored["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in stored["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in stored["cells"]:
        code = {"execution_count": None, "outputs": []} if cell["cell_type"] == "code" else {}
        expected = {key: cell[key] for key in ("cell_type", "id", "source")} | {"metadata": {}}
        assert cell == expected | code
        assert all(isinstance(line, str) for line in cell["source"])


def test_a_cell_shows_printed_text_and_its_last_value(tmp_path: Path) -> None:
    sources = [
        ("markdown", "# Title"),
        ("code", "class A: pass\nprint('said')\nA.__module__"),
        ("code", "x = A"),
        ("code", "x is A"),
    ]
    path = tmp_path / "small.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": k, "source": [s]} for k, s in sources]}))
    cells = list(notebook.run_cells(path))
    assert [cell.value for cell in cells] == [None, "small", None, True], "one namespace, a module of its own"
    assert "```text\nsaid\n```\n\n```text\n'small'\n```" in notebook.render(cells)
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": ["1\n", "2 / 0"]}]}))
    with pytest.raises(ZeroDivisionError):
        list(notebook.run_cells(path))
