"""The YML reader: whatever a text asks for, it is a value soon or an error that names the place."""

import tracemalloc
from pathlib import Path

import pytest

from opencil.config import parse_yaml, read_yaml, resolve
from opencil.config.yml import DEEPEST, LONGEST, load
from opencil.errors import BadInput


def bomb(first: str, element: str) -> str:
    """Nine lists or mappings, each of which names the one before it nine times."""
    lines = ["place:", f"  l0: &l0 {first}"]
    lines += [f"  l{i}: &l{i} {element.format(', '.join([f'*l{i - 1}'] * 9))}" for i in range(1, 10)]
    return "\n".join(lines)


HOSTILE = {
    "bool": ("a: 1\nb: !!bool x", ["'x' is no bool", "line 2"]),
    "int": ("a: !!int ''", ["'' is no int", "line 1"]),
    "float": ("a: !!float x", ["'x' is no float"]),
    "timestamp": ("a: !!timestamp x", ["'x' is no timestamp", "line 1"]),
    "date": ("a: 2024-13-45", ["'2024-13-45' is no timestamp"]),
    "character": ('a: 1\nb: "\\U00110000"', ["a number of no character", "line 2"]),
    "character beyond C's numbers": ('a: "\\UFFFFFFFF"', ["a number of no character", "line 1"]),
    "version": ("%YAML 1." + "9" * 5000 + "\n---\na: 1", ["a number of no character or version", "line 1"]),
    "sexagesimal": ("a: " + ":".join(["1"] * 3000), ["a number of 5,999 characters", "line 1"]),
    "sexagesimal fraction": ("a: " + ":".join(["1"] * 3000) + ".5", ["a number of 6,001 characters"]),
    "time": ("a: 1\nb: 1:30", ["'1:30' is a number in base 60 to YML", "line 2"]),
    "time with a fraction": ("a: 1:30.5", ["'1:30.5' is a number in base 60"]),
    "octal": ("a: -0_10", ["'-0_10' is a number in base 8 to YML: write it in base 10", "line 1"]),
    "decimal": ("a: " + "9" * 40_000, ["a number of 40,000 characters"]),
    "hexadecimal": ("a: 0x" + "f" * 40_000, ["a number of 40,002 characters"]),
    "lists": ("a:\n  " + "[" * 2000, ["more than 40 deep", "line 2"]),
    "closed lists": ("a: " + "[" * 2000 + "]" * 2000, ["more than 40 deep", "line 1"]),
    "mappings": ("{a: " * 2000, ["more than 40 deep"]),
    "dashes": ("- " * 20_000, ["more than 40 deep"]),
    "questions": ("? " * 20_000, ["more than 40 deep"]),
    "aliases": (bomb("[x, y, z]", "[{}]"), ["*l3 and the aliases above it", "50,000 characters", "line 6"]),
    "merges": (bomb("{x: 1, y: 2}", "{{<<: [{}]}}"), ["*l3 and the aliases above it", "line 6"]),
    "long text": ("a: &a " + "x" * 9000 + "\nb: [*a, *a, *a, *a, *a]", ["*a and", "line 2"]),
    "itself": ("seed: &a {runs: [*a]}", ["*a stands inside of what it names", "line 1"]),
    "twice": ("a: {b: 1, c: 2,\n b: 3}", ["key 'b' stands here twice", "line 2"]),
    "twice as numbers": ("{1: a, 0x1: b}", ["key 1 stands here twice"]),
    "set": ("a: !!set {x}", ["tag:yaml.org,2002:set", "line 1"]),
    "binary": ("a: !!binary aGk=", ["tag:yaml.org,2002:binary"]),
    "key of lists": ("? [a]\n: b", ["unhashable key", "line 1"]),
    "null byte": ("a: b\nc: \0", [r"the character '\x00' is not allowed", "line 2"]),
    "escape": ("a: \x1b[31m", [r"the character '\x1b' is not allowed", "line 1"]),
    "surrogate": ("a: \udcff", [r"the character '\udcff' is not allowed"]),
    "two documents": ("a: 1\n---\nb: 2", ["another document", "line 2"]),
    "long tag": ("a: !<" + "x" * 40_000 + "> 1", ["could not determine a constructor"]),
    "long": ("#" * (LONGEST + 1), ["more than 50,000 characters"]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_are_refused_in_a_sentence(name: str) -> None:
    text, fragments = HOSTILE[name]
    with pytest.raises(BadInput) as raised:
        parse_yaml(text, "mine.yml")
    message = str(raised.value)
    assert [f for f in ["mine.yml", *fragments] if f not in message] == [], message
    assert "\n" not in message
    assert len(message) < 500


@pytest.mark.parametrize("name", [name for name in HOSTILE if "\n" not in HOSTILE[name][0]])
def test_a_setting_is_read_within_the_same_limits(name: str) -> None:
    text, fragments = HOSTILE[name]
    value = text.removeprefix("a: ")
    with pytest.raises(BadInput) as raised:
        resolve(settings=[f"place.runs={value}"])
    assert fragments[0] in str(raised.value)
    assert len(str(raised.value)) < 600


def test_a_setting_with_a_key_of_many_parts() -> None:
    with pytest.raises(BadInput, match="names a key of 5,001 parts"):
        resolve(settings=["cil" + ".a" * 5000 + "=1"])


@pytest.mark.parametrize("name", ["aliases", "merges", "long text"])
def test_aliases_take_no_memory_before_they_are_refused(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(BadInput):
            parse_yaml(HOSTILE[name][0], "mine.yml")
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()


def test_values_may_lie_as_deep_as_is_said() -> None:
    assert load("[" * DEEPEST + "]" * DEEPEST, "it")
    with pytest.raises(BadInput, match="more than 40 deep"):
        load("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), "it")


def test_what_is_merged_into_another_mapping_first_keeps_its_own_values() -> None:
    """The outer mapping is made first: what it merges has been merged itself by then."""
    text = "x: &x {lr: 1}\ny: {z: {a: &a {<<: *x, lr: 2}}}\nb: {<<: *a, c: 3}\n"
    content = load(text, "it")
    assert content["y"]["z"]["a"] == {"lr": 2}
    assert content["b"] == {"lr": 2, "c": 3}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("a: b".encode("utf-16"), r"no text in UTF-8 \(line 1\)"),
        (b"a: b\nc: \xff\n", r"no text in UTF-8 \(line 2\)"),
        (bytes(range(256)) * 3, r"no text in UTF-8 \(line 2\)"),
        (b"#" * 300_000, "more than 50,000 characters"),
        ("é".encode() * 49_000 + b"#" * 1001, "more than 50,000 characters"),
    ],
    ids=["utf-16", "latin-1", "junk", "large", "long"],
)
def test_files_that_are_no_config(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "mine.yml").write_bytes(content)
    with pytest.raises(BadInput, match=rf"mine\.yml .*{why}"):
        read_yaml(tmp_path / "mine.yml")


def test_an_endless_file_is_not_read_to_its_end() -> None:
    with pytest.raises(BadInput, match="more than 50,000 characters"):
        read_yaml(Path("/dev/zero"))


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "mine.yml").write_bytes(b"\xef\xbb\xbfcil: icarl\n")
    assert read_yaml(tmp_path / "mine.yml") == {"cil": "icarl"}


def test_a_config_of_everything_is_far_below_the_limits() -> None:
    assert len(resolve(cil=["all"], detector=["all"]).to_yaml()) < LONGEST / 2
