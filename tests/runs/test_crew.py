"""A queue of runs and its workers: order, losses, leaving; with workers that are made up here."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opencil.config import Config, PlaceConfig
from opencil.errors import BadInput
from opencil.runs.crew import Asks, Assignment, Ended, Inbox, Message, Refuses, Says, Worker, spread
from opencil.runs.events import Failed, Finished, Lost
from opencil.runs.plan import RunSpec, plan

Make = Callable[..., Config]
PLACES = [PlaceConfig(device="cuda:0"), PlaceConfig(device="cuda:1")]


class Made(Worker):
    """A worker that does what a function of its number and what it is given says."""

    def __init__(self, place: PlaceConfig, inbox: Inbox, react: "React", crew: "list[Made]") -> None:
        self.place, self.number, self.said = place, len(crew), list[str]()
        self._inbox, self._react, self.given = inbox, react, list[RunSpec]()
        self.patient = list[RunSpec]()
        crew.append(self)
        self._tell(react(self, None))

    def _tell(self, messages: "Iterator[Message]") -> None:
        for message in messages:
            self._inbox.put((self, message))

    def give(self, run: Assignment | None) -> None:
        if run is None:
            self._tell(iter([Ended()]))
        else:
            self.given.append(run.spec)
            self.patient += [run.spec] if run.patience else []
            self._tell(self._react(self, run.spec))

    def leave(self) -> None:
        self.said.append("leave")

    def wait(self) -> None:
        self.said.append("wait")

    def kill(self) -> None:
        self.said.append("kill")


React = Callable[[Made, RunSpec | None], Iterator[Message]]


def diligent(worker: Made, spec: RunSpec | None) -> Iterator[Message]:
    if spec is not None:
        yield Finished(spec, already=False)
    yield Asks()


@pytest.fixture(scope="module")
def runs(tiny: Make) -> list[Assignment]:
    return [Assignment(spec) for spec in plan(tiny(Path("r"), seed=[0, 1, 2, 3, 4]))]


def go(runs: list[Assignment], react: React) -> tuple[list[object], list[Made]]:
    crew: list[Made] = []
    events = list(spread(runs, PLACES, lambda place, inbox: Made(place, inbox, react, crew)))
    return events, crew


def test_runs_go_in_their_order_to_who_asks(runs: list[Assignment]) -> None:
    events, crew = go(runs, diligent)
    assert [event.run for event in events] == [run.spec for run in runs]  # type: ignore[attr-defined]
    assert [worker.place for worker in crew] == PLACES


def test_what_a_lost_worker_had_is_taken_up_first_by_one_in_its_place(runs: list[Assignment]) -> None:
    def react(worker: Made, spec: RunSpec | None) -> Iterator[Message]:
        if worker.number == 1 and spec is not None:
            yield Ended("the worker fell")
        else:
            yield from diligent(worker, spec)

    events, crew = go(runs, react)
    (lost,) = [event for event in events if isinstance(event, Lost)]
    assert lost.reason == "the worker fell"
    assert len(crew) == 3
    assert crew[2].place == crew[1].place
    finished = [str(event.run) for event in events if isinstance(event, Finished)]
    assert sorted(finished) == sorted(str(run.spec) for run in runs)
    rest = [str(run.spec) for run in runs if run.spec not in crew[0].given[:1]]
    assert str(lost.run) in rest[:2]
    assert [spec for worker in crew for spec in worker.patient] == [lost.run], "its lock may still be held"


def test_packed_runs_are_lost_together(runs: list[Assignment]) -> None:
    def react(worker: Made, spec: RunSpec | None) -> Iterator[Message]:
        if worker.number == 0:
            yield Ended("it fell") if len(worker.given) == 2 else Asks()
        else:
            yield from diligent(worker, spec)

    events, _ = go(runs, react)
    assert sum(isinstance(event, Lost) for event in events) == 2
    assert sum(isinstance(event, Finished) for event in events) == 5


def test_a_run_that_ends_its_workers_is_given_up(runs: list[Assignment]) -> None:
    bad = runs[2].spec

    def react(worker: Made, spec: RunSpec | None) -> Iterator[Message]:
        if spec == bad:
            yield Ended("out of memory")
        else:
            yield from diligent(worker, spec)

    events, crew = go(runs, react)
    (failed,) = [event for event in events if isinstance(event, Failed)]
    assert failed.run == bad
    assert "2 workers ended in it; out of memory" in str(failed.error)
    assert sum(isinstance(event, Finished) for event in events) == 4
    assert len(crew) <= 4


def test_workers_that_never_begin_are_not_replaced_for_ever(runs: list[Assignment]) -> None:
    events, crew = go(runs, lambda *_: iter([Ended("it cannot import torch")]))
    assert len(crew) == 4, "each once more"
    assert [event.run for event in events] == [run.spec for run in runs]  # type: ignore[attr-defined]
    for event in events:
        assert isinstance(event, Failed)
        assert "there is no worker for it: it cannot import torch" in str(event.error)


def test_a_worker_that_is_lost_before_it_asked_is_told_and_replaced(
    runs: list[Assignment], caplog: pytest.LogCaptureFixture
) -> None:
    def react(worker: Made, spec: RunSpec | None) -> Iterator[Message]:
        return iter([Ended("the worker on cuda:1 is gone")]) if worker.number == 1 else diligent(worker, spec)

    events, crew = go(runs, react)
    assert [type(event) for event in events] == [Finished] * 5
    assert [worker.place.device for worker in crew] == ["cuda:0", "cuda:1", "cuda:1"]
    assert crew[2].given, "it takes part"
    assert caplog.messages == ["the worker on cuda:1 is gone (it had no run)"]


def test_who_finds_no_room_is_not_waited_for_at_the_end(runs: list[Assignment]) -> None:
    events, crew = go(runs, lambda worker, spec: diligent(worker, spec) if worker.number == 0 else iter([]))
    assert [type(event) for event in events] == [Finished] * 5
    assert [worker.said for worker in crew] == [[], ["leave", "wait"]]


def test_what_is_wrong_for_every_worker_ends_them_all(runs: list[Assignment]) -> None:
    crew: list[Made] = []
    refused = lambda *_: iter([Refuses(BadInput("no images"))])  # noqa: E731
    with pytest.raises(BadInput, match="no images"):
        list(spread(runs, PLACES, lambda place, inbox: Made(place, inbox, refused, crew)))
    assert [worker.said for worker in crew] == [["leave", "wait"]] * 2


def test_whoever_leaves_makes_all_leave(runs: list[Assignment]) -> None:
    crew: list[Made] = []
    events = spread(runs, PLACES, lambda place, inbox: Made(place, inbox, diligent, crew))
    next(events)
    events.close()
    assert [worker.said for worker in crew] == [["leave", "wait"]] * 2


def test_whoever_is_interrupted_again_does_not_wait(
    runs: list[Assignment], monkeypatch: pytest.MonkeyPatch
) -> None:
    crew: list[Made] = []
    events = spread(runs, PLACES, lambda place, inbox: Made(place, inbox, diligent, crew))
    next(events)

    def impatient(worker: Made) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Made, "wait", impatient)
    with pytest.raises(KeyboardInterrupt):
        events.close()
    assert [worker.said for worker in crew] == [["leave", "kill"]] * 2


def test_what_workers_log_is_logged_here(runs: list[Assignment], caplog: pytest.LogCaptureFixture) -> None:
    def react(worker: Made, spec: RunSpec | None) -> Iterator[Message]:
        if spec is None:
            yield Says("opencil.runs", 30, "100 % of the disk is full")
        yield from diligent(worker, spec)

    go(runs, react)
    assert caplog.messages == ["100 % of the disk is full"] * 2
