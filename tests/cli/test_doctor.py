"""``opencil doctor``: what it finds, what it advises, and its exit code."""

import os
from pathlib import Path

import pytest
import torch

import opencil
from opencil.runs import checkup as checkups
from opencil.runs.checkup import Finding, checkup
from tests.cli.common import call


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENCIL_CACHE", raising=False)


def found(**flags: str) -> dict[str, Finding]:
    return {finding.name: finding for finding in checkup(**flags)}


def test_here_it_would_work(tmp_path: Path) -> None:
    result = call("doctor")
    assert (result.exit_code, result.stderr) == (0, "")
    assert f"✓ opencil     {opencil.__version__}" in result.stdout
    assert f"✓ torch       {torch.__version__}" in result.stdout
    assert "! cifar100" in result.stdout
    assert "→ name it with --data-root or $OPENCIL_DATA" in result.stdout
    assert list(tmp_path.iterdir()) == [], "nothing is written"


def test_every_benchmark_package_device_and_folder_is_looked_at() -> None:
    findings = found()
    expected = {*opencil.list_benchmarks(), *checkups.OPTIONAL, "triton", "python", "cpu", "auto", "runs"}
    assert expected <= set(findings)
    assert all(finding.state == "good" or finding.advice for finding in findings.values())


def test_data_that_are_there_are_counted(tmp_path: Path) -> None:
    finding = found(data_root=str(tmp_path))["cifar100"]
    assert finding.found.startswith(f"0 of 8 sets found in {tmp_path}; missing: cifar100 (train), ")
    assert f"opencil data check {tmp_path} --benchmark cifar100" in finding.advice


def test_folders_that_cannot_be_used_are_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    assert found(runs="file")["runs"].state == "bad"
    result = call("doctor", "--runs", "file", "--data-root", "absent")
    assert result.exit_code == 1
    assert "see folder, runs, above" in result.stderr
    assert "✗ folder      there is no folder absent" in result.stdout
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert found()["runs"].state == "bad"


def test_a_plugin_that_cannot_be_imported_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise opencil.OpenCILError("plugin 'mine' cannot be imported: no")

    monkeypatch.setattr(checkups, "load_plugins", broken)
    assert found()["plugins"].state == "bad"


@pytest.mark.parametrize(("free", "state"), [(3, "good"), (1, "note")])
def test_a_gpu_is_shown_with_its_memory(free: int, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (free * 2**30, 8 * 2**30))
    monkeypatch.setattr(checkups, "device_name", lambda device: "Fast")
    monkeypatch.setattr(checkups, "has_bfloat16", lambda device: False)
    monkeypatch.setattr(checkups, "resolve_device", lambda name: torch.device("cpu"))
    finding = found()["cuda:0"]
    assert finding.state == state
    assert finding.found.startswith(f"Fast, {free}.0 GiB of 8.0 GiB free, no bfloat16")
