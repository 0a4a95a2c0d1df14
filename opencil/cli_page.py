"""The pictures of ``opencil report``: figures, the HTML page, and the page kept up to date."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from opencil.errors import BadInput

if TYPE_CHECKING:  # imported where they are used, so that --help answers at once
    from opencil.report.figures import Choice
    from opencil.runs.study import Study


def choice_of(detectors: str | None) -> "Choice":
    """What figures show, from a flag's text: detectors with commas between them, or what they choose."""
    from opencil.report.figures import Choice

    names = (detectors or "").replace(",", " ").split()
    if detectors is not None and not names:
        raise BadInput(
            f"--figure-detectors {detectors!r} names nothing: allowed are detectors, as msp,energy"
        )
    return Choice(detectors=tuple(dict.fromkeys(names)))


def write_figures(study: "Study", folder: Path, choice: "Choice") -> int:
    """Write every figure as PNG and SVG; how many there are."""
    from opencil.report.figures import figures

    return sum(1 for figure in figures(study.rows, choice) if figure.save(folder))


def write_page(study: "Study", path: Path, choice: "Choice", refresh: float | None = None) -> None:
    """Write the page of a study; while it is refreshed it has no figures, which take seconds to draw."""
    from opencil.config import dump_yaml
    from opencil.report.figures import figures
    from opencil.report.page import page
    from opencil.runs.files import write_text

    runs = [{**run, "config": dump_yaml(run["config"])} for run in study.runs]
    drawn = figures(study.rows, choice) if refresh is None else ()
    text = page(study.rows, runs, figures=drawn, refresh=refresh)
    write_text(path, text)


def watch(
    read: Callable[[], "Study"], path: Path, choice: "Choice", every: float, say: Callable[[str], None]
) -> None:
    """Write the page again and again until every run is done, or until somebody has seen enough.

    The last page does not load itself anew any more, however the watching ended.
    """
    said = ""
    try:
        while not (study := read()).finished:
            write_page(study, path, choice, refresh=every)
            if (now := progress(study)) != said:
                say(f"{now}: {path}")
                said = now
            time.sleep(every)
        ending = "all runs are done"
    except KeyboardInterrupt:
        study, ending = read(), "stopped watching"
    write_page(study, path, choice)
    say(f"{ending}: {path}")


def progress(study: "Study") -> str:
    """How far a study's runs are, in a few words."""
    done = sum(run["trained"] for run in study.runs)
    steps = sum(run["steps"] or 0 for run in study.runs)
    evaluated = sum(sum(run["detectors"].values()) for run in study.runs)
    wanted = sum(len(run["detectors"]) * (run["steps"] or 0) for run in study.runs)
    return f"{done} of {steps} steps trained, {evaluated} of {wanted} evaluations"
