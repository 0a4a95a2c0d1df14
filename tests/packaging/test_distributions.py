"""Wheel and sdist have all files; test_readme.py runs the wheel."""

import os
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

import opencil

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(os.name == "nt", reason="environments are laid out as on Unix here")


def test_the_wheel_has_all_of_the_package_and_nothing_else(distributions: Path) -> None:
    (wheel,) = distributions.glob("*.whl")
    package = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "opencil").rglob("*")
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


def test_an_index_takes_both(distributions: Path) -> None:
    check = [sys.executable, "-m", "twine", "check", "--strict", *map(str, distributions.iterdir())]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("PASSED") == 2


def test_the_sdist_has_what_explains_the_package(distributions: Path) -> None:
    (sdist,) = distributions.glob("*.tar.gz")
    with tarfile.open(sdist) as file:
        names = {name.split("/", 1)[1] for name in file.getnames() if "/" in name}
    assert {"README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "SECURITY.md"} <= names
    assert not [name for name in names if name.startswith(("tests", "results"))]
