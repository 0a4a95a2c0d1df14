"""How figures are drawn.

Colours are Okabe and Ito's, which colour-blind people tell apart; every line has a marker of its own too, so
that a print in grey can be read, and its name stands behind that marker. Matplotlib is used through its
objects: nothing is kept between figures.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from textwrap import wrap
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from opencil.atomic_files import write, write_text
from opencil.report.figures.chosen import (
    About,
    Choice,
    Content,
    Curves,
    Grid,
    Panels,
    Points,
    contents,
    short,
)
from opencil.report.figures.parts import (
    DASHES,
    Look,
    frame,
    ink,
    label_ends,
    line,
    look,
    step_axis,
    value_ticks,
    whole_ticks,
)
from opencil.study.study import Study

_TITLE = 40  # letters that fit above a column
_WIDTH, _HEIGHT = 3.5, 2.6  # inches: a column of a two-column paper
#: Inches that a letter and a line take of what is written below a figure.
_LETTER, _LINE = 0.05, 0.12
_SMALL: Look = {"fontsize": 6, "color": "#555555"}
_DPI = 200  # dots per inch of a PNG: sharp on paper in a column's width; SVG is there for more
#: Lines on another model: dashed, with hollow markers.
_COMPARED: Look = {"linestyle": DASHES, "markerfacecolor": "#ffffff", "markeredgewidth": 0.6}
_STYLE: Any = {  # the keys' own type differs between versions of Matplotlib
    "font.family": "DejaVu Sans",  # comes with Matplotlib: the same everywhere
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.titley": 1.0,  # or it is looked for a free place, which is slow
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.3,
    "lines.markersize": 3.5,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "text.hinting": "none",  # outlines as in an SVG; at 200 dots per inch nobody sees a difference but time
    "svg.hashsalt": "opencil",  # the same rows give the same bytes
    "text.parse_math": False,  # a name with dollars in it is a name
}


@dataclass(frozen=True)
class Figure:
    """One figure: what it says of itself, and its picture, with what is missing on it written below."""

    about: About
    picture: Picture

    @cached_property
    def size(self) -> tuple[float, float]:
        """Width and height in inches, with what is written below."""
        width, height = self.picture.get_size_inches()
        return float(width), float(height) + _LINE * len(self._below)

    @cached_property
    def _below(self) -> list[str]:
        """What is missing, in lines as wide as the picture."""
        return wrap(self.about.missing, int(self.picture.get_size_inches()[0] / _LETTER))

    def _save(self, file: Any, **values: Any) -> None:
        if self._below:  # outside the picture, whose own parts have their places
            width, height = self.size
            values["bbox_inches"] = Bbox.from_bounds(0, -_LINE * len(self._below), width, height)
        with matplotlib.rc_context(_STYLE):
            inches = self.picture.dpi_scale_trans
            places = [(0.05, -_LINE * (i + 0.8)) for i in range(len(self._below))]
            written = [
                self.picture.text(*place, line, **_SMALL, transform=inches)
                for place, line in zip(places, self._below, strict=True)
            ]
            self.picture.savefig(file, **values)
            for one in written:
                one.remove()

    @cached_property
    def svg(self) -> str:
        """The figure as SVG; letters are outlines, so that it looks the same everywhere."""
        text = io.StringIO()
        self._save(text, format="svg", metadata={"Date": None})
        return text.getvalue()

    def save(self, folder: Path) -> list[Path]:
        """Write an SVG, and a PNG of 200 dots per inch; their paths."""

        def png(path: Path) -> None:
            metadata, quickly = {"Software": None}, {"compress_level": 1}
            self._save(path, format="png", dpi=_DPI, metadata=metadata, pil_kwargs=quickly)

        paths = [folder / f"{self.about.name}.svg", folder / f"{self.about.name}.png"]
        write_text(paths[0], self.svg)
        write(paths[1], png)
        return paths


def figures(study: Study, choice: Choice | None = None) -> Iterator[Figure]:
    """Every figure that a study can fill, drawn as it is asked for: per benchmark and k, then CIL model."""
    for content in contents(study, choice):
        with matplotlib.rc_context(_STYLE):
            picture = _drawn(content)
        yield Figure(content.about, picture)


def _drawn(content: Content) -> Picture:
    match content:
        case Curves():
            return _curves(content)
        case Grid():
            return _grid(content)
        case Panels():
            return _panels(content)
        case Points():
            return _points(content)


def _curves(content: Curves) -> Picture:
    picture, axes = _one_panel()
    for i, curve in enumerate(content.compared.values()):
        line(axes, curve, look(i) | _COMPARED | {"linewidth": 1.0})
    step_axis(axes, content.lines, content.ylabel, content.xlabel)
    for i, (name, curve) in enumerate(content.lines.items()):
        line(axes, curve, look(i, name == content.reference))
    label_ends(axes, content.lines, content.reference)
    if content.styles:  # in grey: colours and markers are explained at the lines' ends
        grey: Look = {"color": "#555555", "marker": "o", "markeredgewidth": 0}
        solid, dashed = content.styles
        handles = [Line2D([], [], label=solid, **grey), Line2D([], [], label=dashed, **(grey | _COMPARED))]
        axes.legend(handles=handles, loc="best", handlelength=2.4)
    axes.set_title(short(content.about.heading, _TITLE))
    return picture


def _grid(content: Grid) -> Picture:
    """A heat map, with numbers in its cells where there is room for them."""
    picture, axes = _one_panel()
    axes.grid(visible=False)
    values = content.values.to_numpy()
    shown = axes.imshow(values, cmap="cividis", aspect="auto", origin="lower")
    for axis, names in ((axes.xaxis, content.values.columns), (axes.yaxis, content.values.index)):
        shown_ones = [i for i, name in enumerate(names) if name in whole_ticks(int(names.max()))]
        axis.set_ticks(shown_ones, [str(names[i]) for i in shown_ones])
    axes.tick_params(length=0)
    axes.set(xlabel="task of the test samples", ylabel="step")
    axes.set_title(short(content.about.heading, _TITLE))
    for side in axes.spines.values():
        side.set_visible(False)
    if len(values) <= 10:
        _write_cells(axes, values)
    frame(picture, letters=2, right=0.85)
    place = axes.get_position()
    beside = picture.add_axes((place.x1 + 0.02, place.y0, 0.03, place.height))
    bar = picture.colorbar(shown, cax=beside, label=content.label)
    bar.outline.set_visible(False)
    return picture


def _panels(content: Panels) -> Picture:
    picture = Picture(figsize=(1.0 + 1.55 * len(content.panels), 2.3))
    drawn = picture.subplots(1, len(content.panels), sharey=True, squeeze=False)[0]
    for i, (name, lines) in enumerate(content.panels.items()):
        axes = drawn[i]
        for j, curve in enumerate(lines.values()):
            line(axes, curve, look(j))
        first, second = lines
        both = pd.concat(lines, axis=1, join="inner")
        between = both[second, "mean"], both[first, "mean"]
        axes.fill_between(both.index, *between, color="#999999", alpha=0.15, linewidth=0)
        step_axis(axes, lines, content.ylabel if i == 0 else "", ticks=5)
        axes.set_title(short(name))
    label_ends(drawn[-1], lines, top=0.5)  # limits are shared: after all of them are drawn
    picture.suptitle(content.about.heading, x=0.01, ha="left", fontsize=8.5)
    return picture


def _points(content: Points) -> Picture:
    """A column of points for each CIL model, its best one named."""
    picture, axes = _one_panel(height=3.0)
    accuracy, cils = content.accuracy, list(content.accuracy)
    room = 0.16 * (max(accuracy.values()) - min(accuracy.values()))  # that a name needs, about
    beside: dict[str, list[str]] = {}  # for each model, those whose names would touch each other
    crowd: list[str] = []
    for cil in sorted(cils, key=lambda cil: accuracy[cil]):
        crowd = crowd if crowd and accuracy[cil] - accuracy[crowd[-1]] < room else []
        crowd.append(cil)
        beside[cil] = crowd
    heights: list[float] = []  # of names, one above the other: where the last one of each stands
    for cil, crowd in beside.items():
        x, values = accuracy[cil], content.auc[cil]
        level = next((i for i, last in enumerate(heights) if x - last >= room), len(heights))
        heights[level : level + 1] = [x]
        style = look(cils.index(cil), cil == content.reference)
        style |= {"linestyle": "", "marker": style["marker"] or "*", "alpha": 0.75}
        axes.plot([x] * len(values), values, label=short(cil), **style)
        above: Look = {"xytext": (0, 5 + 7 * level), "textcoords": "offset points", "ha": "center"}
        best = short(str(values.index[-1])), (x, max(content.auc[other].iloc[-1] for other in crowd))
        axes.annotate(*best, **above, fontsize=6.5, color=ink(style["color"]))
    axes.margins(x=0.18, y=0.15)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.05 * (high - low) * (len(heights) - 1))
    axes.set(xlabel="average accuracy (%)", ylabel="AUC, all OOD sets (%)")
    across = max(1, int(_WIDTH / (0.28 + 0.067 * max(len(short(cil)) for cil in cils))))
    rows = -(-len(cils) // across)  # of names
    axes.set_title(content.about.heading, pad=5 + 13 * rows)
    value_ticks(axes.xaxis)
    frame(picture, value_ticks(axes.yaxis), top=0.29 + 0.18 * rows)
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(-0.02, 0.99),
        ncols=min(across, len(cils)),
        handletextpad=0.1,
        columnspacing=0.8,
        borderaxespad=0,
    )
    return picture


def _one_panel(height: float = _HEIGHT) -> tuple[Picture, Axes]:
    picture = Picture(figsize=(_WIDTH, height))
    return picture, picture.subplots()


def _write_cells(axes: Axes, values: Any) -> None:
    """Numbers in a heat map's cells, dark on light and light on dark."""
    low, high = np.nanmin(values), np.nanmax(values)
    digits = 2 if max(abs(low), abs(high)) < 10 else 1
    middle: Look = {"ha": "center", "va": "center", "fontsize": 5.5}
    for (step, task), value in np.ndenumerate(values):
        if np.isfinite(value):
            # Neither pure: on a dark page the drawing's white and black change places, a cell does not.
            colour = "#fefefe" if value < (low + high) / 2 else "#010101"
            axes.text(task, step, f"{value:.{digits}f}", color=colour, **middle)
