"""Runs that evaluate a step beside the training of the next are the runs that they are in order.

On a GPU they go so by themselves; here a CPU is made to.
"""

from collections.abc import Callable, Generator, Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import opencil
from opencil.config import Config
from opencil.engine.forward import Inputs
from opencil.engine.loop import Progress
from opencil.engine.turns import let_others, taking_turns
from opencil.runs import advance, runner
from opencil.runs.events import Evaluated, Event, Failed, Finished, Training
from opencil.runs.lanes import QUEUED, Lane, Lanes, Strand
from opencil.runs.plan import plan
from opencil.runs.run import Run
from opencil.runs.store import RunFolder
from tests import forks

Make = Callable[..., Config]
RunAll = Callable[[Config], list[Event]]
Results = Callable[[Path], dict[str, object]]

CPU = torch.device("cpu")
#: A head that is tuned, a detector that reads images again, one that is set up.
DETECTORS = ["msp", "odin", "relation", "ber"]
SETTINGS = ["benchmark.classes_per_step=4", "cil.*.epochs=1", "detector.ber.schedule.epochs=1"]


@pytest.fixture
def _beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "goes_beside", lambda device: True)


beside = pytest.mark.usefixtures("_beside")


def make(tiny: Make, runs: Path, *settings: str, cil: str = "icarl") -> Config:
    return tiny(runs, *SETTINGS, *settings, cil=cil, detector=DETECTORS)


@pytest.fixture(scope="module")
def in_order(tiny: Make, run_all: RunAll, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, each step after the other."""
    runs = tmp_path_factory.mktemp("in order") / "runs"
    events = run_all(make(tiny, runs, cil="icarl,foster"))
    assert sum(isinstance(event, Finished) for event in events) == 2
    return runs


def lacking_at_training(events: list[Event]) -> int:
    """How many detectors of step 1 have no rows as the training of step 2 begins."""
    began = next(i for i, e in enumerate(events) if isinstance(e, Training) and e.step == 2)
    return len(DETECTORS) - sum(isinstance(event, Evaluated) for event in events[:began])


# --- the same results ------------------------------------------------------------------------------


@beside
@pytest.mark.parametrize(("pack", "cil"), [(1, ["icarl"]), (2, ["icarl", "foster"])])
def test_runs_beside_themselves_are_bit_for_bit_those_in_order(
    tmp_path: Path,
    tiny: Make,
    run_all: RunAll,
    results: Results,
    in_order: Path,
    pack: int,
    cil: list[str],
) -> None:
    events = run_all(make(tiny, tmp_path, f"place.pack={pack}", cil=",".join(cil)))
    assert [type(e) for e in events if isinstance(e, (Finished, Failed))] == [Finished] * len(cil)
    for name in cil:
        run = f"digits/k4/{name}/seed0"
        assert results(tmp_path / run) == results(in_order / run)
        of_run = [event for event in events if event.run.cil == name]
        assert lacking_at_training(of_run) > 0
        evaluated = [(e.step, e.detector) for e in of_run if isinstance(e, Evaluated)]
        assert evaluated == [(t, d) for t in (1, 2) for d in DETECTORS]


def test_on_a_cpu_a_step_is_evaluated_before_the_next_begins(
    tmp_path: Path, tiny: Make, run_all: RunAll
) -> None:
    assert lacking_at_training(run_all(make(tiny, tmp_path))) == 0


@beside
def test_without_a_training_there_is_nothing_to_go_beside(
    finished: Path, tiny: Make, run_all: RunAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed: list[object] = []
    monkeypatch.setattr(Lane, "follow", lambda lane, work: followed.append(work))
    assert isinstance(run_all(tiny(finished, detector=["gen"]))[-1], Finished)
    assert not followed


def test_trainings_wait_when_they_are_two_steps_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a trained step leaves is in memory until it is evaluated."""

    class FakeRun:
        stream = range(1, 6)
        setting = SimpleNamespace(images=SimpleNamespace(device=CPU))

        def apart(self) -> "FakeRun":
            return self

    done: list[str] = []

    def trained(run: object, step: int, seconds: float) -> Generator[Event]:
        done.append(f"train {step}")
        yield Event(None)  # type: ignore[arg-type]

    def follow_up(self: object, run: object, step: int) -> Generator[Event]:
        done.append(f"follow {step}")
        yield Event(None)  # type: ignore[arg-type]

    monkeypatch.setattr(advance, "_trained", trained)
    monkeypatch.setattr(advance.Advance, "_follow_up", follow_up)
    work = advance.Advance(FakeRun(), None, 60.0)  # type: ignore[arg-type]
    trainings, follow_ups = work.trainings(), work.follow_ups()
    assert next(follow_ups) is None, "nothing is there to follow"
    assert [next(trainings) is None for _ in range(4)] == [False, False, True, True]
    assert done == ["train 1", "train 2"]
    next(follow_ups)
    assert next(trainings) is None, "step 1 is being evaluated"
    next(follow_ups)
    assert next(trainings) is not None
    assert done == ["train 1", "train 2", "follow 1", "follow 2", "train 3"]


@beside
def test_stopped_again_and_again_beside_equals_never_stopped(
    tmp_path: Path, tiny: Make, results: Results, in_order: Path
) -> None:
    config, starts, done = make(tiny, tmp_path, "place.pack=2", cil="icarl,foster"), 0, 0
    while done < 2:
        events = opencil.execute(config)
        done = sum(isinstance(event, Finished) for event in islice(events, 30))
        events.close()
        starts += 1
        assert starts < 20
    assert starts >= 3
    assert results(tmp_path) == results(in_order)


KILLED = {
    "between two detectors of step 1, step 2 under way": """
began = False
for event in opencil.execute(config):
    began |= isinstance(event, Training) and event.step == 2
    if began and isinstance(event, Evaluated) and event.step == 1:
        die()
""",
    "while a step is tuned": """
for event in opencil.execute(config):
    if isinstance(event, Training) and (event.step, event.progress.stage) == (2, "tune ber"):
        die()
""",
}


@beside
@pytest.mark.parametrize("code", KILLED.values(), ids=KILLED.keys())
def test_killed_beside_and_started_again_equals_never_killed(
    code: str,
    tmp_path: Path,
    tiny: Make,
    run_all: RunAll,
    results: Results,
    in_order: Path,
) -> None:
    config, run = make(tiny, tmp_path), Path("digits/k4/icarl/seed0")
    forced = "from opencil.runs import runner\nrunner.goes_beside = lambda device: True\n"
    with forks.code(config, forced + code) as process:
        _, errors = process.communicate()
    assert process.returncode == -9, errors
    assert not RunFolder(tmp_path / run).step(2).detector_rows("msp").exists()
    assert isinstance(run_all(config)[-1], Finished)
    assert results(tmp_path / run) == results(in_order / run)


# --- failures --------------------------------------------------------------------------------------


@beside
def test_when_a_training_fails_the_steps_before_it_are_evaluated(
    tmp_path: Path, tiny: Make, run_all: RunAll
) -> None:
    events = run_all(make(tiny, tmp_path, "cil.icarl.later.lr=1e30"))
    assert isinstance(events[-1], Failed)
    assert "ICaRL, step 2" in str(events[-1].error)
    rows = opencil.read_rows(tmp_path)
    assert set(rows["detector"]) == {"", *DETECTORS}
    assert set(rows["step"]) == {1}


@beside
def test_when_what_follows_a_training_fails_the_run_ends_and_no_other(
    tmp_path: Path,
    tiny: Make,
    run_all: RunAll,
    results: Results,
    in_order: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write = advance.write_rows

    def full(table: Path, rows: Any) -> None:
        if table.name == "odin.parquet" and "icarl/seed0/step01" in table.as_posix():
            raise OSError(28, "No space left on device")
        write(table, rows)

    config = make(tiny, tmp_path, "place.pack=2", cil="icarl,foster")
    with monkeypatch.context() as patched:
        patched.setattr(advance, "write_rows", full)
        events = run_all(config)
    failed, finished = sorted(
        (e for e in events if isinstance(e, (Failed, Finished))), key=lambda e: isinstance(e, Finished)
    )
    assert isinstance(failed, Failed)
    assert (failed.run.cil, finished.run.cil) == ("icarl", "foster")
    assert "the disk is full" in str(failed.error)
    assert not any(e.run.cil == "icarl" for e in events[events.index(failed) + 1 :])
    foster = Path("digits/k4/foster")
    assert results(tmp_path / foster) == results(in_order / foster)
    assert {type(e) for e in run_all(config) if isinstance(e, (Failed, Finished))} == {Finished}
    assert results(tmp_path) == results(in_order)


@beside
def test_a_detector_without_rows_is_named_at_the_end(tmp_path: Path, tiny: Make, run_all: RunAll) -> None:
    settings = [*SETTINGS[:2], "detector.nnguide.neighbours=1000", "detector.nnguide.setup=train+"]
    config = tiny(tmp_path, *settings, detector=["nnguide", "msp"])
    events = run_all(config)
    assert isinstance(events[-1], Failed)
    assert "nnguide has no rows: step 1" in str(events[-1].error)
    assert sum(isinstance(event, Evaluated) for event in events) == 2


# --- who goes first --------------------------------------------------------------------------------


def test_expected_work_counts_networks_epochs_and_images(tmp_path: Path, tiny: Make) -> None:
    settings = ["cil.icarl.first.epochs=6", "cil.icarl.later.epochs=3", "cil.joint.epochs=3"]
    settings += ["cil.bic.epochs=3", "cil.foster.epochs=3"]
    config = tiny(tmp_path, *settings, cil="icarl,bic,foster,joint,finetune")
    works = {}
    for spec in plan(config):
        run = Run(spec, RunFolder(tmp_path / spec.folder), opencil.benchmark("digits"))
        works[spec.cil] = run.expected_work
    new = [len(step.train) for step in opencil.benchmark("digits").stream(2)]
    later = sum(new[1:]) + 3 * 80
    assert works["icarl"] == pytest.approx(6 * new[0] + 3 * later * 4 / 3)
    assert works["bic"] == pytest.approx(3 * new[0] + 3 * later * 4 / 3)
    assert works["foster"] == pytest.approx(3 * new[0] + 3 * later * (4 / 3 + 5 / 3))
    assert works["finetune"] == pytest.approx(2 * new[0] + 2 * sum(new[1:]) * 4 / 3)
    all_seen = [sum(new[: t + 1]) for t in range(4)]
    assert works["joint"] == pytest.approx(3 * all_seen[0] + 3 * sum(all_seen[1:]) * 4 / 3)


def test_a_run_that_has_come_far_has_little_work_left(finished: Path, tiny: Make) -> None:
    (spec,) = plan(tiny(finished))
    folder = RunFolder(finished / spec.folder)
    run = Run(spec, folder, opencil.benchmark("digits"))
    assert run.expected_work == 0
    (folder.step(4).path / "step.json").unlink()
    last = len(run.stream[3].train) + 80
    assert run.expected_work == pytest.approx(2 * last * 4 / 3)


def test_finished_runs_answer_first_and_the_longest_begins_next(
    tmp_path: Path, tiny: Make, run_all: RunAll
) -> None:
    settings = ["benchmark.classes_per_step=8", "cil.*.epochs=1", "place.pack=2"]
    run_all(tiny(tmp_path, *settings, cil="replay", detector="msp"))
    settings += ["cil.wa.first={epochs: 3, milestones: []}"]
    events = run_all(tiny(tmp_path, *settings, cil="icarl,wa,replay", detector="msp"))
    assert events[0] == Finished(events[0].run, already=True)
    assert list(dict.fromkeys(event.run.cil for event in events)) == ["replay", "wa", "icarl"]


# --- turns -----------------------------------------------------------------------------------------


def progress(iteration: int, iterations: int = 50) -> Progress:
    zero = torch.zeros(())
    return Progress("train", 1, 2, iteration, iterations, 0.1, zero, zero, dict)


class Mark:
    """Stands for an event on a stream."""

    def __init__(self) -> None:
        self.passed = False

    def query(self) -> bool:
        return self.passed


def test_a_strand_takes_turns_until_its_queue_is_full_and_waits_at_an_epochs_end(
    tmp_path: Path, tiny: Make
) -> None:
    (spec,) = plan(tiny(tmp_path))

    def work() -> Generator[Event | None]:
        for i in range(1, 51):
            yield Training(spec, 1, 4, progress(i))

    strand, marks = Strand(work(), CPU, 0, QUEUED), []
    for _ in range(QUEUED):
        assert strand.ready()
        strand.next()
        marks.append(Mark())
        strand._marks.append(marks[-1])  # type: ignore[arg-type]
    assert not strand.ready()
    marks[1].passed = True
    assert not strand.ready(), "the first has not passed: streams are in order"
    marks[0].passed = True
    assert strand.ready()
    while strand.next() is not None and strand._last is not None:
        if strand._last.progress.iteration == 49:  # type: ignore[attr-defined]
            break
    assert not strand.ready(), "the next turn waits for all that is queued"
    for mark in marks[:-1]:
        mark.passed = True
    assert strand.ready()
    strand.next()
    assert strand.untold
    assert not strand.ready(), "its loss is to be read first"


def test_trainings_go_on_in_the_middle_of_what_follows_another(tmp_path: Path, tiny: Make) -> None:
    """With gradients, whatever the work around them has switched off; each told once, in order."""
    (spec,) = plan(tiny(tmp_path))
    graded: list[bool] = []

    def training() -> Generator[Event | None]:
        for i in range(1, 11):
            graded.append(torch.is_grad_enabled())
            yield Training(spec, 1, 4, progress(i))
        while not lane.followed:
            yield None

    @torch.no_grad()
    def long() -> None:
        images = torch.zeros(6, 3, 8, 8)
        for _ in Inputs(torch.nn.Module(), images, batch_size=2).batches():  # type: ignore[arg-type]
            pass

    def following() -> Generator[Event | None]:
        long()
        yield Evaluated(spec, 1, 4, "msp")

    def begin(lane: Lane) -> Generator[Event | None]:
        lane.follow(following())
        return training()

    lanes = Lanes(CPU, beside=True)
    lane = Lane(begin, CPU, longest=False)
    lanes.running.append(lane)
    first = list(lanes.round())
    told = [e.progress.iteration for e in first if isinstance(e, Training)]
    assert told == [1, 2, 3, 4], "one by turn, and one after each of three batches"
    assert isinstance(first[-1], Evaluated)
    while lanes.running:
        told += [e.progress.iteration for e in lanes.round() if isinstance(e, Training)]
    assert told == list(range(1, 11))
    assert all(graded)


def test_nobody_has_to_be_there_for_others_to_be_let() -> None:
    calls: list[int] = []
    let_others()
    with taking_turns(lambda: calls.append(1)):
        let_others()
    let_others()
    assert calls == [1]


def test_a_strand_is_not_entered_again_from_within_itself() -> None:
    def work() -> Iterator[None]:
        assert not strand.ready()
        yield None

    strand = Strand(work(), CPU, 0, QUEUED)  # type: ignore[arg-type]
    assert strand.ready()
    assert strand.next() is None
    assert not strand.ended
    assert strand.next() is None
    assert strand.ended
