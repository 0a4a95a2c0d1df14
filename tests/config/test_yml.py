"""The YML reader: numbers as people write them, and an error that names the place for texts it refuses."""

from pathlib import Path

import pytest

from opencil.config import dump_yaml, parse_yaml, read_yaml
from opencil.config.yml import load
from opencil.errors import BadInput


def test_numbers_as_people_write_them() -> None:
    assert load("[2e-4, 1E5, -1e+3, .5e3, 1.e2, 7, 0.5, -3, '010']", "x") == [
        *(0.0002, 1e5, -1000.0, 500.0, 100.0, 7, 0.5, -3, "010")
    ]
    assert load("[e5, 1e, 2e-, v1e5]", "x") == ["e5", "1e", "2e-", "v1e5"]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("cil: icarl\ncil: icarl\n", "line 2"),
        ("cil:\n  icarl:\n    epochs: 3\n    epochs: 4\n", "line 4"),
        ("a: {b: 1, c: 2,\n b: 3}", "line 2"),
        ("cil: [icarl\n", "line"),
        ("cil: icarl: 3\n", "line 1"),
        ("a: !!python/object/apply:os.getcwd []\n", "line 1"),
        ("a: 1\n---\nb: 2", "line 2"),
        ("? [a]\n: b", "line 1"),
        ("a: 2024-13-45", ""),
        ("a: !!int ''", ""),
        ("a: b\nc: \0", ""),
        ("[" * 2000, ""),
        ("seed: &a [*a]", "letters"),
        ("".join(f"a{i}: &a{i} [{f'*a{i - 1}, ' * 10 if i else 'x'}]\n" for i in range(9)), "letters"),
        ("- cil\n- detector\n", "benchmark, cil"),
        ("icarl\n", "benchmark, cil"),
    ],
)
def test_a_text_that_cannot_be_used_is_refused_in_a_sentence(text: str, place: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yml"
    path.write_text(text)
    with pytest.raises(BadInput) as raised:
        read_yaml(path)
    message = str(raised.value)
    assert str(path) in message
    assert place in message
    assert "\n" not in message


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    binary = tmp_path / "binary.yml"
    binary.write_bytes(b"a: b\nc: \xff\n")
    for path in (tmp_path / "absent.yml", tmp_path, binary):
        with pytest.raises(BadInput) as raised:
            read_yaml(path)
        assert str(path) in str(raised.value)


def test_a_printed_text_is_short_and_reads_as_the_same() -> None:
    assert dump_yaml({"b": [1, 2], "a": {"c": []}}) == "b: [1, 2]\na:\n  c: []\n"
    odd = {"a": ["1e5", "2e-4", "null", "yes", "12", "2024-01-02", "a: [b", " "]}
    assert parse_yaml(dump_yaml(odd), "printed") == odd
