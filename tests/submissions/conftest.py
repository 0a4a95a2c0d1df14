"""A submission with scores of a short run, to copy and to manipulate."""

import shutil
from pathlib import Path

import pytest

from opencil.submissions.submission import write_submission

RUN = "digits/k2/icarl/seed0"


@pytest.fixture(scope="session")
def _submitted_once(_finished_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("submitted") / "ada"
    for _ in write_submission([_finished_once], folder, "Ada", with_scores=True):
        pass
    return folder


@pytest.fixture
def submitted(_submitted_once: Path, tmp_path: Path) -> Path:
    """A copy of the submission."""
    return Path(shutil.copytree(_submitted_once, tmp_path / "ada"))
