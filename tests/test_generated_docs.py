"""Tables in the docs that are generated: they must be what the code says now."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from opencil.cli import app
from opencil.evaluation.metric import metrics
from opencil.evaluation.reading import READABLE
from opencil.registry import DETECTORS

DOCS = Path(__file__).parent.parent / "docs"


def generated(page: str, name: str) -> str:
    """What stands between a page's marks."""
    text = (DOCS / page).read_text(encoding="utf-8")
    match = re.search(rf"<!-- {name} -->\n(.*)<!-- /{name} -->", text, re.DOTALL)
    assert match, f"{page} has no marks for {name}"
    return match[1].strip()


def test_the_table_of_detectors() -> None:
    ours = [n for n in DETECTORS.names() if DETECTORS.entry(n).make.__module__.startswith("opencil.")]
    printed = CliRunner().invoke(app, ["list", "detectors", "--markdown"]).stdout.strip().splitlines()
    expected = [line for line in printed if line.split("|")[1].strip() in (*ours, "name", "---")]
    assert generated("detectors.md", "detectors") == "\n".join(expected)


def test_the_table_of_metrics() -> None:
    ours = [name for name, metric in metrics().items() if metric.standard]
    printed = CliRunner().invoke(app, ["list", "metrics", "--markdown"]).stdout.strip().splitlines()
    expected = [line for line in printed if line.split("|")[1].strip() in (*ours, "name", "---")]
    assert generated("protocol.md", "metrics") == "\n".join(expected)


def test_what_metrics_can_read() -> None:
    lines = ["| a metric can read | |", "|---|---|"]
    lines += [f"| `{name}` | {text} |" for name, text in READABLE.items()]
    assert generated("protocol.md", "readable") == "\n".join(lines)


@pytest.mark.parametrize("name", DETECTORS.names())
def test_a_detector_says_where_it_was_published(name: str) -> None:
    entry = DETECTORS.entry(name)
    assert entry.about
    assert entry.paper
    assert 2010 < entry.paper.year < 2100
    assert entry.paper.title
