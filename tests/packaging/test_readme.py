"""README.md and first steps are one session: they work, in order, in one folder, as a newcomer types them."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import opencil
from opencil.report.order import print_detector
from opencil.report.results import results
from opencil.report.statistics import find_answers

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
START = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
#: Language and text of the blocks that are run, in order; a comment above a block leaves it out. README's
#: Python is the last, because first steps make the environment that it needs.
(FIRST, *LAST), MIDDLE = (
    re.findall(r"(?<!-->\n)^```(bash|python)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    for page in (README, START)
)
BLOCKS = [FIRST, *MIDDLE, *LAST]
#: As typed, but for what would take minutes: trainings whose length is not given have one epoch, the demo has
#: one model and two detectors, and all is installed already.
QUICK = "--set 'cil.*.epochs=1' --set 'detector.*.schedule.epochs=1'"
FEWER = f"{QUICK} --cil icarl --detector msp,ber"
AS_TYPED = f"""
set -euo pipefail
trap 'echo "this failed: $BASH_COMMAND" >&2' ERR
opencil() {{
    case "$*" in
        *"--runs demo"* | "report demo"*) [ -d demo ] ;;  # make demo has done it
        *--set* | "run my.yml"*) command opencil "$@" ;;
        "run "* | "config "*) command opencil "$@" {QUICK} ;;
        *) command opencil "$@" ;;
    esac
}}
python3() {{ command python3 "$@" --without-pip; }}
pip() {{ python -m pip "$@" --no-deps --no-build-isolation --no-index; }}
make() {{ [ "$1" = test ] || command make "$@" FLAGS="{FEWER}"; }}  # the tests are what runs now
"""


def typed(language: str, text: str) -> str:
    """Return a block as lines of a shell; Python that begins with the name of a file is saved there."""
    if language == "bash":
        return text
    file = re.match(r"# (\S+\.py)\n", text)
    return f"{f'cat > {file[1]}' if file else 'python'} <<'END_OF_BLOCK'\n{text}END_OF_BLOCK\n"


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_the_readme_is_one_session(clone: Path, install: Callable[[Path], Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(clone, tmp_path / "clone"))
    (folder / "results").symlink_to(ROOT / "results")
    install(folder / ".venv")
    for stamp in (".torch", ".installed"):  # so that make finds its environment set up
        (folder / ".venv" / stamp).touch()
    script = AS_TYPED + "\n".join(typed(language, text) for language, text in BLOCKS)
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # Python blocks have the installed package, not the one that lies in the folder.
    variables |= {"PYTHONSAFEPATH": "1", "COLUMNS": "200"}
    done = subprocess.run(["bash", "-c", script], cwd=folder, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert "open it in a browser: demo/report.html" in done.stdout
    assert re.search(r"^icarl +margin ", done.stdout, re.MULTILINE)
    for made in ("demo/report.html", "report.html", "my.yml", "figures"):
        assert (folder / made).exists(), made


def test_the_session_has_all_blocks_but_those_that_need_data() -> None:
    assert len(BLOCKS) == len(re.findall(r"^```(bash|python)$", README + START, re.MULTILINE)) - 1
    (kept_out,) = re.findall(r"^<!-- not in the session: .*-->\n```bash\n(.*?)^```", START, re.M | re.DOTALL)
    assert "--data-root" in kept_out


def test_the_demo_without_make_is_that_of_make() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    demo = re.findall(r"\$\(BIN\)/(opencil .*?)(?: \$\(FLAGS\)| > /dev/null)$", makefile, re.MULTILINE)
    assert len(demo) == 2
    assert [command for command in demo if command not in START] == []


def test_the_best_detectors_are_those_of_the_published_rows() -> None:
    study = opencil.read_study(ROOT / "results" / "study")
    (outcome,) = [one for one in results(study) if one.k == 10]
    answers = find_answers(outcome, noise=3)
    number = r"(\d+\.\d+ ± \d+\.\d+)"
    lines = re.findall(rf"^\| (\w+) \| {number} \| (\w+) \| {number} \| {number} \|$", README, re.MULTILINE)
    assert [line[0] for line in lines] == ["iCaRL", "BiC", "WA", "FOSTER"]
    for name, accuracy, best, auc, ber in lines:
        cil, detector = name.lower(), answers[name.lower()]["best"][0][0]
        found = [(detector, "auc"), ("ber", "auc"), ("", "accuracy")]
        texts = [outcome.of(cil, one, metric, "all" if one else "").text for one, metric in found]
        assert [best, auc, ber, accuracy] == [print_detector(detector), *texts]
