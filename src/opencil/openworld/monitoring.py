"""Compare a window of predictions with calibration, as a table and as text for Prometheus."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from opencil.openworld.fitting import UNKNOWN

_HELP = {
    "images": "images in the window",
    "unreadable": "images that could not be read",
    "rejected": "share of images that are unknown",
    "expected": "share of images of known classes that may be rejected",
    "ks_statistic": "largest distance between the distributions of scores here and in calibration",
    "ks_p_value": "probability of such a distance if images are like those of calibration",
    "share": "share of images predicted as a class",
}


@dataclass(frozen=True)
class Report:
    """A window of ``predictions`` beside the ``calibration`` scores of held-out images.

    A small ``ks_p_value`` says that the window has other images than were learned: another camera, other
    classes, or another mix of classes.
    """

    predictions: pd.DataFrame
    calibration: "np.ndarray[Any, Any]"
    classes: tuple[str, ...]
    reject: float

    @property
    def table(self) -> pd.DataFrame:
        """Return measures with their values; the share of each class has the class beside it."""
        from scipy.stats import ks_2samp

        read = self.predictions[self.predictions["label"] != ""]
        rows: list[tuple[str, str, float]] = [
            ("images", "", len(read)),
            ("unreadable", "", len(self.predictions) - len(read)),
            ("expected", "", self.reject),
        ]
        if len(read):
            test = ks_2samp(read["score"].to_numpy(float), self.calibration)
            shares = read["label"].value_counts(normalize=True)
            rows += [
                ("rejected", "", float(shares.get(UNKNOWN, 0.0))),
                ("ks_statistic", "", float(test.statistic)),
                ("ks_p_value", "", float(test.pvalue)),
                *(("share", name, float(shares.get(name, 0.0))) for name in self.classes),
            ]
        return pd.DataFrame(rows, columns=["measure", "class", "value"])

    def prometheus(self) -> str:
        """Return the table in Prometheus's text format, each measure as a gauge."""
        lines = []
        for measure, rows in self.table.groupby("measure", sort=False):
            lines += [f"# HELP opencil_{measure} {_HELP[str(measure)]}", f"# TYPE opencil_{measure} gauge"]
            for name, value in zip(rows["class"], rows["value"], strict=True):
                escaped = name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
                of_class = f'{{class="{escaped}"}}' if measure == "share" else ""
                lines.append(f"opencil_{measure}{of_class} {value:.10g}")
        return "\n".join(lines) + "\n"

    def __str__(self) -> str:
        return self.table.to_string(index=False)
