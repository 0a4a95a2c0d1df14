"""The paper's figures, and two that it lacks, from rows alone.

Colours are Okabe and Ito's, which colour-blind people tell apart; every line has a marker of its own too, so
that a print in grey can be read, and its name stands behind that marker. Matplotlib is used through its
objects: nothing is kept between figures.
"""

import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
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

from opencil.atomic_files import file_name, write, write_text
from opencil.errors import unknown
from opencil.report.averages import over_seeds, per_step
from opencil.report.order import sort_cil, sort_datasets, sort_detectors
from opencil.study.rows import settings_of

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
_SPREAD = ["mean", "std", "low", "high", "seeds"]
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


#: What figures show first where nothing is chosen: the softmax baseline, the score that all fine-tuned heads
#: share, the detector of the paper's Fig. 3a, and the paper's own method.
_SIDE_BY_SIDE = ("msp", "energy", "regmix", "ber")
_UNDER_ONE = ("regmix", "energy", "msp")
_CONFIDENCE = ("msp",)


@dataclass(frozen=True)
class Choice:
    """What figures show where rows have more than is legible; what is left open is chosen from the rows.

    ``detectors`` are drawn side by side (1a, 3b, old and new), ``detector`` is the one of 3a, ``confidence``
    the one whose scores 1b and 1c show, and ``reference`` the CIL model that 1a compares with.
    """

    detectors: tuple[str, ...] = ()
    detector: str | None = None
    confidence: str | None = None
    reference: str = "joint"

    def check(self, rows: pd.DataFrame) -> None:
        """Refuse a detector that no row has."""
        present = set(rows["detector"].unique()) - {""}
        for name in (*self.detectors, *filter(None, (self.detector, self.confidence))):
            if name not in present:
                raise unknown("detector of a figure", name, present)

    def settled(self, rows: pd.DataFrame) -> "Choice":
        """With everything chosen, from the detectors that rows have."""
        present = sort_detectors(set(rows["detector"].unique()) - {""})

        def first(*wishes: str | None, count: int = 1) -> tuple[str, ...]:
            return tuple([name for name in dict.fromkeys([*wishes, *present]) if name in present][:count])

        side_by_side = tuple(name for name in self.detectors if name in present)
        side_by_side = side_by_side or first(*_SIDE_BY_SIDE, count=4)
        return replace(
            self,
            detectors=side_by_side,
            detector="".join(first(self.detector, *_UNDER_ONE)),
            confidence="".join(first(self.confidence, *_CONFIDENCE)),
        )


@dataclass(frozen=True)
class Figure:
    """One figure: ``name`` is its file's, ``title`` and ``caption`` are for the page that shows it.

    ``cil`` is empty where it shows all CIL models.
    """

    name: str
    benchmark: str
    k: int | str
    cil: str
    title: str
    caption: str
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

        paths = [folder / f"{self.name}.svg", folder / f"{self.name}.png"]
        write_text(paths[0], self.svg)
        write(paths[1], png)
        return paths


def figures(rows: pd.DataFrame, choice: Choice | None = None) -> Iterator[Figure]:
    """Every figure that the rows can fill, drawn as it is asked for: per benchmark and k, then CIL model."""
    choice = choice or Choice()
    choice.check(rows)
    parts = dict(list(rows.groupby(["benchmark", "k"])))
    for benchmark, k in settings_of(rows):
        part = parts[benchmark, k]
        group = _Group(benchmark, k, part, choice.settled(part))
        for draw in group.draws():
            with matplotlib.rc_context(_STYLE):
                figure = draw()
            if figure is not None:
                yield figure


class _Group:
    """The figures of one benchmark and k; each is None where the rows have nothing to show in it."""

    def __init__(self, benchmark: str, k: int | str, rows: pd.DataFrame, choice: Choice) -> None:
        self.benchmark, self.k, self.choice = benchmark, k, choice
        self.cils = [cil for cil in sort_cil(rows["cil"].unique()) if cil != choice.reference]
        steps = per_step(rows[rows["metric"].isin(["auc", "auc_old", "auc_new"])])
        models = rows[(rows["detector"] == "") & (rows["task"] == 0) & (rows["metric"] == "accuracy")]
        self._averages = over_seeds(rows[rows["metric"].isin(["auc", "accuracy"])])
        every = pd.concat([steps[steps["split"] == "all"].drop(columns="split"), models])
        curves = _over_seeds(every, ["cil", "detector", "metric", "step"])
        self._curves = dict(list(curves.groupby(["cil", "detector", "metric"])))
        self._none = curves[:0]
        of_tasks = rows[(rows["metric"] == "confidence") & (rows["detector"] == choice.confidence)]
        self._confidence = _over_seeds(of_tasks, ["cil", "ood", "step", "task"])
        distances = of_tasks[["ood", "distance"]].drop_duplicates().itertuples(index=False, name=None)
        self._oods = list(sort_datasets(benchmark, dict(distances)))
        self.score = f"mean score of {_short(choice.confidence or '')}"  #: what confidence is, for an axis

    def draws(self) -> Iterator[Callable[[], Figure | None]]:
        """Functions that draw a figure each."""
        yield self.models
        yield self.baselines
        of_model = (
            self.against_joint,
            self.confidence,
            self.ood_confidence,
            self.accuracy,
            self.old_and_new,
        )
        for cil in self.cils:
            for draw in of_model:
                yield partial(draw, cil)

    def curve(self, cil: str, detector: str, metric: str) -> pd.DataFrame:
        """Mean, deviation and band in percent, indexed by step; a band ends where percents do."""
        found = self._curves.get((cil, detector, metric), self._none).set_index("step")[_SPREAD]
        found = found * [100, 100, 100, 100, 1]
        return found.assign(low=found["low"].clip(lower=0), high=found["high"].clip(upper=100))

    def figure(self, kind: str, cil: str, title: str, caption: str, picture: Picture) -> Figure:
        """A figure of this group; ``cil`` is empty where it is of all models."""
        name = "-".join(filter(None, (f"{self.benchmark}-k{self.k}", kind, cil)))
        return Figure(file_name(name), self.benchmark, self.k, cil, title, caption, picture)

    def against_joint(self, cil: str) -> Figure | None:
        """1a: AUC per step of some detectors, and of the same on the joint model."""
        reference = self.choice.reference
        lines, others = (
            {d: self.curve(model, d, "auc") for d in self.choice.detectors} for model in (cil, reference)
        )
        if not _any(lines):
            return None
        picture, axes = _one_panel()
        for i, curve in enumerate(others.values()):
            _line(axes, curve, i, linestyle=_DASHES, linewidth=1.0, **_HOLLOW)
        _step_axis(axes, lines, "AUC, all OOD sets (%)")
        _lines(axes, lines)
        if _any(others):
            title = f"{cil} against {reference}"
            compared = "dashed: the same on a model trained on all data of all classes seen"
            _styles(axes, {_short(cil): {}, _short(reference): {"linestyle": _DASHES, **_HOLLOW}})
        else:
            title = f"{cil}: detectors"
            compared = f"no runs of {reference} are here to compare with"
        axes.set_title(_short(title, _TITLE))
        caption = f"AUC per step of {_listed(lines)} on {cil}; {compared}. {_basis(lines)}"
        return self.figure("fig1a", cil, f"1a · {title}", caption, picture)

    def models(self) -> Figure | None:
        """3a: AUC per step of the CIL models under one detector."""
        detector, reference = self.choice.detector or "", self.choice.reference
        lines = {cil: self.curve(cil, detector, "auc") for cil in self.cils}
        if not _any(lines):
            return None
        picture, axes = _one_panel()
        bound = self.curve(reference, detector, "auc")
        if len(bound):
            lines[reference] = bound
        _step_axis(axes, lines, "AUC, all OOD sets (%)")
        _lines(axes, lines, own={reference: _REFERENCE})
        axes.set_title(_short(f"CIL models under {detector}", _TITLE))
        caption = f"AUC per step of {_listed(lines)} under {detector}. {_basis(lines)}"
        return self.figure("fig3a", "", f"3a · CIL models under {detector}", caption, picture)

    def accuracy(self, cil: str) -> Figure | None:
        """3b: accuracy and AUC per step."""
        lines = {d: self.curve(cil, d, "auc") for d in self.choice.detectors}
        if not _any(lines):
            return None
        picture, axes = _one_panel()
        accuracy = {"ACC": self.curve(cil, "", "accuracy")}
        _step_axis(axes, lines | accuracy, "accuracy, AUC (%)")
        _lines(axes, lines | accuracy, own={"ACC": _REFERENCE})
        axes.set_title(_short(f"{_short(cil)}: accuracy and AUC", _TITLE))
        caption = f"Accuracy of {cil} (ACC, dashed) and AUC of {_listed(lines)}, per step. {_basis(lines)}"
        return self.figure("fig3b", cil, f"3b · {cil}: accuracy and AUC", caption, picture)

    def confidence(self, cil: str) -> Figure | None:
        """1b: mean confidence on the test samples of each task, per step."""
        found = self._confidence[(self._confidence["cil"] == cil) & (self._confidence["ood"] == "")]
        if found.empty:
            return None
        grid = found.pivot(index="step", columns="task", values="mean")
        picture, axes = _one_panel()
        axes.grid(visible=False)
        values = grid.to_numpy()
        shown = axes.imshow(values, cmap="cividis", aspect="auto", origin="lower")
        for axis, names in ((axes.xaxis, grid.columns), (axes.yaxis, grid.index)):
            shown_ones = [i for i, name in enumerate(names) if name in _whole_ticks(int(names.max()))]
            axis.set_ticks(shown_ones, [str(names[i]) for i in shown_ones])
        axes.tick_params(length=0)
        axes.set(xlabel="task of the test samples", ylabel="step")
        axes.set_title(_short(f"{_short(cil)}: confidence on each task", _TITLE))
        for side in axes.spines.values():
            side.set_visible(False)
        if len(grid) <= 10:
            _write_cells(axes, values)
        _frame(picture, letters=2, right=0.85)
        place = axes.get_position()
        beside = picture.add_axes((place.x1 + 0.02, place.y0, 0.03, place.height))
        bar = picture.colorbar(shown, cax=beside, label=self.score)
        bar.outline.set_visible(False)
        caption = (
            f"Mean {self.choice.confidence} score of {cil} on the test samples of each task: a row is a "
            f"step, the newest task is its last cell.{_deviation(found)}"
        )
        return self.figure("fig1b", cil, f"1b · {cil}: confidence on each task", caption, picture)

    def ood_confidence(self, cil: str) -> Figure | None:
        """1c: mean confidence of the OOD samples predicted into each task, after the last step."""
        found = self._confidence[self._confidence["cil"] == cil]
        if found.empty:
            return None
        last = int(found["step"].max())
        found = found[found["step"] == last]
        by_ood = {ood: part.set_index("task")[_SPREAD] for ood, part in found.groupby("ood")}
        lines = {o: by_ood[o].reindex(range(1, last + 1)) for o in self._oods if o and o in by_ood}
        if not lines or "" not in by_ood:
            return None
        tests = {"test (ID)": by_ood[""]}
        picture, axes = _one_panel()
        _step_axis(axes, lines, self.score, "task predicted into (ID: task)")
        _lines(axes, lines | tests, own={"test (ID)": _REFERENCE})
        axes.set_title(_short(f"{_short(cil)}: confidence of OOD, step {last}", _TITLE))
        caption = (
            f"Mean {self.choice.confidence} score after step {last} of {cil}: of the samples of each OOD set "
            f"that are predicted into each task, and of each task's own test samples (dashed). "
            f"{_basis(lines | tests)}"
        )
        return self.figure("fig1c", cil, f"1c · {cil}: confidence of OOD samples", caption, picture)

    def old_and_new(self, cil: str) -> Figure | None:
        """AUC per step of old classes alone and of new ones alone; the paper has no such figure."""
        sides = {"new classes": "auc_new", "old classes": "auc_old"}
        panels = {
            d: {side: self.curve(cil, d, metric) for side, metric in sides.items()}
            for d in self.choice.detectors
        }
        panels = {d: lines for d, lines in panels.items() if _any(lines)}
        if not panels:
            return None
        picture = Picture(figsize=(1.0 + 1.55 * len(panels), 2.3))
        drawn = picture.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for i, (detector, lines) in enumerate(panels.items()):
            axes = drawn[i]
            for j, curve in enumerate(lines.values()):
                _line(axes, curve, j)
            both = pd.concat(lines, axis=1, join="inner")
            axes.fill_between(
                both.index,
                both["old classes", "mean"],
                both["new classes", "mean"],
                color="#999999",
                alpha=0.15,
                linewidth=0,
            )
            _step_axis(axes, lines, "AUC, all OOD sets (%)" if i == 0 else "", ticks=5)
            axes.set_title(_short(detector))
        _label_ends(drawn[-1], lines, top=0.5)  # limits are shared: after all of them are drawn
        picture.suptitle(f"{_short(cil)}: AUC of old and of new classes", x=0.01, ha="left", fontsize=8.5)
        caption = (
            f"AUC against OOD of the test samples of new classes alone and of old classes alone, on {cil}; "
            f"the gap is shaded. {_basis({f'{d} {s}': c for d, p in panels.items() for s, c in p.items()})}"
        )
        return self.figure("old-new", cil, f"{cil}: old and new classes", caption, picture)

    def baselines(self) -> Figure | None:
        """Accuracy against AUC, averaged over steps, of every CIL model and detector; not in the paper."""
        a = self._averages
        accuracy = 100 * a[a["metric"] == "accuracy"].set_index("cil")["mean"]
        auc = a[(a["metric"] == "auc") & (a["split"] == "all")]
        cils = [
            cil for cil in (*self.cils, self.choice.reference) if cil in set(auc["cil"]) & set(accuracy.index)
        ]
        if not cils:
            return None
        picture, axes = _one_panel(height=3.0)
        room = 0.16 * (accuracy[cils].max() - accuracy[cils].min())  # that a name needs, about
        last, level = -np.inf, 0
        for cil in sorted(cils, key=lambda cil: accuracy[cil]):
            look = _look(cils.index(cil))
            colour, marker = look if cil != self.choice.reference else (_REFERENCE["color"], "*")
            values = 100 * auc[auc["cil"] == cil].set_index("detector")["mean"].sort_values()
            x = accuracy[cil]
            axes.plot(
                [x] * len(values),
                values,
                marker,
                color=colour,
                alpha=0.75,
                markeredgewidth=0,
                label=_short(cil),
            )
            level = (level + 1) % 3 if x - last < room else 0  # names of neighbours stand on other heights
            last = x
            axes.annotate(
                _short(str(values.index[-1])),
                (x, values.iloc[-1]),
                xytext=(0, 5 + 7 * level),
                textcoords="offset points",
                ha="center",
                fontsize=6.5,
                color=_ink(colour),
            )
        axes.margins(x=0.18, y=0.15)
        axes.set(xlabel="average accuracy (%)", ylabel="AUC, all OOD sets (%)")
        across = max(1, int(_WIDTH / (0.28 + 0.067 * max(len(_short(cil)) for cil in cils))))
        above = -(-len(cils) // across)  # lines of names
        axes.set_title("every baseline: accuracy and AUC", pad=5 + 13 * above)
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
        caption = (
            "Accuracy of each CIL model and AUC of each detector on it, both averaged over steps and seeds; "
            f"the best detector of each is named.{_unfinished(auc)}"
        )
        return self.figure("accuracy-auc", "", "every baseline: accuracy and AUC", caption, picture)


def _over_seeds(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Mean, sample deviation and number of seeds."""
    found = rows.groupby(keys, as_index=False).agg(
        mean=("value", "mean"), std=("value", "std"), seeds=("seed", "nunique")
    )
    return found.assign(low=found["mean"] - found["std"], high=found["mean"] + found["std"])


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


def _short(name: str, letters: int = 20) -> str:
    """A name that leaves room for the drawing."""
    return name if len(name) <= letters else f"{name[: letters - 1]}…"


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


def _lines(axes: Axes, lines: dict[str, pd.DataFrame], own: dict[str, dict[str, Any]] | None = None) -> None:
    """Curves with their names at their ends; ``own`` changes how some of them look."""
    own = own or {}
    for i, (name, curve) in enumerate(lines.items()):
        _line(axes, curve, i, **own.get(name, {}))
    _label_ends(axes, lines, own)


def _label_ends(
    axes: Axes,
    lines: dict[str, pd.DataFrame],
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
    letters = max(len(_short(name)) for name in ends)
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
            _short(name),
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


def _step_axis(
    axes: Axes, lines: dict[str, pd.DataFrame], ylabel: str, xlabel: str = "step", ticks: int = 10
) -> None:
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


def _any(lines: dict[str, pd.DataFrame]) -> bool:
    return any(len(curve) for curve in lines.values())


def _listed(lines: Iterable[str]) -> str:
    *names, last = lines
    return f"{', '.join(names)} and {last}" if names else last


def _basis(lines: dict[str, pd.DataFrame]) -> str:
    """Over how many seeds; a range where some are not done yet."""
    counts = pd.concat([curve["seeds"] for curve in lines.values()]).dropna()
    few, many = int(counts.min()), int(counts.max())
    if many == 1:
        return "One seed."
    number = f"{many}" if few == many else f"{few} to {many}"
    return f"Mean over {number} seeds; bands: ± a standard deviation."


def _deviation(found: pd.DataFrame) -> str:
    seeds = int(found["seeds"].max())
    if seeds == 1:
        return " One seed."
    return f" Mean over {seeds} seeds, whose standard deviation is {found['std'].max():.2g} at most."


def _unfinished(averages: pd.DataFrame) -> str:
    """Which models have not come as far as others, so that they do not compare."""
    steps = averages.groupby("cil")["steps"].min()
    behind = [
        f"{cil} ({count} of {steps.max()} steps)" for cil, count in steps.items() if count < steps.max()
    ]
    return f" Unfinished, so not comparable: {', '.join(behind)}." if behind else ""
