"""Draw the figures of the page from published rows: ``python -m results.make_tables`` writes them.

A figure is a PNG that contains the values it shows, as CSV: a check compares these, not pixels.
"""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib import rc_params_from_file
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

import opencil
from results.rows import (
    CIL,
    OTHER_ORDER,
    RESULTS,
    SIXTEEN,
    TUNED,
    auc,
    by_model,
    distance,
    released,
    title,
)
from results.tables import BEYOND

PLACE = RESULTS / "figures"
_STYLE = Path(opencil.__file__).parent / "report" / "assets" / "figures.mplstyle"
_COLOURS = dict(zip(CIL, ("#0072b2", "#d55e00", "#009e73", "#b5589c"), strict=True))


def paper_points() -> pd.DataFrame:
    """Return AUCs at k = 10: the paper's, ours, and ours with the released set-up, where it was run."""
    ours = by_model(10)
    of_code = released().reindex(columns=ours.columns)
    shown = {"paper": ours - distance(10), "default": ours, "released": of_code}
    return pd.DataFrame({name: table.unstack() for name, table in shown.items()})


def draw_paper(points: pd.DataFrame) -> Figure:
    """Draw our AUC of each model and detector against the paper's."""
    figure = Figure(figsize=(6.4, 5.2), layout="constrained")
    axes = figure.subplots()
    ends = [63, 79.5]
    axes.fill_between(ends, [60, 76.5], [66, 82.5], color="#f0f0f0", zorder=0, label="at most 3 points apart")
    axes.plot(ends, ends, color="#999999", linewidth=0.8)
    for cil, colour in _COLOURS.items():
        of = points.xs(cil, level="cil")
        axes.vlines(of["paper"], of["default"], of["released"], color=colour, linewidth=0.7, alpha=0.6)
        axes.plot(of["paper"], of["default"], "o", color=colour, markersize=5, label=CIL[cil])
        axes.plot(of["paper"], of["released"], "D", color=colour, markersize=4.5, fillstyle="none")
        for detector, point in of[(of["default"] - of["paper"]).abs() > 3].iterrows():
            name = f"  {SIXTEEN[str(detector)]}"
            axes.text(point["paper"], point["default"], name, color=colour, fontsize=8, va="center")
    axes.plot([], [], "o", color="#444444", markersize=5, label="default preset, mean of 3 trainings")
    axes.plot([], [], "D", color="#444444", fillstyle="none", label="set up as released, 1 training")
    axes.set(xlim=ends, ylim=ends, xlabel="AUC in the paper, %", ylabel="AUC here, %")
    axes.set_title("64 figures of CIFAR-100, k = 10: mean AUC over six OOD sets")
    axes.legend(loc="lower right")
    return figure


def detector_points() -> pd.DataFrame:
    """Return mean AUCs of the four models on near and far OOD sets, by seed and class order, k = 10."""
    names = [*by_model(10).mean().sort_values().index, *BEYOND]
    columns: dict[tuple[str, str], list[float]] = {}
    for split in ("near", "far"):
        of = partial(auc, cil=list(CIL), distance=split)
        for seed in range(3):  # of further detectors there is seed 0
            values = [of(name, seed=seed) if name in SIXTEEN or seed == 0 else math.nan for name in names]
            columns[split, f"seed {seed}"] = values
        columns[split, "other order"] = [of(name, folder=OTHER_ORDER) for name in names]
    return pd.DataFrame(columns, pd.Index(names, name="detector"))


def draw_detectors(points: pd.DataFrame) -> Figure:
    """Draw the mean AUC of each detector on near and on far OOD sets, with each seed and class order."""
    figure = Figure(figsize=(6.4, 5.4), layout="constrained")
    places = range(len(points))
    for axes, split in zip(figure.subplots(1, 2, sharey=True), ("near", "far"), strict=True):
        of = points[split]
        seeds = of.drop(columns="other order")
        for name in seeds:
            label = "one seed, class order 1993" if name == "seed 0" else None
            axes.plot(seeds[name], places, "|", color="#0072b2", markersize=9, alpha=0.8, label=label)
        several = seeds.mean(axis=1).where(seeds.notna().all(axis=1))
        axes.plot(several, places, "o", color="#0072b2", markersize=4.5, label="mean of three seeds")
        axes.plot(of["other order"], places, "D", color="#d55e00", fillstyle="none", label="class order 1994")
        axes.axhline(len(SIXTEEN) - 0.5, color="#999999", linewidth=0.8)
        axes.set(title=f"{split} OOD sets", xlabel="AUC, %", ylim=(-0.6, len(points) - 0.4))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.text(0.01, len(SIXTEEN) - 0.4, "beyond the paper", transform=axes.get_yaxis_transform(), va="bottom")
    names = [title(name) + " (tuned)" * (name in TUNED) for name in points.index]
    figure.axes[0].set_yticks(places, names, fontsize=8.5)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


FIGURES: dict[str, tuple[Callable[[], pd.DataFrame], Callable[[pd.DataFrame], Figure]]] = {
    "paper": (paper_points, draw_paper),
    "detectors": (detector_points, draw_detectors),
}


def values_of(points: pd.DataFrame) -> str:
    """Return the values of a figure as CSV."""
    return points.to_csv(float_format="%.1f", lineterminator="\n")


def stored_values(file: Path) -> str | None:
    """Return the values that a picture contains."""
    if not file.exists():
        return None
    with Image.open(file) as picture:
        return picture.info.get("Description")


def stale_figures(folder: Path = PLACE) -> list[str]:
    """Return the names of figures that do not contain the values of the rows."""
    made = {name: values_of(find()) for name, (find, _) in FIGURES.items()}
    return [name for name, values in made.items() if stored_values(folder / f"{name}.png") != values]


def write_figures(folder: Path = PLACE) -> None:
    """Draw the figures whose values have changed."""
    for name in stale_figures(folder):
        find, draw = FIGURES[name]
        points = find()
        with matplotlib.rc_context(rc_params_from_file(_STYLE, False, False)):
            about = {"Description": values_of(points), "Software": None}
            draw(points).savefig(folder / f"{name}.png", dpi=200, metadata=about)
