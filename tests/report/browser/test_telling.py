"""What the page tells a visitor: terms, methods and their papers, how much a difference means."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import pytest

from opencil._version import __version__
from opencil.registry import DETECTORS, LEARNERS

Rows = Callable[..., pd.DataFrame]
Record = Callable[..., dict[str, Any]]


def runs(record: Record, seeds: int = 3) -> list[dict[str, Any]]:
    return [record(seed=seed) for seed in range(seeds)]


def test_a_visitor_is_introduced(show: Callable[..., Any], made_up: Rows, record: Record) -> None:
    before = datetime.now(UTC)
    browser = show(made_up(), runs(record))
    after = datetime.now(UTC)
    text = browser.evaluate("document.getElementById('intro').innerText")
    for said in (
        "out-of-distribution",
        "4 steps, k = 2 new classes",
        "f1, f2, f3",
        "area under the ROC curve",
    ):
        assert said in text
    assert f"OpenCIL {__version__}" in text
    assert any(f"{day.day} {day:%B %Y}" in text for day in (before, after))
    assert "Shifted" not in text


def test_every_method_has_its_paper_and_a_tip(
    show: Callable[..., Any], made_up: Rows, record: Record
) -> None:
    rows = made_up(detectors=("energy", "ber", "ber@nter", "of a plugin"))
    browser = show(rows, runs(record), hash="#variants=yes")
    of = "[...document.querySelectorAll('#board a.method')].map(a => [a.innerText, [a.href, a.dataset.tip]])"
    found = dict(browser.evaluate(of))
    assert set(found) == {"iCaRL", "Energy", "BER", "BER@nter"}
    entries = {name: DETECTORS.entry(name.lower()) for name in ("Energy", "BER", "BER@nter")}
    for name, entry in (entries | {"iCaRL": LEARNERS.entry("icarl")}).items():
        assert entry.paper
        link, tip = found[name]
        assert link == entry.paper.link
        assert tip.startswith(f"{entry.about} {entry.paper.title}, {entry.paper.year}.")
    assert found["BER@nter"][1].endswith("BER@nter is BER under other values.")
    listed = browser.evaluate("[...document.querySelectorAll('#methods tbody tr')].map(r => r.innerText)")
    assert [line.split("\t")[0] for line in listed] == ["iCaRL", "Energy", "BER", "of a plugin"]
    assert "not installed" in listed[-1]
    heads = "[...document.querySelectorAll('#methods thead')].map(h => h.innerText)"
    assert browser.evaluate(heads) == ["Name\tWhat it is, and its paper\n"] * 2


def test_a_tip_is_shown_to_keyboard_and_pointer(
    show: Callable[..., Any], made_up: Rows, record: Record
) -> None:
    browser = show(made_up(), runs(record))
    tip = "document.getElementById('tip')"
    assert not browser.evaluate(f"{tip}.checkVisibility()")
    browser.evaluate("document.querySelector('#grid tbody a.method').focus()")
    browser.wait(f"{tip}.checkVisibility()")  # having scrolled there
    assert browser.evaluate(f"{tip}.innerText") == browser.evaluate("document.activeElement.dataset.tip")
    assert browser.evaluate("document.activeElement.getAttribute('aria-describedby')") == "tip"
    browser.key("Escape", 27)
    assert not browser.evaluate(f"{tip}.checkVisibility()")
    place = browser.evaluate("""(async () => {
        const head = document.querySelector('#board th[data-key="metric:fpr"] button');
        head.scrollIntoView({ block: "center" });
        await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
        const box = head.getBoundingClientRect();
        return [box.x + box.width / 2, box.y + box.height / 2];
    })()""")
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1])
    browser.wait(f"{tip}.checkVisibility()")
    assert "95 %" in browser.evaluate(f"{tip}.innerText")
    box = browser.evaluate(f"{tip}.getBoundingClientRect().toJSON()")
    assert 0 <= box["left"] <= box["right"] <= 1280


def test_one_seed_says_that_small_differences_mean_little(
    show: Callable[..., Any], made_up: Rows, record: Record
) -> None:
    said = "One seed: differences under 3 points mean little."
    notes = "document.getElementById('notes').innerText"
    browser = show(made_up(), runs(record))
    assert said not in browser.evaluate(notes)
    assert " ± " in browser.board()[0][3]
    browser.choose("seed", "1")
    assert said in browser.evaluate(notes)
    assert " ± " not in browser.board()[0][3]


def test_sections_that_are_not_there_are_not_offered(
    show: Callable[..., Any], made_up: Rows, record: Record
) -> None:
    offered = "[...document.querySelectorAll('nav a')].filter(a => a.checkVisibility()).map(a => a.innerText)"
    rest = ["Leaderboard", "Matrix", "Methods", "Figures", "Runs", "About"]
    assert show(made_up(), runs(record)).evaluate(offered) == rest
    waiting = record(trained=0, seconds=[], detectors={"msp": 0})
    rows = made_up()
    for nothing in (rows[:0], rows[rows["detector"] == ""]):  # no step yet, or no detector
        assert show(nothing, [waiting]).evaluate(offered) == rest[-2:]


def test_a_benchmark_of_shifted_sets_alone(
    show: Callable[..., Any],
    made_up: Rows,
    with_shifted: Callable[[pd.DataFrame], pd.DataFrame],
    record: Record,
) -> None:
    rows = with_shifted(made_up())
    browser = show(rows[(rows["distance"] == "shifted") | (rows["detector"] == "")], runs(record))
    assert {line[2] for line in browser.board()} == {"msp", "energy"}
    assert "all shifted sets" in browser.evaluate("document.getElementById('count').innerText")


def test_shifted_sets_can_be_looked_at(
    show: Callable[..., Any],
    made_up: Rows,
    with_shifted: Callable[[pd.DataFrame], pd.DataFrame],
    record: Record,
) -> None:
    rows = with_shifted(made_up())
    browser = show(rows, runs(record))
    assert "s1, s2" in browser.evaluate("document.getElementById('terms').innerText")
    sets = "[...document.querySelectorAll('details[data-name=ood] input[name]')].map(b => b.value)"
    assert browser.evaluate(sets) == ["distance:near", "n1", "distance:far", "f1", "f2", "f3"]
    browser.choose("metric", "fpr_shifted")
    assert browser.evaluate(sets) == ["distance:shifted", "s1", "s2"]
    rejected = rows[rows["metric"] == "fpr_shifted"]
    for chosen in ((), ("s2",)):
        browser.choose("ood", *chosen)
        part = rejected[rejected["ood"].isin(chosen or ["s1", "s2"])]
        for line in browser.board():
            mean = 100 * part.loc[part["detector"] == line[2], "value"].mean()
            heads = browser.evaluate("[...document.querySelectorAll('#board th')].map(h => h.dataset.key)")
            at = heads.index("metric:fpr_shifted") - 1
            assert float(line[at].split(" ")[0]) == pytest.approx(mean, abs=0.0061)
    browser.choose("metric", "auc")
    assert len(browser.board()) == 2


def test_what_is_of_the_model_or_of_clean_images_is_shown_with_each_detector(
    show: Callable[..., Any],
    made_up: Rows,
    with_shifted: Callable[[pd.DataFrame], pd.DataFrame],
    record: Record,
) -> None:
    rows = with_shifted(made_up())
    clean = rows[(rows["ood"] == "n1") & (rows["metric"] == "auc")]
    clean = clean.assign(ood="", distance="", metric="accuracy_with_rejection")
    browser = show(pd.concat([rows, clean]), runs(record))
    of_model = rows.loc[rows["metric"] == "accuracy_shifted", "value"].mean()
    of_detector = clean.groupby("detector")["value"].mean()
    for metric, sets, expected in (
        ("accuracy_shifted", (), {"msp": of_model, "energy": of_model}),
        ("accuracy_with_rejection", (), of_detector),
        ("accuracy_with_rejection", ("f2", "f3"), of_detector),
    ):
        browser.choose("metric", metric)
        browser.choose("ood", *sets)
        found = {line[2]: float(line[3].split(" ")[0]) for line in browser.board()}
        assert found == {name: pytest.approx(100 * of, abs=0.0061) for name, of in expected.items()}
