"""The documentation as a site: it builds strictly, its links lead somewhere, and every method has a page."""

import html
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml

import opencil
from opencil.registry import Registry
from opencil.report.results import results

pytest.importorskip("zensical", reason="pip install 'opencil[docs]'")
pytest.importorskip("latex2mathml", reason="pip install 'opencil[docs]'")
from docs.site import formulas, make, method_pages

METHODS = [
    pytest.param(kind, registry, name, id=name)
    for kind, (registry, _) in method_pages.KINDS.items()
    for name in method_pages.list_entries(kind)
]


class Page(HTMLParser):
    """Links, loaded files and anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.formulas = 0
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)

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
    # Zensical's own page for missing pages has links from the root.
    return {
        path: Page(path)
        for path in site.rglob("*.html")
        if path.name != "404.html" and "study" not in path.parts
    }


def find_error(page: Path, link: str, pages: dict[Path, Page]) -> str:
    """Return why a link of a page leads nowhere; '' where it does not, or leaves the site."""
    target = urlsplit(link)
    if target.scheme or target.netloc:
        return ""
    path = (page.parent / unquote(target.path)).resolve() if target.path else page
    if not path.is_file():
        return f"{page}: {link} is no file"
    missing = target.fragment and path in pages and unquote(target.fragment) not in pages[path].anchors
    return f"{page}: {link} has no such anchor" if missing else ""


def list_menu(nav: Any) -> Iterator[str]:
    """Yield the pages of a menu."""
    if isinstance(nav, str):
        yield nav
    else:
        for below in nav.values() if isinstance(nav, dict) else nav:
            yield from list_menu(below)


def test_links_lead_somewhere(pages: dict[Path, Page]) -> None:
    links = ((path, link) for path, page in pages.items() for link in page.links + page.loads)
    assert [error for path, link in links if (error := find_error(path, link, pages))] == []


def test_nothing_is_loaded_from_the_network(pages: dict[Path, Page]) -> None:
    assert {load for page in pages.values() for load in page.loads if "//" in load} == set()


def test_the_menu_has_every_guide(site: Path) -> None:
    config = yaml.safe_load((site.parent / "mkdocs.yml").read_text(encoding="utf-8"))
    menu = set(list_menu(config["nav"]))
    assert {page for page in menu if not (site.parent / "source" / page).is_file()} == set()
    assert {f"docs/{page.name}" for page in (make.ROOT / "docs").glob("*.md")} <= menu


@pytest.mark.parametrize(("kind", "registry", "name"), METHODS)
def test_a_page_has_everything_that_its_class_declares(
    kind: str, registry: Registry[Any], name: str, site: Path, pages: dict[Path, Page]
) -> None:
    path, entry = site / "methods" / kind / f"{name}.html", registry.entry(name)
    text = html.unescape(pages[path].text)
    assert [link for link in pages[path].links if link.endswith(f"{entry.make.__module__.split('.')[-1]}.py")]
    assert pages[path].formulas == len(vars(entry.make)["equation"].split(r"\\"))
    assert not entry.paper or entry.paper.link in pages[path].links
    assert [f.name for f in fields(entry.make) if f"<code>{f.name}</code>" not in text] == []
    assert [label for label in entry.named if f"<code>{name}@{label}</code>" not in text] == []
    notes = [vars(cls).get("differs", "") for cls in inspect.getmro(entry.make)]
    assert [note for note in notes if note.split("`")[0].strip() not in text] == []


def test_a_method_page_shows_what_was_measured(site: Path, pages: dict[Path, Page]) -> None:
    (outcome,) = [one for one in results(opencil.read_study(make.ROOT / "results/study")) if one.k == 10]
    for path, cell in (
        ("detectors/nnguide", outcome.of("wa", "nnguide", "auc", "all")),
        ("cil/wa", outcome.of("wa", "nnguide", "auc", "all")),
        ("cil/wa", outcome.of("wa", "", "accuracy", "")),
    ):
        assert cell.text in pages[site / "methods" / f"{path}.html"].text


def test_the_reference_has_every_public_name(site: Path, pages: dict[Path, Page]) -> None:
    anchors = {
        name for path, page in pages.items() if path.parent == site / "reference" for name in page.anchors
    }
    assert {name.lower() for name in opencil.__all__} - {"__version__"} <= anchors
    assert {"results.table", "detector.score", "run.detector"} <= anchors
    text = pages[site / "reference" / "detectors.html"].text
    assert "<h2" in text
    assert "``" not in text


def test_no_column_of_the_guides_is_without_a_head(site: Path, pages: dict[Path, Page]) -> None:
    guides = [path for folder in ("docs", "methods", "reference") for path in (site / folder).rglob("*.html")]
    assert [
        path for path in [site / "index.html", *guides] if re.search("<th[^>]*></th>", pages[path].text)
    ] == []


def test_formulas_become_mathml_and_code_stays() -> None:
    page = "$`x_1`$ is one.\n\n```math\na = 1 \\\\\nb = 2\n```\n\n```bash\necho $`date`$\n```\n"
    rendered = formulas.render(page)
    assert rendered.startswith("<span><math")
    assert rendered.count("<math") == 3, "one in the line, two in the block"
    assert "echo $`date`$" in rendered
    with pytest.raises(ValueError, match="unheardof"):
        formulas.render_block(r"\unheardof{x}")


def test_a_broken_link_stops_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        make.method_pages, "overview", lambda: "# Methods\n\n## Notation\n\n[nowhere](nowhere.md)\n"
    )
    with pytest.raises(make.subprocess.CalledProcessError):
        make.build(tmp_path / "docs", run_notebook=False)
