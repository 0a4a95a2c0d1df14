"""The heads of a step's fine-tuning detectors: stored heads are read, the others are tuned together."""

import logging
from collections.abc import Callable, Generator, Sequence

from torch import Tensor

from opencil.detectors.finetune.tuner import Tuner, Tuning
from opencil.detectors.finetune.views import ViewSource
from opencil.engine.device import SideStream
from opencil.engine.loop import BadCheckpoint, Progress
from opencil.errors import BadInput
from opencil.files import Damaged, damaged
from opencil.runs.checkpoints import Checkpoints
from opencil.runs.store import Info, StepFolder, digest_values
from opencil.validation import plain

_log = logging.getLogger("opencil.runs")


def tune(
    tuners: Sequence[Tuner],
    make_source: Callable[[], ViewSource],
    stored: StepFolder,
    info: Info,
    seconds: float,
    problems: dict[str, Exception],
) -> Generator[Progress]:
    """Give each tuner its head, or add to ``problems`` why it has none.

    A stored head is read, a checkpoint is resumed. The others advance by an iteration in turn, so that they
    share the source's views; each iteration is yielded. Tuners whose heads are trained alike share one head.
    A tuning is checkpointed at most every ``seconds``.
    """
    if not tuners:
        return
    try:
        source = make_source()
    except BadInput as refusal:
        problems.update((tuner.registered_name, refusal) for tuner in tuners)
        return
    alike: dict[str, list[Tuner]] = {}
    for tuner in tuners:
        alike.setdefault(_identify(tuner, source, info), []).append(tuner)
    # An iteration of a head is a row of kernels too small for a GPU: heads run side by side.
    running = {
        made_of: (_make_head(same, made_of, source, stored, info, seconds), SideStream(source.device))
        for made_of, same in alike.items()
    }
    try:
        while running:
            for made_of, (iterations, side) in list(running.items()):
                try:
                    with side.active():
                        progress = next(iterations, None)
                except Exception as error:  # the other tuners go on
                    problems.update((tuner.registered_name, error) for tuner in alike[made_of])
                    progress = None
                if progress is None:
                    del running[made_of]
                else:
                    yield progress
    finally:
        for iterations, _ in running.values():  # an interruption leaves all of them, each with a checkpoint
            iterations.close()


def _make_head(
    tuners: list[Tuner],
    made_of: str,
    source: ViewSource,
    stored: StepFolder,
    info: Info,
    seconds: float,
) -> Generator[Progress]:
    """Read or tune the common head of some tuners, yielding each iteration, and store it for each."""
    name = tuners[0].registered_name
    if (tensors := _read_stored(made_of, stored, info)) is None:
        tuning = Tuning(tuners[0], source)
        try:
            with Checkpoints(stored, made_of, seconds, name) as checkpoints:
                for progress in tuning.advance(checkpoints.resume):
                    checkpoints.note(tuning.extra, progress)
                    yield progress
        except BadCheckpoint as error:
            checkpoints.refuse(error)
            yield from _make_head(tuners, made_of, source, stored, info, seconds)
            return
        tensors = tuning.extra.head.state_dict()
    for tuner in tuners:
        _use_head(tuner, tensors, source, stored)
        stored.save_tensors(stored.head(tuner.registered_name), tensors, info)
        info["heads"][tuner.registered_name] = made_of
    stored.save_info(info)
    stored.remove_checkpoint(name)


def _read_stored(made_of: str, stored: StepFolder, info: Info) -> dict[str, Tensor] | None:
    """Return the stored head of a digest, under any label."""
    for name in [n for n, noted in info["heads"].items() if noted == made_of]:
        try:
            return stored.tensors(stored.head(name), info)
        except Damaged as error:
            _log.warning("%s; it is tuned again", error)
    return None


def read_head(tuner: Tuner, source: ViewSource, stored: StepFolder, info: Info) -> None:
    """Give a tuner its stored head."""
    name = stored.head(tuner.registered_name)
    if info["heads"].get(tuner.registered_name) != _identify(tuner, source, info):
        raise damaged(stored.path / name, "it was tuned with other values, or on another model")
    _use_head(tuner, stored.tensors(name, info), source, stored)


def _use_head(tuner: Tuner, tensors: dict[str, Tensor], source: ViewSource, stored: StepFolder) -> None:
    head = tuner.head(source)
    try:
        head.load_state_dict(tensors, strict=True)
    except RuntimeError as error:
        raise damaged(stored.path / stored.head(tuner.registered_name), error) from None
    tuner.use(head)


def _identify(tuner: Tuner, source: ViewSource, info: Info) -> str:
    """Return a digest of all values behind a head."""
    model = info["files"]["model.safetensors"]
    return digest_values(
        [tuner.trained_as, tuner.training_values, model, source.seed, plain(source.arithmetic)]
    )
