"""Read and write YML: ``2e-4`` is a number, a repeated key is an error, and errors name the line."""

import re
from collections.abc import Mapping
from itertools import chain
from math import inf
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.constructor import ConstructorError

from opencil.errors import BadInput, one_line

_LONGEST = 10_000_000
#: libyaml reads a text much faster than Python, but not every build of PyYAML has it.
_BASES: Any = (Composer, yaml.CSafeLoader) if yaml.__with_libyaml__ else (yaml.SafeLoader,)


def load(text: str | bytes, source: str) -> Any:
    """Return the value of a YML text; ``source`` names the text in errors."""
    try:
        return yaml.load(text, Loader=_Loader)
    except Exception as error:  # PyYAML passes on what int() or date() raises
        mark, reason = getattr(error, "problem_mark", None), getattr(error, "problem", None) or error
        place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise BadInput(f"{source} is not valid YML: {one_line(reason)}{place}") from None


def dump_yaml(values: Mapping[str, Any] | list[Any]) -> str:
    """Return a mapping or a list as YML, keys in their order, short lists on one line."""
    return yaml.dump(
        values if isinstance(values, list) else dict(values),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=110,
    )


def _length(node: yaml.Node, known: dict[yaml.Node, float]) -> float:
    """Return the length of the text that a node stands for; infinity for a node inside itself."""
    if isinstance(node, yaml.ScalarNode):
        return 1 + len(node.value)
    if node not in known:
        known[node] = inf
        parts = chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else node.value
        known[node] = 1 + sum(_length(part, known) for part in parts)
    return known[node]


class _Loader(*_BASES):  # type: ignore[misc]
    """Refuse a key given twice in a mapping, and anchors that stand for too much text."""

    def __init__(self, text: str | bytes) -> None:
        _BASES[-1].__init__(self, text)
        Composer.__init__(self)

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        if node and _length(node, {}) > _LONGEST:
            raise ConstructorError(None, None, f"it stands for more than {_LONGEST:,} letters")
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        known = set()
        for key in [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]:
            if key.value in known:
                raise ConstructorError(None, None, f"key {key.value!r} is given twice", key.start_mark)
            known.add(key.value)
        return node


class _Dumper(yaml.SafeDumper):
    """Write lists of plain values on one line."""

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> Any:
        flow = not any(isinstance(value, (list, dict)) for value in sequence)
        return super().represent_sequence(tag, sequence, flow_style=flow)


for _yaml in (_Loader, _Dumper):  # the dumper quotes a text that would be read as a number
    _yaml.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
    )
