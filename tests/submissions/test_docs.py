"""docs/submissions.md is one session: what it shows works, in order, in one folder."""

import base64
import gzip
import json
import re
import shlex
from pathlib import Path

import pytest

import opencil
from tests.cli.common import call

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/submissions.md").read_text(encoding="utf-8")


def test_the_page_is_one_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"(?<!the Hub -->\n)^```(bash|python)\n(.*?)^```$", PAGE, re.M | re.S)
    assert len(blocks) == len(re.findall(r"^```(?:bash|python)$", PAGE, re.M)) - 1
    for language, text in blocks:
        if language == "python":
            exec(text, {})
            continue
        for line in text.splitlines():
            words = shlex.split(line, comments=True)
            assert words.pop(0) == "opencil"
            short = ["--set", "cil.*.epochs=1", "--set", "detector.*.schedule.epochs=1", "--device", "cpu"]
            words += short if words[0] == "run" else []
            result = call(*(word for word in words if word != "results/study"))
            assert result.exit_code == 0, f"{line}: {result.output}"
    (data,) = re.findall(r'id="data">(.*?)<', Path("board.html").read_text(encoding="utf-8"))
    board = json.loads(gzip.decompress(base64.b64decode(data)))
    assert [line[0] for line in board["tables"][0]["lines"]] == ["Ada Lovelace"]
    assert {cil["name"] for cil in board["groups"][0]["cils"]} == {"icarl", "wa"}
    assert set(opencil.load_published("my-submission")["detector"]) == {"", "msp", "energy", "ber"}
    assert list(Path("formats").rglob("opencil.yaml"))


def test_the_published_study_is_a_submission() -> None:
    study = ROOT / "results/study"
    if not study.exists():
        pytest.skip("results/ is not there: a clone has it")
    result = call("submissions", "check", study)
    assert result.exit_code == 0, result.output
