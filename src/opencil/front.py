"""The front door for Python, as ``cli`` is for the shell: ask for runs, get what they have come to."""

import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from opencil.config import Config, read_yaml, resolve
from opencil.errors import BadInput, OpenCILError, unknown
from opencil.plugins import outdated
from opencil.report.layout import Table
from opencil.report.tables import KINDS
from opencil.report.writing import chosen_tables
from opencil.runs.events import Event, Failed
from opencil.runs.failures import unforeseen
from opencil.runs.foreign import KeptImages, left_out, plan_foreign
from opencil.runs.given import GivenModels, Source
from opencil.runs.loading import load
from opencil.runs.plan import RunSpec
from opencil.runs.reading import study_so_far
from opencil.runs.run import Run, opened_run
from opencil.runs.runner import execute
from opencil.runs.shares import planned_share
from opencil.runs.tensorboard import training_curves
from opencil.study.study import Study

if TYPE_CHECKING:
    import pandas as pd


def run(
    config: Config | Mapping[str, Any] | str | Path | None = None,
    *,
    settings: Iterable[str] = (),
    only: str | None = None,
    progress: bool = False,
    **sections: Any,
) -> "Results":
    """Train, evaluate and store whatever is asked for and not done yet; what the runs have come to.

    ``config`` is a config, a mapping, or the path of a YML. Keyword arguments are sections, laid on it:
    ``run(benchmark="digits", cil={"icarl": {"epochs": 2}}, detector="energy", seed=[0, 1])``. ``settings``
    are texts, as ``--set`` takes them. ``only="1/3"`` is the first of three shares of the runs, for machines
    that share a grid. ``progress`` draws bars, where a terminal or a notebook shows them.

    A run that fails does not keep the others from going on; then an error names each of them with its reason.
    What was finished is stored, and the same call goes on from there.
    """
    resolved = _resolved(config, sections, settings)
    planned = planned_share(only)
    specs = planned(resolved)
    _carry_out(execute(resolved, planned), resolved, len(specs), progress)
    results = Results.of(resolved, specs)
    for sentence in outdated(results.study.runs):
        warnings.warn(sentence, stacklevel=2)
    return results


def evaluate_steps(
    models: Source,
    *,
    name: str,
    benchmark: str | Mapping[str, Any],
    k: int | str | None = None,
    seed: int = 0,
    detector: Any = "all",
    memory: KeptImages = "herding",
    class_order: Sequence[int] | None = None,
    outputs: Literal["stream", "labels"] = "stream",
    settings: Iterable[str] = (),
    progress: bool = False,
    **sections: Any,
) -> "Results":
    """Put models that were trained elsewhere, one for each step, through the whole protocol, as run ``name``.

    ``models`` is a list, an iterator, or a function of the step (``step.number`` from 1 on, ``step.seen``
    classes). Each is a model with ``features`` and ``classify``, one from ``opencil.wrap``, or a function
    from normalised images to logits, for detectors that read these alone. ``k`` is the number of classes that
    a step brings, if not the benchmark's.

    A model's logits are those of the classes seen so far, in the order that they came in. That order is the
    stream's, ``numpy.random.RandomState(1993).permutation(classes)`` as most of the field has it, or
    ``class_order``: the dataset's labels as they were learned. With ``outputs="labels"`` the columns of a
    head are the dataset's labels, seen or not.

    ``memory`` says which images detectors find as those that the method has kept: chosen by ``"herding"`` on
    the given models within the benchmark's budget, as for every method that is trained here; ``"none"``; or
    for each step the indices of the training images that were kept after it.

    Other keyword arguments are sections, as ``opencil.run`` takes them. The run is stored as any other and
    goes on where it stopped. Of the models it holds checksums: another one for a step with rows is refused.
    """
    if "cil" in sections:
        raise BadInput("cil is what is trained here: models from elsewhere are called by their name alone")
    named: dict[str, Any] = dict(benchmark) if isinstance(benchmark, Mapping) else {"name": benchmark}
    if k is not None:
        named["classes_per_step"] = k
    asked = {"benchmark": named, "seed": seed, "detector": detector}
    config, given = _resolved(None, sections | asked, settings), GivenModels(models)

    def planned(config: Config) -> list[RunSpec]:
        return [plan_foreign(config, name, given, memory, class_order, outputs)]

    specs = planned(config)
    for reason, names in left_out(config, memory).items():
        warnings.warn(f"{name} goes without {', '.join(names)}: {reason}", stacklevel=2)
    _carry_out(execute(config, planned), config, 1, progress)
    return Results.of(config, specs)


@dataclass(frozen=True, repr=False)
class Tables(Sequence[Table]):
    """Tables that print as a terminal shows them, and that notebooks draw."""

    tables: tuple[Table, ...]

    @overload
    def __getitem__(self, index: int) -> Table: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Table, ...]: ...
    def __getitem__(self, index: int | slice) -> Table | tuple[Table, ...]:
        return self.tables[index]

    def __len__(self) -> int:
        return len(self.tables)

    def __repr__(self) -> str:
        return "\n\n".join(map(str, self.tables))

    def _repr_html_(self) -> str:
        return "\n".join(table.html() for table in self.tables)


@dataclass(frozen=True, repr=False)
class Results:
    """What a config's runs have come to, read from their folders: nothing is computed again.

    ``study`` has the rows of the detectors that were asked for and a record of each run.
    """

    config: Config
    folders: tuple[Path, ...]
    study: Study

    @classmethod
    def of(cls, config: Config, specs: Sequence[RunSpec]) -> "Results":
        """Those of some of a config's runs, as far as they have come."""
        folders = tuple(Path(config.place.runs) / spec.folder for spec in specs)
        return cls(config, folders, study_so_far(folders, config.detector))

    @property
    def rows(self) -> "pd.DataFrame":
        """Every value that was measured, one a row."""
        return self.study.rows

    def table(
        self,
        name: str = "summary",
        *,
        compare: Literal["paper", "survey"] | None = None,
        statistics: bool = False,
        extra: bool = False,
    ) -> Tables:
        """The report's tables of a kind: summary, main, distance, dataset or ablation; or ``all`` of them.

        ``compare``, ``statistics`` and ``extra`` add what the flags of ``opencil report`` add.
        """
        kinds = [kind for kind in KINDS if name in (kind, "all")]
        if not kinds:
            raise unknown("table", name, [*KINDS, "all"])
        if compare not in (None, "paper", "survey"):
            raise unknown("comparison", compare, ["paper", "survey"])
        made = chosen_tables(self.study, kinds, compare=compare, statistics=statistics, extra=extra)
        return Tables(tuple(made))

    @cached_property
    def runs(self) -> list[Run]:
        """The stored runs, opened: models, memories and detectors of each step. They share their data."""
        data = load(self.config)
        return [opened_run(folder, self.config.place, data) for folder in self.folders]

    def __repr__(self) -> str:
        names = ", ".join(folder.as_posix() for folder in self.folders)
        return f"Results({len(self.rows)} rows of {names}: .rows, .table(), .runs)"

    def __str__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def _resolved(
    config: Config | Mapping[str, Any] | str | Path | None,
    sections: Mapping[str, Any],
    settings: Iterable[str],
) -> Config:
    """The config of a call."""
    settings = [settings] if isinstance(settings, str) else list(settings)
    if isinstance(config, Config):
        if sections or settings:
            raise BadInput(
                f"{', '.join([*sections, *['settings'] * bool(settings)])} cannot change a config that is "
                "resolved: give them to opencil.resolve, or a mapping or a YML in place of the config"
            )
        return config
    if isinstance(config, str | Path):
        config = read_yaml(Path(config))
    elif config is not None and not isinstance(config, Mapping):
        raise BadInput(
            f"config is {type(config).__name__}: a Config, a mapping or the path of a YML is needed"
        )
    flags = {key: list(v) if isinstance(v, tuple | range) else v for key, v in sections.items()}
    return resolve(config, flags=flags, settings=settings)


def _carry_out(events: Generator[Event], config: Config, runs: int, progress: bool) -> None:
    """Let runs come to their end; an error names those that failed, when all the others are done."""
    failures: list[Failed] = []
    # Whoever is interrupted, in a notebook say, has the runs' locks free again, and not when Python pleases.
    with closing(events), training_curves(config.place.tensorboard) as write, _bars(runs, progress) as show:
        for event in events:
            show(event)
            write(event)
            failures += [event] if isinstance(event, Failed) else []
    if failures:
        first = failures[0].error
        told = f"run {failures[0].run} failed, and what it had finished is stored: {first}"
        if runs > 1:
            told = f"{len(failures)} of {runs} runs failed, and what they had finished is stored:"
            told += "".join(f"\n  {failed.run}: {failed.error}" for failed in failures)
        kind = BadInput if all(isinstance(failed.error, BadInput) for failed in failures) else OpenCILError
        raise kind(told) from unforeseen([first]) or first


@contextmanager
def _bars(runs: int, wanted: bool) -> Iterator[Callable[[Event], None]]:
    """A function that shows events as the command line does, where there is a terminal or a notebook."""
    from rich.console import Console

    screen = Console()
    if not wanted or not (screen.is_terminal or screen.is_jupyter):
        yield lambda _: None
        return
    from opencil.cli.progress import progress

    with progress(screen, runs) as show:
        yield show
