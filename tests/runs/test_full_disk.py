"""A disk that is full: the run fails alone, in a sentence, and is resumed later."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from opencil.config import Config
from opencil.runs.events import Event, Failed, Finished
from tests.stored import results

Make = Callable[..., Config]
RunAll = Callable[[Config], list[Event]]
FIRST, SECOND = "digits/k8/icarl/seed0", "digits/k8/icarl/seed1"


def ends(events: list[Event]) -> dict[str, Event]:
    return {str(event.run): event for event in events if isinstance(event, Finished | Failed)}


@pytest.mark.parametrize(
    ("number", "file"),
    [
        (errno.ENOSPC, "step01/model.safetensors"),
        (errno.EDQUOT, "step01/step.json"),
        (errno.ENOSPC, "step01/detectors/msp.parquet"),
        (errno.EROFS, "environment.json"),
    ],
)
def test_a_run_whose_file_cannot_be_written_fails_alone_and_is_resumed(
    short: Make,
    tmp_path: Path,
    run_all: RunAll,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    file: str,
) -> None:
    config = short(tmp_path / "runs", "benchmark.classes_per_step=8", detector="msp", seed=[0, 1])
    write_bytes = Path.write_bytes

    def refuse(path: Path, content: bytes) -> int:
        if f"seed0/{file}" in path.as_posix():
            write_bytes(path, content[: len(content) // 2])
            raise OSError(number, "refused")
        return write_bytes(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", refuse)
        ended = ends(run_all(config))
    failure = ended[FIRST]
    assert isinstance(failure, Failed)
    assert f"{tmp_path / 'runs' / FIRST}" in str(failure.error)
    assert "Traceback" not in (tmp_path / "runs" / FIRST / "error.txt").read_text()
    assert isinstance(ended[SECOND], Finished)
    assert not list((tmp_path / "runs").rglob("*.part"))
    again = ends(run_all(config))
    assert again == {FIRST: Finished(failure.run, False), SECOND: Finished(again[SECOND].run, True)}
    assert results(tmp_path / "runs" / FIRST).keys() == results(tmp_path / "runs" / SECOND).keys()
