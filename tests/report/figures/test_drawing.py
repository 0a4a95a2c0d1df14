"""Figures: what they draw, against means by loops; files; names that mean mischief."""

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.lines import Line2D
from matplotlib.text import Text
from PIL import Image

from opencil.report.figures.chosen import Choice
from opencil.report.figures.drawing import Figure, figures
from opencil.report.figures.parts import apart
from opencil.study.study import Study

Rows = Callable[..., pd.DataFrame]
DETECTORS = ("msp", "energy", "gen", "odin", "klm")
FOUR = ("msp", "energy", "odin", "gen")  # the representative ones, then others in the paper's order


def drawn(rows: pd.DataFrame, choice: Choice | None = None) -> dict[str, Figure]:
    return {figure.about.name: figure for figure in figures(Study(rows), choice)}


@pytest.fixture(scope="module")
def pictures(rows: pd.DataFrame) -> dict[str, Figure]:
    """The figures of ``rows``, to be looked at and left as they are."""
    return drawn(rows)


def panel(figure: Figure, number: int = 0) -> Axes:
    return figure.picture.axes[number]


def lines(axes: Axes) -> list[Line2D]:
    """The lines with data: those of a legend have none."""
    return [line for line in axes.get_lines() if len(line.get_xdata())]


def texts(figure: Figure) -> set[str]:
    return {text.get_text() for axes in figure.picture.axes for text in axes.texts}


def naive(rows: pd.DataFrame, **place: object) -> list[float]:
    """The values of each seed at a place: the mean over its rows."""
    for column, value in place.items():
        rows = rows[rows[column] == value]
    return [math.fsum(part["value"]) / len(part) for _, part in rows.groupby("seed")]


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def deviation(values: list[float]) -> float:
    return math.sqrt(math.fsum((v - mean(values)) ** 2 for v in values) / (len(values) - 1))


def auc(rows: pd.DataFrame, cil: str, detector: str, metric: str = "auc") -> list[float]:
    """Mean over datasets, then seeds, in percent, at each step that has it."""
    steps = sorted(rows.loc[(rows["metric"] == metric) & (rows["cil"] == cil), "step"].unique())
    place = {"cil": cil, "detector": detector, "metric": metric}
    return [100 * mean(naive(rows, step=t, **place)) for t in steps]


def test_benchmarks_and_step_sizes_have_figures_of_their_own(made_up: Rows) -> None:
    parts = [made_up(entropy=1), made_up(k=5, entropy=2), made_up(benchmark="c", entropy=3)]
    together, alone = drawn(pd.concat(parts)), [drawn(part) for part in parts]
    assert list(together) == [name for part in alone for name in part]
    for part in alone:
        for name, figure in part.items():
            assert together[name].svg == figure.svg


# --- what they draw --------------------------------------------------------------------------------


def test_1a_draws_the_detectors_and_the_same_on_the_joint_model(
    rows: pd.DataFrame, pictures: dict[str, Figure]
) -> None:
    axes = panel(pictures["b-k2-fig1a-wa"])
    solid = [line for line in lines(axes) if line.get_linestyle() == "-"]
    dashed = [line for line in lines(axes) if line.get_linestyle() != "-"]
    for found, cil in ((solid, "wa"), (dashed, "joint")):
        assert len(found) == 4
        for line, detector in zip(found, FOUR, strict=True):
            assert list(line.get_xdata()) == [1, 2, 3, 4]
            assert list(line.get_ydata()) == pytest.approx(auc(rows, cil, detector))
    for one, other in zip(solid, dashed, strict=True):
        assert (one.get_color(), one.get_marker()) == (other.get_color(), other.get_marker())
        assert one.get_markerfacecolor() != other.get_markerfacecolor()  # hollow: told apart in grey too


def test_1a_says_where_there_is_nothing_to_compare_with(rows: pd.DataFrame) -> None:
    figure = drawn(rows[rows["cil"] == "wa"])["b-k2-fig1a-wa"]
    assert len(lines(panel(figure))) == 4
    assert "no runs of joint" in figure.about.caption


def test_bands_are_a_standard_deviation_over_seeds(rows: pd.DataFrame, pictures: dict[str, Figure]) -> None:
    axes = panel(pictures["b-k2-fig3a"])
    (band,) = [c for c in axes.collections if isinstance(c, PolyCollection)][:1]
    of_step = [naive(rows, cil="icarl", detector="energy", metric="auc", step=t) for t in (1, 2, 3, 4)]
    limits = {
        (t, round(100 * (mean(v) + sign * deviation(v)), 6))
        for t, v in enumerate(of_step, 1)
        for sign in (1, -1)
    }
    vertices = {(int(x), round(float(y), 6)) for x, y in band.get_paths()[0].vertices}
    assert limits == vertices


def test_bands_end_where_percents_do(rows: pd.DataFrame) -> None:
    rows = rows.assign(value=np.where(rows["seed"] == 0, rows["value"], np.where(rows["step"] > 2, 1.0, 0.0)))
    found = drawn(rows)
    for name in ("b-k2-fig3a", "b-k2-fig3b-wa", "b-k2-old-new-wa"):
        for axes in found[name].picture.axes:
            bands = [c for c in axes.collections if isinstance(c, PolyCollection)]
            heights = np.concatenate([c.get_paths()[0].vertices[:, 1] for c in bands])
            assert (heights.min(), heights.max()) == (0, 100)


def test_one_seed_has_no_band(made_up: Rows) -> None:
    figure = drawn(made_up(seeds=(3,)))["b-k2-fig3a"]
    assert not panel(figure).collections
    assert figure.about.caption.endswith("One seed.")


def test_1b_is_the_confidence_on_each_task_at_each_step(
    rows: pd.DataFrame, pictures: dict[str, Figure]
) -> None:
    axes = panel(pictures["b-k2-fig1b-icarl"])
    shown = np.ma.filled(axes.images[0].get_array(), np.nan)
    assert shown.shape == (4, 4)
    place = {"cil": "icarl", "detector": "msp", "ood": "", "metric": "confidence"}
    for step in (1, 2, 3, 4):
        for task in (1, 2, 3, 4):
            found = shown[step - 1, task - 1]
            if task > step:
                assert math.isnan(found)
            else:
                assert found == pytest.approx(mean(naive(rows, step=step, task=task, **place)))


def test_1c_is_the_confidence_of_ood_predicted_into_each_task_after_the_last_step(rows: pd.DataFrame) -> None:
    lost = (rows["ood"] == "f1") & (rows["task"] == 2) & (rows["step"] == 4)  # no image predicted into it
    rows = rows[~lost]
    axes = panel(drawn(rows)["b-k2-fig1c-icarl"])
    names = ["n1", "f1", "f2", "f3", ""]  # the last: test images
    for line, ood in zip(lines(axes), names, strict=True):
        place = {"cil": "icarl", "detector": "msp", "ood": ood, "metric": "confidence", "step": 4}
        values = [naive(rows, task=task, **place) for task in (1, 2, 3, 4)]
        expected = [mean(v) if v else math.nan for v in values]
        assert list(line.get_xdata()) == [1, 2, 3, 4]
        assert list(line.get_ydata()) == pytest.approx(expected, nan_ok=True)


def test_3a_draws_every_model_under_one_detector(rows: pd.DataFrame, pictures: dict[str, Figure]) -> None:
    figure = pictures["b-k2-fig3a"]
    for line, cil in zip(lines(panel(figure)), ("icarl", "wa", "joint"), strict=True):
        assert list(line.get_ydata()) == pytest.approx(auc(rows, cil, "energy"))
    assert texts(figure) == {"icarl", "wa", "joint"}


def test_3b_draws_accuracy_beside_auc(rows: pd.DataFrame, pictures: dict[str, Figure]) -> None:
    *detectors, accuracy = lines(panel(pictures["b-k2-fig3b-wa"]))
    for line, detector in zip(detectors, FOUR, strict=True):
        assert list(line.get_ydata()) == pytest.approx(auc(rows, "wa", detector))
    whole = rows[(rows["task"] == 0) & (rows["detector"] == "") & (rows["metric"] == "accuracy")]
    expected = [100 * mean(naive(whole, cil="wa", step=t)) for t in (1, 2, 3, 4)]
    assert list(accuracy.get_ydata()) == pytest.approx(expected)


def test_old_and_new_classes_stand_apart(rows: pd.DataFrame, pictures: dict[str, Figure]) -> None:
    figure = pictures["b-k2-old-new-icarl"]
    for number, detector in enumerate(FOUR):
        new, old = lines(panel(figure, number))
        assert panel(figure, number).get_title(loc="left") == detector
        assert list(new.get_ydata()) == pytest.approx(auc(rows, "icarl", detector, "auc_new"))
        assert list(old.get_xdata()) == [2, 3, 4]
        assert list(old.get_ydata()) == pytest.approx(auc(rows, "icarl", detector, "auc_old"))


def test_every_baseline_is_a_point(rows: pd.DataFrame, pictures: dict[str, Figure]) -> None:
    figure = pictures["b-k2-accuracy-auc"]
    by_model = {str(line.get_label()): line for line in lines(panel(figure))}
    assert set(by_model) == {"icarl", "wa", "joint"}
    whole = rows[(rows["task"] == 0) & (rows["detector"] == "") & (rows["metric"] == "accuracy")]
    best = set()
    for cil, line in by_model.items():
        averages = {d: mean(auc(rows, cil, d)) for d in DETECTORS}
        best.add(max(averages, key=lambda name: averages[name]))
        assert list(line.get_ydata()) == pytest.approx(sorted(averages.values()))
        assert list(line.get_xdata()) == pytest.approx([100 * mean(naive(whole, cil=cil))] * 5)
    assert texts(figure) == best


# --- what is chosen --------------------------------------------------------------------------------


def test_detectors_can_be_chosen(rows: pd.DataFrame) -> None:
    choice = Choice(detectors=("odin", "klm"), detector="odin", confidence="energy", reference="wa")
    found = drawn(rows, choice)
    assert texts(found["b-k2-fig1a-icarl"]) == {"odin", "klm"}
    assert "b-k2-fig1a-wa" not in found
    ours = lines(panel(found["b-k2-fig3a"]))[0]
    assert list(ours.get_ydata()) == pytest.approx(auc(rows, "icarl", "odin"))
    assert "energy score" in found["b-k2-fig1b-icarl"].about.caption


# --- files -----------------------------------------------------------------------------------------


def test_files_are_png_and_svg_and_the_same_each_time(rows: pd.DataFrame, tmp_path: Path) -> None:
    rows = rows[rows["cil"] == "icarl"]
    first, again = (
        [path.read_bytes() for figure in figures(Study(part)) for path in figure.save(tmp_path / name)]
        for part, name in ((rows, "a"), (rows.sample(frac=1, random_state=1), "b"))
    )
    assert first == again
    saved = sorted((tmp_path / "a").iterdir())
    assert [path.suffix for path in saved] == [".png", ".svg"] * 7
    for path in saved:
        if path.suffix == ".png":
            with Image.open(path) as image:
                assert image.info["dpi"] == pytest.approx((200, 200), abs=1)
        else:
            assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_a_hostile_name_is_a_name(made_up: Rows, tmp_path: Path) -> None:
    evil = ("</script><img src=x onerror=alert(1)>" + 200 * "long", "$\\frac{$")
    rows = made_up(cil="../../up", detectors=evil)
    for figure in figures(Study(rows)):
        for path in figure.save(tmp_path / "here"):
            assert path.parent == tmp_path / "here"
            assert path.exists()
        assert "<img" not in figure.svg
    (first,) = [figure for figure in figures(Study(rows)) if "fig1a" in figure.about.name]
    assert {"</script><img src=x…", "$\\frac{$"} <= texts(first)
    assert list(tmp_path.iterdir()) == [tmp_path / "here"]


def test_names_that_are_alike_have_files_of_their_own(made_up: Rows) -> None:
    names = ("a b", "a_b", "a/b", "config-a")
    rows = pd.concat([made_up(cil=cil, seeds=(0,), steps=2) for cil in names])
    found = [figure.about.name for figure in figures(Study(rows))]
    assert len(set(found)) == len(found) == 2 + 5 * len(names)
    assert {"b-k2-fig1b-a_b", "b-k2-fig1b-config-a"} <= set(found)


# --- labels ----------------------------------------------------------------------------------------


def written(figure: Figure) -> list[Text]:
    """Every text that is seen."""
    found = figure.picture.findobj(Text)
    return [text for text in found if isinstance(text, Text) and text.get_visible() and text.get_text()]


@pytest.mark.parametrize(("least", "score"), [(0.97, 1.0), (0.0, 1000.0), (0.9996, -12.3), (0.9, 0.001)])
def test_no_text_leaves_its_figure(made_up: Rows, least: float, score: float) -> None:
    cils = ("wa", "joint", "a", "icarl", "b", "a-rather-long-name-of-ours")
    parts = [made_up(cil=cil, seeds=(0, 1), steps=12, entropy=i) for i, cil in enumerate(cils)]
    rows = pd.concat([*parts[:2], *[part[part["metric"].isin(["auc", "accuracy"])] for part in parts[2:]]])
    spread = np.where(rows["metric"] == "confidence", score, 1 - least) * rows["value"]
    for figure in figures(
        Study(rows.assign(value=np.where(rows["metric"] == "confidence", 0, least) + spread))
    ):
        canvas = FigureCanvasAgg(figure.picture)
        canvas.draw()
        width, height = canvas.get_width_height()
        for text in written(figure):
            (left, low), (right, high) = text.get_window_extent(canvas.get_renderer()).get_points()
            seen = (figure.about.name, text.get_text())
            assert (left >= 0, right <= width) == (True, True), seen
            assert (low >= 0, high <= height) == (True, True), seen


def test_of_many_models_each_is_told_from_the_others(many: pd.DataFrame) -> None:
    """Lines and points look different, and no name stands on another: one in three models is crowded."""
    crowded = many["value"].where((many["detector"] != "") | (many["cil"] < "c14"), 0.6)
    found = figures(Study(many.assign(value=crowded)))
    for figure in (next(found), next(found)):
        looks = {(line.get_color(), line.get_marker()) for line in lines(panel(figure))}
        assert len(looks) == 8, figure.about.name
        canvas = FigureCanvasAgg(figure.picture)
        canvas.draw()
        boxes = [text.get_window_extent(canvas.get_renderer()) for text in panel(figure).texts]
        assert len(boxes) == 8
        for i, box in enumerate(boxes):
            assert not any(box.shrunk(0.9, 0.9).overlaps(other) for other in boxes[:i]), figure.about.name


def test_ticks_and_label_of_the_values_do_not_touch(rows: pd.DataFrame) -> None:
    found = drawn(rows.assign(value=0.96 + 0.04 * rows["value"]))
    for name in ("b-k2-fig1a-wa", "b-k2-fig3b-wa", "b-k2-fig1c-wa", "b-k2-fig3a"):
        canvas = FigureCanvasAgg(found[name].picture)
        canvas.draw()
        axis = panel(found[name]).yaxis
        label = axis.label.get_window_extent(canvas.get_renderer())
        for tick in axis.get_ticklabels():
            assert tick.get_window_extent(canvas.get_renderer()).x0 > label.x1, name


def keys(figure: Figure) -> list[Line2D]:
    """The pieces of line before the names, each of three points with a marker on the second."""
    found = [artist for artist in figure.picture.artists if isinstance(artist, Line2D)]
    return [line for line in found if len(line.get_xdata()) == 3]


def test_names_stand_behind_the_marker_of_their_line(pictures: dict[str, Figure]) -> None:
    figure = pictures["b-k2-fig3b-wa"]
    names = {text.xy[1]: text.get_text() for text in panel(figure).texts}
    found = {names[key.get_ydata()[0]]: key for key in keys(figure)}
    expected = dict(zip([*FOUR, "ACC"], lines(panel(figure)), strict=True))
    assert set(found) == set(expected)
    for name, line in expected.items():
        for look in ("color", "marker", "linestyle"):
            assert getattr(found[name], f"get_{look}")() == getattr(line, f"get_{look}")(), name


def test_a_name_that_was_moved_is_led_to(rows: pd.DataFrame) -> None:
    rows = rows[rows["seed"] == 0]
    last = (rows["step"] == 4) & (rows["metric"] == "auc")
    near = {"msp": 0.5, "energy": 0.501, "odin": 0.502, "gen": 0.9}
    rows = rows.assign(value=np.where(last, rows["detector"].map(near), rows["value"]))
    figure = drawn(rows[rows["cil"] == "wa"])["b-k2-fig1a-wa"]
    leaders = [a for a in figure.picture.artists if isinstance(a, Line2D) and len(a.get_xdata()) == 2]
    assert {line.get_color() for line in leaders} == {
        line.get_color() for line in lines(panel(figure)) if line.get_ydata()[-1] in (50.0, 50.2)
    }
    for line in leaders:
        end = line.get_transform().transform([[line.get_xdata()[0], line.get_ydata()[0]]])[0]
        assert list(end) == pytest.approx(list(panel(figure).transData.transform((4, line.get_ydata()[0]))))


places = st.lists(st.floats(0, 100), max_size=12)


@given(places, st.floats(0.1, 10))
def test_labels_keep_their_distance_and_their_order(given: list[float], gap: float) -> None:
    moved = apart(given, gap)
    assert len(moved) == len(given)
    order = sorted(range(len(given)), key=lambda i: (given[i], i))
    for lower, upper in pairwise(order):
        assert moved[upper] - moved[lower] >= gap * (1 - 1e-6)
    assert math.fsum(moved) == pytest.approx(math.fsum(given), abs=1e-6)


@given(places, st.floats(0.1, 10), st.floats(-50, 50))
def test_labels_stay_within_limits_that_have_room(given: list[float], gap: float, low: float) -> None:
    high = low + gap * len(given)
    moved = apart(given, gap, low, high)
    slack = 1e-6 * (1 + abs(low) + abs(high))
    assert all(low - slack <= place <= high + slack for place in moved)
    order = sorted(range(len(given)), key=lambda i: (given[i], i))
    for lower, upper in pairwise(order):
        assert moved[upper] - moved[lower] >= gap * (1 - 1e-6)


@given(st.lists(st.integers(-20, 20), unique=True, max_size=12))
def test_labels_that_have_room_stay(given: list[int]) -> None:
    assert apart(given, 1.0) == pytest.approx(given)
