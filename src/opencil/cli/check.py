"""``opencil check`` and ``opencil doctor``: try a plugin's contracts, and whether runs would work here."""

import traceback
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from rich.text import Text

from opencil.cli.flags import DATA_ROOT, PLUGIN, Plugins, argument, option
from opencil.cli.screen import print_line, screen
from opencil.errors import BadInput, OpenCILError, no_exits
from opencil.plugins import import_plugin
from opencil.registry import BACKBONES, DATASETS, DETECTORS, LEARNERS, METRICS


class Check(NamedTuple):
    """A check of one subject, such as ``detector margin``, from a file if it is a plugin's."""

    subject: str
    name: str
    call: "partial[None]"
    file: str | None = None

    def run(self) -> tuple[str, list[str]]:
        """Run the check; return the problem, '' if it passes, and the places in the file, innermost last."""
        try:
            with no_exits():
                self.call()
        except Exception as error:
            kind = "it is refused" if isinstance(error, OpenCILError) else type(error).__name__
            broken = isinstance(error, AssertionError) and str(error)
            return broken or f"{kind}: {error}".removesuffix(": "), _places(error, self.file)
        return "", []


def check(
    files: list[str] = argument("FILE.py", "Python files, modules, or a YML with plugins."),
    data_root: str | None = DATA_ROOT,
    image_size: int = option("PIXELS", "Side of the images to try backbones and datasets on.", 32, min=1),
    _plugin: Plugins = PLUGIN,
) -> None:
    """Try what a file registers: detectors, CIL methods, backbones, datasets, metrics.

    Every check has a line, and a failed one has a reason and the places in your file. Exit code 0: all
    checks passed. 1: some failed.
    """
    from opencil.config import read_yaml, resolve
    from opencil.testing import BENCHMARK_CHECKS

    checks: list[Check] = []
    plugins = dict.fromkeys(file for file in files if not file.endswith((".yml", ".yaml")))
    with screen.status("importing"):
        for file in (file for file in files if file not in plugins):
            config = resolve(read_yaml(Path(file)))
            subject = f"benchmark {config.benchmark.name}"
            checks += [Check(subject, key, partial(call, config)) for key, call in BENCHMARK_CHECKS.items()]
            plugins |= dict.fromkeys(config.plugins)
        root = Path(data_root) if data_root else None
        checks += [check for plugin in plugins for check in checks_of(plugin, root, image_size)]
    width, failed, subject, said = max(len(check.name) for check in checks), 0, "", set[str]()
    for number, check in enumerate(checks, 1):
        if subject != check.subject:
            print_line(subject := check.subject, style="bold")
            said.clear()
        name, promise = check.name.replace("_", " "), (check.call.func.__doc__ or "").replace("``", "")
        with screen.status(Text(f"{number} of {len(checks)}: {subject}, {name}")):
            problem, places = check.run()
        failed += bool(problem)
        text = "as above" if problem in said else problem or promise
        print_line(f"{name:{width}}  {text}", "bad" if problem else "good", indent=2)
        for place in places if problem not in said else ():
            print_line(place, indent=width + 6)
        said |= {problem} - {""}
    if failed:
        raise OpenCILError(f"{failed} of {len(checks)} checks failed")
    print_line(f"all {len(checks)} checks passed")


def checks_of(plugin: str, root: Path | None = None, side: int = 32) -> list[Check]:
    """Return the checks of everything a plugin registers; import the plugin if necessary."""
    from opencil import testing

    own = import_plugin(plugin)
    contracts = {
        LEARNERS: (testing.LEARNER_CHECKS, ()),
        DETECTORS: (testing.DETECTOR_CHECKS, ()),
        DATASETS: (testing.DATASET_CHECKS, (root, side)),
        BACKBONES: (testing.BACKBONE_CHECKS, (side,)),
        METRICS: (testing.METRIC_CHECKS, ()),
    }
    found = []
    registered = [(r, name) for r in contracts for name in r.names() if r.plugin_of(name) == own.name]
    for registry, name in registered:
        checks, values = contracts[registry]
        subject, file = f"{registry.kind} {name}", own.module.__file__
        found += [Check(subject, key, partial(call, name, *values), file) for key, call in checks.items()]
    if not found:
        raise BadInput(f"plugin {plugin} registers nothing: decorate its classes, as with register_detector")
    return found


def _places(error: BaseException, file: str | None) -> list[str]:
    """Return the last places in a file where an error and its causes were raised."""
    frames: list[traceback.FrameSummary] = []
    cause: BaseException | None = error
    while cause is not None:
        frames = [*traceback.extract_tb(cause.__traceback__), *frames]
        cause = cause.__cause__
    own = [frame for frame in frames if frame.filename == file]
    places = [f"{Path(f.filename).name}, line {f.lineno}, in {f.name}: {f.line}" for f in own]
    return list(dict.fromkeys(places))[-3:]


def doctor(
    data_root: str | None = DATA_ROOT,
    runs: str = option("DIR", "Folder that runs are stored in.", "runs"),
    _plugin: Plugins = PLUGIN,
) -> None:
    """Look at versions, devices, memory, data and folders, and say what to do.

    Exit code 0: 'opencil run --benchmark digits' would work. 1: it would not. Lines with ! are about others.
    """
    from opencil.runs.checkup import checkup

    bad = []
    for group, findings in groupby(checkup(data_root, runs), lambda finding: finding.group):
        print_line(group, style="bold")
        for finding in findings:
            print_line(f"{finding.name:<11} {finding.found}", finding.state, indent=2)
            if finding.advice:
                print_line(f"→ {finding.advice}", indent=16)
            bad += [finding.name] if finding.state == "bad" else []
    if bad:
        raise OpenCILError(f"runs would not work here: see {', '.join(bad)}, above")
    print_line("'opencil run --benchmark digits' would work")
