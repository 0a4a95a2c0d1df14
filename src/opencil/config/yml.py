"""YML as people mean it, read within limits: a text from anywhere is a value soon, or an error in a sentence.

PyYAML follows aliases and nests as deep as a text asks for, and its constructors take a tag's word for what a
value is: a few hundred bytes could ask for gigabytes, or end in any error.
"""

import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError
from yaml.reader import ReaderError
from yaml.scanner import ScannerError

from opencil.errors import BadInput, shown

_Marked = TypeVar("_Marked", bound=yaml.MarkedYAMLError)
#: Characters of the longest text that is read, and of the longest that its aliases may make of it. All values
#: of all methods have a quarter of them; PyYAML takes up to a second for so many.
LONGEST = 50_000
#: How deep mappings and lists may lie in each other; those of a config are six deep.
DEEPEST = 40
#: Characters of a number: no value needs more, and the time to read one grows with their square.
_LONGEST_NUMBER = 100
_STANDARD = "tag:yaml.org,2002:"
#: Kinds of values that no config can hold.
_UNUSED = tuple(_STANDARD + kind for kind in ("binary", "omap", "pairs", "set"))


def read_text(path: Path) -> str:
    """The text of a file, or of a pipe; no more than the longest that is allowed is ever read."""
    try:
        with path.open("rb") as file:
            content = file.read(4 * LONGEST + 1)
        if len(content) > 4 * LONGEST:
            raise BadInput(f"config file {path} cannot be read: {_too_long()}")
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadInput(f"config file {path} cannot be read: it is no text in UTF-8 (line {line})") from None
    except OSError as error:
        raise BadInput(f"config file {path} cannot be read: {error.strerror}") from None


def load(text: str, source: str) -> Any:
    """The value of a YML text; ``source`` names it in errors, which say the line where they know it."""
    if len(text) > LONGEST:
        raise BadInput(f"{source} is refused: {_too_long()}")
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        told = ": ".join(" ".join(part.split()) for part in (error.context, error.problem) if part)
        raise BadInput(f"{source} is not valid YML: {told[:300]}{place}") from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise BadInput(
            f"{source} is not valid YML: the character {shown(text[error.position])} is not allowed (line "
            f"{line})"
        ) from None


def dump_yaml(values: Mapping[str, Any]) -> str:
    """A mapping as YML, keys in their order, short lists on one line."""
    return yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def _too_long() -> str:
    return f"it has more than {LONGEST:,} characters, and a config needs a few thousand"


class _Loader(yaml.SafeLoader):
    """YML within limits, in which 2e-4 is a number, and a key given twice is an error."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._characters = len(text)  # with the aliases so far written out
        self._lengths: dict[str, int] = {}  # of what the anchors name, its aliases written out
        self._flat: set[yaml.Node] = set()

    def fetch_more_tokens(self) -> None:
        """The text's next tokens, unless an escape or a version in it is a number that there is not."""
        try:
            super().fetch_more_tokens()
        except (ValueError, OverflowError):
            mark = self.get_mark()
            raise ScannerError(None, None, "a number of no character or version", mark) from None

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """A node of the text, unless it lies too deep or its aliases make the text too long."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            node = super().compose_node(parent, index)
            if event.anchor not in self._lengths:
                raise _error(ComposerError, f"*{event.anchor} stands inside of what it names", event)
            self._characters += self._lengths[event.anchor]
            if self._characters > LONGEST:
                raise _error(
                    ComposerError,
                    f"with *{event.anchor} and the aliases above it written out, it has more than "
                    f"{LONGEST:,} characters",
                    event,
                )
            return node
        self._depth += 1
        if self._depth > DEEPEST:
            raise _error(ComposerError, f"values lie more than {DEEPEST} deep in each other", event)
        before = self._characters
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is not None and event.anchor is not None:
            written = node.end_mark.index - node.start_mark.index
            self._lengths[event.anchor] = written + self._characters - before
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """A node's value, unless it is not what its tag says."""
        kind = node.tag.removeprefix(_STANDARD)
        if kind in ("int", "float") and len(node.value) > _LONGEST_NUMBER:
            text = f"a number of {len(node.value):,} characters, and {_LONGEST_NUMBER} are allowed"
            raise _error(ConstructorError, text, node)
        if kind in ("int", "float") and isinstance(node.value, str) and (base := _odd_base(node.value)):
            text = f"{shown(node.value)} is a number in base {base} to YML: write it in base 10, or quote it"
            raise _error(ConstructorError, text, node)
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, ArithmeticError):
            raise _error(ConstructorError, f"{shown(node.value)} is no {kind}", node) from None

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Put what is merged into a mapping with its own keys, each of which must stand in it once."""
        if node in self._flat:  # merged into another one before: now its own keys stand among others
            return
        self._flat.add(node)
        keys = set()
        for key_node in [key for key, _ in node.value if key.tag != f"{_STANDARD}merge"]:
            key = self.construct_object(key_node, deep=True)
            # A list or a mapping as a key is refused elsewhere.
            if isinstance(key, Hashable) and key in keys:
                raise _error(ConstructorError, f"key {shown(key)} stands here twice", key_node)
            if isinstance(key, Hashable):
                keys.add(key)
        super().flatten_mapping(node)


def _odd_base(number: str) -> int | None:
    """The base that YML reads a number in and few people mean: 1:30 would be 90, and 010 be 8."""
    if ":" in number:
        return 60
    digits = number.lstrip("+-").replace("_", "")
    return 8 if len(digits) > 1 and digits[0] == "0" and digits.isdecimal() else None


def _error(kind: type[_Marked], problem: str, at: Any) -> _Marked:
    return kind(None, None, problem, at.start_mark)


class _Dumper(yaml.SafeDumper):
    """Lists of plain values on one line."""


def _represent_list(dumper: yaml.SafeDumper, values: list[Any]) -> yaml.SequenceNode:
    flow = not any(isinstance(v, (list, dict)) for v in values)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=flow)


_Loader.yaml_constructors = {
    tag: make for tag, make in yaml.SafeLoader.yaml_constructors.items() if tag not in _UNUSED
}
_Dumper.add_representer(list, _represent_list)
for _yaml in (_Loader, _Dumper):  # the dumper too: a text that reads as a number must be quoted
    _yaml.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
    )
