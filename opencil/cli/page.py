"""The pictures of ``opencil report``: figures, the HTML page, and the page kept up to date."""

import contextlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from opencil.errors import BadInput, OpenCILError

if TYPE_CHECKING:  # imported where they are used, so that --help answers at once
    from opencil.report.figures import Choice, Figure
    from opencil.study.study import Study


def choice_of(detectors: str | None) -> "Choice":
    """What figures show, from a flag's text: detectors with commas between them, or what they choose."""
    from opencil.report.figures import Choice

    names = (detectors or "").replace(",", " ").split()
    if detectors is not None and not names:
        raise BadInput(
            f"--figure-detectors {detectors!r} names nothing: allowed are detectors, as msp,energy"
        )
    return Choice(detectors=tuple(dict.fromkeys(names)))


def draw(study: "Study", detectors: str | None) -> "list[Figure]":
    """Every figure of a study."""
    from opencil.report.figures import figures

    return list(figures(study.rows, choice_of(detectors)))


def write_page(
    study: "Study", path: Path, figures: "Iterable[Figure]" = (), refresh: float | None = None
) -> None:
    """Write the page of a study; with ``refresh`` it loads itself anew every so many seconds."""
    from opencil.atomic_files import write_text
    from opencil.report.page import known_differences, page

    differences = known_differences(study.rows, study.runs)
    text = page(study.rows, study.runs, figures=figures, differences=differences, refresh=refresh)
    write_text(path, text)


def watch(
    read: Callable[[], "Study"], path: Path, choice: "Choice", every: float, say: Callable[[str], None]
) -> "Study":
    """Write the page again and again until every run is done, or until somebody has seen enough.

    Meanwhile it has no figures, which take seconds to draw. Runs that cannot be read now may be readable in a
    moment: that is said, and tried again. The last page does not load itself anew any more, however the
    watching ended; the study that it shows is handed on.
    """
    from opencil.report.figures import figures

    study, problem, said = read(), "", ""
    try:
        try:
            while problem or not study.finished:
                write_page(study, path, refresh=every)
                now = problem or f"{progress(study)}: {path}"
                if now != said:
                    say(now)
                    said = now
                time.sleep(every)
                study, problem = _read_again(read, study)
            ending = "all runs are done"
        except KeyboardInterrupt:
            say("stopping: one last page")
            study, problem = _read_again(read, study)
            ending = problem or "stopped watching"
        write_page(study, path, figures(study.rows, choice))
    except BaseException:
        with contextlib.suppress(OSError, OpenCILError):
            write_page(study, path)
        raise
    say(f"{ending}: {path}")
    return study


def _read_again(read: Callable[[], "Study"], before: "Study") -> "tuple[Study, str]":
    """What there is now; or what there was before, and why it is no more than that."""
    try:
        return read(), ""
    except (OpenCILError, OSError) as error:
        return before, f"the page shows what could be read last ({error})"


def progress(study: "Study") -> str:
    """How far a study's runs are, in a few words."""
    done = sum(run["trained"] for run in study.runs)
    steps = sum(run["steps"] or 0 for run in study.runs)
    evaluated = sum(sum(run["detectors"].values()) for run in study.runs)
    wanted = sum(len(run["detectors"]) * (run["steps"] or 0) for run in study.runs)
    return f"{done} of {steps} steps trained, {evaluated} of {wanted} evaluations"
