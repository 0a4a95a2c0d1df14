"""Fill the tables of the pages from published rows, and draw the figures.

    python -m results.make_tables            # write the tables into the pages
    python -m results.make_tables --check    # write nothing; fail where a table or a figure is out of date

A page is Markdown that is written by hand. A table stands between ``<!-- table: NAME k -->`` and
``<!-- end -->``, where NAME is a function of ``tables.py`` or ``claims.py``. The prose of the results and
their appendix has no number that is not in a table of the two, apart from k and years.
"""

import argparse
import difflib
import re
import sys

from results import claims, draw, tables
from results.rows import EXPERIMENTS, RESULTS

PAGES = [RESULTS.parent / "README.md", *sorted(RESULTS.glob("*.md")), *sorted(EXPERIMENTS.glob("*.md"))]
TABLES = {name: make for module in (tables, claims) for name, make in vars(module).items()}
_TABLE = re.compile(r"<!-- table: (\w+)(?: (\d+))? -->\n.*?<!-- end -->", re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.-])[+−]?\d+(?:,\d{3})*(?:\.\d+)?(?!\w)")
#: Parts of prose with numbers of their own: code, targets of links, k, and years, which name class orders.
_OTHER = re.compile(r"```.*?```|`[^`]*`|\]\([^)]*\)|\bk = [\d, and/]+|\b(?:19|20)\d\d\b", re.DOTALL)

CONSTANTS = {"2,000", "10,000", "32"}  #: of the protocol and the data: exemplars, images, pixels


def filled(text: str) -> str:
    """Return a page with its tables made from rows."""

    def fill(match: re.Match[str]) -> str:
        name, k = match.groups()
        table = TABLES[name](int(k)) if k else TABLES[name]()
        table = re.sub(r"(?<![^\s(])-(?=\d)", "−", table)
        return f"{match[0].splitlines()[0]}\n\n{table}\n\n<!-- end -->"

    return _TABLE.sub(fill, text)


def unfounded_numbers(text: str) -> list[str]:
    """Return the numbers of a page's prose that are in none of its tables."""
    tables = " ".join(match[0] for match in _TABLE.finditer(text))
    founded = {
        form for number in _NUMBER.findall(tables) for form in (number, number.lstrip("+−"))
    } | CONSTANTS
    prose = _OTHER.sub(" ", _TABLE.sub(" ", text))
    return [number for number in _NUMBER.findall(prose) if number not in founded]


def main() -> None:
    """Write the tables and figures, or compare them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a table would change")
    check, problems = parser.parse_args().check, []
    for page in PAGES:
        old, name = page.read_text(encoding="utf-8"), page.relative_to(RESULTS.parent).as_posix()
        new = filled(old)
        if page.parent == RESULTS and page.name in ("README.md", "appendix.md"):
            problems += [f"{name}: no table has the number {n} of the prose" for n in unfounded_numbers(new)]
        if not check:
            page.write_text(new, encoding="utf-8")
        elif new != old:
            problems.append(f"{name} is out of date: run python -m results.make_tables")
            problems += difflib.unified_diff(old.splitlines(), new.splitlines(), name, "from rows", n=0)
    if check:
        problems += [f"the figure {name} is out of date" for name in draw.stale_figures()]
    else:
        draw.write_figures()
    for problem in problems:
        print(problem)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
