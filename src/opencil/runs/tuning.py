"""The heads of a step's fine-tuning detectors: stored ones are read, the others are trained together."""

import hashlib
import json
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress

import torch
from torch import Tensor

from opencil.detectors.finetune.tuner import Tuner, Tuning
from opencil.detectors.finetune.views import ViewSource
from opencil.engine.checkpoint import BadCheckpoint, Checkpoint
from opencil.engine.device import SideStream
from opencil.engine.loop import Progress
from opencil.engine.ranks import Left, Stopped, at_work
from opencil.errors import OpenCILError
from opencil.runs import file_formats
from opencil.runs.checkpoints import Checkpoints
from opencil.runs.store import StepFolder
from opencil.seals import Damaged
from opencil.validation import plain

#: The tensors that some tuners go on from, by name; None: from their beginning.
Beginnings = dict[str, dict[str, Tensor] | None]


def tune(
    tuners: Mapping[str, Tuner],
    source: ViewSource,
    weights: str,
    stored: StepFolder,
    checkpoint_seconds: float,
    followed: Callable[[Beginnings], AbstractContextManager[object]] = nullcontext,
) -> Generator[Progress, None, dict[str, Exception]]:
    """Give each tuner its head; they advance by an iteration in turn, and each is yielded.

    ``weights`` identifies the source's model. A head that is stored under the same values is read, a
    checkpoint is gone on from. Tuners whose heads are trained alike have one: it is trained once. A tuner
    that has rows already lacks a metric: that is measured with the head that made the rows, or not at all.
    What is returned are the errors of those that could not be tuned. ``followed`` is the block in which other
    ranks tune the same.
    """
    identities = {name: _identity(tuner, source, weights) for name, tuner in tuners.items()}
    running: dict[str, _Tuning] = {}
    waiting: dict[str, list[str]] = {}  # for the head of another, by its name
    problems: dict[str, Exception] = {}
    for name, tuner in tuners.items():
        head, rows = stored.head(name), stored.detector_rows(name)
        try:
            made_of = file_formats.metadata(head)
            if rows.exists() and made_of is None:
                raise OpenCILError(f"its head is gone; delete {rows} to tune it again")
            if not _same(made_of, identities[name]) and not rows.exists():
                made_of = _copied(stored, name, identities[name])
            if made_of is not None:
                read_head(tuner, source, stored, weights)
        except OpenCILError as error:
            if rows.exists() or not isinstance(error, Damaged):
                problems[name] = error  # one tuner's trouble is not the others'
                continue
            file_formats.set_aside(head, error.reason)
        if tuner.learned:
            stored.head_checkpoint(name).unlink(missing_ok=True)  # a kill may have come between the two
            continue
        if alike := next((n for n in running if identities[n] == identities[name]), None):
            waiting.setdefault(alike, []).append(name)
            continue
        try:
            running[name] = _Tuning(tuner, source, stored, name, identities[name], checkpoint_seconds)
        except Exception as error:  # its checkpoint cannot be read
            problems[name] = error
    if not running:
        return problems
    try:
        with followed({name: tuning.beginning for name, tuning in running.items()}):
            for name, found in in_turns({name: tuning.next for name, tuning in running.items()}):
                if isinstance(found, Progress):
                    yield found
                    continue
                if found is not None:
                    problems[name] = found
                for other in waiting.get(name, ()):
                    if name in problems:
                        problems[other] = problems[name]
                    else:
                        _copied(stored, other, identities[other])
                        read_head(tuners[other], source, stored, weights)
    finally:
        for tuning in running.values():  # whoever leaves in the middle leaves all of them
            tuning.close()
    return problems


def in_turns(
    tunings: Mapping[str, Callable[[], Progress | None]],
) -> Iterator[tuple[str, Progress | Exception | None]]:
    """An iteration of each in turn, until each has ended, with None, or failed.

    One tuner's trouble is not the others'. On several ranks it is that tuner's on all of them.
    """
    left, ranks = dict(tunings), at_work()
    while left:
        for name, advance in list(left.items()):
            found: Progress | Exception | None
            try:
                found = advance()
                if ranks is not None:
                    ranks.meet(f"a turn of {name}")
            except Left:
                raise
            except Exception as error:
                found = error
                if ranks is not None and not isinstance(error, Stopped):
                    ranks.tell(error)
            if not isinstance(found, Progress):
                del left[name]
            yield name, found


def advancing(
    tuner: Tuner, source: ViewSource, checkpoint: dict[str, Tensor] | None
) -> Callable[[], Progress | None]:
    """What takes a turn at tuning a head of which nothing is stored: a follower's."""

    def run(tensors: dict[str, Tensor] | None) -> Iterator[Progress]:
        try:
            yield from Tuning(tuner, source).advance(_checkpoint(tensors))
        except BadCheckpoint:
            yield from run(None)

    turns, side = run(checkpoint), SideStream(source.device)

    def turn() -> Progress | None:
        with side.active():
            return next(turns, None)

    return turn


def _copied(stored: StepFolder, name: str, identity: dict[str, str]) -> dict[str, str] | None:
    """What is noted of a head under its own name, after one that is the same, of another label, was copied.

    None where there is no such head.
    """
    for path in sorted(stored.head(name).parent.glob(f"{name.partition('@')[0]}*.safetensors")):
        with suppress(Damaged):  # its own tuner's matter
            tensors, notes, _ = file_formats.read_checked(path)
            if _same(notes, identity) and not path.name.endswith(".checkpoint.safetensors"):
                file_formats.write_tensors(stored.head(name), tensors, identity)
                return notes
    return None


class _Tuning:
    """One tuner's training, its checkpoints and its head's file."""

    def __init__(
        self,
        tuner: Tuner,
        source: ViewSource,
        stored: StepFolder,
        name: str,
        identity: dict[str, str],
        checkpoint_seconds: float,
    ) -> None:
        self._head, self._checkpoint, self._identity = (
            stored.head(name),
            stored.head_checkpoint(name),
            identity,
        )
        self._checkpoints = Checkpoints(checkpoint_seconds, self._save)
        #: Of this very tuning, to go on from; None where there is none, or one of other values.
        self.beginning = self._stored_checkpoint()
        self._advance = self._run(tuner, source, self.beginning)
        # A head's iteration is a row of kernels too small for a GPU: those of several heads go side by side.
        self._side = SideStream(source.device)

    def next(self) -> Progress | None:
        """One iteration; None when the head is trained and stored."""
        with self._side.active():
            return next(self._advance, None)

    def close(self) -> None:
        """Leave it where it is."""
        self._advance.close()

    def _run(
        self, tuner: Tuner, source: ViewSource, tensors: dict[str, Tensor] | None
    ) -> Generator[Progress]:
        tuning = Tuning(tuner, source)
        try:
            with self._checkpoints.stored_on_leaving():
                for progress in tuning.advance(_checkpoint(tensors)):
                    self._checkpoints.note(tuning.extra, progress)
                    yield progress
        except BadCheckpoint as error:
            file_formats.set_aside(self._checkpoint, error)
            yield from self._run(tuner, source, None)
            return
        file_formats.write_tensors(self._head, tuning.extra.head.state_dict(), self._identity)
        self._checkpoint.unlink(missing_ok=True)
        tuner.use(tuning.extra.head)

    def _save(self, tensors: dict[str, Tensor]) -> None:
        file_formats.write_tensors(self._checkpoint, tensors, self._identity)

    def _stored_checkpoint(self) -> dict[str, Tensor] | None:
        if not _same(file_formats.metadata(self._checkpoint), self._identity):  # absent, or of other values
            return None
        return file_formats.read_tensors(self._checkpoint)


def _checkpoint(tensors: dict[str, Tensor] | None) -> Checkpoint | None:
    return None if tensors is None else Checkpoint.from_tensors(tensors)


def _identity(tuner: Tuner, source: ViewSource, weights: str) -> dict[str, str]:
    """What a head is of, for its file: a digest of all that decides it, and two of these by themselves."""
    parts = [tuner.trained_as, tuner.training_values, weights, source.seed, plain(source.arithmetic)]
    made_of = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return {"made_of": made_of, "detector": tuner.trained_as, "model": weights}


def _same(noted: dict[str, str] | None, identity: dict[str, str]) -> bool:
    return noted is not None and noted.get("made_of") == identity["made_of"]


def read_head(tuner: Tuner, source: ViewSource, stored: StepFolder, weights: str) -> None:
    """Give a tuner the head that is stored for it; ``weights`` identifies the model that it must be of."""
    head, path = tuner.head(source), stored.head(tuner.registered_name)
    tensors = stored.head_tensors(tuner.registered_name, weights, tuner.trained_as)
    try:
        head.load_state_dict(tensors, strict=True)
    except RuntimeError as error:
        raise file_formats.damaged(path, error) from None
    if not all(bool(torch.isfinite(p).all()) for p in head.parameters()):
        raise file_formats.damaged(path, "it holds numbers that are not finite")
    tuner.use(head)
