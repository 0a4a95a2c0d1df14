"""Build the documentation site into build/docs/html: ``python -m docs.site.make [--serve]``.

Pages keep their places in the repository, so that links between them work here and on GitHub. Generated pages
are never committed: a page for each method, and the notebook with its output.
"""

import contextlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from docs.site import formulas, method_pages, notebook, reference

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
BUILD = ROOT / "build" / "docs"
#: Pages of the repository; files that they link to are copied too.
PAGES = (
    "*.md",
    "docs/*.md",
    "docs/recipes/*.md",
    "benchmarks/README.md",
    "experiments/*.md",
    "results/*.md",
    "results/orders/README.md",
    "results/study/tables.md",
)
QUICKSTART = Path("docs/quickstart.ipynb")


def stage(build: Path, run_notebook: bool) -> Path:
    """Write all pages into a folder, and return the config of the build."""
    shutil.rmtree(build, ignore_errors=True)
    source = build / "source"
    pages = {
        path.relative_to(ROOT): formulas.render(path.read_text(encoding="utf-8"))
        for pattern in PAGES
        for path in sorted(ROOT.glob(pattern))
    }
    pages[Path("methods/README.md")] = formulas.render(method_pages.overview())
    # In place of README: it is for a repository.
    pages[Path("README.md")] = (HERE / "home.txt").read_text(encoding="utf-8")
    made: dict[str, list[str]] = {}
    for path, text in reference.pages():
        pages[Path(path)] = text
        made.setdefault("reference", []).append(path)
    for groups, path, text in method_pages.pages():
        for group in groups:
            made.setdefault(group, []).append(path)
        pages[Path(path)] = text
    pages[QUICKSTART.with_suffix(".md")] = render_notebook(run_notebook)
    for path, text in pages.items():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_text(text, encoding="utf-8")
    for path, text in pages.items():
        for linked in find_linked_files(ROOT / path, text):
            (source / linked).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / linked, source / linked)
    shutil.copy(HERE / "style.css", source)
    config = (HERE / "mkdocs.yml").read_text(encoding="utf-8")
    config = re.sub(r"\{made: ([\w-]+)\}", lambda group: json.dumps(made[group[1]]), config)
    (build / "mkdocs.yml").write_text(config, encoding="utf-8")
    return build / "mkdocs.yml"


def render_notebook(run: bool) -> str:
    """Return the notebook as a page; with ``run``, its cells run in a temporary folder and show output."""
    cells = notebook.read_cells(ROOT / QUICKSTART)
    if run:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            cells = list(notebook.run_cells(ROOT / QUICKSTART))
    return notebook.render(cells) + f"[This page as a notebook]({QUICKSTART.name})\n"


def find_linked_files(page: Path, text: str) -> set[Path]:
    """Return files of the repository, except Markdown, that a page links to or shows."""
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)|(?:src|href)=\"([^\"#]+)\"", text)
    paths = {(page.parent / "".join(link)).resolve() for link in links}
    files = {path for path in paths if path.is_file() and path.suffix != ".md"}
    return {path.relative_to(ROOT) for path in files if path.is_relative_to(ROOT)}


def build(folder: Path = BUILD, run_notebook: bool = True) -> Path:
    """Build the site and return its folder; a link that leads nowhere is an error."""
    _run_zensical("build", "--clean", "--strict", config=stage(folder, run_notebook))
    return folder / "html"


def _run_zensical(*words: str, config: Path) -> None:
    subprocess.run([sys.executable, "-m", "zensical", *words, "--config-file", str(config)], check=True)


def main() -> None:
    """Build the site, or serve it on localhost:8000."""
    if sys.argv[1:] == ["--serve"]:
        _run_zensical("serve", config=stage(BUILD, run_notebook=True))
    elif sys.argv[1:]:
        sys.exit("usage: python -m docs.site.make [--serve]")
    else:
        print(f"open it in a browser: {build().relative_to(ROOT)}/index.html")


if __name__ == "__main__":
    main()
