"""The documentation as a site, into build/docs/html: ``python -m docs.site.make``, or with ``--serve``.

Pages keep their places in the repository, so that the links between them hold here and on GitHub alike. What
is generated is never committed: a page for each method, and the notebook as a page, with what it shows.
"""

import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from docs.site import formulas, method_pages, notebook

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
BUILD = ROOT / "build" / "docs"

#: Pages of the repository; a file that one of them links to comes along.
PAGES = (
    "*.md",
    "docs/*.md",
    "benchmarks/README.md",
    "experiments/*.md",
    "results/README.md",
    "results/steps.md",
    "results/field.md",
    "results/study/tables.md",
)
QUICKSTART = "docs/quickstart.ipynb"


def stage(build: Path, run_notebook: bool) -> Path:
    """Everything that the site is made of, into a folder; gives the config of the build."""
    source = build / "source"
    shutil.rmtree(build, ignore_errors=True)
    for path in sorted(path for pattern in PAGES for path in ROOT.glob(pattern)):
        text = path.read_text(encoding="utf-8")
        _write(source / path.relative_to(ROOT), formulas.drawn(text))
        for linked in _linked(path, text):
            _copy(linked, source)
    made: dict[str, list[str]] = {}
    for groups, place, text in method_pages.pages():
        for group in groups:
            made.setdefault(group, []).append(place)
        _write(source / place, text)
    _write(source / "methods" / "README.md", formulas.drawn(method_pages.overview()))
    _copy(ROOT / QUICKSTART, source)
    _write(source / Path(QUICKSTART).with_suffix(".md"), _quickstart(run_notebook))
    shutil.copy(HERE / "style.css", source)
    config = yaml.safe_load((HERE / "mkdocs.yml").read_text(encoding="utf-8"))
    config["nav"] = _filled(config["nav"], made)
    if unlisted := sorted(set(_guides()) - set(_listed(config["nav"]))):
        config["nav"].append({"More": unlisted})
    _write(build / "mkdocs.yml", yaml.safe_dump(config, sort_keys=False))
    return build / "mkdocs.yml"


def build(folder: Path = BUILD, run_notebook: bool = True) -> Path:
    """The site, or an error: a link that leads nowhere stops the build."""
    config = stage(folder, run_notebook)
    zensical = [
        sys.executable,
        "-m",
        "zensical",
        "build",
        "--clean",
        "--strict",
        "--config-file",
        str(config),
    ]
    subprocess.run(zensical, check=True)
    return folder / "html"


def main() -> None:
    """Build, or serve on localhost:8000."""
    if sys.argv[1:] not in ([], ["--serve"]):
        sys.exit("python -m docs.site.make [--serve]")
    if "--serve" in sys.argv:
        config = stage(BUILD, run_notebook=True)
        subprocess.run([sys.executable, "-m", "zensical", "serve", "--config-file", str(config)], check=True)
    else:
        place = build().relative_to(ROOT)
        print(f"open it in a browser: {place}/index.html (make docs-serve: with a search)")


def _quickstart(run: bool) -> str:
    """The notebook as a page; it runs in a folder of its own, so that its runs are left nowhere."""
    path = ROOT / QUICKSTART
    download = f"[This page as a notebook]({Path(QUICKSTART).name})\n"
    if not run:
        return notebook.page(notebook.cells(path)) + download
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        return notebook.page(list(notebook.ran(path))) + download


def _filled(nav: list[Any], made: dict[str, list[str]]) -> list[Any]:
    """The menu, with the pages that were made where it says ``made: KIND`` or a family."""

    def entry(part: Any) -> Any:
        if not isinstance(part, dict):
            return part
        ((title, below),) = part.items()
        if isinstance(below, dict):
            return {title: made[below["made"]]}
        return {title: _filled(below, made) if isinstance(below, list) else below}

    return [entry(part) for part in nav]


def _guides() -> Iterator[str]:
    for path in (ROOT / "docs").glob("*.md"):
        yield path.relative_to(ROOT).as_posix()


def _listed(nav: Any) -> Iterator[str]:
    """The pages of a menu."""
    if isinstance(nav, str):
        yield nav
    else:
        for below in nav.values() if isinstance(nav, dict) else nav:
            yield from _listed(below)


def _linked(page: Path, text: str) -> Iterator[Path]:
    """Files in the repository, Markdown aside, that a page links to or shows."""
    for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)|(?:src|href)=\"([^\"#]+)\"", text):
        path = (page.parent / "".join(link)).resolve()
        if path.is_file() and path.suffix != ".md" and path.is_relative_to(ROOT):
            yield path


def _copy(path: Path, source: Path) -> None:
    place = source / path.relative_to(ROOT)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, place)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
