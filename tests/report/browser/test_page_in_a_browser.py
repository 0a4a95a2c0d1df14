"""The page, opened from disk in a real browser: it answers to clicks and keys, fits a phone, and is quiet."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from opencil.report.averages import datasets_over_steps, over_seeds, spread
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
        text = page(Study(rows, runs), differences=[EVIL], title=f"Results {EVIL}", **values)
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
    for k, ood, metric, seed in (
        ("5", "", "auc", ""), ("10", "distance:near", "fpr", ""), ("10", "distance:far", "ap", ""),
        ("10", "f2", "auc", ""), ("5", "", "auc_old", "1"),
    ):  # fmt: skip
        for name, value in (("k", k), ("ood", ood), ("metric", metric), ("seed", seed)):
            quiet.choose(name, *[value] * bool(value))
        part = rows[(rows["k"] == int(k)) & (rows["metric"] == metric)]
        part = part[part["seed"] == int(seed)] if seed else part
        if ood in set(rows["ood"]) - {""}:
            keys = ["cil", "detector", "ood"]
            table = spread(datasets_over_steps(part), keys)
            table = table[table["ood"] == ood]
        else:
            table = over_seeds(part)
            table = table[table["split"] == (ood.removeprefix("distance:") or "all")]
        expected = {(r["cil"], r["detector"]): r for r in table.to_dict("records")}
        found = {(line[1], line[2]): line[3] for line in quiet.board()}
        assert set(found) == set(expected)
        for place, cell in found.items():
            mean, _, deviation = cell.partition(" ± ")
            assert float(mean) == pytest.approx(100 * expected[place]["mean"], abs=0.0061)
            if seed:
                assert not deviation
            else:
                assert float(deviation) == pytest.approx(100 * expected[place]["std"], abs=0.0061)


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


def test_ticked_lines_are_the_ones_on_the_chart(quiet: Any, written: Path) -> None:
    quiet.open(written)
    last = quiet.board()[-1]
    quiet.evaluate("[...document.querySelectorAll('#board tbody input')].at(-1).click()")
    assert [name.lower() for name in quiet.legend()] == [f"{last[1]} · {last[2]}"]
    assert len(quiet.curves()) == 1
    quiet.evaluate("document.getElementById('with-accuracy').click()")
    assert f"{last[1]} · accuracy" in [name.lower() for name in quiet.legend()]


def test_the_arrow_keys_walk_over_the_steps(quiet: Any, written: Path) -> None:
    quiet.open(written)
    when = "document.querySelector('#legend .when').innerText"
    assert quiet.evaluate(when) == "mean over steps"
    quiet.evaluate("document.getElementById('chart').focus()")
    seen = []
    for _ in range(2):
        quiet.key("ArrowRight", 39)
        seen.append(quiet.evaluate(when))
    quiet.key("ArrowLeft", 37)
    assert [*seen, quiet.evaluate(when)] == ["step 1", "step 2", "step 1"]


def test_every_control_can_be_reached_with_the_keyboard(quiet: Any, written: Path) -> None:
    quiet.open(written)
    quiet.evaluate("document.activeElement.blur()")
    name = "e.name || e.parentNode.dataset.name || e.id || e.closest('th')?.dataset.key || e.className"
    reached = set()
    for _ in range(40):
        quiet.key("Tab", 9)
        reached.add(quiet.evaluate(f"(e => {name})(document.activeElement)"))
    assert {"k", "cil", "detector", "ood", "metric", "seed"} <= reached  # there is only one benchmark
    assert {"theme", "rank", "metric:auc", "accuracy"} <= reached


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


@pytest.mark.parametrize("strange", ["#k=77&metric=no&sort=no&on=no&cil=%3Cimg%3E", "#%%%", "#leaderboard"])
def test_an_address_that_means_nothing_shows_everything(quiet: Any, written: Path, strange: str) -> None:
    quiet.open(written, hash=strange)
    assert len(quiet.board()) == 15


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
    assert quiet.evaluate("document.title") == f"Results {EVIL}"
    quiet.choose("detector", WORSE)
    assert {line[2] for line in quiet.board()} == {WORSE}


def test_figures_runs_and_configs_are_shown(quiet: Any, pictured: Path) -> None:
    quiet.open(pictured)
    quiet.choose("k", "10")
    quiet.wait(
        "document.images.length === 7 && [...document.images].every(i => i.complete && i.naturalWidth)"
    )
    runs = quiet.evaluate("[...document.querySelectorAll('#progress tbody tr')].map(r => r.innerText)")
    assert len(runs) == 6
    assert ["done" in run for run in runs] == [True] * 5 + [False]
    assert "under way" in runs[-1]
    assert "msp 0/4" in runs[-1]
    quiet.evaluate("document.querySelectorAll('#configs details')[3].open = true")
    quiet.wait("document.querySelectorAll('#configs pre')[3].innerText === 'cil: wa\\nseed: 1\\n'")


def test_a_choice_of_theme(quiet: Any, pictured: Path) -> None:
    """The button says what it will do, and figures follow; what is saved of them does not."""
    ground = "getComputedStyle(document.body).backgroundColor"
    corner = """(async (image) => {
        await image.decode();
        const canvas = document.createElement('canvas').getContext('2d');
        canvas.drawImage(image, 0, 0);
        return [...canvas.getImageData(2, 2, 1, 1).data].slice(0, 3);
    })(document.images[0])"""
    button = "document.getElementById('theme').innerText"
    saved = "document.querySelector('figcaption a').href"
    quiet.open(pictured, hash="#theme=light&k=10")
    light, paper = quiet.evaluate(ground), quiet.evaluate(saved)
    assert (quiet.evaluate(button), quiet.evaluate(corner)) == ("Use dark colours", [255, 255, 255])
    quiet.evaluate("document.getElementById('theme').click()")
    assert quiet.evaluate(ground) != light
    assert quiet.evaluate("document.documentElement.dataset.theme") == "dark"
    assert (quiet.evaluate(button), quiet.evaluate(corner)) == ("Use light colours", [27, 33, 42])
    assert quiet.evaluate(saved) == paper


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
    while "1 done" not in quiet.evaluate("document.getElementById('status')?.innerText ?? ''"):
        quiet.await_load(quiet.loads)
    assert len(quiet.board()) == 15


def test_unfinished_runs_have_no_rank_and_say_so(
    quiet: Any, rows: pd.DataFrame, record: Record, tmp_path: Path
) -> None:
    some = rows[(rows["k"] == 5) & ~((rows["cil"] == "wa") & (rows["step"] > 2))]
    some = some[~((some["cil"] == "joint") & (some["seed"] == 2) & (some["step"] > 3))]
    path = tmp_path / "page.html"
    path.write_text(page(Study(some, [record()])), encoding="utf-8")
    quiet.open(path)
    by_cil = {line[1]: line for line in quiet.board() if line[2] == "msp"}
    assert by_cil["wa"][0] == "–"
    assert by_cil["wa"][3].endswith("2/4 steps")
    assert by_cil["joint"][3].endswith("2/3 seeds")
    whole = some[(some["seed"] != 2) & (some["cil"] == "joint") & (some["metric"] == "auc")]
    table = over_seeds(whole).set_index(["detector", "split"])
    assert number(by_cil["joint"][3]) == pytest.approx(100 * table.loc[("msp", "all"), "mean"], abs=0.0061)
    quiet.choose("cil", "joint")
    quiet.choose("detector", "msp")
    of_all = quiet.curves()
    quiet.choose("seed", "0", "1")
    assert quiet.curves() == of_all, "the seed that is behind is in no curve"
    quiet.choose("seed", "0")
    assert quiet.curves() != of_all


def marks(browser: Any) -> dict[str, str]:
    """What each detector's first cell of the matrix is marked as."""
    script = "[r.cells[0].innerText.toLowerCase(), r.cells[1].querySelector('span').className]"
    found = browser.evaluate(
        f"[...document.querySelectorAll('#grid tbody tr:not(.family)')].map(r => {script})"
    )
    return {name: mark for name, mark in found if name != "accuracy of the model"}


def test_a_grid_in_which_nothing_is_finished_has_no_ranks(
    show: Callable[..., Any], made_up: Rows, record: Record
) -> None:
    rows, names = made_up(steps=2), {"msp": 2, "energy": 2}
    browser = show(rows, [record(seed=s, steps=5, trained=2, detectors=names) for s in range(3)])
    assert [(line[0], line[3].split(" ", 3)[-1]) for line in browser.board()] == [("–", "2/5 steps")] * 2
    assert set(marks(browser).values()) == {""}
    browser.choose("metric", "auc_old")  # which begins at step 2
    assert [(line[0], line[3].split(" ", 3)[-1]) for line in browser.board()] == [("–", "1/4 steps")] * 2


def test_values_that_look_alike_share_a_rank_and_a_mark(
    show: Callable[..., Any], made_up: Rows, record: Record
) -> None:
    level = {"msp": 0.70004, "energy": 0.69996, "odin": 0.65, "gen": 0.6, "klm": 0.5, "msp@hot": 0.9}
    rows = made_up(detectors=tuple(level))
    rows["value"] = rows["detector"].map(level).where(rows["metric"] == "auc", rows["value"])
    browser = show(rows, [record(detectors=dict.fromkeys(level, 4))], hash="#variants=yes")
    places = {line[2]: (line[0], number(line[3])) for line in browser.board()}
    assert places["msp"] == places["energy"] == ("1.5", 70.0), "the mean"
    assert [places[name][0] for name in ("odin", "gen", "klm", "msp@hot")] == ["3", "4", "5", "–"]
    assert marks(browser) == {
        "msp": "best", "energy": "best", "odin": "second", "gen": "third", "klm": "", "msp@hot": "",
    }  # fmt: skip


def test_the_page_opens_with_a_k_that_is_finished(
    show: Callable[..., Any], made_up: Rows, record: Record
) -> None:
    rows = pd.concat([made_up(k=2, steps=2), made_up(k=5, steps=4)])
    chosen = "document.forms.filters.elements.k.value"

    def runs(steps_at_k_5: int) -> list[Any]:
        planned = {2: 3, 5: steps_at_k_5}
        return [record(k=k, seed=seed, steps=steps) for k, steps in planned.items() for seed in range(3)]

    assert show(rows, runs(4)).evaluate(chosen) == "5"
    assert show(rows, runs(5)).evaluate(chosen) == "2", "the first, where none is"
    assert show(rows, runs(4), hash="#k=2").evaluate(chosen) == "2", "what was chosen stays"


def test_an_upper_bound_is_shown_without_a_rank(
    show: Callable[..., Any], made_up: Rows, record: Record
) -> None:
    level = {"icarl": 0.5, "joint": 0.9, "finetune": 0.3}
    rows = pd.concat([made_up(cil=cil) for cil in level])
    rows["value"] = rows["cil"].map(level).where(rows["metric"] == "auc", rows["value"])
    browser = show(rows, [record(cil=cil, seed=seed) for cil in level for seed in range(3)])
    found = [(line[0], line[1], number(line[3])) for line in browser.board()]
    ranks = [("1.5", "icarl", 50.0)] * 2 + [("3.5", "finetune", 30.0)] * 2
    assert found == [*ranks, *[("–", "joint", 90.0)] * 2], "the lowest bound is a method like others"
    assert "have no rank: joint." in browser.evaluate("document.getElementById('notes').innerText")
    assert set(marks(browser).values()) == {"best"}, "detectors on it have their places"


def test_an_ood_set_that_some_runs_lack_is_in_no_average(
    show: Callable[..., Any], made_up: Rows, record: Record
) -> None:
    more = {"n1": "near", "f1": "far", "f2": "far", "f3": "far", "x": "far"}
    rows = pd.concat([made_up(entropy=1), made_up(cil="wa", ood=more, entropy=2)])
    browser = show(rows, [record(cil=cil, seed=s) for cil in ("icarl", "wa") for s in range(3)])
    common = rows[(rows["metric"] == "auc") & (rows["ood"] != "x")]
    table = over_seeds(common).set_index(["cil", "detector", "split"])["mean"]
    for line in browser.board():
        assert number(line[3]) == pytest.approx(100 * table[line[1], line[2], "all"], abs=0.0061)
    assert "x (wa seed 0, wa seed 1, wa seed 2)" in browser.evaluate("notes.innerText")
    browser.choose("ood", "x")
    assert {line[1] for line in browser.board()} == {"wa"}


def test_figures_of_one_name_are_told_apart(show: Callable[..., Any], made_up: Rows, record: Record) -> None:
    rows = made_up(seeds=(0,), steps=2)
    drawn = [
        replace(figure, about=replace(figure.about, name="the same"))
        for figure in figures(Study(rows))
        if not figure.about.cil
    ]
    browser = show(rows, [record()], figures=drawn)
    browser.wait("[...document.images].every(i => i.complete && i.naturalWidth)")
    addresses = browser.evaluate("[...document.images].map(i => i.src)")
    assert len(set(addresses)) == len(addresses) == 2


def test_the_time_of_a_run_is_that_of_all_its_work(
    show: Callable[..., Any], rows: pd.DataFrame, record: Record
) -> None:
    browser = show(rows, [record(seconds=[{"training": 20.0, "tuning": 7.0}, {"training": 40.0}])])
    at = "[...document.querySelectorAll('#progress th')].findIndex(h => h.innerText === 'Stages’ time')"
    cell = f"document.querySelector('#progress tbody tr').cells[{at}]"
    assert browser.evaluate(f"{cell}.innerText") == "67 s"
    assert browser.evaluate(f"{cell}.title") == (
        "training 60 s, tuning 7 s; stages overlap where runs share a device"
    )


def test_what_a_run_keeps_is_shown(
    show: Callable[..., Any], rows: pd.DataFrame, record: Record, keeping: Rows
) -> None:
    kept = keeping((1_800_000, 6_144_000), (1_900_000, 6_144_000))
    browser = show(pd.concat([rows, kept]), [record(), record(seed=1)])
    at = "[...document.querySelectorAll('#progress th')].findIndex(h => h.innerText === 'Model + memory')"
    cells = f"[...document.querySelectorAll('#progress tbody tr')].map(row => row.cells[{at}].innerText)"
    assert browser.evaluate(cells) == ["1.90 + 6.14 MB", "–"]


def test_the_leaderboard_has_what_a_method_keeps(
    show: Callable[..., Any], made_up: Rows, record: Record, keeping: Rows
) -> None:
    """After the last step, model and exemplars: what grows by a backbone a step must not look free."""
    models = ("der", "icarl", "wa")
    rows = pd.concat([made_up(cil=cil, seeds=(0,), entropy=i) for i, cil in enumerate(models)])
    more = [keeping(*[(1, 1)] * 4, k=4), keeping(*[(1e6 * t, 6_100_000) for t in range(1, 5)], cil="der")]
    more += [keeping(*[(1_900_000, 6_100_000)] * 4)]
    runs = [record(cil=cil) for cil in models]
    heads = "[...document.querySelectorAll('#board thead th')].map(h => h.innerText.trim())"
    browser = show(pd.concat([rows, *more]), [record(cil="icarl", k=4), *runs])
    assert browser.evaluate(heads)[-1] == "MB↓"
    assert {(line[1], line[-1]) for line in browser.board()} == {
        ("der", "10.1"), ("icarl", "8.0"), ("wa", "–"),
    }  # fmt: skip
    browser.evaluate("document.querySelector('th[data-key=kept] button').click()")
    assert [line[1] for line in browser.board()] == ["icarl"] * 2 + ["der"] * 2 + ["wa"] * 2
    offered = "[...document.querySelectorAll('option')].map(o => `${o.value} ${o.innerText}`.toLowerCase())"
    assert any("auc" in option for option in browser.evaluate(offered))
    assert not any("bytes" in option for option in browser.evaluate(offered))
    browser = show(rows, runs)
    assert "MB↓" not in browser.evaluate(heads), "runs that noted nothing have no such column"
    half = keeping((1, 1), (1, 1), cil="der")
    browser = show(pd.concat([rows, half]), [record(cil="der", trained=2), *runs[1:]])
    assert "MB↓" not in browser.evaluate(heads), "nor those that are not trained to the end"


def test_a_box_shows_at_which_edges_there_is_more(
    show: Callable[..., Any], made_up: Rows, record: Record
) -> None:
    names = tuple(f"detector{i}" for i in range(30))
    browser = show(made_up(seeds=(0, 1), steps=2, detectors=names), [record(steps=2)], width=390)
    box = "document.querySelector('.table-card .scroll')"
    browser.wait(f"{box}.dataset.more === 'right below'")
    assert "inset" in browser.evaluate(f"getComputedStyle({box}).boxShadow")
    browser.evaluate(f"{box}.scrollTo(9999, 9999)")
    browser.wait(f"{box}.dataset.more === 'left above'")
    browser.choose("detector", "detector3")  # one line: there is nothing above any more
    browser.wait(f"{box}.dataset.more === 'left'")


def test_bands_end_where_percents_do(show: Callable[..., Any], made_up: Rows, record: Record) -> None:
    rows = made_up(seeds=(0, 1))
    rows["value"] = rows["seed"] * 0.1 + 0.9 * (rows["step"] > 2)
    browser = show(rows, [record(seed=0), record(seed=1)])
    ticks = browser.evaluate(
        "[...document.querySelectorAll('#chart text[text-anchor=end]')].map(t => +t.innerHTML)"
    )
    assert (min(ticks), max(ticks)) == (0, 100)
