"""Tables are of all samples: rows of one task, and metrics that begin at step 2, leave them as they are."""

import pandas as pd

from opencil.report.averages import over_seeds, over_steps, per_step
from opencil.report.tables import summaries
from opencil.runs.store import COLUMNS


def row(
    step: int, detector: str, ood: str, distance: str, task: int, metric: str, value: float
) -> tuple[object, ...]:
    return ("toy", 2, "icarl", 0, step, detector, ood, distance, task, metric, value)


PLAIN = [
    made
    for step in (1, 2)
    for made in (
        row(step, "", "", "", 0, "accuracy", 0.5),
        row(step, "msp", "cats", "near", 0, "auc", 0.75),
        row(step, "msp", "dust", "far", 0, "auc", 0.25 * step),
    )
]
MORE = [
    row(1, "", "", "", 1, "accuracy", 0.9),
    row(2, "", "", "", 2, "accuracy", 0.1),
    row(2, "msp", "", "", 1, "confidence", 7.0),
    row(2, "msp", "cats", "near", 2, "confidence", 9.0),
    row(2, "msp", "cats", "near", 0, "auc_old", 0.4),
    row(2, "msp", "cats", "near", 0, "ood_as_new", 0.4),
]
ROWS, EXTENDED = pd.DataFrame(PLAIN, columns=COLUMNS), pd.DataFrame(PLAIN + MORE, columns=COLUMNS)


def test_tables_show_the_same_with_and_without_them() -> None:
    assert [s.markdown() for s in summaries(ROWS)] == [s.markdown() for s in summaries(EXTENDED)]
    assert "Unfinished" not in summaries(EXTENDED)[0].markdown()


def test_averages_leave_rows_of_one_task_out() -> None:
    for average in (per_step, over_steps, over_seeds):
        found = average(EXTENDED)
        assert "confidence" not in set(found["metric"])
        plain = found[found["metric"].isin(["auc", "accuracy"])].reset_index(drop=True)
        expected = average(ROWS)
        if average is per_step:
            expected = expected[expected["metric"] != "accuracy"]
        pd.testing.assert_frame_equal(plain, expected.reset_index(drop=True))


def test_metrics_that_begin_at_step_2_are_averaged_over_the_steps_that_have_them() -> None:
    found = over_steps(EXTENDED).set_index(["metric", "split"])
    assert found.loc[("auc_old", "near"), "value"] == 0.4
    assert found.loc[("auc_old", "near"), "steps"] == 1
