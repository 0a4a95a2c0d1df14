"""A short siege; ``make siege`` is the long one, and docs/reliability.md has its log."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import stored
from tests.siege import crowd, damage, damages, grounds, kills, workers, writers
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
    """Every kind of file, in a store that has it: one damage and one use of all, and another's file there."""
    siege = damages.Damages.pitched(camp)
    places = [("finished", kind) for kind in damage.KINDS if "checkpoint" not in kind]
    places += [(state, kind) for state, kind in damages.STATES.items() if kind]
    harms, uses = [*damage.DAMAGES], [*damages.USES]
    for number, (state, kind) in enumerate(places):
        drawn = (harms[number % len(harms)], uses[number % len(uses)])
        for name, use in (drawn, ("swapped", ("deployed", "report")[number % 2])):
            assert siege.trial(state, kind, name, use, random.Random(number)) is None, (kind, name, use)


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
