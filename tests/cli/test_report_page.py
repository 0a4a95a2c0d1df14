"""``opencil report`` with pictures: the page, figures, and the page kept up to date while runs go on."""

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from opencil.report import writing
from tests import processes
from tests.cli import common
from tests.report.common import unpack

RUN = "digits/k2/icarl/seed0"
FIGURES = {f"digits-k2-{name}-icarl" for name in ("fig1a", "fig1b", "fig1c", "fig3b", "old-new")}
FIGURES |= {"digits-k2-fig3a", "digits-k2-accuracy", "digits-k2-accuracy-auc"}


def call(*words: object) -> Any:
    return common.call("report", *words)


def content(path: Path) -> dict[str, Any]:
    """The data in a page."""
    return unpack(path.read_text(encoding="utf-8"))


def test_a_page(finished: Path, tmp_path: Path) -> None:
    result = call(finished, "--html", tmp_path / "deep" / "page.html")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.endswith(f"report: {tmp_path / 'deep' / 'page.html'}\n")
    data = content(tmp_path / "deep" / "page.html")
    (group,), (run,) = data["groups"], data["runs"]
    assert [d["name"] for d in group["detectors"]] == ["msp", "energy", "relation"]
    assert (run["trained"], run["detectors"]) == (4, {"energy": 4, "msp": 4, "relation": 4})
    label, _, config = (finished / RUN / "config.yml").read_text().partition("\n")
    assert label.startswith("# "), "the file's label is not the config's"
    assert [run["config"] for run in data["runs"]] == [config]
    assert {figure["name"] for figure in data["figures"]} == FIGURES
    assert data["differences"][0].startswith("The paper has no results on digits")
    assert data["refresh"] is None


def test_out_has_the_page_and_the_figures_too(finished: Path, tmp_path: Path) -> None:
    result = call(finished, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    assert {f["name"] for f in content(tmp_path / "out/index.html")["figures"]} == FIGURES
    assert {path.stem for path in (tmp_path / "out/figures").iterdir()} == FIGURES
    again = call(tmp_path / "out", "--html", tmp_path / "again.html")  # from the published rows alone
    assert again.exit_code == 0, again.stderr
    assert content(tmp_path / "again.html") == content(tmp_path / "out/index.html")


@pytest.fixture
def half(finished: Path, tmp_path: Path) -> Path:
    """A run that has come to its second step; its other steps lie aside."""
    aside = tmp_path / "aside"
    aside.mkdir()
    for step in (3, 4):
        shutil.move(finished / RUN / f"step0{step}", aside)
    return finished


def test_watching_ends_when_all_is_done(half: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = []

    def sleep(seconds: float) -> None:  # another step is done meanwhile
        pages.append((seconds, content(half / "report.html")))
        shutil.move(tmp_path / "aside" / f"step0{len(pages) + 2}", half / RUN)

    monkeypatch.setattr(writing.time, "sleep", sleep)
    result = call(half, "--watch", "--every", "3")
    assert result.exit_code == 0, result.stderr
    assert [(seconds, page["refresh"], page["runs"][0]["trained"]) for seconds, page in pages] == [
        (3, 3, 2),
        (3, 3, 3),
    ]
    assert [page["figures"] for _, page in pages] == [[], []]
    last = content(half / "report.html")
    assert (last["refresh"], last["runs"][0]["trained"], len(last["figures"])) == (None, 4, len(FIGURES))
    said = result.stdout.splitlines()
    assert said[0] == f"2 of 4 steps trained, 6 of 12 evaluations: {half / 'report.html'}"
    assert f"all runs are done: {half / 'report.html'}" in said


def test_what_cannot_be_read_is_read_again(
    half: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, ticks = half / RUN / "step02" / "model.parquet", 0
    whole = table.read_bytes()

    def sleep(seconds: float) -> None:
        nonlocal ticks
        ticks += 1
        assert content(half / "report.html")["runs"][0]["trained"] == 2  # what was read last stays
        assert bool(content(half / "report.html")["problems"]) is (ticks > 1)
        if ticks == 1:
            table.write_bytes(b"half a file")
        elif ticks == 3:
            table.write_bytes(whole)
            for step in (3, 4):
                shutil.move(tmp_path / "aside" / f"step0{step}", half / RUN)

    monkeypatch.setattr(writing.time, "sleep", sleep)
    result = call(half, "--watch")
    assert (result.exit_code, result.stderr, ticks) == (0, "", 3)
    said = [line for line in result.stdout.splitlines() if "damaged or lost" in line]
    assert len(said) == 1  # once, though it was so twice
    assert "digits/k2/icarl/seed0: step02/model.parquet" in said[0]
    last = content(half / "report.html")
    assert (last["refresh"], last["runs"][0]["trained"]) == (None, 4)


@pytest.mark.parametrize("broken", [("--figure-detectors", "mps"), ()])
def test_a_page_does_not_load_itself_for_ever(
    half: Path, broken: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(seconds: float) -> None:
        raise KeyboardInterrupt if broken else OSError("no time")

    monkeypatch.setattr(writing.time, "sleep", wrong)
    result = call(half, "--watch", *broken)
    assert result.exit_code == (2 if broken else 1)
    assert ("did you mean 'msp'" if broken else "no time") in result.stderr
    assert content(half / "report.html")["refresh"] is None


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_a_watching_process(half: Path) -> None:
    words = ["report", str(half), "--watch", "--every", "600"]
    with processes.command(*words) as process:
        assert "2 of 4 steps trained" in process.stdout.readline()  # the page is there, and it waits
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert "stopped watching" in out
