"""The quick-start notebook: its cells run in order, and show what they are there for."""

import json
from pathlib import Path

import pytest

from docs.site import notebook

QUICKSTART = Path(__file__).parents[2] / "docs" / "quickstart.ipynb"


def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = list(notebook.ran(QUICKSTART))
    shown = notebook.page(ran)
    assert "margin" in shown.split("## A detector of your own")[1], "the own detector is in a table"


def test_jupyter_can_open_it() -> None:
    stored = json.loads(QUICKSTART.read_text(encoding="utf-8"))
    assert (stored["nbformat"], stored["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in stored["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in stored["cells"]:
        code = {"execution_count": None, "outputs": []} if cell["cell_type"] == "code" else {}
        assert cell == {
            "cell_type": cell["cell_type"],
            "id": cell["id"],
            "metadata": {},
            "source": cell["source"],
            **code,
        }
        assert all(isinstance(line, str) for line in cell["source"])


def test_a_cell_shows_what_it_printed_and_its_last_value(tmp_path: Path) -> None:
    sources = [
        ("markdown", "# Title"),
        ("code", "class A: pass\nprint('said')\nA.__module__"),
        ("code", "x = A"),
        ("code", "x is A"),
    ]
    path = tmp_path / "small.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": k, "source": [s]} for k, s in sources]}))
    ran = list(notebook.ran(path))
    assert [cell.value for cell in ran] == [None, "small", None, True], "one namespace, a module of its own"
    assert "```text\nsaid\n```\n\n```text\n'small'\n```" in notebook.page(ran)
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": ["1\n", "2 / 0"]}]}))
    with pytest.raises(ZeroDivisionError):
        list(notebook.ran(path))
