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
    assert sorted(word for word in rows(result.stdout) if word in KINDS[kind]) == sorted(KINDS[kind])
    assert not CONTROL.search(result.stdout)


def rows(text: str) -> dict[str, int]:
    """The first words of a list's lines that begin at the side, and how many lines follow them."""
    taken: dict[str, int] = {}
    for line in text.splitlines():
        if line and not line.startswith(" "):
            taken[line.split()[0]] = 0
        elif line.strip():
            taken[list(taken)[-1]] += 1
    return taken


@pytest.mark.parametrize("kind", ["cil", "detectors", "datasets", "backbones"])
def test_a_row_takes_two_lines_at_most_on_a_narrow_terminal(kind: str) -> None:
    text = call("list", kind, COLUMNS="80").stdout
    taken = rows(text)
    assert set(KINDS[kind]) <= set(taken)
    assert max(taken[name] for name in KINDS[kind]) <= 1
    assert max(map(len, text.splitlines())) <= 80


def test_names_stay_in_one_piece_on_a_narrow_terminal() -> None:
    assert set(KINDS["metrics"]) <= set(rows(call("list", "metrics", COLUMNS="80").stdout))


def test_one_name_is_told_with_all_there_is_of_it() -> None:
    text = call("list", "detectors", "ash", COLUMNS="40").stdout
    told = {line[:12].strip(): line[14:] for line in text.splitlines()}
    assert (told["name"], told["family"], told["reads"]) == ("ash", "post-hoc", "features, head")
    assert "percentile = 65.0" in told["values"]
    assert "@openood: variant = b" in told["labels"]
    assert told["paper"].endswith(" 2023 https://arxiv.org/abs/2209.09858"), "whole, however narrow it is"
    icarl = call("list", "cil", "icarl").stdout
    assert "values      first.epochs = 200, first.lr = 0.1, first.milestones = " in icarl
    assert ", later.weight_decay = 0.0002, temperature = 2.0\n" in icarl, "without what every schedule has"
    assert "reads" in call("list", "metrics", "auc").stdout
    assert "arxiv" not in call("list", "detectors", "as?").stdout


def test_list_says_what_things_are() -> None:
    assert "logsumexp" in call("list", "detectors").stdout
    benchmarks = call("list", "benchmarks").stdout
    for word in ("80", "digits-held-out", "photo-patches, noise"):
        assert word in benchmarks


def test_list_takes_patterns() -> None:
    text = call("list", "detectors", "m*").stdout
    assert "msp" in text
    assert "maxlogit" in text
    assert "energy" not in text


@pytest.mark.parametrize("label", ["chosen", "stated"])
def test_a_label_is_told_from_a_name(label: str) -> None:
    result = call("list", "detectors", f"knn@{label}")
    assert (result.exit_code, result.stdout) == (2, "")
    told = " ".join(result.stderr.split())
    assert "a label is the user's own name for values of knn" in told
    assert "'opencil list detectors knn'" in told
    assert "did you mean 'ber'?" in call("list", "detectors", f"bre@{label}").stderr


def listed(*words: str) -> list[str]:
    """Names that a list has, in its order."""
    result = call("list", *words, "--markdown")
    assert (result.exit_code, result.stderr) == (0, "")
    return [line.split("|")[1].strip() for line in result.stdout.splitlines()[2:]]


def test_detectors_stand_family_by_family() -> None:
    text = call("list", "detectors").stdout
    places = [text.index(word) for word in ("\npost-hoc  ", "\nenergy ", "\nfine-tuning  ", "\nber ")]
    assert places == sorted(places)
    assert listed("detectors", "[aem]*") == [
        name
        for family in ("post-hoc", "continual", "fine-tuning")
        for name in listed("detectors", family)
        if name[0] in "aem"
    ]


def test_groups_of_methods_are_listed_by_their_word() -> None:
    assert sorted(listed("detectors", "paper")) == opencil.list_detectors("paper")
    assert listed("cil", "paper") == ["bic", "icarl", "wa", "foster"]  # family by family
    assert listed("cil", "expansion") == ["der", "foster", "memo"]


def test_detectors_by_what_they_need() -> None:
    logits = listed("detectors", "--needs", "logits")
    assert {"msp", "gen", "klm"} <= set(logits)
    assert not {"nnguide", "react", "odin", "ber"} & set(logits)
    assert {"nnguide", *logits} <= set(listed("detectors", "--needs", "logits,features"))
    assert listed("detectors", "--needs", "images", "paper") == ["odin"], "tuners need labels too"


@pytest.mark.parametrize(
    ("years", "names"),
    [("2017", ["msp"]), ("2017-2018", ["msp", "odin"]), ("-2017", ["msp"]), ("2024-", ["ber"])],
)
def test_methods_by_their_year(years: str, names: list[str]) -> None:
    assert listed("detectors", "paper", "--year", years) == names
    assert listed("cil", "--year", "2022", "paper") == ["foster"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["detectors", "--needs", "logit"], "did you mean 'logits'?"),
        (["cil", "--needs", "logits"], "it is of detectors, not of cil"),
        (["metrics", "--year", "2022"], "metrics have no year"),
        (["detectors", "--year", "22"], "--year '22' is not understood"),
        (["detectors", "--year", "-"], "--year '-' is not understood"),
        (["detectors", "--year", "20172018"], "--year '20172018' is not understood"),
        (["detectors", "fine-tunning"], "matches 'fine-tunning'; did you mean 'fine-tuning'?"),
        (
            ["detectors", "post-hoc", "--needs", "layers"],
            "with --needs layers: --needs says all that there is",
        ),
        (["backbones", "resnet23"], "matches 'resnet23'; did you mean 'resnet32'?"),
        (["detectors", "--year", "2031-"], "none of the detectors matches '*' with --year 2031-"),
    ],
)
def test_filters_that_choose_nothing_are_2(words: list[str], told: str) -> None:
    result = call("list", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert told in result.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_list_of_nothing_is_2(kind: str) -> None:
    result = call("list", kind, "zz*")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "'zz*'" in result.stderr
