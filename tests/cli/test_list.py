"""``opencil list``: what there is."""

import re
from typing import Any

import pytest
from typer.testing import CliRunner

import opencil
from opencil.cli import app
from opencil.evaluation.metric import metrics

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")  # all but the end of a line


@pytest.fixture(autouse=True)
def _own_folder(empty_wide_folder: None) -> None:
    """Every command here starts so."""


def call(*words: str, **env: str) -> Any:
    return CliRunner().invoke(app, list(words), env=env or None)


KINDS = {
    "benchmarks": opencil.list_benchmarks(),
    "cil": opencil.list_learners(),
    "detectors": opencil.list_detectors(),
    "datasets": opencil.list_datasets(),
    "backbones": opencil.list_backbones(),
    "metrics": list(metrics()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_list_names_everything(kind: str) -> None:
    result = call("list", kind)
    assert (result.exit_code, result.stderr) == (0, "")
    first = [line.strip("│┃ ").split()[0] for line in result.stdout.splitlines() if line.startswith("│")]
    assert [word for word in first if word in KINDS[kind]] == KINDS[kind]
    assert not CONTROL.search(result.stdout)


def test_names_stay_in_one_piece_on_a_narrow_terminal() -> None:
    output = call("list", "metrics", COLUMNS="80").output
    for name in KINDS["metrics"]:
        assert f" {name} " in output


def test_list_says_what_things_are() -> None:
    assert "logsumexp" in call("list", "detectors").stdout
    assert "arxiv.org/abs/2010.03759" in call("list", "detectors", "energy").stdout
    benchmarks = call("list", "benchmarks").stdout
    for word in ("80", "digits-held-out", "photo-patches, noise"):
        assert word in benchmarks


def test_list_takes_patterns() -> None:
    text = call("list", "detectors", "m*").stdout
    assert "msp" in text
    assert "maxlogit" in text
    assert "energy" not in text


@pytest.mark.parametrize("kind", KINDS)
def test_list_of_nothing_is_2(kind: str) -> None:
    result = call("list", kind, "zz*")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "'zz*'" in result.stderr
