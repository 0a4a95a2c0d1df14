"""Errors that a user can act on: each message is a sentence that says what, where, and what is allowed."""

import traceback
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path


class OpenCILError(Exception):
    """Something failed while running; the command line exits with 1."""

    exit_code = 1


class BadInput(OpenCILError, ValueError):
    """A value, name or file from the user cannot be used; the command line exits with 2."""

    exit_code = 2


def shown(value: object, longest: int = 80) -> str:
    """A value as a sentence shows it: cut where it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits; lists in lists in lists
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def one_line(error: object, longest: int = 300) -> str:
    """What an error says, in one line that can be shown: it may hold anything that stands in a file."""
    text = " ".join(str(error).split())[:longest]
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def nearest(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'energy'?`` for ``enrgy``, or nothing where no known name is close."""
    folded = {k.lower(): k for k in known}
    close = get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
    return f"; did you mean {folded[close[0]]!r}?" if close else ""


def meant(places: Sequence[str]) -> str:
    """``; did you mean first.lr or later.lr?`` for places where a key stands, or nothing for none."""
    more = [f"{len(places) - 3} more"] if len(places) > 4 else []
    few = [*places[: 3 if more else 4], *more]
    return f"; did you mean {' or '.join(filter(None, (', '.join(few[:-1]), few[-1])))}?" if few else ""


def unknown(
    what: str, name: str, known: Iterable[str], places: Sequence[str] = (), groups: Iterable[str] = ()
) -> BadInput:
    """The error for a name that is not among the known ones.

    ``places`` are where it would be one; ``groups`` are words for several of them.
    """
    known, groups = sorted(known), list(groups)
    hint = meant(places) or nearest(name, [*known, *groups])
    several = f", and for several of them {', '.join(groups)}" if groups else ""
    allowed = ", ".join(known) or "none"
    return BadInput(f"{what} {shown(name)} is unknown: allowed are {allowed}{several}{hint}")


def not_imported(plugin: str, file: Path | None, error: BaseException) -> BadInput:
    """The error for a plugin that raised when it was imported: at which of its lines, and why.

    ``file`` is where it lies, if that is known; it is named unless ``plugin`` does. Of an error that arose in
    a file beside it, or in another one of its package, that place is named too.
    """
    ours = isinstance(error, OpenCILError)
    what = str(error) if ours else f"{type(error).__name__}: {_first_line(error)}"
    places = [(Path(at.filename), at.lineno) for at in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        what = f"{type(error).__name__}: {error.msg}"
        places.append((Path(error.filename or ""), error.lineno))
    own = [(path, line) for path, line in places if line and _is_of(path, file)]
    in_file = [line for path, line in own if path == file]
    at = f", line {in_file[-1]}" if in_file else ""
    beside = bool(own) and own[-1][0] != file and not (ours and in_file)
    inside = f" ({own[-1][0].name}, line {own[-1][1]})" if beside else ""
    where = f" in {file}" if file is not None and not plugin.endswith(file.name) else ""
    return BadInput(f"plugin {plugin}{where}{at}: {what}{inside}")


def _is_of(path: Path, file: Path | None) -> bool:
    """Whether a place is a plugin's own: in its file, or in the folders of that, and of no other package."""
    if file is None or path == file:
        return path == file
    return path.is_relative_to(file.parent) and not {"site-packages", "dist-packages"}.intersection(
        (*path.relative_to(file.parent).parts, file.parent.name)
    )


def _first_line(error: BaseException) -> str:
    """What an error says, or of several lines the first: a plugin's own may have no words at all."""
    try:
        return (str(error).strip().splitlines() or [""])[0]
    except Exception as worse:
        return f"it has no words ({type(worse).__name__})"
