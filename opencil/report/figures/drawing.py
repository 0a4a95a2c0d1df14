"""How figures are drawn.

Colours are Okabe and Ito's, which colour-blind people tell apart; every line has a marker of its own too, so
that a print in grey can be read, and its name stands behind that marker. Matplotlib is used through its
objects: nothing is kept between figures.
"""

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure as Picture
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import blended_transform_factory

from opencil.atomic_files import write, write_text
from opencil.report.figures.chosen import (
    About,
    Choice,
    Content,
    Curves,
    Grid,
    Lines,
    Panels,
    Points,
    contents,
    short,
)

# Blue, vermilion, green, purple, orange, sky: black is kept for what others are compared with, and the
# yellow of the eight is too pale for paper.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_GREY = "#555555"
_DASHES = (0, (3, 2))
_TITLE = 40  # letters that fit above a column
_HOLLOW: dict[str, Any] = {"markerfacecolor": "#ffffff", "markeredgewidth": 0.6}
_REFERENCE: dict[str, Any] = {"color": "#222222", "linestyle": _DASHES, "marker": ""}
_WIDTH, _HEIGHT = 3.5, 2.6  # inches: a column of a two-column paper
_DPI = 200  # dots per inch of a PNG: sharp on paper in a column's width; SVG is there for more
_LETTER = 0.07  # inches that a digit of the ticks is wide, at most
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
    """One figure: what it says of itself, and its picture."""

    about: About
    picture: Picture

    @cached_property
    def svg(self) -> str:
        """The figure as SVG; letters are outlines, so that it looks the same everywhere."""
        text = io.StringIO()
        with matplotlib.rc_context(_STYLE):
            self.picture.savefig(text, format="svg", metadata={"Date": None})
        return text.getvalue()

    def save(self, folder: Path) -> list[Path]:
        """Write an SVG, and a PNG of 200 dots per inch; their paths."""

        def png(path: Path) -> None:
            with matplotlib.rc_context(_STYLE):
                metadata, quickly = {"Software": None}, {"compress_level": 1}
                self.picture.savefig(path, format="png", dpi=_DPI, metadata=metadata, pil_kwargs=quickly)

        paths = [folder / f"{self.about.name}.svg", folder / f"{self.about.name}.png"]
        write_text(paths[0], self.svg)
        write(paths[1], png)
        return paths


def figures(rows: pd.DataFrame, choice: Choice | None = None) -> Iterator[Figure]:
    """Every figure that the rows can fill, drawn as it is asked for: per benchmark and k, then CIL model."""
    for content in contents(rows, choice):
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
        _line(axes, curve, i, linestyle=_DASHES, linewidth=1.0, **_HOLLOW)
    _step_axis(axes, content.lines, content.ylabel, content.xlabel)
    _lines(axes, content.lines, own={content.reference: _REFERENCE})
    if content.styles:
        solid, dashed = content.styles
        _styles(axes, {solid: {}, dashed: {"linestyle": _DASHES, **_HOLLOW}})
    axes.set_title(short(content.about.heading, _TITLE))
    return picture


def _grid(content: Grid) -> Picture:
    """A heat map, with numbers in its cells where there is room for them."""
    picture, axes = _one_panel()
    axes.grid(visible=False)
    values = content.values.to_numpy()
    shown = axes.imshow(values, cmap="cividis", aspect="auto", origin="lower")
    for axis, names in ((axes.xaxis, content.values.columns), (axes.yaxis, content.values.index)):
        shown_ones = [i for i, name in enumerate(names) if name in _whole_ticks(int(names.max()))]
        axis.set_ticks(shown_ones, [str(names[i]) for i in shown_ones])
    axes.tick_params(length=0)
    axes.set(xlabel="task of the test samples", ylabel="step")
    axes.set_title(short(content.about.heading, _TITLE))
    for side in axes.spines.values():
        side.set_visible(False)
    if len(values) <= 10:
        _write_cells(axes, values)
    _frame(picture, letters=2, right=0.85)
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
            _line(axes, curve, j)
        first, second = lines
        both = pd.concat(lines, axis=1, join="inner")
        between = both[second, "mean"], both[first, "mean"]
        axes.fill_between(both.index, *between, color="#999999", alpha=0.15, linewidth=0)
        _step_axis(axes, lines, content.ylabel if i == 0 else "", ticks=5)
        axes.set_title(short(name))
    _label_ends(drawn[-1], lines, top=0.5)  # limits are shared: after all of them are drawn
    picture.suptitle(content.about.heading, x=0.01, ha="left", fontsize=8.5)
    return picture


def _points(content: Points) -> Picture:
    """A column of points for each CIL model, its best one named."""
    picture, axes = _one_panel(height=3.0)
    accuracy, cils = content.accuracy, list(content.accuracy)
    room = 0.16 * (max(accuracy.values()) - min(accuracy.values()))  # that a name needs, about
    last, level = -np.inf, 0
    for cil in sorted(cils, key=lambda cil: accuracy[cil]):
        look = _look(cils.index(cil))
        colour, marker = look if cil != content.reference else (_REFERENCE["color"], "*")
        x, values = accuracy[cil], content.auc[cil]
        style: dict[str, Any] = {"color": colour, "alpha": 0.75, "markeredgewidth": 0}
        axes.plot([x] * len(values), values, marker, label=short(cil), **style)
        level = (level + 1) % 3 if x - last < room else 0  # names of neighbours stand on other heights
        last = x
        axes.annotate(
            short(str(values.index[-1])),
            (x, values.iloc[-1]),
            xytext=(0, 5 + 7 * level),
            textcoords="offset points",
            ha="center",
            fontsize=6.5,
            color=_ink(colour),
        )
    axes.margins(x=0.18, y=0.15)
    axes.set(xlabel="average accuracy (%)", ylabel="AUC, all OOD sets (%)")
    across = max(1, int(_WIDTH / (0.28 + 0.067 * max(len(short(cil)) for cil in cils))))
    above = -(-len(cils) // across)  # lines of names
    axes.set_title(content.about.heading, pad=5 + 13 * above)
    _value_ticks(axes.xaxis)
    _frame(picture, _value_ticks(axes.yaxis), top=0.29 + 0.18 * above)
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


def _frame(picture: Picture, letters: int, top: float = 0.27, right: float = 0.1) -> None:
    """Leave inches around the panels: on the left for an axis label and for ticks of so many letters.

    By counting, since text is measured by drawing it, which is slow; labels stand at fixed places, so that
    they cannot be pushed off the picture.
    """
    width, height = picture.get_size_inches()
    left = 0.34 + _LETTER * letters
    picture.subplots_adjust(left / width, 0.4 / height, 1 - right / width, 1 - top / height, wspace=0.1)
    inches = picture.dpi_scale_trans
    for i, axes in enumerate(picture.axes):
        axes.xaxis.set_label_coords(0.5, 0.165, transform=blended_transform_factory(axes.transAxes, inches))
        if i == 0:
            axes.yaxis.set_label_coords(0.2, 0.5, blended_transform_factory(inches, axes.transAxes))


def _value_ticks(axis: Axis) -> int:
    """Give an axis of values few and short ticks, within its limits; the letters of the longest."""
    low, high = axis.get_view_interval()
    # A step of 25 or 2.5 would need one digit more than its neighbours.
    ticks = [t for t in MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(low, high) if low <= t <= high]
    digits = max(0, -math.floor(math.log10(np.diff(ticks).min()) + 1e-9)) if len(ticks) > 1 else 2
    texts = [f"{tick:.{digits}f}" for tick in ticks]
    axis.set_ticks(ticks, texts)
    return max(map(len, texts), default=0)


def _whole_ticks(last: int, ticks: int = 10) -> range:
    """Whole numbers up to the last, few enough to be read."""
    every = -(-last // ticks)
    return range(every, last + 1, every)


def _look(i: int) -> tuple[str, str]:
    """Colour and marker of the i-th line; the markers are shifted each time that colours come again."""
    return _COLOURS[i % len(_COLOURS)], _MARKERS[(i + i // len(_COLOURS)) % len(_MARKERS)]


def _ink(colour: str) -> tuple[float, ...]:
    """A colour dark enough for letters."""
    return tuple(0.72 * part for part in to_rgb(colour))


def _line(axes: Axes, curve: pd.DataFrame, i: int, **look: Any) -> None:
    """One curve, with a band of a standard deviation where there are several seeds."""
    colour, marker = _look(i)
    look = {"color": colour, "marker": marker, "markeredgewidth": 0, **look}
    axes.plot(curve.index.to_numpy(), curve["mean"].to_numpy(), **look)
    if curve["std"].notna().any():
        band: dict[str, Any] = {"color": look["color"], "alpha": 0.15, "linewidth": 0}
        axes.fill_between(curve.index, curve["low"], curve["high"], **band)


def _lines(axes: Axes, lines: Lines, own: dict[str, dict[str, Any]] | None = None) -> None:
    """Curves with their names at their ends; ``own`` changes how some of them look."""
    own = own or {}
    for i, (name, curve) in enumerate(lines.items()):
        _line(axes, curve, i, **own.get(name, {}))
    _label_ends(axes, lines, own)


def _label_ends(
    axes: Axes,
    lines: Lines,
    own: dict[str, dict[str, Any]] | None = None,
    top: float = 0.27,
) -> None:
    """Write each curve's name right of its last point, behind its marker.

    Names are moved up or down where two would touch; a thin line then leads from the point to the name.
    """
    ends = {
        name: (i, curve["mean"].dropna())
        for i, (name, curve) in enumerate(lines.items())
        if curve["mean"].notna().any()
    }
    picture = cast(Picture, axes.figure)
    letters = max(len(short(name)) for name in ends)
    _frame(picture, _value_ticks(picture.axes[0].yaxis), top, right=0.26 + 0.067 * letters)
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    place_of = axes.get_position()
    inch = 1 / (place_of.width * picture.get_figwidth())  # as a share of the panel's width
    gap = (high - low) * (9.5 / 72) / (place_of.height * picture.get_figheight())  # a line of text
    places = apart([curve.iloc[-1] for _, curve in ends.values()], gap, low, high)
    last = max(curve.index[-1] for _, curve in ends.values())
    across = blended_transform_factory(axes.transAxes, axes.transData)
    for (name, (i, curve)), place in zip(ends.items(), places, strict=True):
        colour, marker = _look(i)
        look: dict[str, Any] = {
            "color": colour,
            "marker": marker,
            "markeredgewidth": 0,
            **(own or {}).get(name, {}),
        }
        if abs(place - curve.iloc[-1]) > gap / 4 or curve.index[-1] < last:
            from_ = (curve.index[-1] - left) / (right - left)
            thin: dict[str, Any] = {"color": look["color"], "linewidth": 0.5, "alpha": 0.7}
            picture.add_artist(
                Line2D([from_, 1 + 0.04 * inch], [curve.iloc[-1], place], transform=across, **thin)
            )
        picture.add_artist(
            Line2D(
                [1 + x * inch for x in (0.04, 0.10, 0.16)],
                [place] * 3,
                transform=across,
                markevery=[1],
                **look,
            )
        )
        axes.annotate(
            short(name),
            (1 + 0.2 * inch, place),
            xycoords=across,
            va="center",
            color=_ink(look["color"]),
            fontsize=7.5,
            annotation_clip=False,
        )


def apart(places: Sequence[float], gap: float, low: float = -math.inf, high: float = math.inf) -> list[float]:
    """Places moved as little as needed for neighbours to be ``gap`` apart, in their order.

    They stay between ``low`` and ``high`` where there is room for all of them.
    """

    def centre(total: float, count: int) -> float:
        half = gap * (count - 1) / 2
        return min(max(total / count, low + half), max(high - half, low + half))

    order = np.argsort(places, kind="stable")
    groups: list[tuple[float, int]] = []  # of labels that touch: the sum of their places, and how many
    for place in np.asarray(places, dtype=float)[order]:
        groups.append((float(place), 1))
        while len(groups) > 1:
            (lower, n), (upper, m) = groups[-2:]
            if centre(upper, m) - centre(lower, n) >= gap * (m + n) / 2:
                break
            groups[-2:] = [(lower + upper, n + m)]
    moved = [centre(*group) + gap * (i - (group[1] - 1) / 2) for group in groups for i in range(group[1])]
    result = np.empty(len(moved))
    result[order] = moved
    return [float(place) for place in result]


def _step_axis(axes: Axes, lines: Lines, ylabel: str, xlabel: str = "step", ticks: int = 10) -> None:
    """Whole numbers below, few enough to be read."""
    last = max(int(curve.index.max()) for curve in lines.values() if len(curve))
    axes.set_xticks(_whole_ticks(last, ticks))
    axes.set(xlabel=xlabel, ylabel=ylabel)


def _styles(axes: Axes, styles: dict[str, dict[str, Any]]) -> None:
    """A legend of line styles, in grey: colours and markers are explained at the lines' ends."""
    plain: dict[str, Any] = {"color": _GREY, "marker": "o", "markeredgewidth": 0}
    handles = [Line2D([], [], label=name, **(plain | style)) for name, style in styles.items()]
    axes.legend(handles=handles, loc="best", handlelength=2.4)


def _write_cells(axes: Axes, values: Any) -> None:
    """Numbers in a heat map's cells, dark on light and light on dark."""
    low, high = np.nanmin(values), np.nanmax(values)
    digits = 2 if max(abs(low), abs(high)) < 10 else 1
    for (step, task), value in np.ndenumerate(values):
        if np.isfinite(value):
            dark = value < (low + high) / 2
            text = f"{value:.{digits}f}"
            axes.text(
                task,
                step,
                text,
                ha="center",
                va="center",
                fontsize=5.5,
                color="#ffffff" if dark else "#000000",
            )
