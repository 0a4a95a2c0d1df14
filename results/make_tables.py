"""Fill the tables of the pages from published rows.

    python -m results.make_tables            # write the tables into the pages
    python -m results.make_tables --check    # write nothing; fail where a table is out of date

A page is Markdown that is written by hand. A table stands between ``<!-- table: NAME k -->`` and
``<!-- end -->``, where NAME is a function of ``tables.py`` or ``claims.py``.
"""

import argparse
import difflib
import re
import sys

from results import claims, tables
from results.rows import EXPERIMENTS, RESULTS

PAGES = [RESULTS.parent / "README.md", *sorted(RESULTS.glob("*.md")), *sorted(EXPERIMENTS.glob("*.md"))]
TABLES = {name: make for module in (tables, claims) for name, make in vars(module).items()}
_TABLE = re.compile(r"<!-- table: (\w+)(?: (\d+))? -->\n.*?<!-- end -->", re.DOTALL)


def filled(text: str) -> str:
    """Return a page with its tables made from rows."""

    def fill(match: re.Match[str]) -> str:
        name, k = match.groups()
        table = TABLES[name](int(k)) if k else TABLES[name]()
        table = re.sub(r"(?<![^\s(])-(?=\d)", "−", table)
        return f"{match[0].splitlines()[0]}\n\n{table}\n\n<!-- end -->"

    return _TABLE.sub(fill, text)


def main() -> None:
    """Write the tables, or compare them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a table would change")
    check, stale = parser.parse_args().check, False
    for page in PAGES:
        old = page.read_text(encoding="utf-8")
        new = filled(old)
        if not check:
            page.write_text(new, encoding="utf-8")
        elif new != old:
            stale, name = True, page.relative_to(RESULTS.parent).as_posix()
            print(f"{name} is out of date: run python -m results.make_tables")
            print("\n".join(difflib.unified_diff(old.splitlines(), new.splitlines(), name, "from rows", n=0)))
    sys.exit(stale)


if __name__ == "__main__":
    main()
