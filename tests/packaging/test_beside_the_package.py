"""Files beside the package agree with each other: versions, the paper, what is checked where."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import opencil
from opencil.registry import DETECTORS

ROOT = Path(__file__).parents[2]
PAPER = "2407.06045"


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def project() -> dict[str, Any]:
    return tomllib.loads(text("pyproject.toml"))["project"]


def test_the_citation_is_of_this_version_and_of_the_paper() -> None:
    citation = yaml.safe_load(text("CITATION.cff"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["version"] == opencil.__version__
    assert citation["license"] == project()["license"]
    paper = citation["preferred-citation"]
    assert (paper["url"], paper["year"]) == (f"https://arxiv.org/abs/{PAPER}", 2024)
    assert paper["title"] in text("README.md").replace("\n", " ")


def test_the_paper_is_that_of_its_method() -> None:
    paper = DETECTORS.entry("ber").paper
    assert paper is not None
    assert paper.arxiv == PAPER
    assert project()["urls"]["Paper"] == f"https://arxiv.org/abs/{PAPER}"


def test_the_newest_entry_of_the_changelog_is_this_version() -> None:
    newest = re.findall(r"^## (\S+?),? ", text("CHANGELOG.md"), re.MULTILINE)[0]
    assert newest == opencil.__version__


def test_the_hosted_workflow_calls_what_must_pass_on_every_python() -> None:
    workflow = yaml.safe_load(text(".github/workflows/ci.yml"))
    job = workflow["jobs"]["ci"]
    assert {"run": ".ci/run"} in job["steps"]
    classifiers = re.findall(r"Python :: (3\.\d+)", "\n".join(project()["classifiers"]))
    assert job["strategy"]["matrix"]["python"] == classifiers
    assert project()["requires-python"] == f">={classifiers[0]}"


def test_a_commit_is_checked_by_what_make_check_runs() -> None:
    recipe = text("Makefile").split("\ncheck: ")[1].split("\n\n")[0]
    checks = re.findall(r"\$\(BIN\)/(ruff check|ruff format|mypy)", recipe)
    (local,) = yaml.safe_load(text(".pre-commit-config.yaml"))["repos"]
    entries = [hook["entry"].removeprefix("python -m ") for hook in local["hooks"]]
    assert len(checks) == len(recipe.strip().splitlines()) - 1 == len(entries)
    assert all(entry.startswith(check) for check, entry in zip(checks, entries, strict=True))
    assert local["repo"] == "local"


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.stem
)
def test_forms_of_issues_have_what_a_form_needs(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= form.keys()
    assert all(part["attributes"]["label"] for part in form["body"])
    assert {part["type"] for part in form["body"]} <= {
        "input",
        "textarea",
        "dropdown",
        "markdown",
        "checkboxes",
    }
    assert len({part["id"] for part in form["body"]}) == len(form["body"])
