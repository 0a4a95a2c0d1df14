"""Read published rows from a folder or the Hugging Face Hub, and upload folders and models to it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from opencil.errors import BadInput, OpenCILError, one_line
from opencil.runs.reading import read_study
from opencil.study.study import published_below
from opencil.submissions.card import model_card
from opencil.submissions.submission import DESCRIPTION, SUMS, covered, find_links

_NAME = r"[\w.-]+/[\w.-]+"
_CLONE = Path(__file__).parents[3] / "results"


def load_published(source: str | Path | None = None) -> pd.DataFrame:
    """Return all published rows: of this project's clone, of a folder, or of a dataset on the Hub.

    A dataset's name is ``owner/name``; huggingface_hub downloads it. The column ``study`` names the folder
    in which a row is published.
    """
    source = _CLONE if source is None else source
    folder = Path(source)
    if not folder.is_dir():
        local = folder.parent.is_dir() or (_CLONE.parent / folder).is_dir()
        if local or isinstance(source, Path) or not re.fullmatch(_NAME, source):
            raise BadInput(
                f"there is no folder {source} in {Path.cwd()}: name a folder with published rows, or a "
                "dataset on the Hub as owner/name"
            )
        with _hub() as hub:
            files = ["**rows.parquet", "**runs.json"]
            folder = Path(hub.snapshot_download(str(source), repo_type="dataset", allow_patterns=files))
    if not (places := published_below(folder)):
        raise BadInput(f"there are no published rows below {folder}")
    parts = [read_study(place).rows.assign(study=place.relative_to(folder).as_posix()) for place in places]
    return pd.concat(parts, ignore_index=True)


def list_files(path: Path) -> tuple[dict[str, Path], list[str]]:
    """Return the files of a folder to upload, by name, and names of those beside a submission's own."""
    if links := find_links(path):
        raise BadInput(f"{links[0]} in {path} is a link: put the file or folder itself in its place")
    files = {file.relative_to(path).as_posix(): file for file in sorted(path.rglob("*")) if file.is_file()}
    if not (path / DESCRIPTION).is_file():
        return files, []
    parts = {*covered(path), *(path / name for name in (SUMS, "README.md", "eval.yaml"))}
    return {name: file for name, file in files.items() if file in parts}, [
        name for name, file in files.items() if file not in parts
    ]


def upload(
    path: Path, repository: str, kind: Literal["dataset", "model"] = "dataset", pull_request: bool = False
) -> str:
    """Upload a folder, or a model's file with a card, to the Hub; return the address of the commit.

    Of a submission, files that are no part of it stay here.
    Who uploads, and where to, is what huggingface_hub is told: HF_TOKEN, HF_ENDPOINT, ``hf auth login``.
    """
    if not re.fullmatch(_NAME, repository):
        raise BadInput(f"{repository!r} is no name on the Hub: owner/name is expected")
    files, _ = list_files(path)
    with _hub() as hub:
        added = [hub.CommitOperationAdd(name, str(file)) for name, file in files.items()]
        if path.is_file():
            card = model_card(path, repository.partition("/")[2]).encode()
            added = [hub.CommitOperationAdd(path.name, str(path)), hub.CommitOperationAdd("README.md", card)]
        if not added:
            raise BadInput(f"there is nothing to upload in {path}")
        api = hub.HfApi(library_name="opencil")
        if not pull_request:
            api.create_repo(repository, repo_type=kind, exist_ok=True)
        message = f"Add {path.name or 'results'}"
        done = api.create_commit(
            repository, added, commit_message=message, repo_type=kind, create_pr=pull_request
        )
        return str(done.pr_url or done.commit_url)


@contextmanager
def _hub() -> Iterator[Any]:
    """Yield huggingface_hub, and turn what it raises into sentences."""
    try:
        import huggingface_hub
    except ImportError:
        raise BadInput("the Hugging Face Hub needs a package: pip install 'opencil[hub]'") from None
    try:
        yield huggingface_hub
    except OpenCILError:
        raise
    except Exception as error:  # of one of several libraries for HTTP
        raise OpenCILError(f"the Hub refuses: {one_line(error)}") from None
