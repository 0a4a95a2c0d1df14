"""The page of runs under way, kept up to date."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from opencil.errors import OpenCILError
from opencil.report.figures.chosen import Choice
from opencil.report.figures.drawing import figures
from opencil.report.writing import write_page
from opencil.study.study import Study


def watch(
    read: Callable[[], Study], path: Path, choice: Choice, every: float, say: Callable[[str], None]
) -> Study:
    """Write the page again and again until every run is done, or until somebody has seen enough.

    Meanwhile it has no figures, which take seconds to draw. Runs that cannot be read now may be readable in a
    moment: that is said, and tried again. The last page does not load itself anew any more, however the
    watching ended; the study that it shows is handed on.
    """
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
        write_page(study, path, figures(study, choice))
    except BaseException:
        with contextlib.suppress(OSError, OpenCILError):
            write_page(study, path)
        raise
    say(f"{ending}: {path}")
    return study


def _read_again(read: Callable[[], Study], before: Study) -> tuple[Study, str]:
    """What there is now; or what there was before, and why it is no more than that."""
    try:
        return read(), ""
    except (OpenCILError, OSError) as error:
        return before, f"the page shows what could be read last ({error})"


def progress(study: Study) -> str:
    """How far a study's runs are, in a few words."""
    done = sum(run["trained"] for run in study.runs)
    steps = sum(run["steps"] or 0 for run in study.runs)
    evaluated = sum(sum(run["detectors"].values()) for run in study.runs)
    wanted = sum(len(run["detectors"]) * (run["steps"] or 0) for run in study.runs)
    lost = f", damaged or lost: {'; '.join(study.problems)}" if study.problems else ""
    return f"{done} of {steps} steps trained, {evaluated} of {wanted} evaluations{lost}"
