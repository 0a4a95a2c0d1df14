"""``opencil evaluate``: put models trained elsewhere through the whole protocol."""

import json
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from opencil.cli.flags import takes_config
from opencil.cli.options import argument, option
from opencil.cli.run import DRY_RUN, QUIET, carry_out
from opencil.cli.screen import print_note
from opencil.errors import BadInput, shown

if TYPE_CHECKING:  # imported where they are used, so that --help and --version answer at once
    from opencil.config import Config


def _evaluate(
    config: "Config",
    folder: Path = argument("FOLDER", "Folder with a file of weights for each step."),
    factory: str = option("FILE.py:NAME", "Makes a model: make(classes) or make(path, classes).", ...),
    name: str = option("NAME", "Name of the method, in folders and tables.", ...),
    memory: str = option("herding|none|FILE", "Exemplars: a JSON file has indices for each step.", "herding"),
    class_order: str | None = option("A,B|FILE", "Labels in the order of learning, or a JSON file."),
    outputs: Literal["stream", "labels"] = option(
        None, "Classes of a model's logits: those seen, in their order, or all labels.", "stream"
    ),
    dry_run: bool = DRY_RUN,
    quiet: bool = QUIET,
) -> None:
    """Evaluate models that were trained elsewhere, a file of weights for each step.

    They go through the whole protocol into a stored run, which every report reads.

    Files of weights are read as data, never as code. Called again, it resumes.
    """
    from opencil.runs.foreign import GivenModels, left_out, plan_foreign
    from opencil.runs.model_files import ModelFiles, find_factory

    models = GivenModels(ModelFiles(folder, find_factory(factory)))
    exemplars: Any = memory if memory in ("herding", "none") else _listed("--memory", memory)
    order = None if class_order is None else _listed("--class-order", class_order)
    planned = partial(
        plan_foreign, name=name, models=models, memory=exemplars, class_order=order, outputs=outputs
    )
    for reason, names in left_out(config, exemplars).items():
        print_note(f"{name} goes without {', '.join(names)}: {reason}")
    carry_out(config, planned, dry_run, quiet)


evaluate = takes_config(_evaluate, without=("cil", "epochs_scale", "pack", "jobs", "launcher", "address"))


def _listed(flag: str, text: str) -> list[Any]:
    """Return a flag's list: of a JSON file, or numbers with commas between them."""
    with suppress(OSError, ValueError, RecursionError):
        content = json.loads(Path(text).read_text(encoding="utf-8") if Path(text).is_file() else f"[{text}]")
        if isinstance(content, list):
            return content
    raise BadInput(f"{flag} {shown(text)} is not understood: a JSON file with a list is needed")
