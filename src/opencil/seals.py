"""Files that know their checksum: a seal inside each, of all its other bytes.

A seal is one text in every format: in a note of Safetensors or Parquet, a value of JSON, a comment of YML. A
writer puts ``BLANK`` there; its digits become the SHA-256 of the file as it is with the blank. So a file and
its checksum are one, whatever kills the process. A seal begins and ends with a mark: damage that hits one
leaves the other, and is not taken for a file from before there were seals.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opencil.atomic_files import write_bytes
from opencil.disk import told
from opencil.errors import OpenCILError

_BEGIN, _DIGITS, _END = b"<sha256 by opencil: ", b"0" * 64, b" seals this file>"
#: What a writer puts where the seal is to be.
BLANK = (_BEGIN + _DIGITS + _END).decode()


class Damaged(OpenCILError):
    """A stored file is not as it was written, or not in its place; ``reason`` says how that shows."""

    def __init__(self, text: str, reason: object) -> None:
        super().__init__(text)
        self.reason = str(reason)


class BrokenSeal(Exception):
    """Bytes are not those that were sealed; the text says how that shows."""


def write_sealed(path: Path, content: bytes, *, flush: bool = True) -> str:
    """Write a stored file, in which there is one blank, with its seal; the seal's digits.

    A symbolic link in its place is replaced, and what it points to stays as it is.
    """
    if content.count(_BEGIN) != 1 or content.count(_END) != 1:
        raise OpenCILError(f"{path} cannot be written: a name or a value in it looks like the seal of a file")
    start = content.index(_BEGIN) + len(_BEGIN)
    digits = digest(content)
    sealed = b"".join((content[:start], digits.encode(), content[start + len(digits) :]))
    write_bytes(path, sealed, flush=flush, follow=False)
    return digits


def read_sealed(path: Path, damaged: Callable[[Path, object], OpenCILError]) -> tuple[bytes, str | None]:
    """A stored file's bytes and the digits of its seal, None where it has none: it is from before them.

    ``damaged`` makes the error for a file that is not as it was sealed, or is no file.
    """
    try:
        if path.exists() and not path.is_file():
            raise BrokenSeal("it is no file")
        with told(path, "read"):
            content = path.read_bytes()
        return content, seal_of(content)
    except BrokenSeal as error:
        raise damaged(path, error) from None
    except FileNotFoundError:
        raise damaged(path, "it is missing") from None


def write_json(path: Path, content: dict[str, Any]) -> str:
    """Write a sealed JSON file for people to read; the seal's digits."""
    return write_sealed(path, (json.dumps({**content, "seal": BLANK}, indent=2) + "\n").encode())


def read_json(path: Path, damaged: Callable[[Path, object], OpenCILError]) -> dict[str, Any]:
    """A JSON file's mapping, without its seal; ``damaged`` makes the error for one that has none."""
    try:
        content = json.loads(read_sealed(path, damaged)[0].decode())
        if not isinstance(content, dict):
            raise ValueError("it is not a mapping")
    except (ValueError, RecursionError) as error:  # lists in lists in lists, deeper than Python goes
        raise damaged(path, error) from None
    return {key: value for key, value in content.items() if key != "seal"}


def seal_of(content: bytes) -> str | None:
    """The digits of the seal in a file's bytes, which must be those that it seals; None without a seal."""
    begin = content.find(_BEGIN)
    end = content.find(_END, max(begin, 0))
    if begin < 0 and end < 0:
        return None
    start = begin + len(_BEGIN)
    if begin < 0 or end != start + len(_DIGITS):
        raise BrokenSeal("the checksum in it is damaged")
    view = memoryview(content)
    digits = digest(view[:start], _DIGITS, view[end:])
    if digits.encode() != content[start:end]:
        raise BrokenSeal("its checksum differs from the one that it was written with")
    return digits


def digest(*parts: bytes | memoryview) -> str:
    """SHA-256 of some bytes, one after the other, as hexadecimal digits."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()
