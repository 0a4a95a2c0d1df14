"""Generated tables in the docs are up to date."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from opencil.cli import app
from opencil.evaluation.metric import READABLE, metrics
from opencil.registry import DETECTORS

DOCS = Path(__file__).parent.parent / "docs"


def read_generated(page: str, name: str) -> str:
    """Return the text between a page's marks."""
    text = (DOCS / page).read_text(encoding="utf-8")
    match = re.search(rf"<!-- {name} -->\n(.*)<!-- /{name} -->", text, re.DOTALL)
    assert match, f"{page} has no marks for {name}"
    return match[1].strip()


BUILT_IN = {
    "detectors": [n for n in DETECTORS.names() if DETECTORS.entry(n).make.__module__.startswith("opencil.")],
    "metrics": [name for name, metric in metrics().items() if metric.standard],
}


@pytest.mark.parametrize(("page", "kind"), [("detectors.md", "detectors"), ("protocol.md", "metrics")])
def test_tables_of_methods_and_metrics(page: str, kind: str) -> None:
    printed = CliRunner().invoke(app, ["list", kind, "--markdown"]).stdout.strip().splitlines()
    shown = [line for line in printed if line.split("|")[1].strip() in (*BUILT_IN[kind], "name", "---")]
    assert read_generated(page, kind) == "\n".join(shown)


def test_inputs_of_metrics() -> None:
    lines = ["| a metric can read | meaning |", "|---|---|"]
    lines += [f"| `{name}` | {text} |" for name, text in READABLE.items()]
    assert read_generated("protocol.md", "readable") == "\n".join(lines)


@pytest.mark.parametrize("name", DETECTORS.names())
def test_a_detector_has_a_description_and_a_paper(name: str) -> None:
    entry = DETECTORS.entry(name)
    assert entry.about
