"""``opencil list``: what there is."""

import re

import pytest

import opencil
from opencil.evaluation.metric import metrics
from tests.cli.common import call

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")  # all but the end of a line


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


def test_list_alone_names_its_choices_and_another_librarys_name_finds_ours() -> None:
    lines = call("list").stdout.splitlines()
    assert [line.split()[2] for line in lines] == list(KINDS)
    assert call("list", "detectors", "ebo").stdout == call("list", "detectors", "energy").stdout


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


def test_one_name_is_shown_with_all_there_is_of_it() -> None:
    text = call("list", "detectors", "ash", COLUMNS="40").stdout
    shown = {line[:12].strip(): line[14:] for line in text.splitlines()}
    assert (shown["name"], shown["family"], shown["reads"]) == ("ash", "post-hoc", "features, head")
    assert "percentile = 65.0" in shown["values"]
    assert "@openood: variant = b" in shown["labels"]
    assert shown["paper"].endswith(" 2023 https://arxiv.org/abs/2209.09858"), "whole, however narrow it is"
    icarl = call("list", "cil", "icarl").stdout
    assert "values      first.epochs = 200, first.lr = 0.1, " in icarl
    assert ", temperature = 2.0\n" in icarl
    assert "reads" in call("list", "metrics", "auc").stdout
    assert "arxiv" not in call("list", "detectors", "as?").stdout


def listed(*words: str) -> list[str]:
    """Names that a list has, in its order."""
    result = call("list", *words, "--markdown")
    assert (result.exit_code, result.stderr) == (0, "")
    return [line.split("|")[1].strip() for line in result.stdout.splitlines()[2:]]


def test_groups_needs_and_years_choose() -> None:
    assert sorted(listed("detectors", "paper")) == opencil.list_detectors("paper")
    assert listed("cil", "paper") == ["bic", "icarl", "wa", "foster"]  # family by family
    assert listed("detectors", "--needs", "images", "paper") == ["odin"], "tuners need labels too"
    logits = set(listed("detectors", "--needs", "logits"))
    assert "msp" in logits
    assert not {"nnguide", "odin", "ber"} & logits
    assert {"nnguide", *logits} <= set(listed("detectors", "--needs", "logits,features"))
    assert listed("cil", "--year", "2022", "paper") == ["foster"]


@pytest.mark.parametrize(
    ("years", "names"),
    [("2017", ["msp"]), ("2017-2018", ["msp", "odin"]), ("-2017", ["msp"]), ("2024-", ["ber"])],
)
def test_methods_by_their_year(years: str, names: list[str]) -> None:
    assert listed("detectors", "paper", "--year", years) == names


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["detectors", "--needs", "logit"], "did you mean 'logits'?"),
        (["cil", "--needs", "logits"], "--needs"),
        (["metrics", "--year", "2022"], "--year"),
        (["detectors", "--year", "old"], "--year 'old'"),
        (["detectors", "fine-tunning"], "did you mean 'fine-tuning'?"),
        (["detectors", "post-hoc", "--needs", "layers"], "--needs layers"),
        (["backbones", "resnet23"], "did you mean 'resnet32'?"),
        (["detectors", "--year", "2031-"], "--year 2031-"),
        (["detectors", "bre@chosen"], "did you mean 'ber'?"),
        (["datasets", "zz*"], "'zz*'"),
    ],
)
def test_filters_that_choose_nothing_are_2(words: list[str], hint: str) -> None:
    result = call("list", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert hint in result.stderr
