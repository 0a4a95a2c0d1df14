"""What people get wrong: typos, wrong places, wrong types, wrong models, wrong files.

Each is answered by a sentence or two with the hint that helps, before anything runs.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import opencil
from opencil.cli import app

FILES = {
    "broken.yml": "cil: [icarl\n",
    "list.yml": "- icarl\n",
    "twice.yml": "seed: 1\nseed: 2\n",
    "memory.yml": "memory: 100\n",
    "method.yml": "icarl: {epochs: 5}\n",
    "number.yml": "detector: [msp, 3]\n",
    "words.yml": "benchmark: {memory: many}\n",
    "mine.yml": "benchmark: {name: mine, id: digits, near: [digits-held-out]}\n",
    "bad.py": "import nothing_like_it\n",
    "make.py": "def make(classes):\n    return 3\n",
    "a_file": "",
    "weights.safetensors": "nonsense",
    "empty/.keep": "",
}


@pytest.fixture(autouse=True)
def _own_folder(empty_wide_folder: None, tmp_path: Path) -> None:
    """Every command here starts so, among some files."""
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "binary.yml").write_bytes(b"\xff\xfe\x00")


#: A command line, and what its answer has in it; a word with blanks is in quotes.
COMMANDS = {
    # Typos.
    "run --detector enrgy": "did you mean 'energy'?",
    "run --cil icrl": "did you mean 'icarl'?",
    "run --benchmark cifar": "did you mean 'cifar100'?",
    "run --metric aucc": "did you mean 'auc'?",
    "run --device cdua": "did you mean 'cuda'?",
    "run --set cil.icarl.epoch=3": "did you mean 'epochs'?",
    "run --set cil.*.epoch=3": "did you mean 'epochs'?",
    "run --set training.precison=fp32": "did you mean 'precision'?",
    "run --set cil.icarl.first.optimizer=adam": "did you mean 'optimiser'?",
    "run --set benchmark.near=[svnh]": "did you mean 'svhn'?",
    "run --set benchmark.backbone.nam=x": "freeze, name, sha256, signed, weights; did you mean 'name'?",
    "run --set benchmark.backbone=resnet99": "did you mean 'resnet8'?",
    "run --set memroy=100": "did you mean benchmark.memory?",
    "list detector": "did you mean 'detectors'?",
    "report empty --table mian": "did you mean 'main'?",
    "data show empty digit": "did you mean 'digits'?",
    # Wrong places.
    "run --cil msp": "did you mean detector.msp?",
    "run --detector icarl": "did you mean cil.icarl?",
    "run --set icarl.epochs=5": "did you mean cil.icarl.epochs?",
    "run --set cil.icarl.lr=0.1": "did you mean cil.icarl.first.lr or cil.icarl.later.lr?",
    "run --set cil.epochs=5": "did you mean cil.*.epochs?",
    "run --set memory=100": "did you mean benchmark.memory?",
    "run --set seed=1": "one value of it, say cil.icarl.epochs=5; did you mean --seed 1?",
    "run digits": "there is no file digits, to read as a YML; did you mean --benchmark digits?",
    "run --cil icarl bic": "did you mean --cil icarl,bic?",
    "run --detector msp ber@mine": "did you mean --detector msp,ber@mine?",
    "run --set benchmark.crop=8": "did you mean benchmark.transform.crop?",
    "run --set place.precision=fp32": "did you mean training.precision?",
    "run --cil icarl --set cil.wa.epochs=3": "the CIL methods to run are icarl",
    "run memory.yml": "did you mean benchmark.memory?",
    "run method.yml": "did you mean cil.icarl.epochs?",
    "report empty --every 3": "without --watch",
    # Wrong types and values.
    "run --seed one": "whole numbers with commas",
    "run --seed 0,0": "each of them once",
    "run --classes-per-step 9": "1 to 8",
    "run --pack 0": "greater than or equal to 1",
    "run --precision bf32": "'fp32', 'tf32' or 'bf16'",
    "run --epochs-scale 0": "greater than 0",
    "run --outputs-limit much": "2GB",
    "run --cil icarl@Short": "lower-case letters",
    "run --cil finetune --detector ber": "Choose other detectors (post-hoc ones",
    "run --set cil.icarl.epochs": "key=value",
    "run --set cil.icarl.epochs=many": "a valid integer",
    "run --set benchmark.transform.crop=99": "at most 8",
    "run number.yml": "detector = ['msp', 3] is not allowed: it should be a list of names, or a mapping",
    "run words.yml": 'benchmark.memory = "many"',
    "run mine.yml": "benchmark.far, benchmark.image_size",
    "data show empty digits --split val": "train and test are",
    # Wrong devices, files and folders.
    "run --device mps": "allowed here are auto, cpu",
    "run --device gpu": "opencil doctor",
    "run absent.yml": "absent.yml cannot be read: No such file",
    "run broken.yml": "not valid YML: while parsing a flow sequence: expected ',' or ']'",
    "run twice.yml": "key 'seed' stands here twice (line 2",
    "run list.yml": "allowed are benchmark, cil,",
    "run binary.yml": "no text in UTF-8",
    "run empty": "empty cannot be read: Is a directory",
    "run --runs a_file": "place.runs = 'a_file' is a file",
    "run --runs a_file/x": "a_file is a file: a folder is needed",
    "run --data-root absent": "there is no such folder",
    "run --benchmark cifar100": "--data-root, $OPENCIL_DATA",
    "run --plugin absent.py": "'absent.py' cannot be read",
    "run --plugin .": "plugin '.' cannot be read: Is a directory",
    "run --plugin bad.py": "bad.py, line 1: ModuleNotFoundError: No module named 'nothing_like_it'",
    "report absent": "there is no folder absent",
    "report empty": "'opencil run' makes some",
    "data check": "--benchmark names one of cifar100, digits",
    "data check absent --benchmark cifar100": "ROOT is the folder of your downloads",
    "data check --benchmark cifar100": "name the folder of your downloads",
    # Wrong models.
    "run --set benchmark.backbone.weights=absent": "backbone.weights = 'absent' cannot be read",
    "run --set benchmark.backbone.weights=weights.safetensors": "is no safetensors file",
    "evaluate absent --factory make.py:make --name x": "there is no folder absent",
    "evaluate empty --factory make.py:make --name x": "there are no files of weights in empty",
    "evaluate empty --factory absent.py:make --name x": "'absent.py' cannot be read",
}


def test_there_are_forty_and_more() -> None:
    assert len(COMMANDS) + len(CALLS) >= 70


@pytest.mark.parametrize("line", COMMANDS)
def test_a_wrong_command_is_a_sentence_with_a_hint(line: str, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    result = CliRunner().invoke(app, line.split())
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    said = result.stderr
    assert said.startswith("error: ")
    assert said.count("\n") <= 2
    assert COMMANDS[line] in said, said
    assert not re.search(r"Traceback|\[Errno|pydantic|<unicode|object at 0x", said)
    assert sorted(tmp_path.rglob("*")) == before, "nothing is written"


def test_a_place_that_cannot_be_written_to_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write everywhere
    result = CliRunner().invoke(app, ["run", "--runs", "some/folder"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "cannot be written to; --runs names another" in result.stderr


# --- in Python -------------------------------------------------------------------------------------


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.fc(x.mean(dim=(2, 3)))
        return logits


IMAGES = torch.zeros(4, 3, 8, 8)
#: What somebody calls, and what the answer has in it.
CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "no such detector": (lambda: opencil.create_detector("enrgy"), "did you mean 'energy'?"),
    "no such value": (
        lambda: opencil.create_detector("energy", temprature=2.0),
        "did you mean 'temperature'?",
    ),
    "a value deeper": (lambda: opencil.create_learner("icarl", lr=0.1), "did you mean icarl.first.lr or"),
    "a value of another type": (lambda: opencil.create_detector("energy", temperature="hot"), "valid number"),
    "no such layer": (lambda: opencil.wrap(Small(), head="classifier"), "its linear layers are fc"),
    "no model": (lambda: opencil.evaluate(3, IMAGES, {"o": IMAGES}, detectors="msp"), "model"),  # type: ignore[arg-type]
    "no images": (lambda: opencil.evaluate(Small(), 3, {"o": IMAGES}, detectors="msp"), "test"),  # type: ignore[arg-type]
    "scores of no sample": (lambda: opencil.ood_metrics(np.ones(0), np.ones(3)), "at least one score"),
    "scores that are no numbers": (
        lambda: opencil.ood_metrics(np.array([1.0, np.nan]), np.ones(3)),
        "finite scores",
    ),
    "no such benchmark": (lambda: opencil.resolve({"benchmark": "digit"}), "did you mean 'digits'?"),
    "no such folder": (lambda: opencil.read_rows("absent"), "there is no folder absent"),
    "no such run": (lambda: opencil.open_run("empty"), "empty"),
}


@pytest.mark.parametrize("what", CALLS)
def test_a_wrong_call_is_a_sentence_with_a_hint(what: str) -> None:
    call, hint = CALLS[what]
    with pytest.raises(opencil.OpenCILError) as raised:
        call()
    said = str(raised.value)
    assert hint in said, said
    assert said.count("\n") <= 1
    assert not re.search(r"Traceback|\[Errno|pydantic|object at 0x", said)
