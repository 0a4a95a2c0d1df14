"""A copy of the clone, what is built of it, and environments that have it installed."""

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The top files, the package and its pins: building leaves nothing in the clone that the tests run in."""
    folder = tmp_path_factory.mktemp("clone") / "opencil"
    for name in ("src", "requirements"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file() and path.name != ".git":
            shutil.copy(path, folder)
    return folder


@pytest.fixture(scope="session")
def distributions(clone: Path) -> Path:
    """A folder with the sdist, and the wheel that is built from it."""
    folder = clone.parent / "dist"
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(clone))
    return folder


@pytest.fixture(scope="session")
def install(distributions: Path) -> Callable[[Path], Path]:
    """``install(folder)`` makes a virtual environment with the wheel in it, and gives its folder of commands.

    What the package depends on is that of the environment of the tests: to install torch again takes minutes.
    """

    def make(folder: Path) -> Path:
        _run(sys.executable, "-m", "venv", "--without-pip", str(folder))
        commands = folder / "bin"
        (wheel,) = distributions.glob("*.whl")
        _pip("--python", str(commands / "python"), "install", "--no-deps", "--no-index", str(wheel))
        ours = subprocess.check_output(
            [commands / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
        )
        # Only the folder itself: .pth files in it, as that of a clone in development, are not read.
        Path(ours.strip(), "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
        return commands

    return make


def _pip(*words: str) -> None:
    _run(sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *words)


def _run(*words: str, cwd: Path | None = None) -> None:
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
