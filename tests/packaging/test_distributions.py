"""Wheel and sdist have what they must, and the wheel runs outside the clone."""

import os
import re
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from email import message_from_bytes
from pathlib import Path

import pytest

import opencil

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(os.name == "nt", reason="environments are laid out as on Unix here")


def test_the_wheel_has_all_of_the_package_and_nothing_else(distributions: Path) -> None:
    (wheel,) = distributions.glob("*.whl")
    package = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "opencil").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    data = {"py.typed", "configs/digits.yml", "published/results.csv", "data/lists/tin.txt"}
    assert {f"opencil/{name}" for name in data | {"report/assets/page.js"}} <= package
    with zipfile.ZipFile(wheel) as file:
        described = {name for name in file.namelist() if ".dist-info/" in name}
        assert set(file.namelist()) - described == package
        (metadata,) = (name for name in described if name.endswith("/METADATA"))
        about = message_from_bytes(file.read(metadata))
    assert about["Version"] == opencil.__version__
    assert "https://arxiv.org/abs/2407.06045" in " ".join(about.get_all("Project-URL", []))
    assert "Programming Language :: Python :: 3.14" in about.get_all("Classifier", [])


def test_the_sdist_has_what_explains_the_package(distributions: Path) -> None:
    (sdist,) = distributions.glob("*.tar.gz")
    with tarfile.open(sdist) as file:
        names = {name.split("/", 1)[1] for name in file.getnames() if "/" in name}
    assert {"README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md"} <= names
    assert not [name for name in names if name.startswith(("tests", "results"))]


def test_the_wheel_runs_outside_the_clone(install: Callable[[Path], Path], tmp_path: Path) -> None:
    """The demo's own command, in few steps; all of the demo is in test_readme.py."""
    commands = install(tmp_path / "environment")
    folder = tmp_path / "anywhere"
    folder.mkdir()
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    # A flag that is given again counts.
    (demo,) = re.findall(r"\$\(BIN\)/(opencil run .*) \$\(FLAGS\)", makefile)
    fewer = "--cil icarl --detector msp,energy --classes-per-step 8 --set 'cil.*.epochs=1'"
    where = "python -c 'import opencil; print(opencil.__file__)'"
    script = f"{where} && {demo} {fewer}"
    # Neither the clone's sources nor the tests' own environment.
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", script],
        cwd=folder,
        env=variables | {"PATH": path, "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(str(tmp_path / "environment"))
    assert re.search(r"^icarl +energy ", done.stdout, re.MULTILINE)
    assert list(folder.rglob("accuracy.parquet"))
