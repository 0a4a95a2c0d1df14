"""``opencil check`` and ``opencil doctor``: try a plugin's contracts, and whether runs would work here."""

from itertools import groupby
from pathlib import Path

from rich.text import Text

from opencil.cli.options import DATA_ROOT, PLUGIN, Plugins, argument, option
from opencil.cli.screen import print_line, screen
from opencil.errors import OpenCILError


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
    from opencil.testing.verdicts import Check, checks_of, checks_of_benchmark, verdict

    checks: list[Check] = []
    plugins = dict.fromkeys(file for file in files if not file.endswith((".yml", ".yaml")))
    with screen.status("importing"):
        for file in files:
            if file not in plugins:
                config = resolve(read_yaml(Path(file)))
                checks += checks_of_benchmark(config)
                plugins |= dict.fromkeys(config.plugins)
        root = Path(data_root) if data_root else None
        checks += [check for plugin in plugins for check in checks_of(plugin, root, image_size)]
    width, done, failed = max(len(check.name) for check in checks), 0, 0
    for subject, same in groupby(checks, lambda check: check.subject):
        print_line(subject, style="bold")
        for check in same:
            done += 1
            name = check.name.replace("_", " ")
            if check.left_out:
                print_line(f"{name:{width}}  {check.left_out}", "left out", indent=2)
                continue
            with screen.status(Text(f"{done} of {len(checks)}: {subject}, {name}")):
                ended = verdict(check)
            failed += bool(ended.problem)
            mark = "bad" if ended.problem else "good"
            print_line(f"{name:{width}}  {ended.problem or check.promise}", mark, indent=2)
            for frame in ended.frames:
                print_line(frame, indent=width + 6)
    tried = sum(not check.left_out for check in checks)
    if failed:
        raise OpenCILError(f"{failed} of {tried} checks failed")
    left = f", {len(checks) - tried} left out" if tried < len(checks) else ""
    print_line(f"all {tried} checks passed{left}")


def doctor(
    data_root: str | None = DATA_ROOT,
    runs: str = option("DIR", "Folder that runs are stored in.", "runs"),
    _plugin: Plugins = PLUGIN,
) -> None:
    """Look at versions, devices, memory, data and folders, and say what to do.

    Exit code 0: 'opencil run --benchmark digits' would work. 1: it would not.

    Lines with ! are about what other runs may need.
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
