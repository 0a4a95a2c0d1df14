"""Load published figures: the paper's, with its contradictions, and accuracies of a survey of CIL."""

from importlib import resources

import pandas as pd

from opencil.study.rows import COLUMNS

#: The OOD datasets of the paper's two tracks, as this project names them.
OOD: dict[str, dict[str, tuple[str, ...]]] = {
    "cifar100": {"near": ("cifar10", "tin"), "far": ("mnist", "texture", "svhn", "places365")},
    "imagenet1k": {
        "near": ("imagenet-o", "inaturalist", "openimage-o", "species"),
        "far": ("mnist", "texture"),
    },
}
#: Largest difference of a printed mean from the mean of its parts, which are rounded to 0.01 percent.
TOLERANCE = 0.0005

#: The source of ``published_survey``.
SURVEY = "Zhou et al., Class-Incremental Learning: A Survey, TPAMI 2024, https://arxiv.org/abs/2302.03648"
#: Methods with another accuracy in the survey than their head's, and its name in rows.
SURVEY_ACCURACY = {"icarl": "accuracy_nearest_mean"}

_CELL = ["benchmark", "k", "cil", "detector", "metric"]


def published_results() -> pd.DataFrame:
    """Return the 3,096 figures of the paper's result tables, in the columns and units of rows.

    ``value`` is a fraction. They are means over steps and datasets, so ``step`` is 0, ``ood`` is empty, and
    ``distance`` is near, far or all, the mean over both; ``detector`` and ``distance`` are empty in rows of
    accuracy. ``seed`` is 0: the paper has one run. A last column, ``table``, says where each is printed.
    """
    return _as_rows(_read("results.csv"))


def published_ablation() -> pd.DataFrame:
    """Return the 48 figures per OOD dataset of the paper's ablation (iCaRL on CIFAR-100, k = 10), as rows.

    Columns as of ``published_results``; ``ood`` is the dataset. ``ber@nter`` and ``ber@oter`` are BER with
    one of its two parts.
    """
    figures = _read("ablation.csv")
    roles = {name: split for ood in OOD.values() for split, names in ood.items() for name in names}
    return _as_rows(figures.assign(distance=figures["ood"].map(roles)))


def in_percent(values: "pd.Series[float]") -> "pd.Series[float]":
    """Return fractions as the paper prints them: in percent, with two digits."""
    return (100 * values).round(2)


def published_survey() -> pd.DataFrame:
    """Return the 240 accuracies of 14 CIL methods on CIFAR-100 from ``SURVEY``, in percent.

    Columns: split, cil, step, classes, metric, value. Split ``b0-10`` is our k = 10, ``b50-10`` our 50+10.
    ``metric`` is accuracy (of a step, after so many classes), average_accuracy or last_accuracy, with step
    and classes 0. ResNet-32, 2,000 exemplars, our order of classes; training images are brightened or
    darkened besides, by up to 63/255.
    """
    table = _read("survey.csv")
    return table.assign(**{name: table[name].replace("", 0).astype(int) for name in ("step", "classes")})


def recomputed_means(figures: pd.DataFrame) -> "pd.Series[float]":
    """Compute the mean over datasets from near and far figures; NaN for rows of other splits than all.

    With n near and m far datasets it is (n · near + m · far) / (n + m).
    """
    parts = figures.pivot_table(index=_CELL, columns="distance", values="value")
    names = parts.index.get_level_values("benchmark")
    near, far = (names.map({n: len(ood[split]) for n, ood in OOD.items()}) for split in ("near", "far"))
    mean = ((near * parts["near"] + far * parts["far"]) / (near + far)).rename("mean")
    means = figures.join(mean, on=_CELL)["mean"]
    return means.where(figures["distance"] == "all")


def contradictory(figures: pd.DataFrame) -> "pd.Series[bool]":
    """Mark the means of ``published_results`` that their own near and far figures contradict."""
    return (figures["value"] - recomputed_means(figures)).abs() > TOLERANCE


def _as_rows(figures: pd.DataFrame) -> pd.DataFrame:
    """Return printed figures, in percent, in the form of rows."""
    values = {"seed": 0, "step": 0, "ood": "", "task": 0} | {name: figures[name] for name in figures}
    return pd.DataFrame(values | {"value": (figures["value"] / 100).round(4)})[[*COLUMNS, "table"]]


def _read(name: str) -> pd.DataFrame:
    with (resources.files("opencil.published") / name).open(encoding="utf-8") as file:
        return pd.read_csv(file, keep_default_na=False, dtype={"value": float})
