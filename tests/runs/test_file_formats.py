"""What is stored comes back, or the file that is damaged is named."""

from pathlib import Path

import pytest
import torch

from opencil import OpenCILError, seals
from opencil.runs import file_formats


def test_tensors_come_back(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6).view(2, 3).T, "b": torch.tensor(2.5)}
    file_formats.write_tensors(tmp_path / "t.safetensors", tensors)
    back = file_formats.read_tensors(tmp_path / "t.safetensors")
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)


def test_what_is_noted_beside_tensors_comes_back_without_the_seal(tmp_path: Path) -> None:
    """Of any length: the header of a file is filled up with spaces to a multiple of 8."""
    path = tmp_path / "t.safetensors"
    for length in range(8):
        made_of = {"made_of": "x" * length}
        digits = file_formats.write_tensors(path, {"a": torch.ones(2)}, made_of)
        _, notes, found = file_formats.read_checked(path)
        assert (notes, found) == (made_of, digits)


def test_a_whole_file_that_is_another_than_recorded_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    recorded = file_formats.write_tensors(path, {"a": torch.ones(2)})
    assert file_formats.read_checked(path, recorded)[2] == recorded
    file_formats.write_tensors(path, {"a": torch.zeros(2)})
    with pytest.raises(OpenCILError, match=r"its checksum differs from the recorded one"):
        file_formats.read_checked(path, recorded)


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("step01/accuracy.parquet", "'opencil run' makes it again"),
        ("step01/checkpoint.safetensors", "'opencil run' makes it again"),
        ("step01/detectors/msp.parquet", "'opencil run' makes it again"),
        ("step01/heads/ber.checkpoint.safetensors", "'opencil run' makes it again"),
        ("step01/heads/ber@0.1.checkpoint.safetensors", "'opencil run' makes it again"),
        (
            "step01/heads/ber@0.1.safetensors",
            "delete it and step01/detectors/ber@0.1.parquet to",
        ),
        ("config.yml", "if you changed it, remove its first line"),
        ("step01/memory.safetensors", "delete the folder step01 to compute it again"),
    ],
)
def test_what_can_be_done_about_a_damaged_file_is_said(name: str, way: str) -> None:
    assert f" cannot be used (it is cut): {way}" in str(file_formats.damaged(Path(name), "it is cut"))


def test_json_comes_back(tmp_path: Path) -> None:
    content = {"a": [1, 2.5, None], "b": {"c": "ü"}}
    seals.write_json(tmp_path / "a.json", content)
    assert file_formats.read_json(tmp_path / "a.json") == content


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"3", b"\xff\xfe"])
def test_a_damaged_json_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "step.json"
    path.write_bytes(content)
    with pytest.raises(OpenCILError, match="delete the folder") as raised:
        file_formats.read_json(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("content", [None, b"", b"junk", b"\x08" + bytes(7) + b"{}      "[:4]])
def test_damaged_tensors_are_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "model.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(OpenCILError, match="delete the folder") as raised:
        file_formats.read_tensors(path)
    assert str(path) in str(raised.value)


def test_every_damaged_file_is_kept_and_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "data.json"
    for content in ("a", "b", "c"):
        path.write_text(content)
        file_formats.set_aside(path, "it is cut off")
    kept = {"data.json.damaged": "a", "data.json2.damaged": "b", "data.json3.damaged": "c"}
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == kept
    told = "data.json cannot be used (it is cut off): it is computed again, and kept as "
    assert [record.getMessage().split("/")[-1] for record in caplog.records] == [told + to for to in kept]
