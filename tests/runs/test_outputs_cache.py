"""The cache of outputs: what it gives back, what it holds, and what it survives."""

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from opencil import BadInput, ImageSet, Inputs, Outputs, Transform
from opencil.data.digits import Noise
from opencil.locks import Lock
from opencil.runs import outputs_cache
from opencil.runs.outputs_cache import OutputsCache
from opencil.validation import parse_size
from tests import forks

TRANSFORM = Transform(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25), crop=8)
ENTRY = 20 * (192 + 3) * 4  # bytes of the tensors of one entry below


class Counting(nn.Module):
    """A model that counts the images it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(192, 3)
        nn.init.constant_(self.head.weight, 0.01)
        nn.init.zeros_(self.head.bias)
        self.seen = 0

    def features(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        return images.flatten(1)

    def classify(self, features: Tensor) -> Tensor:
        return self.head(features)


def image_set(seed: int = 0) -> ImageSet:
    return Noise(count=20, seed=seed).load("test", 8, None)


def inputs(model: Counting, seed: int = 0, **changes: object) -> Inputs:
    return Inputs(**{"model": model, "images": image_set(seed), "transform": TRANSFORM} | changes)  # type: ignore[arg-type]


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def size(folder: Path) -> int:
    """Bytes of everything in the folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def same(one: Outputs, other: Outputs) -> bool:
    assert one.labels is not None
    assert other.labels is not None
    pairs = [(one.features, other.features), (one.logits, other.logits), (one.labels, other.labels)]
    return all(torch.equal(a, b) and a.dtype == b.dtype for a, b in pairs)


def test_a_second_time_needs_no_forward_pass(tmp_path: Path) -> None:
    cache, model = OutputsCache(tmp_path, 10**6), Counting()
    first = cache.outputs("w", inputs(model))
    again = cache.outputs("w", inputs(model))
    assert model.seen == 20
    assert same(first, again)
    assert first.features.dtype == torch.float32
    assert again.classify is not None
    assert torch.equal(again.classify(again.features), again.logits)
    assert again.inputs is not None
    assert len(again.inputs) == 20


@pytest.mark.parametrize(
    ("weights", "changes"),
    [
        ("other", {}),
        ("w", {"images": image_set(1)}),
        ("w", {"transform": Transform(mean=(0.4, 0.5, 0.5), std=(0.25, 0.25, 0.25), crop=8)}),
        ("w", {"indices": torch.arange(19)}),
        ("w", {"indices": torch.arange(19, -1, -1)}),
    ],
    ids=["weights", "pixels", "transform", "fewer images", "another order"],
)
def test_whatever_decides_the_outputs_is_in_the_key(
    tmp_path: Path, weights: str, changes: dict[str, object]
) -> None:
    cache, model = OutputsCache(tmp_path, 10**6), Counting()
    cache.outputs("w", inputs(model))
    found = cache.outputs(weights, inputs(model, **changes))
    assert model.seen == 20 + len(found)
    assert len(entries(tmp_path)) == 2


def test_one_changed_pixel_is_noticed(tmp_path: Path) -> None:
    cache, model, images = OutputsCache(tmp_path, 10**6), Counting(), image_set()
    cache.outputs("w", inputs(model, images=images))
    pixels = images.images.clone()
    pixels[11, 2, 7, 7] ^= 1
    cache.outputs("w", inputs(model, images=ImageSet(images.name, pixels, images.labels)))
    assert model.seen == 40


def test_labels_are_not_kept_but_read_anew(tmp_path: Path) -> None:
    cache, model = OutputsCache(tmp_path, 10**6), Counting()
    cache.outputs("w", inputs(model))
    other = ImageSet("other", image_set().images, torch.arange(20))
    found = cache.outputs("w", inputs(model, images=other))
    assert model.seen == 20
    assert torch.equal(found.labels, torch.arange(20))  # type: ignore[arg-type]


def test_the_limit_is_never_passed_and_the_least_recently_used_go_first(tmp_path: Path) -> None:
    limit = 3 * (ENTRY + 400)
    cache, model = OutputsCache(tmp_path, limit), Counting()
    names: dict[int, Path] = {}
    for seed in range(3):
        cache.outputs("w", inputs(model, seed))
        (names[seed],) = set(entries(tmp_path)) - set(names.values())
    for age, seed in enumerate((1, 2, 0)):  # last used: 1 first, then 2, then 0
        os.utime(names[seed], ns=(10**9 * age, 10**9 * age))
    cache.outputs("w", inputs(model, 1))  # used just now: 2 is the oldest
    assert model.seen == 60
    for seed in range(3, 9):
        cache.outputs("w", inputs(model, seed))
        assert size(tmp_path) <= limit
        if seed == 3:
            assert names[2] not in entries(tmp_path)
            assert names[0] in entries(tmp_path)
            assert names[1] in entries(tmp_path)
    assert len(entries(tmp_path)) == 3


def test_an_entry_that_cannot_fit_is_not_stored_and_displaces_nothing(tmp_path: Path) -> None:
    model = Counting()
    OutputsCache(tmp_path, 2 * ENTRY).outputs("w", inputs(model))
    before = entries(tmp_path)
    OutputsCache(tmp_path, ENTRY - 1).outputs("w", inputs(model, 1))
    assert entries(tmp_path) == before


def test_a_lower_limit_is_kept_from_the_next_entry_on(tmp_path: Path) -> None:
    model = Counting()
    for seed in range(4):
        OutputsCache(tmp_path, 10**6).outputs("w", inputs(model, seed))
    OutputsCache(tmp_path, 2 * (ENTRY + 400)).outputs("w", inputs(model, 4))
    assert size(tmp_path) <= 2 * (ENTRY + 400)


def test_a_limit_of_nothing_switches_it_off(tmp_path: Path) -> None:
    cache, model = OutputsCache(tmp_path / "cache", 0), Counting()
    assert same(cache.outputs("w", inputs(model)), cache.outputs("w", inputs(model)))
    assert model.seen == 40
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped bit", "noise"])
def test_a_damaged_entry_is_computed_again(tmp_path: Path, damage: str) -> None:
    cache, model = OutputsCache(tmp_path, 10**6), Counting()
    expected = cache.outputs("w", inputs(model))
    (entry,) = entries(tmp_path)
    content = bytearray(entry.read_bytes())
    whole = bytes(content)
    content[-5] ^= 1
    entry.write_bytes(
        {"empty": b"", "cut": whole[:-9], "flipped bit": bytes(content), "noise": b"?" * 99}[damage]
    )
    assert same(cache.outputs("w", inputs(model)), expected)
    assert model.seen == 40
    assert entry.read_bytes() == whole  # and is whole again


def test_the_entry_of_others_is_computed_again(tmp_path: Path) -> None:
    cache, model = OutputsCache(tmp_path, 10**6), Counting()
    expected = cache.outputs("w", inputs(model))
    (entry,) = entries(tmp_path)
    cache.outputs("other", inputs(model, seed=1))
    (other,) = set(entries(tmp_path)) - {entry}
    entry.write_bytes(other.read_bytes())
    assert same(cache.outputs("w", inputs(model)), expected)


def test_what_a_killed_process_left_half_written_is_removed(tmp_path: Path) -> None:
    limit = 2 * (ENTRY + 400)
    (tmp_path / "abc.safetensors.part").write_bytes(b"x" * limit)
    OutputsCache(tmp_path, limit).outputs("w", inputs(Counting()))
    assert size(tmp_path) <= limit
    assert len(entries(tmp_path)) == 1


def test_a_halted_process_that_holds_the_folder_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outputs_cache, "_PATIENCE", 0.01)
    cache, model = OutputsCache(tmp_path, 10**6), Counting()
    with Lock(tmp_path / ".held"):
        cache.trim()
        outputs = cache.outputs("w", inputs(model))
    assert entries(tmp_path) == []
    assert [record.message.partition(" (")[0] for record in caplog.records] == [
        f"outputs are not kept in {tmp_path}"
    ]
    assert same(cache.outputs("w", inputs(model)), outputs)
    assert len(entries(tmp_path)) == 1, "it is free again"


def _size(entry: Path) -> int:
    try:
        return entry.stat().st_size
    except FileNotFoundError:  # the other process has just removed it
        return 0


def _use(folder: Path, first: int) -> None:
    torch.set_num_threads(1)
    cache, model = OutputsCache(folder, 4 * (ENTRY + 400)), Counting()
    for i in range(30):
        seed = (first + i) % 6
        found = cache.outputs("w", inputs(model, seed))
        expected = TRANSFORM.test(image_set(seed).images).flatten(1)
        assert torch.equal(found.features, expected)
        assert sum(map(_size, entries(folder))) <= cache.limit


def test_two_processes_share_a_folder(tmp_path: Path) -> None:
    processes = [forks.context().Process(target=_use, args=(tmp_path, first)) for first in (0, 3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    assert len(entries(tmp_path)) == 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (0, 0),
        (123, 123),
        ("0", 0),
        ("2GB", 2 * 10**9),
        ("1.5 GiB", 3 * 2**29),
        ("500mb", 5 * 10**8),
        ("7B", 7),
    ],
)
def test_sizes(text: int | str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "two", "-1", "2XB", "GB", "1e3"])
def test_sizes_that_are_not_understood(text: str) -> None:
    with pytest.raises(BadInput, match="is not understood"):
        parse_size(text)
