"""The heads of a step's fine-tuning detectors: stored ones are read, the others are trained together."""

import hashlib
import json
import time
from collections.abc import Generator, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from opencil.detectors.finetune.tuner import Tuner, Tuning
from opencil.detectors.finetune.views import Source
from opencil.engine.checkpoint import BadCheckpoint, Checkpoint
from opencil.engine.loop import Progress
from opencil.errors import OpenCILError
from opencil.runs import files
from opencil.runs.store import StepFolder
from opencil.validation import plain


def tune(
    tuners: Mapping[str, Tuner], source: Source, weights: str, stored: StepFolder, checkpoint_seconds: float
) -> Generator[Progress, None, dict[str, OpenCILError]]:
    """Give each tuner its head, yielding after each round in which all have advanced by an iteration.

    ``weights`` identifies the source's model. A head that is stored under the same values is read, a
    checkpoint is gone on from. What is returned are the errors of those that could not be tuned.
    """
    identities = {name: _identity(tuner, source, weights) for name, tuner in tuners.items()}
    running, problems = {}, {}
    for name, tuner in tuners.items():
        if files.metadata(stored.head(name)) == identities[name]:
            read_head(tuner, source, stored.head(name))
            stored.head_checkpoint(name).unlink(missing_ok=True)  # a kill may have come between the two
        else:
            tuning = Tuning(tuner, source)
            running[name] = (tuning, tuning.advance(_checkpoint(stored, name, identities[name])))
    saved = time.monotonic()
    while running:
        rounds = {}
        for name, (tuning, advance) in list(running.items()):
            try:
                rounds[name] = next(advance)
            except StopIteration:
                files.write_tensors(stored.head(name), tuning.extra.head.state_dict(), identities[name])
                stored.head_checkpoint(name).unlink(missing_ok=True)
                tuning.tuner.use(tuning.extra.head)
                del running[name]
            except BadCheckpoint as error:
                raise files.damaged(stored.head_checkpoint(name), error) from None
            except OpenCILError as error:  # one tuner's trouble is not the others'
                problems[name] = error
                del running[name]
        if time.monotonic() - saved >= checkpoint_seconds and any(p.epoch_ends for p in rounds.values()):
            for name, progress in rounds.items():
                taken = Checkpoint.take(running[name][0].extra, progress)
                if progress.epoch_ends and taken.finite:
                    path = stored.head_checkpoint(name)
                    files.write_tensors(path, taken.tensors(), identities[name])
            saved = time.monotonic()
        if rounds:
            shown = next(iter(rounds.values()))
            heads = next(iter(rounds)) if len(rounds) == 1 else f"{len(rounds)} heads"
            yield replace(shown, stage=f"tune {heads}")
    return problems


def _identity(tuner: Tuner, source: Source, weights: str) -> dict[str, str]:
    """A digest of all that decides a head, for its file."""
    parts = [type(tuner).__name__, plain(tuner), weights, source.seed, plain(source.arithmetic)]
    return {"made_of": hashlib.sha256(json.dumps(parts).encode()).hexdigest()}


def read_head(tuner: Tuner, source: Source, path: Path) -> None:
    """Give a tuner the head that is stored for it."""
    head = source.extra_head()
    try:
        head.load_state_dict(files.read_tensors(path), strict=True)
    except RuntimeError as error:
        raise files.damaged(path, error) from None
    if not all(bool(torch.isfinite(p).all()) for p in head.parameters()):
        raise files.damaged(path, "it holds numbers that are not finite")
    tuner.use(head)


def _checkpoint(stored: StepFolder, name: str, identity: dict[str, str]) -> Checkpoint | None:
    path = stored.head_checkpoint(name)
    if files.metadata(path) != identity:  # absent, or of other values
        return None
    return Checkpoint.from_tensors(files.read_tensors(path))
