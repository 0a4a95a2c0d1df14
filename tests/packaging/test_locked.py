"""requirements/ pins what `make` installs, with hashes."""

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "requirements").glob("*.txt"))
TEXT = "".join(file.read_text(encoding="utf-8") for file in FILES)
PINS = re.findall(r"^([\w-]+)==([^\s;]+).* \\\n    --hash=sha256:[0-9a-f]{64}\b", TEXT, re.MULTILINE)


def needed(requirement: Requirement, seen: set[str]) -> Iterator[tuple[str, str]]:
    """Yield name and version of what is installed of a requirement and of all that it needs."""
    if str(requirement) in seen:
        return
    seen.add(str(requirement))
    found = distribution(requirement.name)
    yield canonicalize_name(requirement.name), found.version
    for line in map(Requirement, found.requires or ()):
        if line.marker is None or any(line.marker.evaluate({"extra": e}) for e in ("", *requirement.extras)):
            line.marker = None
            yield from needed(line, seen)


def test_every_pin_has_a_hash_and_no_place() -> None:
    assert len(PINS) == len(re.findall(r"^\w", TEXT, re.MULTILINE))
    assert "://" not in TEXT
    assert "@" not in TEXT


def test_what_is_built_and_asked_for_is_pinned() -> None:
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = about["project"]["optional-dependencies"]
    lines = about["build-system"]["requires"] + about["project"]["dependencies"]
    lines += [line for file in FILES for line in extras.get(file.stem, ())]
    named = {canonicalize_name(Requirement(line).name) for line in lines}
    assert named - {"opencil"} <= {name for name, _ in PINS}


def test_what_is_installed_is_pinned() -> None:
    stamps = [path.stat().st_mtime for path in Path(sys.prefix).glob(".installed-*")]
    if max(stamps, default=0) < max(file.stat().st_mtime for file in FILES):
        pytest.skip("make did not install these files here")
    installed = set(needed(Requirement("opencil[test]"), set()))
    assert len(installed) > 50
    assert installed - set(PINS) == {("opencil", distribution("opencil").version)}
