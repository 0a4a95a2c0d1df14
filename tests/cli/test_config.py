"""``opencil config``: one YML with every value, from flags and files."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import opencil
from opencil.config import parse_yaml, resolve
from tests.cli.common import call

PLACE = ["--benchmark", "digits", "--cil", "icarl", "--device", "cpu"]


def test_config_prints_one_yml_with_every_value() -> None:
    result = call("config", "--benchmark", "digits", "--cil", "icarl", "--detector", "msp,energy")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == resolve(cil=["icarl"], detector=["msp", "energy"]).to_yaml()
    assert list(yaml.safe_load(result.stdout)["detector"]) == ["msp", "energy"]


FLAGS = [
    (["--detector", "msp energy"], {"detector": ["msp", "energy"]}),
    (["--classes-per-step", "2,4"], {"flags": {"benchmark": {"classes_per_step": [2, 4]}}}),
    (["--seed", "0,1,2"], {"flags": {"seed": [0, 1, 2]}}),
    (["--seed", "0, 1"], {"flags": {"seed": [0, 1]}}),
    (["--data-root", "d", "--runs", "1e5"], {"flags": {"place": {"data_root": "d", "runs": "1e5"}}}),
    (["--device", "cuda:1"], {"flags": {"place": {"device": "cuda:1"}}}),
    (["--pack", "3"], {"settings": ["place.pack=3"]}),
    (["--tensorboard", "curves"], {"settings": ["place.tensorboard=curves"]}),
    (["--precision", "bf16"], {"settings": ["training.precision=bf16"]}),
    (["--epochs-scale", "0.1"], {"settings": ["cil.*.epochs_scale=0.1"]}),
    (["--classes-per-step", "4+2,3-5"], {"flags": {"benchmark": {"classes_per_step": ["4+2", "3-5"]}}}),
    (["--set", "cil.icarl.epochs=5"], {"settings": ["cil.icarl.epochs=5"]}),
    (
        ["--set", "seed.runs=4", "--seed", "3", "--set", "benchmark.memory=16"],
        {"settings": ["seed.runs=4", "benchmark.memory=16"]},
    ),
]


@pytest.mark.parametrize(("flags", "same"), FLAGS, ids=[" ".join(flags) for flags, _ in FLAGS])
def test_flags_are_the_library_s_values(flags: list[str], same: dict[str, Any]) -> None:
    result = call("config", "--cil", "icarl", "--detector", "msp", *flags)
    assert result.exit_code == 0, result.stderr
    few = {"cil": ["icarl"], "detector": ["msp"]}
    assert resolve(parse_yaml(result.stdout, "printed")) == resolve(**few | same)


def test_no_flags_mean_a_small_default_and_all_is_to_be_said() -> None:
    plain, every = call("config"), call("config", "--cil", "all", "--detector", "all")
    assert resolve(parse_yaml(plain.stdout, "printed")) == resolve()
    assert (list(resolve().cil), list(resolve().detector)) == (["icarl"], ["msp", "energy"])
    printed = resolve(parse_yaml(every.stdout, "printed"))
    assert (list(printed.cil), list(printed.detector)) == (opencil.list_learners(), opencil.list_detectors())


def test_scales_of_schedules_multiply_the_layers_below() -> None:
    def epochs(*words: str) -> int:
        result = call("config", "--cil", "icarl", *words)
        length: int = resolve(parse_yaml(result.stdout, "printed")).cil["icarl"]["first"]["epochs"]
        return length

    paper = opencil.create_learner("icarl").first.epochs
    assert epochs() == round(0.15 * paper), "as the benchmark has it"
    assert epochs("--epochs-scale", "0.5") == round(0.5 * epochs())
    assert epochs("--epochs-scale", "0.5", "--set", "cil.icarl.epochs_scale=0.2") == round(0.1 * epochs())


def test_flags_are_laid_on_a_yml(tmp_path: Path) -> None:
    (tmp_path / "my.yml").write_text("cil: {icarl: {temperature: 3}}\ndetector: msp\nseed: [5, 6]\n")
    result = call("config", "my.yml", "--seed", "7", "--set", "cil.icarl.epochs=4")
    printed = yaml.safe_load(result.stdout)
    assert printed["seed"]["runs"] == [7]
    assert printed["cil"]["icarl"]["temperature"] == 3.0
    assert printed["cil"]["icarl"]["first"]["epochs"] == 4
    assert list(printed["detector"]) == ["msp"]


def test_the_environment_names_the_data_folder(tmp_path: Path) -> None:
    result = call("config", OPENCIL_DATA="from-environment")
    assert yaml.safe_load(result.stdout)["place"]["data_root"] == "from-environment"
    result = call("config", "--data-root", "from-flag", OPENCIL_DATA="from-environment")
    assert yaml.safe_load(result.stdout)["place"]["data_root"] == "from-flag"
    refused = call("run", *PLACE, OPENCIL_DATA="not-there")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "'not-there'" in refused.stderr
