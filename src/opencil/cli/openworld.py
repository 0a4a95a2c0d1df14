"""``opencil learn`` and ``opencil predict``: classifiers in files, from folders of images."""

import json
import warnings
from pathlib import Path
from typing import Any

from opencil.cli.flags import PLUGIN, Plugins, argument, completing, detector_names, option, switch
from opencil.cli.guard import importing
from opencil.cli.screen import borderless_table, print_line, print_table
from opencil.errors import BadInput
from opencil.registry import BACKBONES, LEARNERS

_MODEL = option("FILE", "File of the classifier, as birds.opencil.", ..., "--model")
_learners = completing(LEARNERS.names)
_NEW = "New classifier: "


def learn(
    folder: Path = argument("FOLDER", "Folder with a folder of images for each class."),
    model: Path = _MODEL,
    reject: float | None = option("SHARE", f"{_NEW}share of known images to reject.", show_default="0.05"),
    learner: str | None = option("NAME", f"{_NEW}its head.", complete=_learners, show_default="ranpac"),
    detector: str | None = option(
        "NAME", f"{_NEW}its score.", complete=detector_names, show_default="combined@shared"
    ),
    backbone: str | None = option(
        "NAME",
        f"{_NEW}network with published weights.",
        complete=completing(BACKBONES.names),
        show_default="efficientnet-lite0",
    ),
    per: str | None = option("all|class|task", f"{_NEW}a threshold for each.", show_default="all"),
    device: str = option("NAME", "cpu, cuda …", "cpu"),
    _plugin: Plugins = PLUGIN,
) -> None:
    """Learn the classes in a folder: create the classifier, or add to what it has learned.

    Images that were learned before are not needed again.
    """
    given = {"reject": reject, "learner": learner, "detector": detector, "backbone": backbone, "per": per}
    values: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    with importing():
        from opencil.openworld.classifier import OpenWorldClassifier
    if values and model.exists():
        raise BadInput(f"{model} exists, and keeps its values: leave --{next(iter(values))} out")
    new = not model.exists()
    classifier = OpenWorldClassifier(**values, device=device) if new else _load(model, device)
    before = [] if new else classifier.classes_
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the promise is printed below
        classifier.learn(folder, progress=True)
    classifier.save(model)
    added = len(classifier.classes_) - len(before)
    print_line(f"{model}: {len(classifier.classes_)} classes, {added} of them new", "good")
    holds, promise = classifier.calibration_.promise(classifier.reject)
    print_line(promise, "" if holds else "note")


def predict(
    folder: Path = argument("FOLDER", "Folder of images, or an image."),
    model: Path = _MODEL,
    out: Path | None = option("FILE.csv", "Write predictions to a file, not to the screen."),
    monitor: bool = switch("--monitor", "Compare the images with those of calibration."),
    prometheus: Path | None = option("FILE.prom", "Write this comparison as text for Prometheus."),
    device: str = option("NAME", "cpu, cuda …", "cpu"),
    _plugin: Plugins = PLUGIN,
) -> None:
    """Predict the class of each image, or unknown.

    Images that cannot be read are noted, and the others are predicted.
    """
    from opencil.files import write_text

    with importing():
        classifier = _load(model, device)
    found = classifier.predict(folder, progress=True)
    best = [json.dumps(names, ensure_ascii=False) for names in found["best"]]
    table = found.assign(best=best)
    if out is None:
        shown = borderless_table("file", "label", "p_value", "best")
        for row in found.itertuples():
            p_value = row.note or f"{row.p_value:.3f}"
            shown.add_row(*map(_plain, (row.file, row.label, p_value, " · ".join(row.best))))
        print_table(shown)
    else:
        write_text(out, table.to_csv(index=False))
        unknown, unreadable = (found["label"] == "unknown").sum(), (found["note"] != "").sum()
        print_line(f"{out}: {len(found)} images, {unknown} of them unknown, {unreadable} unreadable", "good")
    if not (monitor or prometheus):
        return
    report = classifier.report(found)
    if prometheus is not None:
        write_text(prometheus, report.prometheus())
    if monitor:
        shown = borderless_table("measure", "class", "value")
        for measure, name, value in report.table.itertuples(index=False):
            shown.add_row(measure, _plain(name), f"{value:.4g}")
        print_table(shown)


def _load(model: Path, device: str) -> Any:
    from opencil.openworld.classifier import OpenWorldClassifier

    return OpenWorldClassifier.load(model, device=device)


def _plain(text: str) -> str:
    """Return a name from a file as it may be printed: without control characters or markup."""
    from rich.markup import escape

    from opencil.errors import one_line

    return escape(one_line(text))
