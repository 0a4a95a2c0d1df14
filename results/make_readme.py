"""The pages' figures, from rows: what their templates ask for is computed, nothing is typed by hand.

    python -m results.make_readme            # write the pages, and the marked part of the project's README.md
    python -m results.make_readme --check    # show what differs from what the rows give, and fail

A template is Markdown with ``{{expression:format}}``, as in an f-string, over the names of ``measured.py``,
``study_page.py``, ``claims_page.py``, ``learners_page.py`` and ``experiments/questions.py``.
``{{holds(...)}}`` prints nothing: it fails where something said in words is not so. Paragraphs and items of
lists are wrapped. Templates: ``results/*.in.md`` and those in ``experiments/templates/``.
"""

import argparse
import difflib
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from experiments import questions
from results import claims_page, learners_page, measured, study_page
from results.measured import EXPERIMENTS, HERE

START, END = "<!-- figures: results/summary.in.md, by results/make_readme.py -->", "<!-- end of figures -->"
WIDTH = 118
#: What templates may name.
NAMES = {
    **vars(measured),
    **vars(learners_page),
    **vars(questions),
    **vars(claims_page),
    **vars(study_page),
}


def render(template: str) -> str:
    """A template with its figures in, its paragraphs wrapped."""

    def value(match: re.Match[str]) -> str:
        try:
            text = eval(f'f"""{{{match[1]}}}"""', {**NAMES})
        except Exception as error:
            raise SystemExit(f"{match[0]}: {type(error).__name__}: {error}") from None
        return re.sub(r"(?<![^\s(])-(?=\d)", "−", text)

    return "".join(_wrapped(re.sub(r"\{\{(.+?)\}\}", value, template)))


def _wrapped(text: str) -> Iterator[str]:
    in_code = False
    for block in re.split(r"(\n\n+)", text):
        fences = block.count("```")
        if in_code or fences or not block.strip() or block.startswith(("|", "#", "!")):
            yield block
        else:
            items = re.split(r"\n(?=- )", block)
            yield "\n".join(map(_filled, items))
        in_code ^= fences % 2 == 1


def _filled(text: str) -> str:
    further = "  " * text.startswith("- ")
    return textwrap.fill(
        text, WIDTH, subsequent_indent=further, break_long_words=False, break_on_hyphens=False
    )


def pages() -> dict[Path, str]:
    """The files that have figures of rows in them, as they ought to be."""
    project = HERE.parent / "README.md"
    before, rest = project.read_text(encoding="utf-8").split(START)
    templates = {project: HERE / "summary.in.md"}
    templates |= {HERE / f"{name}.md": HERE / f"{name}.in.md" for name in ("README", "steps", "field")}
    templates |= {EXPERIMENTS / path.name: path for path in sorted((EXPERIMENTS / "templates").glob("*.md"))}
    made = {path: f"{render(of.read_text(encoding='utf-8').rstrip())}\n" for path, of in templates.items()}
    return made | {project: f"{before}{START}\n\n{made[project]}\n{END}{rest.split(END)[1]}"}


def main() -> None:
    """Write the files, or compare them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a file would change")
    check, stale = parser.parse_args().check, False
    for path, text in pages().items():
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        if not check:
            path.write_text(text, encoding="utf-8")
        elif old != text:
            stale, name = True, path.relative_to(HERE.parent).as_posix()
            print(
                f"{name} is not what the rows give: run python -m results.make_readme, or change its template"
            )
            lines = difflib.unified_diff(
                old.splitlines(), text.splitlines(), name, "from rows", "", "", 1, ""
            )
            print("\n".join(lines))
    sys.exit(stale)


if __name__ == "__main__":
    main()
