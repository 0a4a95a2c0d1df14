"""Runs that take turns are the runs that they are alone."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from opencil.config import Config
from opencil.runs.events import Event, Failed, Finished, Training

Make = Callable[..., Config]
RunAll = Callable[[Config], list[Event]]
Results = Callable[[Path], dict[str, object]]


gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="streams of their own need a CUDA device")


@pytest.mark.parametrize(
    ("device", "precision"),
    [("cpu", "bf16"), pytest.param("cuda", "tf32", marks=gpu), pytest.param("cuda", "bf16", marks=gpu)],
)
def test_packed_runs_are_bit_for_bit_the_runs_alone(
    tmp_path: Path, tiny: Make, run_all: RunAll, results: Results, device: str, precision: str
) -> None:
    """Weights, memories, rows and outputs, of three methods that share nothing but the loop."""
    settings = [f"place.device={device}", f"training.precision={precision}", "benchmark.classes_per_step=4"]
    cil = "icarl,bic,foster"
    alone = run_all(tiny(tmp_path / "alone", *settings, "place.pack=1", cil=cil))
    packed = run_all(tiny(tmp_path / "packed", *settings, "place.pack=3", cil=cil))
    assert results(tmp_path / "packed") == results(tmp_path / "alone")
    names = [f"digits/k4/{name}/seed0" for name in cil.split(",")]
    for events in (alone, packed):
        assert sorted(str(e.run) for e in events if isinstance(e, Finished)) == sorted(names)
    foster, icarl, bic = names[2], names[0], names[1]
    assert [str(e.run) for e in packed[:6]] == [foster, icarl, bic] * 2, "in turns, the longest first"
    changes = sum(one.run != other.run for one, other in pairwise(alone))
    assert changes == 2, "one after the other"


def test_no_more_runs_than_asked_for_advance_together(tmp_path: Path, tiny: Make, run_all: RunAll) -> None:
    settings = ["benchmark.classes_per_step=8", "cil.icarl.epochs=1", "place.pack=2"]
    events = run_all(tiny(tmp_path, *settings, seed=[0, 1, 2], detector="msp"))
    under_way: set[int] = set()
    most = 0
    for event in events:
        under_way.add(event.run.seeds.run)
        most = max(most, len(under_way))
        if isinstance(event, Finished):
            under_way.remove(event.run.seeds.run)
    assert (most, under_way) == (2, set())
    assert sum(isinstance(event, Finished) for event in events) == 3


def test_a_run_that_fails_leaves_the_others_of_its_pack_alone(
    tmp_path: Path, tiny: Make, run_all: RunAll, results: Results
) -> None:
    settings = ["benchmark.classes_per_step=4"]
    run_all(tiny(tmp_path / "alone", *settings, cil="wa,replay", detector="msp"))
    bad = [*settings, "cil.icarl.later.lr=1e30", "place.pack=3"]
    events = run_all(tiny(tmp_path / "packed", *bad, cil="wa,icarl,replay", detector="msp"))
    failed = next(i for i, event in enumerate(events) if isinstance(event, Failed))
    assert str(events[failed].run) == "digits/k4/icarl/seed0"
    after = {event.run.cil for event in events[failed + 1 :] if isinstance(event, Training)}
    assert after == {"wa", "replay"}, "both were under way when it failed"
    for name in ("wa", "replay"):
        place = Path("digits/k4") / name
        assert results(tmp_path / "packed" / place) == results(tmp_path / "alone" / place)
