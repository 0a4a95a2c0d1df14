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
    assert opened.evaluate(chosen) == "fine-tuning, MSP"
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
    opened.call("Input.insertText", text="ber")
    assert opened.evaluate(visible) == ["BER", "BER@nter", "BER@oter"]
    opened.key("Enter", 13, "\r")  # sends no form: the page stays
    opened.key("Tab", 9)
    opened.key("Tab", 9)
    opened.key(" ", 32, " ")
    assert {detector for _, detector in shown(opened)} == {"ber"}
    assert opened.evaluate(visible) == ["BER", "BER@nter", "BER@oter"]  # what is searched for stays
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
    assert {"BER@nter", "BER@oter"} <= set(opened.evaluate(matrix))


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
        "accuracy of the model", "▸ post-hoc (3)", "▾ fine-tuning (2)", "VOS", "BER",
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
    strength = "[r.cells[0].innerText.toLowerCase(), +r.cells[1].style.getPropertyValue('--strength')]"
    found = dict(
        browser.evaluate(
            f"[...document.querySelectorAll('#grid tbody tr:not(.family)')].slice(1).map(r => {strength})"
        )
    )
    steps = [found[name] - found[worse] for name, worse in zip(list(level), list(level)[1:], strict=False)]
    assert steps == pytest.approx([steps[0]] * 3, abs=0.0011)
    assert steps[0] > 0.09


def test_names_are_shown_as_papers_write_them_and_found_as_commands_do(
    show: Callable[..., Any], made_up: Rows, record: Record
) -> None:
    detectors = ("fdbd", "relative-mahalanobis", "ber@nter", "of-a-plugin")
    rows = pd.concat([made_up(cil=cil, detectors=detectors) for cil in ("icarl", "er-ace@long")])
    browser = show(rows, [record(cil=cil) for cil in ("icarl", "er-ace@long")])
    cells = "[...document.querySelectorAll('#board tbody tr')]"
    cells += ".map(row => [row.cells[2].innerText, row.cells[3].innerText])"
    named = ("fDBD", "relative Mahalanobis", "BER@nter", "of-a-plugin")
    every = {(cil, detector) for cil in ("iCaRL", "ER-ACE@long") for detector in named}
    assert set(map(tuple, browser.evaluate(cells))) == every
    for text in ("relative-mahal", "relative Mahalanobis"):
        search(browser, text)
        assert {detector for _, detector in browser.evaluate(cells)} == {"relative Mahalanobis"}
    label = "document.querySelector('details[data-name=detector] label[title=relative-mahalanobis]')"
    browser.evaluate(OPEN)
    for text, there in (("relative-m", True), ("Relative M", True), ("ber", False)):
        browser.evaluate("document.querySelector('details[data-name=detector] input[type=search]').select()")
        browser.call("Input.insertText", text=text)
        assert browser.evaluate(f"{label}.checkVisibility()") is there


@pytest.mark.parametrize("metric", ["auc", "accuracy_shifted"])
def test_pairs_that_were_not_run_are_not_counted(
    show: Callable[..., Any],
    rows: pd.DataFrame,
    with_shifted: Callable[[pd.DataFrame], pd.DataFrame],
    record: Record,
    metric: str,
) -> None:
    some = with_shifted(rows[(rows["cil"] != "wa") | rows["detector"].isin(["", "msp"])])
    browser = show(some, [record(cil=cil) for cil in ("icarl", "wa")], hash=f"#metric={metric}")
    text = "document.getElementById('count').innerText"
    assert browser.evaluate(text).startswith("6 of 15 baselines · "), "variants are folded away"
    browser.choose("cil", "wa")
    assert browser.evaluate(text).startswith("1 of 15 baselines · ")


# --- of many methods -------------------------------------------------------------------------------


@pytest.fixture
def crowded(show: Callable[..., Any], many: pd.DataFrame, record: Record) -> Callable[..., Any]:
    """Open the page of 19 CIL models and 41 detectors, at some width: ``crowded(390)``."""
    some = many[many["seed"] < 2]
    to_do = dict.fromkeys(some["detector"].unique()[1:], 1)

    def opened(width: int = 1280) -> Any:
        runs = [record(cil=cil, seed=s, steps=2, trained=2) for cil in some["cil"].unique() for s in (0, 1)]
        return show(some, [*runs, record(seed=1, steps=2, detectors=to_do)], width=width)

    return opened


def search(browser: Any, text: str) -> None:
    browser.evaluate("document.querySelector('#filters [name=find]').select()")
    browser.call("Input.insertText", text=text)


def test_a_search_finds_lines_whose_places_stay(crowded: Callable[..., Any]) -> None:
    browser = crowded()
    best = browser.board()[:3]
    heads = "[...document.querySelectorAll('#grid thead th, #grid tbody [scope=row]')].map(h => h.innerText)"
    search(browser, "C18 y")
    names = {line[2] for line in browser.board()}
    assert {line[1] for line in browser.board()} == {"c18"}
    assert names == {name for name in names if "y" in name} >= {"y", "energy", "entropy"}
    assert [line for line in best if line[1] == "c18" and line[2] == "y"] == [browser.board()[0]], "its rank"
    assert {head.lower() for head in browser.evaluate(heads)} == {"c18", "accuracy of the model", *names}
    assert browser.legend()
    assert "find=C18+y" in browser.evaluate("location.hash")
    search(browser, "c18 c17")
    assert browser.board() == []
    assert browser.evaluate("document.getElementById('count').innerText").startswith("0 of 798 baselines")
    browser.key("Escape", 27)  # empties the field, which keeps the focus
    assert browser.board()[:3] == best
    assert browser.evaluate("document.activeElement.name") == "find"


def test_the_first_lines_are_shown_until_all_are_asked_for(crowded: Callable[..., Any]) -> None:
    browser = crowded()
    assert len(browser.board()) == 50
    assert len(browser.saved("#board-saving", "CSV").splitlines()) == 1 + 779, "a file has all"
    browser.evaluate("document.getElementById('all').focus()")
    browser.key("Enter", 13, "\r")
    assert len(browser.board()) == 779
    browser.evaluate("[...document.querySelectorAll('#board tbody input')].at(-1).click()")
    last = browser.board()[-1]
    browser.evaluate("document.getElementById('all').click()")
    assert len(browser.board()) == 51
    assert browser.board()[-1] == last, "what is on the chart can be taken off it"
    search(browser, "c18 z")
    assert not browser.evaluate("document.getElementById('all').checkVisibility()")


def test_a_wide_matrix_has_deviations_where_there_is_room(crowded: Callable[..., Any]) -> None:
    browser = crowded()
    deviation = "document.querySelector('#grid .deviation').checkVisibility()"
    cell = "document.querySelector('#grid td.number[title]').title"
    assert not browser.evaluate(deviation)
    assert " ± " in browser.evaluate(cell)
    assert (
        browser.evaluate(
            "(box => box.scrollWidth - box.clientWidth)(document.querySelector('#matrix .scroll'))"
        )
        < 2
    )
    browser.choose("cil", "c01", "c02")
    assert browser.evaluate(deviation)


@pytest.mark.parametrize(
    ("box", "name"), [("#matrix .scroll", "tbody th[scope=row]"), (".table-card .scroll", ".cil")]
)
def test_names_and_heads_stay_where_they_are(crowded: Callable[..., Any], box: str, name: str) -> None:
    browser = crowded(390)
    script = f"""(() => {{
        const box = document.querySelector({box!r});
        box.scrollIntoView();
        box.scrollTo(120, 300);
        const {{ left, top }} = box.getBoundingClientRect();
        const seen = document.elementFromPoint(left + 8, top + 8).closest("th, td");
        const away = (one) => one.getBoundingClientRect().left - left;
        const names = [...box.querySelectorAll({name!r})].map(away);
        return [box.scrollLeft, seen.matches("thead :is(th, td)"), seen.innerText, Math.max(...names)];
    }})()"""
    moved, head, text, away = browser.evaluate(script)
    assert moved > 100
    assert (head, text) == (True, "" if "matrix" in box else "CIL")
    assert away == pytest.approx(0, abs=1)


def test_a_run_s_list_of_what_is_to_do_is_short(crowded: Callable[..., Any]) -> None:
    text = crowded().evaluate("[...document.querySelectorAll('#progress td.free')].at(-1).innerText")
    assert text.count(" 1/2") == 6
    assert text.endswith(", 36 more")
