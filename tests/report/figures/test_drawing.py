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
from PIL import Image

from opencil.report.figures.chosen import Choice
from opencil.report.figures.drawing import Figure, figures, spread_labels
from opencil.study.study import Study
from tests.report.common import deviation, mean

Rows = Callable[..., pd.DataFrame]
DETECTORS = ("msp", "energy", "gen", "odin", "klm")
DETECTORS_PRINTED = dict(zip(DETECTORS, ("MSP", "Energy", "GEN", "ODIN", "KLM"), strict=True))
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


def auc(rows: pd.DataFrame, cil: str, detector: str, metric: str = "auc") -> list[float]:
    """Mean over datasets, then seeds, in percent, at each step that has it."""
    steps = sorted(rows.loc[(rows["metric"] == metric) & (rows["cil"] == cil), "step"].unique())
    place = {"cil": cil, "detector": detector, "metric": metric}
    return [100 * mean(naive(rows, step=t, **place)) for t in steps]


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


def test_each_model_is_a_point_under_its_best_detector(
    rows: pd.DataFrame, pictures: dict[str, Figure]
) -> None:
    """A large point for the mean and a small one for each seed: nothing stands in a stripe."""
    legend = panel(pictures["b-k2-accuracy-auc"]).get_legend()
    assert legend is not None
    names = [text.get_text() for text in legend.get_texts()]
    found = lines(panel(pictures["b-k2-accuracy-auc"]))
    whole = rows[(rows["task"] == 0) & (rows["detector"] == "") & (rows["metric"] == "accuracy")]
    printed = {"icarl": "iCaRL", "wa": "WA", "joint": "Joint"}
    for i, (cil, model) in enumerate(printed.items()):
        averages = {d: mean(auc(rows, cil, d)) for d in DETECTORS}
        best = max(averages, key=lambda name: averages[name])
        assert names[i] == f"{model}: {DETECTORS_PRINTED[best]}"
        seeds, middle = found[2 * i], found[2 * i + 1]
        values = [100 * v for v in naive(rows[rows["task"] == 0], cil=cil, detector=best, metric="auc")]
        assert list(seeds.get_ydata()) == pytest.approx(values)
        assert list(seeds.get_xdata()) == pytest.approx([100 * v for v in naive(whole, cil=cil)])
        assert middle.get_ydata()[0] == pytest.approx(mean(values))
        assert middle.get_xdata()[0] == pytest.approx(100 * mean(naive(whole, cil=cil)))
        assert middle.get_markersize() > seeds.get_markersize()


def test_a_detector_with_fewer_seeds_is_not_the_best(rows: pd.DataFrame) -> None:
    one = rows["detector"].eq("klm") & rows["metric"].eq("auc")
    rows = rows.assign(value=rows["value"].where(~one, 0.99))
    found = {}
    for name, part in (("three", rows), ("one", rows[~rows["detector"].eq("klm") | rows["seed"].eq(0)])):
        legend = panel(drawn(part)["b-k2-accuracy-auc"]).get_legend()
        assert legend is not None
        found[name] = {text.get_text().partition(": ")[2] for text in legend.get_texts()}
    assert found["three"] == {"KLM"}
    assert "KLM" not in found["one"]


def test_the_accuracy_of_every_model_after_each_step(rows: pd.DataFrame, pictures: dict[str, Figure]) -> None:
    axes = panel(pictures["b-k2-accuracy"])
    whole = rows[(rows["task"] == 0) & (rows["detector"] == "") & (rows["metric"] == "accuracy")]
    for line, cil in zip(lines(axes)[:3], ("icarl", "wa", "joint"), strict=True):
        expected = [100 * mean(naive(whole, cil=cil, step=step)) for step in (1, 2, 3, 4)]
        assert list(line.get_ydata()) == pytest.approx(expected)
    assert len([c for c in axes.collections if isinstance(c, PolyCollection)]) == 3, "bands"
    assert texts(pictures["b-k2-accuracy"]) == {"iCaRL", "WA", "Joint"}


def test_old_and_new_classes_confused_after_the_last_step(rows: pd.DataFrame) -> None:
    accuracy = rows[(rows["detector"] == "") & (rows["metric"] == "accuracy") & (rows["task"] == 0)]
    rows = pd.concat([rows, *(accuracy.assign(metric=m) for m in ("old_as_new", "new_as_old"))])
    rows["value"] = rows["value"].where(rows["metric"] != "new_as_old", rows["value"] / 2)
    axes = drawn(rows)["b-k2-confusion"].picture.axes
    assert [panel.get_title(loc="left") for panel in axes] == ["iCaRL", "WA", "Joint"]
    for panel_, cil in zip(axes, ("icarl", "wa", "joint"), strict=True):
        share = 100 * mean(naive(accuracy, cil=cil, step=4))
        expected = [[100 - share, share], [share / 2, 100 - share / 2]]
        assert np.asarray(panel_.images[0].get_array()) == pytest.approx(np.array(expected))


def test_every_figure_says_of_how_many_seeds_it_is(rows: pd.DataFrame, tmp_path: Path) -> None:
    """In letters that are seen: the last line of the picture has ink, and there is none above it."""
    rows = rows[(rows["cil"] != "wa") | (rows["seed"] == 1)]
    found = drawn(rows)
    below = {name: figure.picture.texts[-1].get_text() for name, figure in found.items()}
    assert below["b-k2-accuracy"] == "3 of 3 seeds; WA 1."
    assert below["b-k2-old-new-wa"] == below["b-k2-fig1b-wa"] == "1 of 3 seeds."
    assert all("of 3 seeds" in text for text in below.values())
    for figure in found.values():
        figure.save(tmp_path)
        with Image.open(tmp_path / f"{figure.about.name}.png") as image:
            pixels = np.asarray(image.convert("L"))
        assert (pixels[-24:] < 200).any(), figure.about.name  # 0.12 inches
        assert (pixels[-27:-24] > 200).all(), figure.about.name


def test_files_are_pdf_png_and_svg_and_the_same_each_time(rows: pd.DataFrame, tmp_path: Path) -> None:
    rows = rows[rows["cil"] == "icarl"]
    for part, name in ((rows, "a"), (rows.sample(frac=1, random_state=1), "b")):
        for figure in figures(Study(part)):
            figure.save(tmp_path / name)
    saved, again = (sorted((tmp_path / name).iterdir()) for name in ("a", "b"))
    assert [path.read_bytes() for path in saved] == [path.read_bytes() for path in again]
    assert [path.suffix for path in saved] == [".pdf", ".png", ".svg"] * 8
    for path in saved:
        if path.suffix == ".png":
            with Image.open(path) as image:
                assert image.info["dpi"] == pytest.approx((200, 200), abs=1)
        elif path.suffix == ".pdf":
            assert path.read_bytes().startswith(b"%PDF-")
        else:
            assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"


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


@given(st.lists(st.floats(0, 100), max_size=12), st.floats(0.1, 10))
def test_labels_keep_their_distance_and_their_order(places: list[float], gap: float) -> None:
    moved = spread_labels(places, gap, 0, 100)
    order = sorted(range(len(places)), key=lambda i: (places[i], i))
    for lower, upper in pairwise(order):
        assert moved[upper] - moved[lower] >= gap * (1 - 1e-6)
    assert max(moved, default=0) <= max(100, gap * len(places)) + 1e-6
    if len(places) == 1:
        assert moved == places
