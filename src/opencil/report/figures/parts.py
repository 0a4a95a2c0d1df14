"""What drawings are put together from: lines with bands and names, ticks, room around panels."""

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure as Picture
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import blended_transform_factory

from opencil.report.figures.chosen import Lines, short

Look = dict[str, Any]  #: Matplotlib's properties of a line

# Blue, vermilion, green, purple, orange, sky: black is kept for what others are compared with, and the
# yellow of the eight is too pale for paper.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = (0, (3, 2))
_REFERENCE: Look = {"color": "#222222", "linestyle": DASHES, "marker": ""}
_DARK = ("#4db1ee", "#ff9152", "#37d1a2", "#e79fc6", "#f2bd3f", "#9ad4f7")
_LETTER = 0.07  # inches that a digit of the ticks is wide, at most


def look(i: int, reference: bool = False) -> Look:
    """How the i-th line looks, or the one that others are compared with.

    There is a marker more than colours: where a colour comes again, its marker is another.
    """
    colour, marker = _COLOURS[i % len(_COLOURS)], _MARKERS[i % len(_MARKERS)]
    return {"color": colour, "marker": marker, "markeredgewidth": 0} | (_REFERENCE if reference else {})


def ink(colour: str) -> tuple[float, float, float]:
    """A colour dark enough for letters."""
    red, green, blue = to_rgb(colour)
    return 0.72 * red, 0.72 * green, 0.72 * blue


#: Each colour of a drawing on a dark ground: the same as those of the page there. What is not named, such as
#: the numbers in a heat map, stays.
DARK = {
    "#ffffff": "#1b212a",
    "#000000": "#e8ecf2",
    "#dddddd": "#323b48",
    "#555555": "#a2adbd",
    **{
        shade: dark
        for colour, dark in zip((*_COLOURS, _REFERENCE["color"]), (*_DARK, "#c9d0da"), strict=True)
        for shade in (colour, to_hex(ink(colour)))
    },
}


def line(axes: Axes, curve: pd.DataFrame, properties: Look) -> None:
    """One curve, with a band of a standard deviation where there are several seeds."""
    axes.plot(curve.index.to_numpy(), curve["mean"].to_numpy(), **properties)
    if curve["std"].notna().any():
        band: Look = {"color": properties["color"], "alpha": 0.15, "linewidth": 0}
        axes.fill_between(curve.index, curve["low"], curve["high"], **band)


def label_ends(axes: Axes, lines: Lines, reference: str = "", top: float = 0.27) -> None:
    """Write each curve's name right of its last point, behind its marker.

    Names are moved up or down where two would touch; a thin line then leads from the point to the name.
    """
    ends = {
        name: (look(i, name == reference), curve["mean"].dropna())
        for i, (name, curve) in enumerate(lines.items())
        if curve["mean"].notna().any()
    }
    picture = cast(Picture, axes.figure)
    letters = max(len(short(name)) for name in ends)
    frame(picture, value_ticks(picture.axes[0].yaxis), top, right=0.26 + 0.067 * letters)
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    place_of = axes.get_position()
    inch = 1 / (place_of.width * picture.get_figwidth())  # as a share of the panel's width
    gap = (high - low) * (9.5 / 72) / (place_of.height * picture.get_figheight())  # a line of text
    places = apart([curve.iloc[-1] for _, curve in ends.values()], gap, low, high)
    last = max(curve.index[-1] for _, curve in ends.values())
    across = blended_transform_factory(axes.transAxes, axes.transData)

    def draw(x: Sequence[float], y: Sequence[float], properties: Look) -> None:
        picture.add_artist(Line2D(x, y, transform=across, **properties))

    for (name, (properties, curve)), place in zip(ends.items(), places, strict=True):
        if abs(place - curve.iloc[-1]) > gap / 4 or curve.index[-1] < last:
            start = (curve.index[-1] - left) / (right - left)
            thin = {"color": properties["color"], "linewidth": 0.5, "alpha": 0.7}
            draw([start, 1 + 0.04 * inch], [curve.iloc[-1], place], thin)
        draw([1 + x * inch for x in (0.04, 0.10, 0.16)], [place] * 3, {"markevery": [1], **properties})
        letter: Look = {"va": "center", "color": ink(properties["color"]), "fontsize": 7.5}
        axes.annotate(short(name), (1 + 0.2 * inch, place), xycoords=across, annotation_clip=False, **letter)


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


def frame(picture: Picture, letters: int, top: float = 0.27, right: float = 0.1) -> None:
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


def value_ticks(axis: Axis) -> int:
    """Give an axis of values few and short ticks, within its limits; the letters of the longest."""
    low, high = axis.get_view_interval()
    # A step of 25 or 2.5 would need one digit more than its neighbours.
    ticks = [t for t in MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(low, high) if low <= t <= high]
    digits = max(0, -math.floor(math.log10(np.diff(ticks).min()) + 1e-9)) if len(ticks) > 1 else 2
    texts = [f"{tick:.{digits}f}" for tick in ticks]
    axis.set_ticks(ticks, texts)
    return max(map(len, texts), default=0)


def whole_ticks(last: int, ticks: int = 10) -> range:
    """Whole numbers up to the last, few enough to be read."""
    every = -(-last // ticks)
    return range(every, last + 1, every)


def step_axis(axes: Axes, lines: Lines, ylabel: str, xlabel: str = "step", ticks: int = 10) -> None:
    """Whole numbers below, few enough to be read."""
    last = max(int(curve.index.max()) for curve in lines.values() if len(curve))
    axes.set_xticks(whole_ticks(last, ticks))
    axes.set(xlabel=xlabel, ylabel=ylabel)
