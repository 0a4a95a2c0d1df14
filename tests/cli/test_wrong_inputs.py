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

import opencil
from tests.cli.common import call

FILES = {
    "several.yml": "benchmark: {memory: x, batch_size: 0}\n",
    "bad.py": "import nothing_like_it\n",
    "make.py": "def make(classes):\n    return 3\n",
    "a_file": "",
    "empty/.keep": "",
}


@pytest.fixture(autouse=True)
def _some_files(_own_folder: None, tmp_path: Path) -> None:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)


#: A command line, and what its answer has in it. Refusals of values are tested with the config.
COMMANDS = {
    # Typos.
    "run --benchmark cifar": "did you mean 'cifar100'?",
    "run --metric aucc": "did you mean 'auc'?",
    "run --device cdua": "did you mean 'cuda'?",
    "list detector": "did you mean 'detectors'?",
    "report empty --table mian": "did you mean 'main'?",
    "data show empty digit": "did you mean 'digits'?",
    # Wrong places.
    "run --cil msp": "did you mean detector.msp?",
    "run digits": "digits",
    "run --cil icarl bic": "bic",
    # Wrong types and values.
    "run --seed one": "seed.runs[0] =",
    "run --seed ,": "--seed ','",
    "run --cil ,": "--cil ','",
    "run --pack some": 'place.pack = "some"',
    "run --cil finetune --detector ber": "ber",
    "run several.yml": "benchmark.batch_size",
    # Wrong devices, files and folders.
    "run --device mps": "cpu",
    "run absent.yml": "absent.yml",
    "run empty": "empty",
    "run --runs a_file/x": "a_file",
    "run --data-root absent": "absent",
    "run --benchmark cifar100": "--data-root",
    "run --plugin absent.py": "'absent.py'",
    "run --plugin bad.py": "(bad.py, line 1): ModuleNotFoundError",
    "report absent": "absent",
    "data check": "--benchmark",
    "data check --benchmark cifar100": "downloads",
    # Wrong models.
    "evaluate absent --factory make.py:make --name x": "absent",
    "evaluate empty --factory make.py:make --name x": "empty",
}


@pytest.mark.parametrize("line", COMMANDS)
def test_a_wrong_command_is_a_sentence_with_a_hint(line: str, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    result = call(*line.split())
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    error = result.stderr
    assert error.startswith("error: ")
    assert error.count("\n") <= 2
    assert COMMANDS[line] in error, error
    assert not re.search(r"Traceback|\[Errno|pydantic|<unicode|object at 0x", error)
    assert sorted(tmp_path.rglob("*")) == before, "nothing is written"


def deep(levels: int) -> dict[str, Any]:
    """Return mappings inside each other."""
    content: dict[str, Any] = {}
    for _ in range(levels):
        content = {"a": content}
    return content


IMAGES = torch.zeros(4, 3, 8, 8)
MODEL = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
#: What somebody calls, and what the answer has in it.
CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "no such value": (lambda: opencil.create_detector("energy", temprature=2.0), "'temperature'?"),
    "a value deeper": (lambda: opencil.create_learner("icarl", lr=0.1), "did you mean icarl.first.lr?"),
    "a value of another type": (lambda: opencil.create_detector("energy", temperature="hot"), "valid number"),
    "no such layer": (
        lambda: opencil.wrap(MODEL, head="classifier"),
        "linear head 'classifier' is unknown: allowed are 1",
    ),
    "no model": (lambda: opencil.evaluate(3, IMAGES, {"o": IMAGES}, detectors="msp"), "model"),  # type: ignore[arg-type]
    "no images": (lambda: opencil.evaluate(MODEL, 3, {"o": IMAGES}, detectors="msp"), "test"),  # type: ignore[arg-type]
    "scores of no sample": (lambda: opencil.ood_metrics(np.ones(0), np.ones(3)), "ID scores"),
    "scores that are no numbers": (lambda: opencil.ood_metrics(np.array([np.nan]), np.ones(3)), "finite"),
    "a config that is a text": (lambda: opencil.resolve("a"), "a mapping"),  # type: ignore[arg-type]
    "flags that are a list": (lambda: opencil.resolve(flags=["a"]), "a mapping"),  # type: ignore[arg-type]
    "a method that is a number": (lambda: opencil.resolve(cil=[3]), "cil"),  # type: ignore[list-item]
    "a setting that is a number": (lambda: opencil.resolve(settings=[3]), "settings"),  # type: ignore[list-item]
    "settings that are a number": (lambda: opencil.resolve(settings=3), "settings"),  # type: ignore[arg-type]
    "a deep config": (lambda: opencil.resolve({"benchmark": deep(5000)}), "recursion"),
    "a deep setting": (lambda: opencil.resolve(settings=["a" + ".a" * 5000 + "=1"]), "recursion"),
    "deep YML": (lambda: opencil.resolve(settings=["cil.icarl.epochs=" + "[" * 5000]), "recursion"),
    "no threads": (lambda: opencil.resolve({"place": {"threads": 0}}), "place.threads = 0"),
    "a negative number of threads": (lambda: opencil.resolve({"place": {"threads": -1}}), "place.threads"),
    "too many threads": (lambda: opencil.resolve({"place": {"threads": 10**9}}), "place.threads"),
    "too many processes": (lambda: opencil.resolve({"place": {"jobs": 10**9}}), "place.jobs"),
    "no such folder": (lambda: opencil.read_rows("absent"), "there is no folder absent"),
    "no such run": (lambda: opencil.open_run("empty"), "empty"),
}


@pytest.mark.parametrize("what", CALLS)
def test_a_wrong_call_is_a_sentence_with_a_hint(what: str) -> None:
    call, hint = CALLS[what]
    with pytest.raises(opencil.OpenCILError) as raised:
        call()
    assert hint in str(raised.value)
    assert str(raised.value).count("\n") <= 1
    assert not re.search(r"Traceback|\[Errno|pydantic|object at 0x", str(raised.value))
