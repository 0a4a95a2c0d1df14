"""Draw figures in the colours of Okabe and Ito, which colour-blind people can distinguish.

Every line has a marker too, and its name at its end, for a print in grey. Matplotlib's global state stays as
it is.
"""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from textwrap import wrap
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib import rc_params_from_file
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure as Picture
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox, blended_transform_factory

from opencil.errors import check_known
from opencil.files import write, write_text
from opencil.report.figures.chosen import CONFUSED, REFERENCE, About, Choice, Group, Lines, list_names, short
from opencil.report.order import print_cil, print_detector
from opencil.report.results import results
from opencil.study.study import Study

Look = dict[str, Any]  #: Matplotlib's properties of a line

_WIDTH, _HEIGHT = 3.5, 2.6  # inches: a column of a two-column paper
_TITLE = 40  # letters above a column
_LETTER = 0.067  # inches per letter of a name
_SMALL_LETTER, _SMALL_LINE = 0.05, 0.12  # inches per letter and line below a figure
_DPI = 200  # dots per inch of a PNG
# Blue, vermilion, green, purple, orange, sky: the yellow of the eight is too pale, black is the reference's.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # one more: lines of one colour have different markers
_DASHES = (0, (3, 2))
_REFERENCE: Look = {"color": "#222222", "linestyle": _DASHES, "marker": ""}
#: Lines on another model: dashed, with hollow markers.
_COMPARED: Look = {"linestyle": _DASHES, "markerfacecolor": "#ffffff", "markeredgewidth": 0.6}
_STYLE = rc_params_from_file(Path(__file__).parents[1] / "assets" / "figures.mplstyle", False, False)


def darken(colour: str) -> str:
    """Return a colour dark enough for letters."""
    red, green, blue = to_rgb(colour)
    return to_hex((0.72 * red, 0.72 * green, 0.72 * blue))


@dataclass
class Figure:
    """A figure with its texts; its number of seeds and missing runs are written below the picture."""

    about: About
    picture: Picture
    box: Bbox = field(init=False)  #: of the picture and the text below it, in inches

    def __post_init__(self) -> None:
        width, height = self.picture.get_size_inches()
        look: Look = {"fontsize": 6, "color": "#555555", "transform": self.picture.transFigure}
        lines = wrap(self.about.below, int(width / _SMALL_LETTER))
        for i, line in enumerate(lines):
            self.picture.text(0.05 / width, -_SMALL_LINE * (i + 0.8) / height, line, **look)
        below = _SMALL_LINE * len(lines)
        self.box = Bbox.from_bounds(0, -below, width, height + below)

    def _save(self, file: Any, **values: Any) -> None:
        with matplotlib.rc_context(_STYLE):
            self.picture.savefig(file, bbox_inches=self.box, **values)

    @cached_property
    def svg(self) -> str:
        """Return the figure as SVG; letters are outlines, so that it looks the same everywhere."""
        text = io.StringIO()
        self._save(text, format="svg", metadata={"Date": None})
        return text.getvalue()

    def save(self, folder: Path) -> None:
        """Write an SVG, a PDF and a PNG."""
        pdf: Look = {"format": "pdf", "metadata": {"CreationDate": None}}
        png: Look = {"format": "png", "dpi": _DPI, "metadata": {"Software": None}}
        write_text(folder / f"{self.about.name}.svg", self.svg)
        write(folder / f"{self.about.name}.pdf", lambda path: self._save(path, **pdf))
        file = folder / f"{self.about.name}.png"
        write(file, lambda path: self._save(path, **png, pil_kwargs={"compress_level": 1}))


def figures(study: Study, choice: Choice | None = None) -> Iterator[Figure]:
    """Draw every figure that a study can fill when it is asked for, per benchmark and k, then CIL model."""
    choice = choice or Choice()
    check_known("detector of a figure", choice.detectors, set(study.rows["detector"].unique()) - {""})
    for outcome in results(study):
        group = Group(outcome, study.rows, choice)
        of_cil = (_draw_fig1a, _draw_fig1b, _draw_fig1c, _draw_fig3b, _draw_old_new)
        of_all = (_draw_accuracy, _draw_models, _draw_baselines, _draw_confusion)
        drawings = [partial(draw, group) for draw in of_all]
        drawings += [partial(draw, group, cil) for cil in group.cils for draw in of_cil]
        for draw in drawings:
            with matplotlib.rc_context(_STYLE):
                figure = draw()
            if figure:
                yield figure


def _draw_fig1a(group: Group, cil: str) -> Figure | None:
    """Draw 1a: curves of some detectors, and of the same on the joint model."""
    lines, compared = group.side_by_side(cil), group.side_by_side(REFERENCE)
    if not lines:
        return None
    model, reference = print_cil(cil), print_cil(REFERENCE)
    title, remark = f"1a · {model}: detectors", f"no runs of {reference} are here to compare with"
    if compared:
        title = f"1a · {model} against {reference}"
        remark = "dashed: the same on a model trained on all data of all classes seen"
    caption = f"{group.label} per step of {list_names(lines)} on {model}; {remark}."
    about = group.about("fig1a", cil, title, caption, lines)
    figure = _draw_curves(about, lines, group.ylabel, compared=compared)
    if compared:  # in grey: colours and markers are explained at the ends of the lines
        grey: Look = {"color": "#555555", "marker": "o", "markeredgewidth": 0}
        looks = {short(model): grey, short(reference): grey | _COMPARED}
        handles = [Line2D([], [], label=name, **look) for name, look in looks.items()]
        figure.picture.axes[0].legend(handles=handles, loc="best", handlelength=2.4)
    return figure


def _draw_models(group: Group) -> Figure | None:
    """Draw 3a: curves of the CIL models under one detector."""
    detector, lines = print_detector(group.detector), group.by_model(group.detector, group.metric)
    if not lines.keys() - {print_cil(REFERENCE)}:
        return None
    caption = f"{group.label} per step of {list_names(lines)} under {detector}."
    about = group.about("fig3a", "", f"3a · CIL models under {detector}", caption, lines, note=group.note)
    return _draw_curves(about, lines, group.ylabel, reference=print_cil(REFERENCE))


def _draw_accuracy(group: Group) -> Figure | None:
    """Draw the accuracy of the CIL models after each step; the paper has no such figure."""
    if not (lines := group.by_model("", "accuracy")):
        return None
    title = "accuracy after each step"
    caption = f"Accuracy on the classes seen so far, of {list_names(lines)}."
    about = group.about("accuracy", "", title, caption, lines, heading=title, note=group.note)
    return _draw_curves(about, lines, "accuracy (%)", reference=print_cil(REFERENCE))


def _draw_confusion(group: Group) -> Figure | None:
    """Draw for each CIL model which share of old and of new classes it takes for which, after all steps."""
    of_old, of_new = (group.by_model("", metric) for metric in CONFUSED)
    last = {name: (of_old[name]["mean"], of_new[name]["mean"]) for name in of_old if name in of_new}
    if not last:
        return None
    title = f"old and new classes confused, step {group.outcome.steps}"
    caption = (
        "Rows: test images of old and of new classes. Columns: the share of each, in percent, that is "
        "predicted as any old and as any new class, after the last step."
    )
    picture = Picture(figsize=(max(_WIDTH, 0.9 + 1.05 * len(last)), 1.75))
    drawn = picture.subplots(1, len(last), squeeze=False)[0]
    for axes, (name, (old, new)) in zip(drawn, last.items(), strict=True):
        old_as_new, new_as_old = old.iloc[-1], new.iloc[-1]
        shares = np.array([[100 - old_as_new, old_as_new], [new_as_old, 100 - new_as_old]])
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=100)
        for (row, column), value in np.ndenumerate(shares):
            colour = "white" if value > 60 else "black"
            axes.text(column, row, f"{value:.1f}", ha="center", va="center", fontsize=7, color=colour)
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        axes.set_xticks((0, 1), ("old", "new"))
        axes.set_yticks((0, 1), ("old", "new") if axes is drawn[0] else ("", ""))
        axes.set(xlabel="predicted", ylabel="true" if axes is drawn[0] else "", title=short(name))
    _frame(picture, top=0.5)
    picture.suptitle(title, x=0.01, ha="left", fontsize=8.5)
    return Figure(group.about("confusion", "", title, caption, of_old, title, group.note), picture)


def _draw_fig3b(group: Group, cil: str) -> Figure | None:
    """Draw 3b: accuracy beside the curves of some detectors."""
    lines, name = group.side_by_side(cil), "ACC"
    if not lines:
        return None
    model = print_cil(cil)
    shown = f"Accuracy of {model} ({name}, dashed) and {group.label} of {list_names(lines)}, per step."
    about = group.about("fig3b", cil, f"3b · {model}: accuracy and {group.label}", shown, lines)
    lines[name] = group.curve(cil, "", "accuracy")
    return _draw_curves(about, lines, f"accuracy, {group.label} (%)", reference=name)


def _draw_fig1c(group: Group, cil: str) -> Figure | None:
    """Draw 1c: mean confidence of the OOD samples predicted into each task, after the last step."""
    found = group.confidence_of(cil)
    last = found.index.unique("step").max()
    by_ood = {
        ood: part.droplevel(["ood", "step"]) for ood, part in found.query("step == @last").groupby("ood")
    }
    lines = {ood: by_ood[ood].reindex(range(1, last + 1)) for ood in group.oods if ood in by_ood}
    if not lines or "" not in by_ood:
        return None
    lines["test (ID)"] = by_ood[""]
    model = print_cil(cil)
    caption = (
        f"Mean {print_detector(group.scorer)} score after step {last} of {model}: of the samples of each OOD "
        "set that are predicted into each task, and of each task's own test samples (dashed)."
    )
    heading = f"{short(model)}: confidence of OOD, step {last}"
    about = group.about("fig1c", cil, f"1c · {model}: confidence of OOD samples", caption, lines, heading)
    return _draw_curves(about, lines, group.score, "task predicted into (ID: task)", reference="test (ID)")


def _draw_curves(
    about: About,
    lines: Lines,
    ylabel: str,
    xlabel: str = "step",
    reference: str = "",
    compared: Lines | None = None,
) -> Figure:
    """Draw curves with names at their ends; ``reference`` is dashed and black, ``compared`` unnamed."""
    if any(curve["std"].notna().any() for curve in lines.values()):
        about = replace(about, caption=f"{about.caption} Bands: ± a standard deviation over seeds.")
    picture = Picture(figsize=(_WIDTH, _HEIGHT))
    axes = picture.subplots()
    for i, curve in enumerate((compared or {}).values()):
        _draw_line(axes, curve, _style(i) | _COMPARED | {"linewidth": 1.0})
    for i, (name, curve) in enumerate(lines.items()):
        _draw_line(axes, curve, _style(i, name == reference))
    axes.set(xlabel=xlabel, ylabel=ylabel, title=short(about.heading, _TITLE))
    _tick_steps(axes, lines)
    _label_ends(axes, lines, reference)
    return Figure(about, picture)


def _draw_fig1b(group: Group, cil: str) -> Figure | None:
    """Draw 1b, a heat map: mean confidence on the test samples of each task, per step."""
    found = group.confidence_of(cil)
    if "" not in found.index.unique("ood"):
        return None
    found = found[found.index.get_level_values("ood") == ""].droplevel("ood")
    model, spread = print_cil(cil), found["std"].max()
    caption = (
        f"Mean {print_detector(group.scorer)} score of {model} on the test samples of each task: a row is a "
        "step, the newest task is its last cell."
    )
    note = "" if np.isnan(spread) else f"Standard deviations over seeds are {spread:.2g} at most. "
    about = group.about(
        "fig1b", cil, f"1b · {model}: confidence on each task", caption, {"": found}, note=note
    )
    grid = found["mean"].unstack("task")
    picture = Picture(figsize=(_WIDTH, _HEIGHT))
    axes = picture.subplots()
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    shown = axes.imshow(grid.to_numpy(), cmap="cividis", aspect="auto", origin="lower")
    for axis, names in ((axes.xaxis, grid.columns), (axes.yaxis, grid.index)):
        every = -(-len(names) // 10)
        ticks = range(every - 1, len(names), every)
        axis.set_ticks(ticks, [str(names[i]) for i in ticks])
    axes.tick_params(length=0)
    axes.set(xlabel="task of the test samples", ylabel="step", title=short(about.heading, _TITLE))
    if len(grid) <= 10:  # numbers in the cells, dark on light and light on dark
        values = grid.to_numpy()
        low, high = np.nanmin(values), np.nanmax(values)
        digits = 2 if max(abs(low), abs(high)) < 10 else 1
        middle: Look = {"ha": "center", "va": "center", "fontsize": 5.5}
        for (step, task), value in np.ndenumerate(values):
            if np.isfinite(value):
                colour = "white" if value < (low + high) / 2 else "black"
                axes.text(task, step, f"{value:.{digits}f}", color=colour, **middle)
    _frame(picture, right=0.85)
    place = axes.get_position()
    beside = picture.add_axes((place.x1 + 0.02, place.y0, 0.03, place.height))
    picture.colorbar(shown, cax=beside, label=group.score).outline.set_visible(False)
    return Figure(about, picture)


def _draw_old_new(group: Group, cil: str) -> Figure | None:
    """Draw curves of old classes alone and of new classes alone; the paper has no such figure."""
    sides = {"new classes": f"{group.metric}_new", "old classes": f"{group.metric}_old"}
    panels: dict[str, Lines] = {}
    for name in group.detectors:
        lines = {side: group.curve(cil, name, metric) for side, metric in sides.items()}
        if any(map(len, lines.values())):
            panels[print_detector(name)] = lines
    if not panels:
        return None
    every = {f"{name} {side}": curve for name, lines in panels.items() for side, curve in lines.items()}
    model = print_cil(cil)
    heading = f"{short(model)}: {group.label} of old and of new classes"
    caption = (
        f"{group.label} against OOD of the test samples of new classes alone and of old classes alone, on "
        f"{model}; the gap is shaded, bands are ± a standard deviation over seeds."
    )
    picture = Picture(figsize=(1.0 + 1.55 * len(panels), 2.3))
    drawn = picture.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (name, lines) in zip(drawn, panels.items(), strict=True):
        for i, curve in enumerate(lines.values()):
            _draw_line(axes, curve, _style(i))
        first, second = (curve["mean"] for curve in lines.values())
        second, first = second.align(first, join="inner")
        axes.fill_between(second.index, second, first, color="#999999", alpha=0.15, linewidth=0)
        axes.set(xlabel="step", ylabel=group.ylabel if axes is drawn[0] else "", title=short(name))
        _tick_steps(axes, lines, ticks=5)
    _label_ends(drawn[-1], lines, top=0.5)  # limits are shared: after all panels are drawn
    picture.suptitle(heading, x=0.01, ha="left", fontsize=8.5)
    title = f"{model}: old and new classes"
    return Figure(group.about("old-new", cil, title, caption, every, heading), picture)


def _draw_baselines(group: Group) -> Figure | None:
    """Draw accuracy against the main metric: each CIL model's seeds under its best detector of all seeds."""
    models = {cil: best for cil in [*group.cils, REFERENCE] if (best := group.find_best(cil)) is not None}
    if not models:
        return None
    names = {cil: f"{print_cil(cil)}: {print_detector(best)}" for cil, (best, _) in models.items()}
    across = max(1, int(_WIDTH / (0.28 + _LETTER * max(len(short(name)) for name in names.values()))))
    rows = -(-len(names) // across)  # of the legend
    picture = Picture(figsize=(_WIDTH, 2.6 + 0.18 * rows))
    axes = picture.subplots()
    for i, (cil, (_, seeds)) in enumerate(models.items()):
        look = _style(i, cil == REFERENCE) | {"linestyle": ""}
        look["marker"] = look["marker"] or "*"
        axes.plot(seeds["accuracy"], seeds["value"], **look, markersize=2.2, alpha=0.6)
        axes.plot(*seeds.mean()[["accuracy", "value"]], label=short(names[cil]), **look, markersize=6)
    axes.margins(0.1)
    axes.set(xlabel="average accuracy (%)", ylabel=group.ylabel)
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    title = f"accuracy and {group.label}, best detectors"
    axes.set_title(title, pad=5 + 13 * rows)
    _frame(picture, top=0.29 + 0.18 * rows)
    place: Look = {"loc": "lower left", "bbox_to_anchor": (-0.02, 0.99), "ncols": across}
    axes.legend(**place, handletextpad=0.1, columnspacing=0.8, borderaxespad=0)
    caption = (
        f"Average accuracy of each CIL model and {group.label} of its best detector of those with the most "
        "seeds; large: means, small: seeds."
    )
    lines = {names[cil]: seeds.assign(seeds=len(seeds)) for cil, (_, seeds) in models.items()}
    about = group.about(f"accuracy-{group.metric}", "", title, caption, lines, title, group.note)
    return Figure(about, picture)


def _style(i: int, reference: bool = False) -> Look:
    """Return the look of the i-th line, or of the reference."""
    colour, marker = _COLOURS[i % len(_COLOURS)], _MARKERS[i % len(_MARKERS)]
    return {"color": colour, "marker": marker, "markeredgewidth": 0} | (_REFERENCE if reference else {})


def _draw_line(axes: Axes, curve: pd.DataFrame, properties: Look) -> None:
    """Draw a curve, with a band of a standard deviation where there are several seeds."""
    axes.plot(curve.index.to_numpy(), curve["mean"].to_numpy(), **properties)
    if curve["std"].notna().any():
        band: Look = {"color": properties["color"], "alpha": 0.15, "linewidth": 0}
        axes.fill_between(curve.index, curve["low"], curve["high"], **band)


def _label_ends(axes: Axes, lines: Lines, reference: str = "", top: float = 0.27) -> None:
    """Write each curve's name behind its marker, right of its last point or near it."""
    ends = {
        name: (_style(i, name == reference), curve["mean"].dropna().iloc[-1])
        for i, (name, curve) in enumerate(lines.items())
        if curve["mean"].notna().any()
    }
    picture = axes.get_figure(root=True)
    assert picture is not None
    _frame(picture, top, right=0.26 + _LETTER * max(len(short(name)) for name in ends))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    low, high = axes.get_ylim()
    place_of = axes.get_position()
    inch = 1 / (place_of.width * picture.get_figwidth())  # as a share of the panel's width
    gap = (high - low) * (9.5 / 72) / (place_of.height * picture.get_figheight())  # a line of text
    across = blended_transform_factory(axes.transAxes, axes.transData)
    places = spread_labels([end for _, end in ends.values()], gap, low, high)
    for (name, (properties, _)), place in zip(ends.items(), places, strict=True):
        key = [1 + x * inch for x in (0.04, 0.10, 0.16)]
        picture.add_artist(Line2D(key, [place] * 3, transform=across, **{"markevery": [1], **properties}))
        letters: Look = {"va": "center", "color": darken(properties["color"]), "fontsize": 7.5}
        axes.annotate(short(name), (1 + 0.2 * inch, place), xycoords=across, annotation_clip=False, **letters)


def spread_labels(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return places in the same order, at least ``gap`` apart, and below ``high`` if there is room."""
    order, offsets = np.argsort(places, kind="stable"), gap * np.arange(len(places))
    moved = np.maximum.accumulate(np.asarray(places, dtype=float)[order] - offsets) + offsets
    result = np.empty(len(places))
    result[order] = np.minimum(moved, max(high, low + gap * (len(places) - 1)) - offsets[::-1])
    return result.tolist()


def _frame(picture: Picture, top: float = 0.27, right: float = 0.1) -> None:
    """Leave inches around the panels for axis labels, ticks and title; measuring text would be slow."""
    width, height = picture.get_size_inches()
    picture.subplots_adjust(0.55 / width, 0.4 / height, 1 - right / width, 1 - top / height, wspace=0.1)
    whole = picture.transFigure  # what is given in inches would stay behind where a box is saved
    for i, axes in enumerate(picture.axes):
        across = blended_transform_factory(axes.transAxes, whole)
        axes.xaxis.set_label_coords(0.5, 0.165 / height, transform=across)
        if i == 0:
            axes.yaxis.set_label_coords(0.2 / width, 0.5, blended_transform_factory(whole, axes.transAxes))


def _tick_steps(axes: Axes, lines: Lines, ticks: int = 10) -> None:
    """Set few whole numbers as ticks of steps."""
    last = max(int(curve.index.max()) for curve in lines.values() if len(curve))
    every = -(-last // ticks)
    axes.set_xticks(range(every, last + 1, every))
