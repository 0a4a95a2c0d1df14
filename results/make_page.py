"""The study's tables and its page, from rows: ``python -m results.make_page``.

``study/tables.md`` is checked by the tests; ``study/index.html`` says when it was made. To stay small, the
page leaves out metrics under other conventions and most figures: ``opencil report results/study --html FILE``
has them.
"""

from dataclasses import replace

from opencil import Study
from opencil.atomic_files import write_text
from opencil.report.compare import comparison_tables
from opencil.report.figures.chosen import Choice
from opencil.report.figures.drawing import Figure, figures
from opencil.report.layout import Block, Column, Table, words
from opencil.report.statistics import statistics_tables
from opencil.report.survey import survey_tables
from opencil.report.writing import chosen_tables, write_page
from results.claims_page import claims_table
from results.measured import CIL, HERE, SIXTEEN, study
from results.study_page import NAMED, cost_table, distance_table

#: Metrics under other conventions, or of a threshold alone.
LEFT_OUT = ("ap_id_positive", "fpr_ood_positive", "fpr_old", "fpr_new", "accuracy_with_rejection")
#: How models compare, detectors on each of them, and what iCaRL's confidence does.
DRAWN = ("fig3a", "accuracy-auc", "fig1a", "fig1b-icarl", "fig1c-icarl", "old-new-icarl")
DETECTORS = ("energy", "nnguide", "npos", "ber")


def of_all_seeds(of: Study) -> Study:
    """The paper's models and detectors, and named values of these: ranks are over what all detectors have."""
    names = {"", *SIXTEEN, *NAMED}
    rows = of.rows[of.rows["cil"].isin(CIL) & of.rows["detector"].isin(names)]
    runs = [run.copy() for run in of.runs if run["cil"] in CIL]
    for run in runs:
        run["detectors"] = {name: steps for name, steps in run["detectors"].items() if name in names}
    return replace(of, rows=rows, runs=runs)


def tables(every: Study) -> str:
    """The paper's tables, ours beside them, statistics, and accuracies beside the survey's, as Markdown."""
    of = of_all_seeds(every)
    made = chosen_tables(of, ["main", "distance"])
    made += chosen_tables(of, [], compare="paper", statistics=True)
    return "\n".join(one.markdown() for one in [*made, *survey_tables(of)])


def drawn(of: Study) -> list[Figure]:
    """The figures of k = 10 that the page has."""
    ten = replace(of, rows=of.rows[of.rows["k"] == 10], runs=[run for run in of.runs if run["k"] == 10])
    return [
        one for one in figures(ten, Choice(DETECTORS)) if one.about.name.split("-k10-")[1].startswith(DRAWN)
    ]


def of_the_readme() -> list[Table]:
    """The claims, the distances from the paper and the costs, as the page has tables."""
    texts = {
        "claims": ("Which of the paper's claims hold, by differences", claims_table(models=())),
        "distances": ("Mean distance from the paper, in points", distance_table()),
        "costs": ("What it cost", cost_table()),
    }
    note = "What it means, and more of it, is told in results/README.md."
    return [from_markdown(name, title, text, note) for name, (title, text) in texts.items()]


def from_markdown(name: str, title: str, text: str, note: str) -> Table:
    """A Markdown table as one of a report; its first column has names."""
    head, _, *lines = (
        [cell.strip(" *").replace("**", "").replace("`", "") for cell in line[1:-1].split("|")]
        for line in text.splitlines()
    )
    columns = [Column(text, label=i == 0) for i, text in enumerate(head)]
    return Table(name, title, columns, [Block([list(map(words, line)) for line in lines])], [note])


def main() -> None:
    """Write both."""
    of = study("study")
    write_text(HERE / "study" / "tables.md", tables(of))
    shown = replace(of, rows=of.rows[~of.rows["metric"].isin(LEFT_OUT)])
    four = of_all_seeds(of)
    made = [*of_the_readme(), *comparison_tables(four), *statistics_tables(four), *survey_tables(of)]
    write_page(shown, HERE / "study" / "index.html", drawn(of), tables=made)


if __name__ == "__main__":
    main()
