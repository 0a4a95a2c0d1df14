"""A short siege; ``make siege`` is the long one, and docs/reliability.md has its log."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import stored
from tests.siege import crowd, damage, damages, flips, grounds, kills, workers, writers
from tests.siege.grounds import Camp


@pytest.fixture(scope="module")
def camp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Camp]:
    with grounds.camp(tmp_path_factory.mktemp("siege")) as pitched:
        yield pitched


def test_what_is_disturbed_goes_on_as_if_nothing_had_happened(camp: Camp) -> None:
    """Kills, three processes at once, and kills of a writer: one start of everything serves them all."""
    siege = kills.Kills(camp, grounds=kills.GROUNDS[:1])
    assert siege.trial(random.Random("short")) is None
    assert siege.signals.total(), "somebody was disturbed"
    grid, alone = ["run", *kills.GROUNDS[0], *grounds.SHORT], siege.references[0].stored
    assert crowd.trial(camp, alone, random.Random(1), grid, processes=3) is None
    preparing = writers.preparing(camp)
    preparing.undisturbed(camp)
    wrong, _ = preparing.trial(camp, random.Random("short"))
    assert wrong is None


def test_workers_lose_no_run_and_do_none_twice(camp: Camp) -> None:
    """Five runs by two workers, one of which is killed; in a long siege the starter may be killed too."""
    wrong, told = workers.trial(camp, workers.alone(camp, runs=5), random.Random(10), runs=5, workers=2)
    assert wrong is None
    assert told == "1 workers killed, and not the starter"


def test_damage_is_told_or_harmless(camp: Camp) -> None:
    """Of a run's files; each kind of damage and of use is met once."""
    runs, run = flips.run_of(camp)
    for number, kind in enumerate(flips.kinds_of_finished(runs, run)):
        assert kind.trial(number, seed=1) is None
    siege = damages.Damages(camp, {"finished": runs}, elsewhere=run)
    kinds = ["step*/step.json", "step*/detectors/*.parquet", "step*/model.safetensors", "environment.json"]
    for number, (name, use) in enumerate(zip(damage.DAMAGES, [*damages.USES] * 2, strict=False)):
        kind = kinds[number % len(kinds)]
        assert siege.trial("finished", kind, name, use, random.Random(number)) is None, (kind, name, use)


def test_two_stores_are_told_apart_by_any_byte_but_times(tmp_path: Path) -> None:
    for name, seconds, rows in (("a", 1, b"rows"), ("b", 2, b"rows"), ("c", 1, b"rowt")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "step.json").write_text(f'{{"steps": 2, "seconds": {{"training": {seconds}}}}}')
        (tmp_path / name / "accuracy.parquet").write_bytes(rows)
    a, b, c = (stored.results(tmp_path / name) for name in "abc")
    assert stored.differences(a, b) == []
    assert stored.differences(a, c) == ["accuracy.parquet"]
    del c["step.json"]
    assert stored.differences(a, c) == ["accuracy.parquet", "step.json"]
