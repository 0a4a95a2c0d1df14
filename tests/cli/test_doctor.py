"""``opencil doctor``: what it finds, what it advises, and its exit code."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import opencil
from opencil.cli import app
from opencil.runs import checkup as checkups
from opencil.runs.checkup import Finding, checkup


@pytest.fixture(autouse=True)
def _own_folder(empty_wide_folder: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command here starts so."""
    monkeypatch.delenv("OPENCIL_CACHE", raising=False)


def doctor(*words: str) -> Any:
    return CliRunner().invoke(app, ["doctor", *words])


def found(**flags: str) -> dict[str, Finding]:
    return {finding.name: finding for finding in checkup(**flags)}


def test_here_it_would_work(tmp_path: Path) -> None:
    result = doctor()
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1] == "'opencil run --benchmark digits' would work"
    for words in (
        f"opencil     {opencil.__version__}",
        f"torch       {torch.__version__}",
        "digits      embedded",
    ):
        assert f"✓ {words}" in result.stdout
    assert "! cifar100" in result.stdout
    assert "→ name it with --data-root or $OPENCIL_DATA" in result.stdout
    assert list(tmp_path.iterdir()) == [], "nothing is written"


def test_every_benchmark_package_device_and_folder_is_looked_at() -> None:
    findings = found()
    assert {*opencil.list_benchmarks(), *checkups.OPTIONAL, "triton", "python", "cpu", "auto"} <= set(
        findings
    )
    assert {"memory", "runs", "outputs", "images"} <= set(findings)
    assert all(finding.state == "good" or finding.advice for finding in findings.values())


def test_data_that_are_there_are_counted(tmp_path: Path) -> None:
    finding = found(data_root=str(tmp_path))["cifar100"]
    assert finding.found.startswith(f"0 of 8 sets found in {tmp_path}; missing: cifar100 (train), ")
    assert f"opencil data check {tmp_path} --benchmark cifar100" in finding.advice


def test_folders_that_cannot_be_used_are_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    assert found(runs="file")["runs"] == Finding(
        "folders", "runs", "file is a file", "bad", "name another folder with --runs"
    )
    result = doctor("--runs", "file", "--data-root", "absent")
    assert result.exit_code == 1
    assert result.stderr == "error: runs would not work here: see folder, runs, outputs, above\n"
    assert "✗ folder      there is no folder absent" in result.stdout
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert found()["runs"].state == "bad"
    assert "cannot be written to" in found()["runs"].found


def test_little_room_is_told_and_none_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 2**30})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    assert found()["runs"].state == "note"
    usage.free = 2**20
    assert found()["runs"].state == "bad"


def test_a_plugin_that_cannot_be_imported_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise opencil.OpenCILError("plugin 'mine' cannot be imported: no")

    monkeypatch.setattr(checkups, "load_plugins", broken)
    assert found()["plugins"].state == "bad"


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch finds the GPU")
def test_a_gpu_that_torch_does_not_find_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    finding = found()["cuda"]
    assert finding.state == "note"
    assert "there is an NVIDIA driver" in finding.found
    assert "pytorch.org" in finding.advice


def test_a_gpu_is_told_with_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def devices() -> Iterator[Finding]:
        yield checkups._gpu(torch.device("cuda", 1))

    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (3 * 2**30, 8 * 2**30))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "Fast")
    monkeypatch.setattr(checkups, "has_bfloat16", lambda device: False)
    (finding,) = devices()
    assert (finding.name, finding.found) == ("cuda:1", "Fast, 3.0 of 8.0 GiB free, no bfloat16")
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (2**30, 8 * 2**30))
    assert next(devices()).state == "note"
