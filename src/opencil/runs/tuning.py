"""The heads of a step's fine-tuning detectors: stored heads are read, the others are tuned together."""

import logging
from collections.abc import Generator, Sequence

from torch import Tensor

from opencil.detectors.finetune.tuner import Tuner, Tuning
from opencil.detectors.finetune.views import ViewSource
from opencil.engine.device import SideStream
from opencil.engine.loop import Progress
from opencil.engine.ranks import LostRank
from opencil.errors import no_exits, one_line
from opencil.files import Damaged, damaged
from opencil.runs.checkpoints import Checkpoints
from opencil.runs.store import Info, StepFolder, digest_values
from opencil.validation import plain

_log = logging.getLogger("opencil.runs")


def tune(
    tuners: Sequence[Tuner],
    source: ViewSource,
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

    def make_head(made_of: str, same: list[Tuner]) -> Generator[Progress]:
        name = same[0].registered_name
        if (tensors := _read_stored(made_of, stored, info)) is None:
            tuning = Tuning(same[0], source)
            with Checkpoints(stored, made_of, seconds, name) as checkpoints:
                for progress in tuning.advance(checkpoints.resume):
                    checkpoints.note(tuning.extra, progress)
                    yield progress
            tensors = tuning.extra.head.state_dict()
        for tuner in same:
            _use_head(tuner, source, tensors)
            stored.save_tensors(stored.head(tuner.registered_name), tensors, info)
            info["heads"][tuner.registered_name] = made_of
        stored.save_info(info)
        stored.remove_checkpoint(name)

    alike: dict[str, list[Tuner]] = {}
    for tuner in tuners:
        alike.setdefault(_identify(tuner, source, info), []).append(tuner)
    # An iteration of a head is a row of kernels too small for a GPU: heads run side by side.
    running = {
        made_of: (make_head(made_of, same), SideStream(source.device)) for made_of, same in alike.items()
    }
    try:
        while running:
            for made_of, (iterations, side) in list(running.items()):
                try:
                    with side.active(), no_exits(LostRank):
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


def _read_stored(made_of: str, stored: StepFolder, info: Info) -> dict[str, Tensor] | None:
    """Return the stored head of a digest, under any label."""
    for name in [n for n, noted in info["heads"].items() if noted == made_of]:
        try:
            return stored.tensors(stored.head(name), info)
        except Damaged as error:
            _log.warning("%s", error)
    return None


def read_head(tuner: Tuner, source: ViewSource, stored: StepFolder, info: Info) -> None:
    """Give a tuner its stored head."""
    name = stored.head(tuner.registered_name)
    if info["heads"].get(tuner.registered_name) != _identify(tuner, source, info):
        raise damaged(stored.path / name, "it was tuned with other values, or on another model")
    try:
        _use_head(tuner, source, stored.tensors(name, info))
    except RuntimeError as error:
        raise damaged(stored.path / name, one_line(error)) from None


def _use_head(tuner: Tuner, source: ViewSource, tensors: dict[str, Tensor]) -> None:
    head = tuner.head(source)
    head.load_state_dict(tensors, strict=True)
    tuner.use(head)


def _identify(tuner: Tuner, source: ViewSource, info: Info) -> str:
    """Return a digest of all values behind a head."""
    of_model = info["files"]["model.safetensors"], source.seed, plain(source.arithmetic)
    return digest_values([tuner.trained_as, tuner.training_values, *of_model])
