"""``opencil tune``: choose a detector's values on stored runs, without OOD data."""

from pathlib import Path
from typing import Any

from rich.text import Text

from opencil.cli.flags import DATA_ROOT, PLUGIN, RUNS, Plugins, completing, option
from opencil.cli.screen import borderless_table, print_line, print_table, problems
from opencil.errors import BadInput
from opencil.files import write_bytes
from opencil.registry import DETECTORS


def tune(
    folders: list[Path] = RUNS,
    detector: str = option("NAME", "Detector.", ..., complete=completing(DETECTORS.names)),
    tried: list[str] | None = option(
        "KEY=V,V", "Values to try; repeatable: every combination.", None, "--try", show_default="its labels"
    ),
    on: str = option("NAME", "future: test images of later classes; held-out: training images.", "future"),
    label: str = option("LABEL", "Label of the preset.", "tuned"),
    out: Path | None = option("FILE.yml", "File of the preset.", show_default="NAME@LABEL.yml"),
    data_root: str | None = DATA_ROOT,
    device: str = option("NAME", "auto, cpu, gpu, cuda:1 …", "auto"),
    _plugin: Plugins = PLUGIN,
) -> None:
    """Choose a detector's values on the models of stored runs, and write them as a preset.

    The best choice has the highest AUC of images of classes seen against classes of later steps, which the
    models have not learned yet. OOD sets are neither read nor accepted: they are what is reported on.
    Fine-tuning detectors train a head for each choice; the runs stay as they are.
    """
    import pandas as pd

    from opencil.config.yml import load
    from opencil.runs.choosing import describe, judge, list_choices, make_preset, rank_choices
    from opencil.runs.state import open_run
    from opencil.runs.store import find_runs

    name = f"{detector}@{label}"
    DETECTORS.entry(name)  # refuses unknown names and unusable labels
    out = out or Path(f"{name}.yml")
    if out.exists():
        raise BadInput(f"{out} is there already: name another file with --out, or delete it")
    values: dict[str, Any] = {}
    for text in tried or ():
        key, equals, several = text.partition("=")
        if not equals or not isinstance(found := load(f"[{several}]", f"--try {text!r}"), list) or not found:
            raise BadInput(f"--try {text!r} is not understood: values are needed, as alpha=0.1,0.01")
        values[key.strip()] = found
    choices, rows, models = list_choices(detector, values), [], dict[str, str]()
    runs = list(dict.fromkeys(run for folder in folders for run in find_runs(folder)))
    with problems.status("reading the runs") as status:
        for place, folder in enumerate(runs, 1):
            run = open_run(folder.path, data_root, device, ood=False)
            for step, number, auc in judge(run, detector, choices, on):
                rows.append((str(run.spec), step, number, auc))
                models[str(run.spec)] = run.weights(run.trained_steps[-1].number)[:16]
                at = f"run {place} of {len(runs)}, step {step}, choice {number + 1} of {len(choices)}"
                status.update(Text(at))
    table = pd.DataFrame(rows, columns=["run", "step", "choice", "auc"])
    shown = borderless_table("AUC", "lowest run", "values")
    for number, mean, least in rank_choices(table).itertuples():
        shown.add_row(f"{100 * mean:.2f}", f"{100 * least:.2f}", Text(describe(choices[number])))
    print_table(shown)
    write_bytes(out, make_preset(name, choices, table, models, on).encode())
    print_line(f"{out}: use it as opencil run {out} --detector {name} …")
