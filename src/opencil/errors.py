"""Errors for users: each message names in one sentence the wrong value and the allowed ones."""

import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path


class OpenCILError(Exception):
    """A command failed while running; the command line exits with 1."""

    exit_code = 1


class BadInput(OpenCILError, ValueError):
    """A value, name or file from the user cannot be used; the command line exits with 2."""

    exit_code = 2


def shorten(text: str, longest: int = 80) -> str:
    """Return a text, cut where it is long."""
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def shown(value: object, longest: int = 80) -> str:
    """Return a value as a sentence shows it: its ``repr``, cut where it is long."""
    return shorten(repr(value), longest)


def one_line(error: object, longest: int = 300) -> str:
    """Return the message of an error in one printable line, whatever bytes a file has put into it."""
    text = " ".join(str(error).split())[:longest]
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'energy'?`` for ``enrgy``, or nothing where no known name is close."""
    folded = {k.lower(): k for k in known}
    close = get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
    return f"; did you mean {folded[close[0]]!r}?" if close else ""


def not_allowed(key: str, value: object, allowed: str) -> BadInput:
    """Return the error for a value of a key; ``allowed`` ends the sentence."""
    return BadInput(f"{key} = {shown(value)} is not allowed: {allowed}")


def unknown(
    what: str, name: str, known: Iterable[str], hint: str = "", groups: Iterable[str] = ()
) -> BadInput:
    """Return the error for an unknown name; ``groups`` stand for several known names."""
    known, groups = sorted(known), list(groups)
    several = f", and for several of them {', '.join(groups)}" if groups else ""
    allowed = ", ".join(known) or "none"
    hint = hint or nearest(name, [*known, *groups])
    return BadInput(f"{what} {shown(name)} is unknown: allowed are {allowed}{several}{hint}")


def not_imported(plugin: str, error: BaseException) -> str:
    """Return the sentence for a plugin whose import failed: the line and the reason."""
    message = error.msg if isinstance(error, SyntaxError) else (str(error).splitlines() or [""])[0]
    reason = str(error) if isinstance(error, OpenCILError) else f"{type(error).__name__}: {message}"
    frames = traceback.extract_tb(error.__traceback__)
    # Of the modules that were being imported the innermost raised, or what it called.
    places = [(Path(frame.filename), frame.lineno) for frame in frames if frame.name == "<module>"]
    if isinstance(error, SyntaxError):
        places.append((Path(error.filename or ""), error.lineno))
    at = f" ({places[-1][0].name}, line {places[-1][1]})" if places else ""
    return f"plugin {plugin}{at}: {reason}"
