"""Whole tasks of users: scripts that run in an empty folder, with commands and calls of the docs alone."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import opencil

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DOCS = "\n".join(
    path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
)


def travel(name: str, folder: Path) -> str:
    """Run a script as a user would, and return what it printed."""
    commands = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = os.environ | {"PATH": commands, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    words = ["bash" if name.endswith(".sh") else sys.executable, str(HERE / name)]
    done = subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_an_own_detector_becomes_a_latex_table(tmp_path: Path) -> None:
    shown = travel("detector_to_latex.sh", tmp_path)
    table = (tmp_path / "table.tex").read_text(encoding="utf-8")
    assert r"\label{tab:main-digits-k2}" in table
    assert re.search(r"^margin & .*\$\\pm\$", table, re.MULTILINE), "with deviations over the seeds"
    assert "Difference from margin" in shown


def test_an_own_method_learns_from_own_folders_and_resumes(tmp_path: Path) -> None:
    shown = travel("cil_on_folders.py", tmp_path)
    assert {path.name for path in (tmp_path / "figures").glob("*accuracy.*")} >= {"colours-k2-accuracy.svg"}
    accuracies = [float(number) for number in re.findall(r"^[123] +(\S+)$", shown, re.MULTILINE)]
    assert len(accuracies) == 3
    assert accuracies[0] > 0.8


def test_a_loaded_model_accepts_what_it_knows_and_refuses_noise(tmp_path: Path) -> None:
    shown = travel("load_and_predict.py", tmp_path)
    accepted, right = (float(number) for number in re.findall(r"([\d.]+)%", shown.splitlines()[-2]))
    (noise,) = re.findall(r"([\d.]+)% accepted", shown.splitlines()[-1])
    assert accepted > 88
    assert right > 80
    assert float(noise) < 40


@pytest.mark.parametrize(
    "path", sorted([*HERE.glob("*.sh"), *HERE.glob("[!_t]*.py")]), ids=lambda path: path.name
)
def test_only_documented_names_are_used(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    calls = set(re.findall(r"opencil\.([A-Za-z_]+)\(", text))
    assert calls <= set(opencil.__all__)
    flags = set(re.findall(r"(?<!\S)\"?(--[a-z-]+)", text))
    assert {flag for flag in flags if flag not in DOCS} == set()
    assert {call for call in calls if f"opencil.{call}" not in DOCS} == set()
