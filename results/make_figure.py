"""Draw accuracy against AUC of learners, from scratch and on a frozen network.

    python -m results.make_figure    # writes pretrained.svg

A point is a learner at k = 10, seed 0: means over ten steps. Its AUC is that of the best score among MSP,
MaxLogit, Energy and GEN, over the OOD sets that both have.
"""

from matplotlib.figure import Figure

from opencil.files import write
from results.rows import CIL, RESULTS, mean, study, title
from results.tables import LEARNERS, LOGIT_SCORES


def points(folder: str, cils: list[str], sets: list[str]) -> list[tuple[str, float, float]]:
    """Return the name, accuracy and AUC of learners in published rows."""
    found = []
    for cil in cils:
        of = {"folder": folder, "cil": cil, "seed": 0}
        best = max(mean("auc", detector, ood=sets, **of) for detector in LOGIT_SCORES)
        found.append((title(cil), mean("accuracy", **of), best))
    return found


def main() -> None:
    """Write the figure."""
    rows = study("pretrained").rows
    sets = sorted(rows.query("metric == 'auc' and distance in ('near', 'far')")["ood"].unique())
    series = {
        "from scratch, ResNet-32": [*points("study", [*CIL], sets), *points("learners", [*LEARNERS], sets)],
        "frozen EfficientNet-Lite0": points("pretrained", sorted(rows["cil"].unique()), sets),
    }
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot(xlabel="accuracy, %", ylabel=f"AUC, %: best logit score, {len(sets)} OOD sets")
    for (label, found), marker in zip(series.items(), "os", strict=True):
        axes.scatter([x for _, x, _ in found], [y for *_, y in found], marker=marker, label=label, s=25)
        for name, x, y in found:
            axes.annotate(name, (x, y), (4, 3), textcoords="offset points", fontsize=7)
    axes.legend()
    write(
        RESULTS / "pretrained.svg", lambda path: figure.savefig(path, format="svg", metadata={"Date": None})
    )


if __name__ == "__main__":
    main()
