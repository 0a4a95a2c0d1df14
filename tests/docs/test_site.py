"""The documentation as a site: it builds strictly, its links lead somewhere, and every method has a page."""

import html
from dataclasses import fields
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from opencil.registry import DETECTORS, LEARNERS, Registry

pytest.importorskip("zensical", reason="pip install 'opencil[docs]'")
pytest.importorskip("latex2mathml", reason="pip install 'opencil[docs]'")
from docs.site import formulas, make, method_pages

METHODS = [
    pytest.param(folder, registry, name, id=name)
    for folder, (registry, _) in method_pages.KINDS.items()
    for name in method_pages.entries(folder)
]


class Page(HTMLParser):
    """What a page links to and loads, and where in it a link can lead."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.formulas = 0
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors |= {values.get("id") or "", values.get("name") or ""}
        self.formulas += tag == "math"
        if tag == "a":
            self.links += [values["href"]] if values.get("href") else []
        else:
            self.loads += [value for key in ("src", "href") if (value := values.get(key))]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make.build(tmp_path_factory.mktemp("docs"), run_notebook=False)


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    # Zensical's own page of what was not found has links from the root.
    return {
        path: Page(path)
        for path in site.rglob("*.html")
        if path.name != "404.html" and "study" not in path.parts
    }


def wrong(page: Path, link: str, pages: dict[Path, Page]) -> str:
    """What is wrong with a link of a page; nothing with one that leads out of the site."""
    target = urlsplit(link)
    if target.scheme or target.netloc:
        return ""
    path = (page.parent / unquote(target.path)).resolve() if target.path else page
    if not path.is_file():  # a folder neither: opened from a disk, it is a list of what is in it
        return f"{page}: {link} is no file"
    missing = target.fragment and path in pages and unquote(target.fragment) not in pages[path].anchors
    return f"{page}: {link} has no such place" if missing else ""


def test_every_link_leads_somewhere(pages: dict[Path, Page]) -> None:
    assert len(pages) > 30
    links = ((path, link) for path, page in pages.items() for link in page.links + page.loads)
    assert [said for path, link in links if (said := wrong(path, link, pages))] == []


def test_nothing_is_fetched_from_elsewhere(pages: dict[Path, Page]) -> None:
    assert {load for page in pages.values() for load in page.loads if "//" in load} == set()


def test_every_page_of_the_menu_is_there_and_every_guide_is_in_it(site: Path) -> None:
    config = yaml.safe_load((site.parent / "mkdocs.yml").read_text(encoding="utf-8"))
    menu = set(make._listed(config["nav"]))
    assert {page for page in menu if not (site.parent / "source" / page).is_file()} == set()
    assert {f"docs/{page.name}" for page in (make.ROOT / "docs").glob("*.md")} <= menu


@pytest.mark.parametrize(("folder", "registry", "name"), METHODS)
def test_a_method_s_page_says_what_its_class_says(
    folder: str, registry: Registry[Any], name: str, site: Path, pages: dict[Path, Page]
) -> None:
    path, entry = site / "methods" / folder / f"{name}.html", registry.entry(name)
    text = html.unescape(path.read_text(encoding="utf-8"))
    assert pages[path].formulas == len(entry.equation.split(r"\\"))
    assert not entry.paper or entry.paper.link in pages[path].links
    assert [f.name for f in fields(entry.make) if f"<code>{f.name}</code>" not in text] == []
    assert [label for label in entry.named if f"<code>{name}@{label}</code>" not in text] == []
    for note in entry.differs:
        assert note.split("`")[0].strip() in text


def test_methods_are_all_of_ours() -> None:
    ours = {
        name
        for kind in (LEARNERS, DETECTORS)
        for name in kind.names()
        if kind.entry(name).make.__module__.startswith("opencil.")
    }
    assert {param.id for param in METHODS} == ours


def test_formulas_become_mathml_and_code_stays() -> None:
    page = "$`x_1`$ is one.\n\n```math\na = 1 \\\\\nb = 2\n```\n\n```bash\necho $`date`$\n```\n"
    drawn = formulas.drawn(page)
    assert drawn.startswith("<span><math")
    assert drawn.count("<math") == 3, "one in the line, two in the block"
    assert "echo $`date`$" in drawn
    with pytest.raises(ValueError, match="no MathML for this LaTeX"):
        formulas.display(r"\unheardof{x}")


def test_a_broken_link_stops_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        make.method_pages, "overview", lambda: "# Methods\n\n## Notation\n\n[nowhere](nowhere.md)\n"
    )
    with pytest.raises(make.subprocess.CalledProcessError):
        make.build(tmp_path / "docs", run_notebook=False)
