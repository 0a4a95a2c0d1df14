"""Start runs and get their results from Python, as ``cli`` does from the shell."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from opencil.config import Config, read_yaml, resolve
from opencil.errors import BadInput, OpenCILError, unknown
from opencil.plugins import describe_changed
from opencil.report.layout import Table
from opencil.report.tables import KINDS
from opencil.report.writing import chosen_tables
from opencil.runs.events import Failed, find_unexpected
from opencil.runs.foreign import Exemplars, GivenModels, Source, left_out, plan_foreign
from opencil.runs.launch import execute
from opencil.runs.launch import overwrite as overwrite_runs
from opencil.runs.loading import load
from opencil.runs.loggers import logging
from opencil.runs.reading import study_so_far
from opencil.runs.spec import RunSpec, plan_share
from opencil.runs.state import Run, open_run
from opencil.study.study import Study


def run(
    config: Config | Mapping[str, Any] | str | Path | None = None,
    *,
    settings: Iterable[str] = (),
    only: str | None = None,
    progress: bool = False,
    overwrite: bool = False,
    **sections: Any,
) -> "Results":
    """Train, evaluate and store the missing runs of a config; return the results.

    ``config`` is a config, a mapping, or the path of a YML. Keyword arguments are sections that override it:
    ``run(benchmark="digits", cil={"icarl": {"epochs": 2}}, detector="energy", seed=[0, 1])``. ``settings``
    are texts, as ``--set`` takes them. ``only="1/3"`` is the first of three shares of the runs, for machines
    that share a grid. ``progress`` draws bars in a terminal or a notebook. ``overwrite`` makes stored runs
    again that have other values than now, which are refused without it; of a detector, its rows alone.

    A failing run does not stop the others; an error at the end names each failed run with its reason.
    Finished steps are stored, and the same call resumes from there.
    """
    resolved, planned = _resolve_call(config, sections, settings), plan_share(only)
    if overwrite:
        overwrite_runs(resolved, planned(resolved))
    results = _carry_out(resolved, planned, progress)
    for sentence in describe_changed(results.study.runs):
        warnings.warn(sentence, stacklevel=2)
    return results


def evaluate_steps(
    models: Source,
    *,
    name: str,
    benchmark: str | Mapping[str, Any],
    k: int | str | None = None,
    seed: int = 0,
    detector: Any = None,
    memory: Exemplars = "herding",
    class_order: Sequence[int] | None = None,
    outputs: Literal["stream", "labels"] = "stream",
    settings: Iterable[str] = (),
    progress: bool = False,
    **sections: Any,
) -> "Results":
    """Evaluate models trained elsewhere, one for each step, by the whole protocol, as run ``name``.

    ``models`` is a list, an iterator, or a function of the step (``step.number`` from 1 on, ``step.seen``
    classes). Each is a model with ``features`` and ``classify``, one from ``opencil.wrap``, or a function
    from normalised images to logits, for detectors that read logits alone. ``k`` is the number of classes of
    a step, if not the benchmark's.

    A model has a logit for each class seen so far, in the class order. By default that is
    ``numpy.random.RandomState(1993).permutation(classes)``, as in most of the field, or
    ``class_order``: the dataset's labels as they were learned. With ``outputs="labels"`` the columns of a
    head are the dataset's labels, seen or not.

    ``memory`` says which exemplars detectors find: chosen by ``"herding"`` with the given models within the
    benchmark's budget, as for every method trained here; ``"none"``; or for each step the indices of the
    training images kept after it.

    Other keyword arguments are sections, as for ``opencil.run``. The run is stored and resumed like any
    other. It stores fingerprints of the models: another model for a step with rows is refused.
    """
    if "cil" in sections:
        raise BadInput("cil names methods that are trained here: models from elsewhere have a name alone")
    named: dict[str, Any] = dict(benchmark) if isinstance(benchmark, Mapping) else {"name": benchmark}
    named |= {} if k is None else {"classes_per_step": k}
    sections |= {"benchmark": named, "seed": seed, "detector": detector}
    config, given = _resolve_call(None, sections, settings), GivenModels(models)
    planned = partial(
        plan_foreign, name=name, models=given, memory=memory, class_order=class_order, outputs=outputs
    )
    planned(config)  # errors come before warnings
    for reason, names in left_out(config, memory).items():
        warnings.warn(f"{name} goes without {', '.join(names)}: {reason}", stacklevel=2)
    return _carry_out(config, planned, progress)


class Tables(tuple[Table, ...]):
    """Tables, printed as text and drawn in notebooks."""

    def __repr__(self) -> str:
        return "\n\n".join(map(str, self))

    def _repr_html_(self) -> str:
        return "\n".join(table.html() for table in self)


@dataclass(frozen=True, repr=False)
class Results:
    """The results of a config's runs, read from their folders.

    ``study`` has the rows of the chosen detectors and a record of each run.
    """

    config: Config
    folders: tuple[Path, ...]
    study: Study

    @property
    def rows(self) -> pd.DataFrame:
        """Return every measured value, one per row."""
        return self.study.rows

    def table(
        self,
        name: str = "summary",
        *,
        compare: Literal["paper", "survey"] | None = None,
        statistics: bool = False,
        extra: bool = False,
    ) -> Tables:
        """Return the report's tables of a kind: summary, main, distance, dataset or ablation; or ``all``.

        ``compare``, ``statistics`` and ``extra`` are the flags of ``opencil report``.
        """
        kinds = [kind for kind in KINDS if name in (kind, "all")]
        if not kinds:
            raise unknown("table", name, [*KINDS, "all"])
        if compare not in (None, "paper", "survey"):
            raise unknown("comparison", compare, ["paper", "survey"])
        return Tables(chosen_tables(self.study, kinds, compare=compare, statistics=statistics, extra=extra))

    @cached_property
    def runs(self) -> list[Run]:
        """Return the stored runs, opened, with models, memories and detectors of each step."""
        data = load(self.config)
        return [open_run(folder, data=data) for folder in self.folders]

    def __repr__(self) -> str:
        names = ", ".join(folder.as_posix() for folder in self.folders)
        return f"Results({len(self.rows)} rows of {names}: .rows, .table(), .runs)"

    def __str__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def _resolve_call(
    config: Config | Mapping[str, Any] | str | Path | None,
    sections: Mapping[str, Any],
    settings: Iterable[str],
) -> Config:
    """Return the config of a call."""
    settings = [settings] if isinstance(settings, str) else list(settings)
    if isinstance(config, Config):
        if sections or settings:
            changes = ", ".join([*sections, *["settings"] * bool(settings)])
            raise BadInput(f"{changes} cannot change a resolved config: pass them to opencil.resolve")
        return config
    if isinstance(config, str | Path):
        config = read_yaml(Path(config))
    elif not isinstance(config, Mapping | None):
        raise BadInput(f"config is {type(config).__name__}: a Config, a mapping or a path is expected")
    flags = {key: list(v) if isinstance(v, tuple | range) else v for key, v in sections.items()}
    return resolve(config, flags=flags, settings=settings)


def _carry_out(config: Config, planned: Callable[[Config], list[RunSpec]], progress: bool) -> Results:
    """Carry out all runs and return the results, or raise an error that names the runs that failed."""
    from rich.console import Console

    from opencil.cli import progress as bars

    specs, screen, failures = planned(config), Console(), list[Failed]()
    quiet = not (progress and (screen.is_terminal or screen.is_jupyter))
    # Closing releases the locks of runs at once where a notebook is interrupted.
    with (
        closing(execute(config, planned)) as events,
        logging(config.place) as write,
        bars.progress(screen, len(specs), quiet) as show,
    ):
        for event in events:
            show(event)
            write(event)
            if isinstance(event, Failed):
                failures.append(event)
    if errors := [failed.error for failed in failures]:
        text = "; ".join(f"{failed.run}: {failed.error}" for failed in failures)
        kind = BadInput if all(isinstance(error, BadInput) for error in errors) else OpenCILError
        text = f"{len(errors)} of {len(specs)} runs failed, and finished work is stored: {text}"
        raise kind(text) from find_unexpected(errors[0]) or errors[0]
    folders = tuple(Path(config.place.runs) / spec.folder for spec in specs)
    return Results(config, folders, study_so_far(folders, config.detector))
