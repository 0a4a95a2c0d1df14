"""Errors that a user can act on: each message is a sentence that says what, where, and what is allowed."""

from collections.abc import Iterable
from difflib import get_close_matches


class OpenCILError(Exception):
    """Something failed while running; the command line exits with 1."""

    exit_code = 1


class BadInput(OpenCILError, ValueError):
    """A value, name or file from the user cannot be used; the command line exits with 2."""

    exit_code = 2


def nearest(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'energy'?`` for ``enrgy``, or nothing where no known name is close."""
    folded = {k.lower(): k for k in known}
    close = get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
    return f"; did you mean {folded[close[0]]!r}?" if close else ""


def unknown(what: str, name: str, known: Iterable[str]) -> BadInput:
    """The error for a name that is not among the known ones."""
    known = sorted(known)
    return BadInput(
        f"{what} {name!r} is unknown: allowed are {', '.join(known) or 'none'}{nearest(name, known)}"
    )
