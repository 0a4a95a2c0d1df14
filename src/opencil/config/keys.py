"""The keys that a config can have, and those that somebody may have meant by one that it cannot have."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from opencil.config.sections import METHODS, SECTIONS, Config
from opencil.nets.create import COMMON
from opencil.validation import Key, keys_below, misplaced


def config_keys() -> Iterator[Key]:
    """Every key that a config can have, but for names of the user's own."""
    for section in fields(Config):
        yield (section.name,)
        yield from ((section.name, *key) for key in keys_below(section.type))
    yield from (("benchmark", "backbone", name) for name in COMMON)
    for kind, registry in METHODS.items():
        for name in registry.names():
            yield kind, name
            yield from ((kind, name, *key) for key in keys_below(registry.entry(name).make))


def guess(written: Key, wrong: int = -1) -> list[str]:
    """The keys that somebody may have meant by one whose part at ``wrong`` is unknown there.

    What several methods have stands under ``*``.
    """
    known = [part.partition("@")[0] for part in written]
    # A labelled method is sought by its name, and told with its label.
    labels = dict(zip(known, written, strict=True))
    found = [key for key in misplaced(known, config_keys(), wrong) if key != tuple(known)]
    methods = [key for key in found if key[0] in METHODS and len(key) > 2 and key[1] not in known]
    others = {key: [k for k in methods if (k[0], *k[2:]) == (key[0], *key[2:])] for key in methods}
    told = [(key[0], "*", *key[2:]) if len(others.get(key, ())) > 1 else key for key in found]
    told.sort(key=lambda key: "*" not in key)
    return [".".join(labels.get(part, part) for part in key) for key in dict.fromkeys(told)]


def guess_outside(written: Key) -> list[str]:
    """The same for a key in no section, which may be misspelt too; nothing where a section is."""
    found = guess(written, wrong=0)
    if found or get_close_matches(written[0], SECTIONS, cutoff=0.7):
        return found
    ends = {key[-1]: key for key in config_keys()}
    close = get_close_matches(written[-1], ends, n=1, cutoff=0.8)
    if not close:
        return []
    return guess((*written[:-1], *close), wrong=0) or [".".join(ends[name]) for name in close]


def key_of(*above: str, content: Mapping[str, Any]) -> Key:
    """The key of a content, as deep as it has but one value."""
    ((name, value),) = content.items()
    single = isinstance(value, dict) and len(value) == 1
    return key_of(*above, name, content={str(n): v for n, v in value.items()}) if single else (*above, name)
