"""Turn LaTeX in Markdown into MathML, which browsers render without scripts and without a network.

The notation is GitHub's: a fenced block of ``math``, and ``$`…`$`` within a line.
"""

import re

from latex2mathml.converter import convert

_FENCE = re.compile(
    r"^(?P<mark>`{3,}|~{3,})(?P<language>[^\n`]*)\n(?P<text>.*?)^(?P=mark)[ \t]*$", re.M | re.S
)


def render(markdown: str) -> str:
    """Return a page with its formulas as MathML; other blocks of code stay as they are."""
    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):
        parts.append(_render_inline(markdown[end : fence.start()]))
        parts.append(render_block(fence["text"]) if fence["language"].strip() == "math" else fence[0])
        end = fence.end()
    return "".join([*parts, _render_inline(markdown[end:])])


def render_block(latex: str) -> str:
    r"""Return a block of formulas, which are separated by ``\\``."""
    lines = (_to_mathml(line, "block") for line in latex.split(r"\\"))
    return f'<div class="formula">{"".join(lines)}</div>'


def _render_inline(text: str) -> str:
    # The span matters: Markdown takes a bare <math> at the beginning of a line for a block of HTML.
    return re.sub(r"\$`([^`]+)`\$", lambda found: f"<span>{_to_mathml(found[1], 'inline')}</span>", text)


def _to_mathml(latex: str, display: str) -> str:
    mathml = str(convert(latex.strip(), display=display))
    if "\\" in mathml:
        raise ValueError(f"there is no MathML for this LaTeX: {latex.strip()}")
    return mathml
