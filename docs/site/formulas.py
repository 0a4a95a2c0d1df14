"""LaTeX in Markdown to MathML, which browsers draw by themselves: no script, no network.

GitHub draws the same notation: a fenced block of ``math``, and ``$`…`$`` within a line.
"""

import re

from latex2mathml.converter import convert

_FENCE = re.compile(
    r"^(?P<mark>`{3,}|~{3,})(?P<language>[^\n`]*)\n(?P<text>.*?)^(?P=mark)[ \t]*$", re.M | re.S
)


def display(latex: str) -> str:
    """Formulas that stand by themselves, one for each line that ends in ``\\\\``."""
    lines = (_mathml(line, "block") for line in latex.split(r"\\"))
    return f'<div class="formula">{"".join(lines)}</div>'


def drawn(markdown: str) -> str:
    """A page with its formulas as MathML; other blocks of code stay as they are."""
    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):
        parts.append(_inline(markdown[end : fence.start()]))
        is_formula = fence["language"].strip() == "math"
        parts.append(display(fence["text"]) if is_formula else fence[0])
        end = fence.end()
    return "".join([*parts, _inline(markdown[end:])])


def _inline(text: str) -> str:
    # In a span: where a line begins with it, Markdown would take a bare <math> for a block of HTML.
    return re.sub(r"\$`([^`]+)`\$", lambda found: f"<span>{_mathml(found[1], 'inline')}</span>", text)


def _mathml(latex: str, how: str) -> str:
    made = str(convert(latex.strip(), display=how))
    if "\\" in made:
        raise ValueError(f"there is no MathML for this LaTeX: {latex.strip()}")
    return made
