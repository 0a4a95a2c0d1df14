"""Make the study's tables and its page from rows: ``python -m results.make_page``.

The tests check ``study/tables.md``; ``study/index.html`` contains its time of creation. To stay small, the
page leaves out some metrics and most figures: ``opencil report results/study --html FILE`` has them all.
"""

from dataclasses import replace

from opencil import Study
from opencil.report.compare import comparison_tables, survey_tables
from opencil.report.figures.chosen import Choice
from opencil.report.figures.drawing import figures
from opencil.report.layout import Block, Column, Table, words
from opencil.report.statistics import statistics_tables
from opencil.report.writing import chosen_tables, write_page
from results.claims import claims
from results.rows import CIL, RESULTS, SIXTEEN, study
from results.tables import NAMED, agreement, costs

LEFT_OUT = ("ap_id_positive", "fpr_ood_positive", "fpr_old", "fpr_new", "accuracy_with_rejection")
DRAWN = ("fig3a", "accuracy-auc", "fig1a", "fig1b-icarl", "fig1c-icarl", "old-new-icarl")
DETECTORS = ("energy", "nnguide", "npos", "ber")


def of_all_seeds(of: Study) -> Study:
    """Return the part that all seeds have: the paper's models and detectors, and presets of these.

    Detectors are ranked over the cells that all of them have: a detector of one seed would leave only that.
    """
    names = {"", *SIXTEEN, *NAMED}
    rows = of.rows[of.rows["cil"].isin(CIL) & of.rows["detector"].isin(names)]
    runs = [run.copy() for run in of.runs if run["cil"] in CIL]
    for run in runs:
        run["detectors"] = {name: steps for name, steps in run["detectors"].items() if name in names}
    return replace(of, rows=rows, runs=runs)


def tables(every: Study) -> str:
    """Return the paper's tables, comparisons, statistics, and accuracies beside the survey's, as Markdown."""
    of = of_all_seeds(every)
    chosen = chosen_tables(of, ["main", "distance"])
    chosen += chosen_tables(of, [], compare="paper", statistics=True)
    return "\n".join(table.markdown() for table in [*chosen, *survey_tables(of)])


def from_markdown(name: str, title: str, text: str) -> Table:
    """Return a Markdown table as a table of a report."""
    head, _, *lines = (
        [cell.strip(" *").replace("**", "").replace("`", "") for cell in line[1:-1].split("|")]
        for line in text.splitlines()
    )
    columns = [Column(cell, label=i == 0) for i, cell in enumerate(head)]
    note = "results/README.md says what it means."
    return Table(name, title, columns, [Block([list(map(words, line)) for line in lines])], [note])


def main() -> None:
    """Write the tables and the page."""
    of = study()
    (RESULTS / "study" / "tables.md").write_text(tables(of), encoding="utf-8")
    shown = [
        from_markdown("claims", "Which of the paper's claims hold, by differences", claims(by_model=False)),
        from_markdown("agreement", "How near the AUCs are to the paper's", agreement()),
        from_markdown("costs", "What it cost", costs()),
    ]
    four = of_all_seeds(of)
    shown += [*comparison_tables(four), *statistics_tables(four), *survey_tables(of)]
    ten = replace(of, rows=of.rows[of.rows["k"] == 10], runs=[run for run in of.runs if run["k"] == 10])
    drawn = [
        figure
        for figure in figures(ten, Choice(DETECTORS))
        if figure.about.name.split("-k10-")[1].startswith(DRAWN)
    ]
    without = replace(of, rows=of.rows[~of.rows["metric"].isin(LEFT_OUT)])
    write_page(without, RESULTS / "study" / "index.html", drawn, tables=shown)


if __name__ == "__main__":
    main()
