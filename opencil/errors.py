"""Errors that a user can act on: each message is a sentence that says what, where, and what is allowed."""

from collections.abc import Iterable, Sequence
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
    return BadInput(f"{what} {name!r} is unknown: allowed are {', '.join(known) or 'none'}{several}{hint}")
