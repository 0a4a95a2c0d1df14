"""The heads of a step's fine-tuning detectors: stored heads are read, the others are tuned together."""

import logging
from collections.abc import Generator, Mapping
from typing import Any

import torch
from torch import Tensor

from opencil.detectors.finetune.tuner import Tuner, Tuning
from opencil.detectors.finetune.views import ViewSource
from opencil.engine.checkpoint import BadCheckpoint, Checkpoint
from opencil.engine.device import SideStream
from opencil.engine.loop import Progress
from opencil.engine.ranks import from_first
from opencil.files import Damaged, damaged
from opencil.runs.checkpoints import Checkpoints
from opencil.runs.store import Info, StepFolder, digest_values
from opencil.validation import plain

_log = logging.getLogger("opencil.runs")


def tune(
    tuners: Mapping[str, Tuner],
    source: ViewSource,
    stored: StepFolder,
    info: Info,
    checkpoint_seconds: float,
    problems: dict[str, Exception],
) -> Generator[Progress]:
    """Give each tuner its head, or add to ``problems`` why it has none.

    A stored head is read, a checkpoint is resumed. The others advance by an iteration in turn, so that they
    share the source's views; each iteration is yielded. Tuners whose heads are trained alike share one head.
    """
    alike: dict[str, list[str]] = {}
    for name, tuner in tuners.items():
        alike.setdefault(_identify(tuner, source, info), []).append(name)
    running: dict[str, Generator[Progress, None, dict[str, Tensor]]] = {}
    for made_of, names in alike.items():
        try:
            if (tensors := _stored_head(made_of, stored, info)) is not None:
                _share_head(tensors, names, made_of, tuners, source, stored, info)
            else:
                running[made_of] = _tune_head(tuners[names[0]], made_of, source, stored, checkpoint_seconds)
        except Exception as error:  # the other tuners go on
            problems.update(dict.fromkeys(names, error))
    # An iteration of a head is a row of kernels too small for a GPU: heads run side by side.
    sides = {made_of: SideStream(source.device) for made_of in running}
    try:
        while running:
            for made_of, turns in list(running.items()):
                names = alike[made_of]
                try:
                    with sides[made_of].active():
                        progress = next(turns)
                except StopIteration as end:
                    _share_head(end.value, names, made_of, tuners, source, stored, info)
                except Exception as error:
                    problems.update(dict.fromkeys(names, error))
                else:
                    yield progress
                    continue
                del running[made_of]
    finally:
        for turns in running.values():  # an interruption leaves all of them, each with a checkpoint
            turns.close()


def read_head(tuner: Tuner, source: ViewSource, stored: StepFolder, info: Info) -> None:
    """Give a tuner the head that is stored for it."""
    name = stored.head(tuner.registered_name)
    if info["heads"].get(tuner.registered_name) != _identify(tuner, source, info):
        raise damaged(stored.path / name, "it was tuned with other values, or on another model")
    _use_head(tuner, stored.tensors(name, info), source, stored)


def _use_head(tuner: Tuner, tensors: dict[str, Tensor], source: ViewSource, stored: StepFolder) -> None:
    head, path = tuner.head(source), stored.path / stored.head(tuner.registered_name)
    try:
        head.load_state_dict(tensors, strict=True)
    except RuntimeError as error:
        raise damaged(path, error) from None
    if not all(bool(torch.isfinite(p).all()) for p in head.parameters()):
        raise damaged(path, "its numbers are not finite")
    tuner.use(head)


def _stored_head(made_of: str, stored: StepFolder, info: Info) -> dict[str, Tensor] | None:
    """Return the head that is stored for a digest, under whatever label."""
    for name in [n for n, noted in info["heads"].items() if noted == made_of]:
        try:
            return stored.tensors(stored.head(name), info)
        except Damaged as error:
            _log.warning("%s; it is tuned again", error)
    return None


def _share_head(
    tensors: dict[str, Tensor],
    names: list[str],
    made_of: str,
    tuners: Mapping[str, Tuner],
    source: ViewSource,
    stored: StepFolder,
    info: Info,
) -> None:
    """Give a head to all tuners that share it, and store it for each.

    The file that is there may be damaged.
    """
    for name in names:
        _use_head(tuners[name], tensors, source, stored)
        stored.save_tensors(stored.head(name), tensors, info)
        info["heads"][name] = made_of
    stored.save_info(info)
    stored.remove_checkpoint(names[0])


def _tune_head(
    tuner: Tuner, made_of: str, source: ViewSource, stored: StepFolder, seconds: float
) -> Generator[Progress, None, dict[str, Tensor]]:
    """Tune a head from its checkpoint or its beginning, yielding each iteration; return its tensors."""
    name = tuner.registered_name
    checkpoints = Checkpoints(
        seconds, lambda tensors, _: stored.save_checkpoint(tensors, {"made_of": made_of}, head=name)
    )
    for resumed, _ in (from_first(resume_from, stored, made_of, name), (None, {})):
        tuning = Tuning(tuner, source)
        try:
            with checkpoints.stored_on_leaving():
                for progress in tuning.advance(resumed):
                    checkpoints.note(tuning.extra, progress)
                    yield progress
            break
        except BadCheckpoint as error:
            _log.warning("%s: %s; the head is tuned from its beginning", stored.checkpoint(name), error)
    head: dict[str, Tensor] = tuning.extra.head.state_dict()
    return head


def resume_from(stored: StepFolder, made_of: str, head: str = "") -> tuple[Checkpoint | None, dict[str, Any]]:
    """Return a training's checkpoint with its notes; nothing where there is none, or it is damaged."""
    try:
        if found := stored.read_checkpoint(made_of, head):
            return Checkpoint.from_tensors(found[0]), found[1]
    except (Damaged, BadCheckpoint) as error:
        _log.warning("%s: %s; the training starts from its beginning", stored.checkpoint(head), error)
    return None, {}


def _identify(tuner: Tuner, source: ViewSource, info: Info) -> str:
    """Return a digest of all that decides a head."""
    model = info["files"]["model.safetensors"]
    return digest_values(
        [tuner.trained_as, tuner.training_values, model, source.seed, plain(source.arithmetic)]
    )
