"""Errors for users: each message names in one sentence the wrong value and the allowed ones."""

import traceback
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path


class OpenCILError(Exception):
    """A command failed while running; the command line exits with 1."""

    exit_code = 1


class BadInput(OpenCILError, ValueError):
    """A value, name or file from the user cannot be used; the command line exits with 2."""

    exit_code = 2


@contextmanager
def no_exits(passing: type[BaseException] = Exception) -> Iterator[None]:
    """Raise RuntimeError for what ends a process unnoticed, as SystemExit of a plugin; Ctrl-C stays.

    Errors of the type ``passing`` stay as well.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt, passing):
        raise
    except BaseException as error:
        text = f"{one_line(repr(error))} was raised, which is no Exception"
        raise RuntimeError(text).with_traceback(error.__traceback__) from None


def one_line(text: object, longest: int = 300) -> str:
    """Return a text, or the message of an error, as one printable line, cut where it is long."""
    try:
        line = " ".join(str(text).split())
    except Exception:  # of a plugin's error
        line = f"{type(text).__name__} without a text"
    line = line if len(line) <= longest else f"{line[: longest - 3]}..."
    return printable(line)


def printable(text: str) -> str:
    """Return a text whose control characters are escaped, except the ends of lines."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def shown(value: object) -> str:
    """Return a value as a sentence shows it: its ``repr``, cut where it is long."""
    return one_line(repr(value), 80)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'energy'?`` for ``enrgy``, or nothing where no known name is close."""
    folded = {k.lower(): k for k in known}
    close = get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
    return f"; did you mean {folded[close[0]]!r}?" if close else ""


#: The most names that a sentence lists before its hint.
_FEW_NAMES = 12


def not_allowed(key: str, value: object, allowed: str) -> BadInput:
    """Return the error for a value of a key; ``allowed`` ends the sentence."""
    return BadInput(f"{key} = {shown(value)} is not allowed: {allowed}")


def unknown(what: str, name: str, known: Iterable[str], hint: str = "", command: str = "") -> BadInput:
    """Return the error for an unknown name.

    After many known names a hint would not be found, so it comes first; ``command`` lists them instead.
    """
    known = sorted(known)
    hint = hint or nearest(name, known)
    wrong, allowed = f"{what} {shown(name)} is unknown", f"allowed are {', '.join(known) or 'none'}"
    if len(known) <= _FEW_NAMES:
        return BadInput(f"{wrong}: {allowed}{hint}")
    allowed = f"{command!r} names them" if command else allowed
    join = " (" if hint else ": "
    return BadInput(f"{wrong}{hint}{join}{allowed}{')' * bool(hint)}")


def check_known(what: str, names: Iterable[str], known: Collection[str]) -> None:
    """Refuse the first name that is unknown."""
    for name in names:
        if not isinstance(name, str):
            raise BadInput(f"{what} {shown(name)} is a {type(name).__name__}: a name is needed")
        if name not in known:
            raise unknown(what, name, known)


def not_imported(plugin: str, error: BaseException) -> str:
    """Return the sentence for a plugin whose import failed: the line and the reason."""
    reason = str(error) if isinstance(error, OpenCILError) else f"{type(error).__name__}: {one_line(error)}"
    frames = traceback.extract_tb(error.__traceback__)
    # Of the modules that were being imported the innermost raised, or what it called.
    places = [(Path(frame.filename), frame.lineno) for frame in frames if frame.name == "<module>"]
    if isinstance(error, SyntaxError):
        places.append((Path(error.filename or ""), error.lineno))
    at = f" ({places[-1][0].name}, line {places[-1][1]})" if places else ""
    return f"plugin {plugin}{at}: {reason}"
