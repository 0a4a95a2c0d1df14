"""The page, opened from disk in a real browser: it answers to clicks and keys, fits a phone, and is quiet."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from opencil.report.averages import average_models, average_rows
from opencil.report.figures.drawing import figures
from opencil.report.page import page
from opencil.study.study import Study

Rows = Callable[..., pd.DataFrame]
Record = Callable[..., dict[str, Any]]
EVIL = "<img src=x onerror=alert(1)>"
WORSE = "</script><script>alert(2)</script>"
DETECTORS = ("msp", "energy", "odin", EVIL, WORSE)


@pytest.fixture
def rows(made_up: Rows) -> pd.DataFrame:
    parts = [
        made_up(benchmark="cifar100", k=k, cil=cil, detectors=DETECTORS, entropy=k + i)
        for k in (5, 10)
        for i, cil in enumerate(("icarl", "wa", "joint"))
    ]
    return pd.concat(parts)


@pytest.fixture
def write(rows: pd.DataFrame, record: Record, tmp_path: Path) -> Callable[..., Path]:
    """Write a page of two step sizes, three CIL models and five detectors, two of them named with malice."""

    def make(**values: Any) -> Path:
        names = [(cil, seed) for cil in ("icarl", "wa", EVIL) for seed in (0, 1)]
        runs = [record(cil=cil, seed=seed, config={"cil": cil, "seed": seed}) for cil, seed in names]
        runs[-1] |= {"trained": 1, "detectors": {EVIL: 1, "msp": 0}}
        runs[0] |= {"environment": {"torch": WORSE, "device": "cpu"}}
        path = tmp_path / "with space & ünïcode" / "page.html"
        path.parent.mkdir()
        text = page(Study(rows, runs), **values)
        path.write_text(text, encoding="utf-8")
        return path

    return make


@pytest.fixture
def written(write: Callable[..., Path]) -> Path:
    """The page, without figures."""
    return write()


@pytest.fixture
def pictured(write: Callable[..., Path], rows: pd.DataFrame) -> Path:
    """The page, with the figures of one CIL model."""
    return write(figures=figures(Study(rows[(rows["k"] == 10) & (rows["cil"] == "icarl")])))


def number(cell: str) -> float:
    return float(cell.split()[0])


def test_the_leaderboard_shows_the_averages_of_the_tables(
    quiet: Any, written: Path, rows: pd.DataFrame
) -> None:
    quiet.open(written)
    for k, place, metric, seed in (
        ("5", "all", "auc", ""), ("10", "near", "fpr", ""), ("10", "far", "ap", ""),
        ("5", "all", "auc_old", "1"), ("10", "dataset f2", "auc", ""),
    ):  # fmt: skip
        for name, value in (("k", k), ("metric", metric), ("ood", place), ("seed", seed)):
            quiet.choose(name, value)
        part = rows[(rows["k"] == int(k)) & (rows["metric"] == metric)]
        part = part[part["seed"] == int(seed)] if seed else part
        part = part[part["ood"] == "f2"] if place == "dataset f2" else part
        table = average_rows(part)
        table = table[table["place"] == ("all" if place == "dataset f2" else place)]
        expected = {(r["cil"], r["detector"]): r for r in table.to_dict("records")}
        found = {(line[1], line[2]): line[3] for line in quiet.board()}
        assert set(found) == set(expected)
        for key, cell in found.items():
            mean, _, deviation = cell.partition(" ± ")
            assert float(mean) == pytest.approx(100 * expected[key]["mean"], abs=0.0061)
            if not seed:
                assert float(deviation) == pytest.approx(100 * expected[key]["std"], abs=0.0061)
            else:
                assert not deviation


def test_sorting_by_click_and_by_key(quiet: Any, written: Path) -> None:
    quiet.open(written)
    ranked = quiet.board()
    values = [number(line[3]) for line in ranked if line[0] != "–"]
    assert len(values) == 10
    assert values == sorted(values, reverse=True)
    header = "document.querySelector('th[data-key=\"metric:fpr\"]')"
    quiet.evaluate(f"{header}.querySelector('button').click()")
    by_fpr = quiet.board()
    assert by_fpr != ranked
    assert [number(line[4]) for line in by_fpr] == sorted(number(line[4]) for line in by_fpr)
    assert quiet.evaluate(f"{header}.getAttribute('aria-sort')") == "ascending"
    quiet.key("Enter", 13, "\r")  # the header still has the focus
    assert quiet.board() == by_fpr[::-1]
    assert quiet.evaluate(f"{header}.getAttribute('aria-sort')") == "descending"
    assert quiet.evaluate("document.querySelectorAll('#board th[aria-sort]').length") == 1


def test_filters_change_the_lines_and_the_curves(quiet: Any, written: Path) -> None:
    quiet.open(written)
    assert len(quiet.board()) == 15
    before = quiet.curves()
    quiet.choose("detector", "energy")
    assert sorted(line[1] for line in quiet.board()) == ["icarl", "joint", "wa"]
    assert {line[2] for line in quiet.board()} == {"energy"}
    of_energy = quiet.curves()
    assert len(of_energy) == 3
    assert not set(of_energy) & set(before)
    assert sorted(quiet.legend()) == ["Joint", "WA", "iCaRL"]
    quiet.choose("detector", "msp")
    assert not set(quiet.curves()) & set(of_energy)
    quiet.choose("cil", "wa")
    assert [line[1:3] for line in quiet.board()] == [["wa", "msp"]]
    assert len(quiet.curves()) == 1
    quiet.choose("k", "10")
    assert [line[1:3] for line in quiet.board()] == [["wa", "msp"]]


def test_the_selection_outlives_a_reload(quiet: Any, written: Path) -> None:
    quiet.open(written)
    quiet.choose("detector", EVIL)
    quiet.choose("metric", "ap")
    quiet.evaluate("document.querySelector('th[data-key=cil] button').click()")
    chosen, loads = quiet.board(), quiet.loads
    quiet.evaluate("location.reload()")
    quiet.await_load(loads)
    quiet.wait("document.documentElement.dataset.ready === 'yes'")
    assert quiet.board() == chosen
    assert quiet.evaluate("document.querySelector('select[name=metric]').value") == "ap"


@pytest.mark.parametrize("width", [360, 390, 768, 1280])
def test_nothing_sticks_out_at_the_side(quiet: Any, written: Path, width: int) -> None:
    quiet.open(written, width)
    assert quiet.evaluate("document.documentElement.scrollWidth") <= width
    assert quiet.evaluate("document.getElementById('chart').clientWidth") > 0.25 * width


def test_names_are_text(quiet: Any, pictured: Path) -> None:
    quiet.open(pictured)
    quiet.choose("k", "10")
    quiet.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    quiet.wait("[...document.images].every(i => i.complete && i.naturalWidth)")
    shown = quiet.evaluate("document.body.innerText")
    for name in (EVIL, WORSE):
        assert name in shown
    assert quiet.evaluate("document.querySelectorAll('img:not(figure img), script').length") == 2
    quiet.choose("detector", WORSE)
    assert {line[2] for line in quiet.board()} == {WORSE}


def test_figures_runs_and_configs_are_shown(quiet: Any, pictured: Path) -> None:
    quiet.open(pictured)
    quiet.choose("k", "10")
    quiet.wait(
        "document.images.length === 8 && [...document.images].every(i => i.complete && i.naturalWidth)"
    )
    runs = quiet.evaluate("[...document.querySelectorAll('#progress tbody tr')].map(r => r.textContent)")
    assert len(runs) == 6
    assert ["not finished" in run for run in runs] == [False] * 5 + [True]
    assert "msp 0/4" in runs[-1]
    quiet.evaluate("document.querySelector('nav a[href=\"#runs\"]').click()")  # it unfolds them
    quiet.evaluate("document.querySelectorAll('#configs details')[3].open = true")
    quiet.wait("document.querySelectorAll('#configs pre')[3].innerText === 'cil: wa\\nseed: 1\\n'")


def test_a_choice_of_theme(quiet: Any, pictured: Path) -> None:
    """The button names what it will do; figures are inverted in the dark, saved figures are not."""
    ground = "getComputedStyle(document.body).backgroundColor"
    shade = "getComputedStyle(document.images[0]).filter"
    button = "document.getElementById('theme').innerText"
    quiet.open(pictured, hash="#theme=light&k=10")
    light = quiet.evaluate(ground)
    assert (quiet.evaluate(button), quiet.evaluate(shade)) == ("Use dark colours", "none")
    quiet.evaluate("document.getElementById('theme').click()")
    assert quiet.evaluate(ground) != light
    assert quiet.evaluate("document.documentElement.dataset.theme") == "dark"
    assert quiet.evaluate(button) == "Use light colours"
    assert quiet.evaluate(shade).startswith("invert(")


def test_a_page_that_is_watched_loads_itself_anew(
    quiet: Any, rows: pd.DataFrame, record: Record, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    waiting = record(trained=0, seconds=[], detectors={"msp": 0})
    path.write_text(page(Study(rows[:0], [waiting]), refresh=0.2), encoding="utf-8")
    quiet.open(path)
    assert "1 no step yet" in quiet.evaluate("document.getElementById('status').innerText")
    assert not quiet.evaluate("document.getElementById('leaderboard').checkVisibility()")
    path.write_text(page(Study(rows, [record()])), encoding="utf-8")
    end = time.monotonic() + 30
    while "1 done" not in quiet.evaluate("document.getElementById('status')?.textContent ?? ''"):
        assert time.monotonic() < end
    quiet.wait("document.documentElement.dataset.ready === 'yes'")
    assert len(quiet.board()) == 15


def marks(browser: Any) -> dict[str, str]:
    """What each detector's first cell of the matrix is marked as."""
    script = "[r.cells[0].innerText.toLowerCase(), r.cells[1].querySelector('span').className]"
    found = browser.evaluate(
        f"[...document.querySelectorAll('#grid tbody tr:not(.family)')].map(r => {script})"
    )
    return {name: mark for name, mark in found if name != "accuracy of the model"}


def test_values_that_look_alike_share_a_rank_and_a_mark(
    show: Callable[..., Any], made_up: Rows, record: Record
) -> None:
    level = {"msp": 0.70004, "energy": 0.69996, "odin": 0.65, "gen": 0.6, "klm": 0.5, "msp@hot": 0.9}
    rows = made_up(detectors=tuple(level))
    rows["value"] = rows["detector"].map(level).where(rows["metric"] == "auc", rows["value"])
    browser = show(rows, [record(detectors=dict.fromkeys(level, 4))], hash="#variants=yes")
    places = {line[2]: (line[0], number(line[3])) for line in browser.board()}
    assert places["msp"] == places["energy"] == ("1", 70.0)
    assert [places[name][0] for name in ("odin", "gen", "klm", "msp@hot")] == ["3", "4", "5", "–"]
    assert marks(browser) == {
        "msp": "best", "energy": "best", "odin": "second", "gen": "third", "klm": "", "msp@hot": "",
    }  # fmt: skip


def test_variants_are_folded_away_until_they_are_asked_for(
    show: Callable[..., Any], made_up: Rows, record: Record
) -> None:
    rows = made_up(detectors=("msp", "ber", "ber@nter"))
    browser = show(rows, [record(seed=seed) for seed in range(3)])
    assert {line[2] for line in browser.board()} == {"msp", "ber"}
    browser.choose("detector", "ber@nter")
    assert {line[2] for line in browser.board()} == {"ber@nter"}
    browser.choose("detector")
    browser.evaluate("document.querySelector('#variants input').click()")
    assert {line[2]: line[0] for line in browser.board()}["ber@nter"] == "–"
    browser.choose("detector", "family:fine-tuning")
    assert {line[2] for line in browser.board()} == {"ber", "ber@nter"}


def test_classes_of_later_steps_can_be_looked_at(
    show: Callable[..., Any],
    made_up: Rows,
    with_future: Callable[[pd.DataFrame], pd.DataFrame],
    record: Record,
) -> None:
    """They have a rank, though there are none after the last step."""
    rows = with_future(made_up())
    browser = show(rows, [record(seed=seed) for seed in range(3)])
    sets = "[...document.querySelector('select[name=ood]').options].map(o => o.text)"
    assert browser.evaluate(sets)[2:5] == ["all far", "classes of later steps", "n1"]
    browser.choose("ood", "future")
    later = rows[(rows["distance"] == "future") & (rows["metric"] == "auc")]
    means = 100 * later.groupby("detector")["value"].mean()
    found = {line[2]: (line[0], float(line[3].split(" ")[0])) for line in browser.board()}
    order = list(means.sort_values(ascending=False).index)
    assert found == {
        name: (str(order.index(name) + 1), pytest.approx(mean, abs=0.0061)) for name, mean in means.items()
    }


def test_shifted_sets_can_be_looked_at(
    show: Callable[..., Any],
    made_up: Rows,
    with_shifted: Callable[[pd.DataFrame], pd.DataFrame],
    record: Record,
) -> None:
    rows = with_shifted(made_up())
    browser = show(rows, [record(seed=seed) for seed in range(3)])
    sets = "[...document.querySelector('select[name=ood]').options].map(o => o.text)"
    assert browser.evaluate(sets) == ["all OOD sets", "all near", "all far", "n1", "f1", "f2", "f3"]
    browser.choose("metric", "fpr_shifted")
    assert browser.evaluate(sets) == ["all shifted sets", "s1", "s2"]
    rejected = rows[rows["metric"] == "fpr_shifted"]
    for place, chosen in (("", ["s1", "s2"]), ("dataset s2", ["s2"])):
        browser.choose("ood", place)
        means = 100 * rejected[rejected["ood"].isin(chosen)].groupby("detector")["value"].mean()
        found = {line[2]: float(line[3].split(" ")[0]) for line in browser.board()}
        assert found == {name: pytest.approx(mean, abs=0.0061) for name, mean in means.items()}
    browser.choose("metric", "auc")
    assert len(browser.board()) == 2


@pytest.fixture
def uneven(made_up: Rows) -> pd.DataFrame:
    """Two CIL models with three seeds; energy has one seed on iCaRL, and is the better one there."""
    rows = pd.concat([made_up(cil=cil, detectors=("msp", "energy", "gen")) for cil in ("icarl", "wa")])
    level = {"msp": 0.7, "energy": 0.72, "gen": 0.5}
    auc, drawn = rows["metric"] == "auc", rows["value"]
    rows["value"] = drawn.where(~auc, rows["detector"].map(level) + drawn / 100 + (rows["cil"] == "wa") / 9)
    few = (rows["cil"] == "icarl") & (rows["detector"] == "energy") & (rows["seed"] > 0)
    return rows[~few]


def test_the_answer_is_of_the_chosen_model(
    show: Callable[..., Any], uneven: pd.DataFrame, record: Record
) -> None:
    browser = show(uneven, [record(cil=cil, seed=seed) for cil in ("icarl", "wa") for seed in range(3)])
    verdict = "document.getElementById('verdict').innerText"
    found = average_rows(uneven[uneven["metric"] == "auc"]).set_index(["cil", "detector", "place"])
    (best, spread), (msp, _) = (
        100 * found.loc[(cil, detector, "all"), ["mean", "std"]]
        for cil, detector in (("wa", "energy"), ("icarl", "msp"))
    )
    assert browser.evaluate(verdict).startswith(f"Energy {best:.1f} ± {spread:.1f} (3 seeds); ")
    browser.choose("model", "icarl")
    assert browser.evaluate(verdict).startswith(f"MSP {msp:.1f}")
    one = 100 * found.loc[("icarl", "energy", "all"), "mean"]
    assert browser.evaluate(verdict).endswith(
        f" (3 seeds). On one seed only: Energy {one:.1f}: not told apart."
    )


def test_a_chosen_model_that_is_not_at_a_k_is_told(show: Callable[..., Any], made_up: Rows) -> None:
    given = (("icarl", 10), ("wa", 10), ("wa", 5))
    rows = pd.concat([made_up(cil=cil, k=k, detectors=("msp", "energy")) for cil, k in given])
    joint = made_up(cil="joint", k=10, detectors=("msp",))
    browser = show(pd.concat([rows, joint[joint["detector"] == ""]]), [])
    model = "document.querySelector('select[name=model]')"
    browser.choose("k", "10")
    assert browser.evaluate(f"[...{model}.options].map((o) => o.value)") == ["icarl", "wa"]
    browser.choose("model", "icarl")
    gone = "document.getElementById('gone').innerText"
    chosen = "document.querySelectorAll('#grid thead .chosen').length"
    assert (browser.evaluate(gone), browser.evaluate(chosen)) == ("", 1)
    browser.choose("k", "5")
    assert browser.evaluate(gone).startswith("iCaRL has no detectors at k = 5")


def test_fewer_seeds_come_last_and_when_they_are_asked_for(
    show: Callable[..., Any], uneven: pd.DataFrame, record: Record
) -> None:
    browser = show(uneven, [record(cil=cil, seed=seed) for cil in ("icarl", "wa") for seed in range(3)])
    grey = "[...document.querySelectorAll('#board tr.few')].map(r => r.dataset.key)"
    assert len(browser.board()) == 5
    assert browser.evaluate(grey) == []
    browser.evaluate("document.querySelector('#few input').click()")
    for column in ("rank", "metric:auc"):  # whatever sorts them
        browser.evaluate(f"document.querySelector('th[data-key=\"{column}\"] button').click()")
        assert browser.board()[-1][:3] == ["–", "icarl", "energy"]
    assert browser.evaluate(grey) == ['["icarl","energy"]']
    for place, fewer in (("#leaderboard", "1 of 3"), ("#matrix", "1 to 3 of 3")):
        for form in ("CSV", "LaTeX"):
            saved = browser.saved(place, form)
            assert saved.count(fewer) == 1
            assert saved.replace(fewer, "").count("3 of 3") > 1


def test_the_matrix_is_sorted_by_a_column(
    show: Callable[..., Any], uneven: pd.DataFrame, record: Record
) -> None:
    browser = show(uneven, [record(cil=cil, seed=seed) for cil in ("icarl", "wa") for seed in range(3)])
    names = "[...document.querySelectorAll('#grid tbody th[scope=row]')].map(h => h.innerText).slice(1)"
    assert browser.evaluate(names) == ["MSP", "Energy", "GEN"]
    browser.evaluate("document.querySelector('#grid th[data-by=wa] button').click()")
    assert browser.evaluate(names) == ["Energy", "MSP", "GEN"]
    browser.evaluate("document.querySelector('#grid th[data-by=icarl] button').click()")
    assert browser.evaluate(names) == ["MSP", "GEN", "Energy"]  # Energy has fewer seeds there


def test_accuracy_and_forgetting_are_of_models_alone(
    show: Callable[..., Any], uneven: pd.DataFrame, record: Record
) -> None:
    browser = show(uneven, [record(cil=cil, seed=seed) for cil in ("icarl", "wa") for seed in range(3)])
    found = average_models(uneven).set_index(["cil", "metric"])["mean"] * 100
    for metric, name in (("accuracy", "average accuracy"), ("forgetting", "forgetting")):
        browser.choose("metric", metric)
        lines = browser.evaluate(
            "[...document.querySelectorAll('#board tbody tr')].map(r => [...r.cells].map(c => c.innerText))"
        )
        values = {line[2].lower(): number(line[3]) for line in lines}
        assert values == {cil: pytest.approx(found[cil, name], abs=0.0061) for cil in ("icarl", "wa")}
        assert len(browser.curves()) == 2
        assert not browser.evaluate("document.getElementById('grid').checkVisibility()")


def test_a_study_without_detectors_shows_its_models(
    show: Callable[..., Any], made_up: Rows, record: Record
) -> None:
    rows = pd.concat([made_up(cil=cil, detectors=()) for cil in ("icarl", "wa")])
    browser = show(rows, [record(cil=cil, detectors={}) for cil in ("icarl", "wa")])
    assert browser.evaluate("document.querySelector('select[name=metric]').value") == "accuracy"
    assert sorted(browser.legend()) == ["WA", "iCaRL"]
    assert "No detector" in browser.evaluate("document.getElementById('verdict-basis').innerText")


def test_a_phone_shows_one_model_at_a_time_as_cards(
    show: Callable[..., Any], uneven: pd.DataFrame, record: Record
) -> None:
    runs = [record(cil=cil, seed=seed) for cil in ("icarl", "wa") for seed in range(3)]
    browser = show(uneven, runs, 390)
    assert {line[1] for line in browser.board()} == {"wa"}
    browser.choose("model", "icarl")
    assert {line[1] for line in browser.board()} == {"icarl"}
    assert not browser.evaluate("document.getElementById('grid').checkVisibility()")
    top = "document.querySelector('#board tbody tr').getBoundingClientRect().top + scrollY"
    assert browser.evaluate(top) < 900
    assert browser.evaluate("document.documentElement.scrollHeight") < 3000
