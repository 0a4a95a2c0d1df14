"""The page passes axe-core's checks, on a desktop and on a phone, in light and in dark.

``axe/`` has axe-core 4.14.0 of Deque Systems as it is published on npm, under the Mozilla Public License 2.0,
which lies beside it; nothing of the package uses it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from opencil.report.figures.drawing import figures
from opencil.report.statistics import statistics_tables
from opencil.study.study import Study

Rows = Callable[..., pd.DataFrame]
AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text(encoding="utf-8")
#: Nothing covers anything, so that every contrast can be measured: neither scrolled away nor below a panel.
SPREAD = """document.head.append(Object.assign(document.createElement("style"), {
    textContent: `* { position: static !important; max-height: none !important; }
        .explore { display: block !important; }` }))"""


@pytest.fixture
def study(
    made_up: Rows,
    with_shifted: Callable[[pd.DataFrame], pd.DataFrame],
    record: Callable[..., dict[str, Any]],
) -> Study:
    """Two CIL models and six detectors, one with a variant, some of it unfinished."""
    names = ("msp", "energy", "gen", "vos", "ber", "ber@nter")
    rows = pd.concat([made_up(cil=cil, detectors=names, entropy=i) for i, cil in enumerate(("icarl", "wa"))])
    rows = with_shifted(rows[~((rows["cil"] == "wa") & (rows["detector"] == "gen") & (rows["step"] > 2))])
    progress = [
        record(cil=c, seed=s, detectors=dict.fromkeys(names, 4)) for c in ("icarl", "wa") for s in (0, 1, 2)
    ]
    progress[-1] |= {"trained": 2, "detectors": {"msp": 0, "gen": 2}}
    return Study(rows, progress)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing(show: Callable[..., Any], study: Study, width: int, theme: str) -> None:
    some = study.rows[(study.rows["cil"] == "icarl") & (study.rows["detector"].isin(["", "msp", "energy"]))]
    browser = show(
        study.rows,
        study.runs,
        width,
        f"#theme={theme}&variants=yes&detector=ber&detector=ber%40nter&detector=gen",
        figures=list(figures(Study(some)))[:2],
        tables=statistics_tables(study),
    )
    browser.evaluate("document.querySelectorAll('details:not([name])').forEach(d => { d.open = true; })")
    browser.evaluate(f"{AXE}; {SPREAD}")
    found = browser.evaluate("axe.run()")
    assert violations(found) == []
    assert len(found["passes"]) > 25
    unsure = [node["html"] for rule in found["incomplete"] for node in rule["nodes"] if width > 600]
    assert [html for html in unsure if not html.startswith("<text")] == []  # the chart's: over its lines
    browser.evaluate("document.querySelector('details[data-name=detector]').open = true")
    assert violations(browser.evaluate("axe.run()")) == []


def violations(found: Any) -> list[Any]:
    return [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found["violations"]]
