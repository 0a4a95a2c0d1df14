"""Events of runs."""

from dataclasses import dataclass

from opencil.engine.loop import Progress
from opencil.errors import OpenCILError
from opencil.runs.spec import RunSpec


@dataclass(frozen=True)
class Event:
    """Something happened in a run."""

    run: RunSpec


@dataclass(frozen=True)
class Training(Event):
    """One more training iteration of a step is done."""

    step: int
    steps: int
    progress: Progress


@dataclass(frozen=True)
class Evaluated(Event):
    """A detector's rows of a step are stored."""

    step: int
    steps: int
    detector: str


@dataclass(frozen=True)
class Finished(Event):
    """A run is complete; ``already``: nothing was left to do."""

    already: bool


@dataclass(frozen=True)
class Failed(Event):
    """A run stopped with an error; what it had stored stays, and other runs go on."""

    error: OpenCILError
    own_code: str = ""  #: traceback of an unexpected error, from the user's own code on


@dataclass(frozen=True)
class Lost(Event):
    """The worker of a run has ended; another worker resumes the run from where it is stored."""

    reason: str
