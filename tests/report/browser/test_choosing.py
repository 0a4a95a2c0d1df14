"""What is shown can be chosen: several of a kind, searched for, with variants folded away."""

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from opencil.report.averages import over_seeds

Rows = Callable[..., pd.DataFrame]
Record = Callable[..., dict[str, Any]]
DETECTORS = ("msp", "energy", "odin", "vos", "ber", "ber@nter", "ber@oter")
OPEN = "document.querySelector('details[data-name=detector]').open = true"


@pytest.fixture
def rows(made_up: Rows) -> pd.DataFrame:
    return pd.concat(
        made_up(cil=cil, detectors=DETECTORS, entropy=i) for i, cil in enumerate(("icarl", "wa", "wa@long"))
    )


@pytest.fixture
def opened(show: Callable[..., Any], rows: pd.DataFrame, record: Record) -> Any:
    return show(rows, [record(cil=cil, seed=seed) for cil in ("icarl", "wa", "wa@long") for seed in range(3)])


def shown(browser: Any) -> set[tuple[str, str]]:
    return {(line[1], line[2]) for line in browser.board()}


def test_several_can_be_chosen(opened: Any) -> None:
    opened.choose("detector", "energy", "vos")
    assert shown(opened) == {(cil, name) for cil in ("icarl", "wa") for name in ("energy", "vos")}
    opened.choose("cil", "wa")
    assert shown(opened) == {("wa", "energy"), ("wa", "vos")}
    opened.choose("cil")
    opened.choose("detector", "family:fine-tuning", "msp")
    assert {detector for _, detector in shown(opened)} == {"msp", "vos", "ber"}
    chosen = "document.querySelector('details[data-name=detector] .chosen').innerText"
    assert opened.evaluate(chosen) == "fine-tuning, msp"
    address = opened.evaluate("location.hash")
    assert "detector=family%3Afine-tuning&detector=msp" in address


def test_averages_are_over_what_is_chosen(opened: Any, rows: pd.DataFrame) -> None:
    opened.choose("ood", "n1", "f2")
    opened.choose("seed", "0", "2")
    part = rows[(rows["metric"] == "auc") & rows["ood"].isin(["n1", "f2"]) & rows["seed"].isin([0, 2])]
    table = over_seeds(part).set_index(["cil", "detector", "split"])
    for line in opened.board():
        mean, _, deviation = line[3].partition(" ± ")
        expected = 100 * table.loc[(line[1], line[2], "all"), ["mean", "std"]]
        assert [float(mean), float(deviation)] == pytest.approx(expected.tolist(), abs=0.0061)


def test_a_list_can_be_searched_and_is_left_with_escape(opened: Any) -> None:
    visible = "[...document.querySelectorAll('details[data-name=detector] label')]"
    visible += ".filter(l => l.checkVisibility()).map(l => l.innerText.trim())"
    opened.evaluate(OPEN)
    assert len(opened.evaluate(visible)) == len(DETECTORS) + 2
    opened.evaluate("document.querySelector('details[data-name=detector] input[type=search]').focus()")
    opened.call("Input.insertText", text="BER")
    assert opened.evaluate(visible) == ["ber", "ber@nter", "ber@oter"]
    opened.key("Enter", 13, "\r")  # sends no form: the page stays
    opened.key("Tab", 9)
    opened.key("Tab", 9)
    opened.key(" ", 32, " ")
    assert {detector for _, detector in shown(opened)} == {"ber"}
    assert opened.evaluate(visible) == ["ber", "ber@nter", "ber@oter"]  # what is searched for stays
    opened.key("Escape", 27)
    assert not opened.evaluate("document.querySelector('details[data-name=detector]').open")
    assert opened.evaluate("document.activeElement.tagName") == "SUMMARY"


def test_the_tab_key_goes_through_the_filters_as_they_lie(opened: Any) -> None:
    script = """[...document.querySelectorAll("#filters > :not([hidden])")].map((one) => {
        const { top, left } = one.getBoundingClientRect();
        return [one.dataset.name || one.querySelector("[name]").name, Math.floor(top / 50), left];
    })"""
    names, *places = zip(*opened.evaluate(script), strict=True)
    assert names[-1] == "variants"
    assert sorted(zip(*places, strict=True)) == list(zip(*places, strict=True))


def test_variants_are_folded_away_until_they_are_asked_for(opened: Any) -> None:
    plain = {(cil, name) for cil in ("icarl", "wa") for name in ("msp", "energy", "odin", "vos", "ber")}
    assert shown(opened) == plain
    assert opened.evaluate("document.getElementById('variants').innerText").strip() == "with 3 variants (@)"
    matrix = "[...document.querySelectorAll('#grid tbody th[scope=row]')].map(h => h.innerText)"
    assert not [name for name in opened.evaluate(matrix) if "@" in name]
    opened.choose("detector", "ber@nter")  # by its name
    assert shown(opened) == {("icarl", "ber@nter"), ("wa", "ber@nter")}
    opened.choose("detector")
    opened.evaluate("document.querySelector('#variants input').click()")
    assert shown(opened) == {(cil, name) for cil in ("icarl", "wa", "wa@long") for name in DETECTORS}
    assert {line[0] for line in opened.board() if "@" in line[1] + line[2]} == {"–"}
    assert {"ber@nter", "ber@oter"} <= set(opened.evaluate(matrix))


def test_a_variant_that_stands_for_its_method_is_shown(
    show: Callable[..., Any], made_up: Rows, record: Record
) -> None:
    browser = show(made_up(detectors=("msp", "ber@nter")), [record(seed=seed) for seed in range(3)])
    assert {line[2] for line in browser.board()} == {"msp", "ber@nter"}
    assert not browser.evaluate("document.getElementById('variants').checkVisibility()")


def test_a_family_of_the_matrix_folds(opened: Any) -> None:
    names = "[...document.querySelectorAll('#grid tbody th')].map(h => h.innerText)"
    button = "document.querySelector('#grid button[data-family=post-hoc]')"
    before = opened.evaluate(names)
    opened.evaluate(f"{button}.focus()")
    opened.key("Enter", 13, "\r")
    assert opened.evaluate(names) == [
        "accuracy of the model", "▸ post-hoc (3)", "▾ fine-tuning (2)", "vos", "ber",
    ]  # fmt: skip
    assert opened.evaluate(f"{button}.getAttribute('aria-expanded')") == "false"
    opened.key("Enter", 13, "\r")
    assert opened.evaluate(names) == before


def test_colours_of_the_matrix_are_by_rank(show: Callable[..., Any], made_up: Rows, record: Record) -> None:
    """An outlier takes no colour from others, and each column has its own."""
    level = {"msp": 0.7, "energy": 0.69, "odin": 0.68, "gen": 0.01}
    rows = made_up(detectors=tuple(level))
    rows["value"] = rows["detector"].map(level).where(rows["metric"] == "auc", rows["value"])
    browser = show(rows, [record(seed=seed, detectors=dict.fromkeys(level, 4)) for seed in range(3)])
    strength = "[r.cells[0].innerText, +r.cells[1].style.getPropertyValue('--strength')]"
    found = dict(
        browser.evaluate(
            f"[...document.querySelectorAll('#grid tbody tr:not(.family)')].slice(1).map(r => {strength})"
        )
    )
    steps = [found[name] - found[worse] for name, worse in zip(list(level), list(level)[1:], strict=False)]
    assert steps == pytest.approx([steps[0]] * 3, abs=0.0011)
    assert steps[0] > 0.09
