"""The unified YML: layers, short forms, round trip, and refusals that name the key."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

import opencil
from opencil import BadInput
from opencil.config import BenchmarkConfig, Config, config_keys, parse_yaml, resolve
from opencil.data.shifted import ShiftedSet
from opencil.published import published_results
from opencil.validation import flat, plain


def again(config: Config) -> Config:
    return resolve(parse_yaml(config.to_yaml(), "printed"))


def refusal(**command: Any) -> str:
    with pytest.raises(BadInput) as raised:
        resolve(command.pop("user", None), **command)
    return str(raised.value)


# --- round trip ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        {"cil": ["all"], "detector": ["all"], "flags": {"seed": [0, 1, 2]}},
        {"settings": ["cil.icarl.epochs=5", "detector.energy.temperature=0.5", "seed.class_order=run"]},
        {"settings": ["cil.*.epochs_scale=0.01", "benchmark.near=[]", "place.device=cpu"]},
        {"user": {"cil": {"icarl": {"first": {"milestones": [3, 9], "lr": 1e-5}}}, "detector": "msp"}},
        {"flags": {"benchmark": {"classes_per_step": [1, 2, 8]}, "place": {"runs": "r"}}},
        {"settings": ["place.runs='1e5'"]},
        {"detector": ["ber@stated", "energy@mine"]},
    ],
)
def test_printed_yml_gives_the_same_config(command: dict[str, Any]) -> None:
    config = resolve(command.pop("user", None), **command)
    assert again(config) == config
    assert again(config).to_yaml() == config.to_yaml()


@settings(max_examples=20)
@given(
    lr=st.floats(0, 1e38, exclude_min=True),
    seeds=st.lists(st.integers(0, 2**32 - 1), min_size=1, unique=True),
    folder=st.text(st.characters(categories=["L", "N", "P", "S"], include_characters=" "), min_size=1),
)
@example(1e-5, [1], "2024-01-02")
@example(2e-4, [1], "runs: [a")
def test_printed_yml_gives_the_same_config_whatever_the_values(
    lr: float, seeds: list[int], folder: str
) -> None:
    config = resolve(
        {
            "cil": {"icarl": {"later": {"lr": lr}}},
            "detector": "msp",
            "seed": seeds,
            "place": {"runs": folder, "data_root": folder},
        }
    )
    assert config.cil["icarl"]["later"]["lr"] == lr
    assert config.seed.runs == tuple(seeds)
    assert again(config) == config


# --- layers ----------------------------------------------------------------------------------------


def test_layers_of_a_benchmark_value() -> None:
    user = {"benchmark": {"name": "digits", "batch_size": 32, "classes_per_step": 4, "memory": 100}}
    flags = {"benchmark": {"classes_per_step": [1], "memory": 200}}
    # batch_size: 128 by default, 64 as shipped; classes_per_step: 2 as shipped.
    assert resolve().benchmark.batch_size == 64
    top = resolve(user, flags=flags, settings=["benchmark.memory=300"]).benchmark
    assert (top.batch_size, top.classes_per_step, top.memory) == (32, (1,), 300)
    assert resolve(user, flags=flags).benchmark.memory == 200
    assert resolve(user).benchmark.classes_per_step == (4,)
    assert resolve(user).benchmark.image_size == 8, "shipped values stay where the user has none"


def test_layers_of_a_method_value() -> None:
    method = opencil.create_learner("icarl")
    assert (method.first.epochs, method.first.milestones) == (200, (60, 120, 170))
    shipped = resolve().cil["icarl"]
    assert (shipped["first"]["epochs"], shipped["first"]["milestones"]) == (30, [9, 18, 26])
    user = {"cil": {"*": {"epochs": 20}, "icarl": {"temperature": 3.0}}}
    written = resolve(user).cil["icarl"]
    assert (written["first"]["epochs"], written["later"]["epochs"]) == (20, 20)
    assert (written["temperature"], written["first"]["weight_decay"]) == (3.0, 5e-4)
    beside = resolve({"cil": {"icarl": {"epochs": 5}, "*": {"epochs": 20}}}).cil["icarl"]
    assert beside["first"]["epochs"] == 5, "its own values hold against those of all methods"
    settings = ["cil.icarl.epochs=5", "cil.icarl.temperature=4.5", "cil.icarl.first.lr=2e-4"]
    top = resolve(user, settings=settings).cil["icarl"]
    assert (top["first"]["epochs"], top["temperature"], top["first"]["lr"]) == (5, 4.5, 2e-4)
    assert top["later"]["lr"] == 0.1


def test_a_yml_is_not_run_under_the_name_of_another_benchmark() -> None:
    written = parse_yaml(resolve({"benchmark": "digits"}).to_yaml(), "mine.yml")
    said = refusal(user=written, flags={"benchmark": "cifar100"})
    assert "'cifar100'" in said
    assert "'digits'" in said
    assert resolve(written, flags={"benchmark": "digits"}).benchmark.id == "digits"
    assert resolve({"benchmark": "digits"}, flags={"benchmark": "cifar100"}).benchmark.id == "cifar100"


# --- choosing methods, short forms -----------------------------------------------------------------


def test_groups_of_methods() -> None:
    tables = published_results()
    paper = {kind: sorted(set(tables[kind]) - {""}) for kind in ("cil", "detector")}
    config = resolve(cil=["paper"], detector=["paper"])
    assert {"cil": list(config.cil), "detector": list(config.detector)} == paper
    chosen = list(resolve(detector=["msp", "fine-tuning", "ber", "gen"]).detector)
    assert chosen == ["msp", *opencil.list_detectors("fine-tuning"), "gen"]


def test_chosen_methods_replace_those_of_the_yml_and_keep_its_values() -> None:
    user = {"detector": {"energy": {"temperature": 3.0}, "msp": {}}}
    chosen = resolve(user, detector=["energy", "maxlogit", "energy"]).detector
    assert list(chosen) == ["energy", "maxlogit"]
    assert chosen["energy"]["temperature"] == 3.0
    assert list(resolve(user, detector=["all"]).detector) == opencil.list_detectors()


def test_a_setting_selects_no_method() -> None:
    said = ["detector.energy.temperature=2"]
    assert list(resolve(settings=said).detector) == ["msp", "energy"], "the default"
    assert list(resolve(detector=["msp", "energy"], settings=said).detector) == ["msp", "energy"]
    for chosen in ({"detector": ["msp"]}, {"user": {"detector": "msp"}}):
        assert "detector.energy has no use" in refusal(**chosen, settings=said)


def test_short_forms_of_benchmark_seed_and_metric() -> None:
    assert resolve({"benchmark": "digits"}) == resolve({"benchmark": {"name": "digits"}}) == resolve()
    assert resolve(parse_yaml("# nothing\n", "x")) == resolve()
    assert resolve({"seed": 4}).seed.runs == resolve({"seed": {"runs": 4}}).seed.runs == (4,)
    assert resolve({"seed": [4, 2]}).seed.runs == (4, 2)
    assert resolve(settings=["benchmark.classes_per_step=3", "seed.runs=7"]).seed.runs == (7,)
    assert resolve({"metric": "auc, oscr"}).metric == ("auc", "oscr")
    assert resolve({"metric": ["auc"]}, flags={"metric": ["oscr", "oscr"]}).metric == ("oscr",)


# --- labels ----------------------------------------------------------------------------------------


def test_the_papers_preset_takes_the_released_values_where_methods_have_them() -> None:
    choice = {"cil": ["bic", "wa"], "detector": ["relation", "react@stated", "msp"], "benchmark": "cifar100"}
    config, usual = resolve({"preset": "paper", **choice}), resolve(choice)
    assert (config.benchmark.ood_order, usual.benchmark.ood_order) == ("list", "permutation")
    released = resolve(choice | {"cil": "bic@released", "detector": "relation@released"})
    assert config.cil == {"bic": released.cil["bic@released"], "wa": usual.cil["wa"]}
    assert config.detector == usual.detector | {"relation": released.detector["relation@released"]}
    over = resolve({"preset": "paper", **choice}, settings=["detector.relation.setup=train+"])
    assert over.detector["relation"]["setup"] == "train+"
    assert resolve(yaml.safe_load(config.to_yaml())) == config
    with pytest.raises(BadInput, match="papr"):
        resolve({"preset": "papr"})


def test_a_preset_holds_against_the_method_and_not_against_star_or_label() -> None:
    said = ["detector.ber.schedule.lr=0.3", "detector.ber.alpha=0.7"]
    chosen = resolve(detector=["ber", "ber@stated", "ber@mine"], settings=said).detector
    assert [v["schedule"]["lr"] for v in chosen.values()] == [0.3, 0.1, 0.3]
    assert [v["alpha"] for v in chosen.values()] == [0.7, 0.7, 0.7]
    for name in ("ber@stated", "*"):
        changed = resolve(detector=["ber@stated"], settings=[f"detector.{name}.schedule.lr=0.2"]).detector
        assert changed["ber@stated"]["schedule"]["lr"] == 0.2


# --- refusals --------------------------------------------------------------------------------------

REFUSED = [
    # setting, what the sentence must hold: key, value, what is allowed, nearest name
    ("cil.icarl.epoch=3", ["cil.icarl.epoch", "3", "epochs_scale", "temperature", "did you mean 'epochs'"]),
    ("cil.icarl.epochs=true", ["cil.icarl.epochs", "true", "integer"]),
    ("cil.icarl.temperature=.nan", ["cil.icarl.temperature", "NaN", "finite"]),
    ("cil.icarl=3", ["cil.icarl", "3", "mapping"]),
    ("cil.icarl.first.milestones=[99]", ["cil.icarl.first.milestones", "[99]", "below epochs = 30"]),
    ("cil.bic.train.epochs=2", ["cil.bic.train.milestones", "epochs=2"]),
    ("benchmark.classes_per_step=[2, 0]", ["benchmark.classes_per_step[1]", "0"]),
    ("benchmark.classes_per_step=9", ["benchmark.classes_per_step", "9", "1 to 8", "'digits'"]),
    ("benchmark.classes_per_step=[4, 2, 2]", ["benchmark.classes_per_step", "20-20-10"]),
    ("benchmark.memory=7", ["benchmark.memory", "7", "8 classes"]),
    ("benchmark.id=digit", ["benchmark.id", "'digit'", "photo-patches", "did you mean 'digits'"]),
    ("benchmark.near=[nois]", ["benchmark.near", "'nois'", "did you mean 'noise'"]),
    ("benchmark.far=[noise, digits-held-out]", ["near and far", "digits-held-out"]),
    ("benchmark.backbone=resnet7", ["benchmark.backbone", "'resnet7'", "resnet32", "did you mean 'resnet8'"]),
    ("benchmark.backbone.weights=gone.safetensors", ["backbone.weights", "gone.safetensors"]),
    ("benchmark.backbone=timm", ["benchmark.backbone.model is missing"]),
    ("benchmark.backbone.sha256=abc", ["benchmark.backbone.sha256", "backbone.weights"]),
    ("benchmark.transform.std=[0, 1, 1]", ["benchmark.transform.std[0]", "0", "greater than 0"]),
    ("benchmark.transform.crop=9", ["benchmark.transform.crop", "9", "8"]),
    ("detector.*.setup=train", [".setup = ", "train", "train+", "memory"]),
    ("seed.runs=-1", ["seed.runs[0]", "-1", "greater than or equal to 0"]),
    ("seed.runs=[0,0]", ["seed.runs"]),
    ("place.runs=''", ["place.runs"]),
    ("place.device='cuda:0,cuda:0'", ["place.device"]),
    ("place.address=here", ["place.address", "launcher"]),
    ("training.precision=fp8", ["training.precision", "fp8", "fp32", "tf32", "bf16"]),
    ("sed.runs=3", ["section", "'sed'", "did you mean 'seed'"]),
    ("detector.enrgy.temperature=3", ["detector 'enrgy'", "did you mean 'energy'", "opencil list detectors"]),
    # a key in a wrong place
    ("cil.icarl.lr=0.1", ["did you mean cil.icarl.first.lr?"]),
    ("epochs=5", ["did you mean cil.*.epochs?"]),
    ("benchmark.crop=8", ["did you mean benchmark.transform.crop?"]),
    # no setting
    *((setting, ["key=value", repr(setting)]) for setting in ("cil.icarl.epochs", "=3", "cil..epochs=3", "")),
    ("seed=1", ["key=value"]),
    ("benchmark.far=[[red]]", ["benchmark.far", '["red"]']),
]


@pytest.mark.parametrize(("setting", "fragments"), REFUSED, ids=[setting for setting, _ in REFUSED])
def test_refused_settings_say_why(setting: str, fragments: list[str]) -> None:
    message = refusal(settings=[setting], cil=["all"], detector=["all"])
    assert [f for f in fragments if f not in message] == [], message
    assert "pydantic" not in message


@pytest.mark.parametrize(
    ("choice", "fragments"),
    [
        ({"detector": ["all", "enrgy"]}, ["'enrgy'", "did you mean 'energy'", "list detectors"]),
        ({"user": {"cil": {"icrl": {"epochs": 3}}}, "cil": ["icarl"]}, ["'icrl'", "did you mean 'icarl'"]),
        ({"user": {"detector": {"paper": {"temperature": 2}}}}, ["detector.paper", "detector.*"]),
        ({"user": {"benchmrk": {}}}, ["section 'benchmrk'", "place", "did you mean 'benchmark'"]),
        ({"user": {"benchmark": 5}}, ["benchmark '5' is unknown"]),
        ({"user": {"detector": {"msp": 3}}}, ["detector.msp = 3", "mapping"]),
        ({"user": {"metric": ["osc"]}}, ["metric 'osc'", "did you mean 'oscr'"]),
        ({"user": {"plugins": {"a": 1}}}, ["plugins = {'a': 1}"]),
        ({"detector": ["energy@../up"]}, ["'energy@../up'", "label"]),
        ({"user": {"detector": {"energy@hot": {"temp": 2}}}}, ["detector.energy@hot.temp", "did you mean"]),
        (
            {"detector": ["energy"], "settings": ["detector.energy@hot.temperature=2"]},
            ["detector.energy@hot"],
        ),
        (
            {"detector": ["ber@stated"], "settings": ["detector.ber.schedule.lr=0.2"]},
            ["detector.ber", "ber@stated"],
        ),
    ],
    ids=str,
)
def test_refused_choices_say_why(choice: dict[str, Any], fragments: list[str]) -> None:
    message = refusal(**choice)
    assert [f for f in fragments if f not in message] == [], message


def test_every_known_key_can_be_set() -> None:
    """Completion and hints offer what a config takes."""
    flat_config = flat(plain(resolve(detector=["all"], cil=["all"])))
    keys = {".".join(key) for key in config_keys()}
    assert {key for key in flat_config if not key.startswith(("benchmark.shifted", "metric"))} <= keys
    assert {"benchmark.backbone.weights", "cil.icarl.epochs", "cil.*.epochs", "seed.runs", "metric"} <= keys


# --- backbones ------------------------------------------------------------------------------------


def test_values_of_a_backbone_are_laid_on_those_below_unless_another_is_named() -> None:
    frozen = {"benchmark": {"backbone": {"name": "resnet32", "freeze": True}}}
    below = resolve(settings=["benchmark.backbone.freeze=true"]).benchmark.backbone
    assert below == {"name": "resnet8", "freeze": True}
    both = ["benchmark.backbone=resnet32", "benchmark.backbone.freeze=true"]
    for order in (both, both[::-1]):
        assert resolve(settings=order) == resolve(frozen)
    assert resolve(frozen, settings=["benchmark.backbone=resnet18"]).benchmark.backbone == "resnet18"
    assert again(resolve(frozen)) == resolve(frozen)


def test_a_file_of_weights_is_pinned_by_its_checksum(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    some, others = (save({"weight": torch.full((2,), value)}) for value in (1.0, 2.0))
    path.write_bytes(some)
    setting = f"benchmark.backbone.weights={path}"
    config = resolve(settings=[setting])
    sha256 = hashlib.sha256(some).hexdigest()
    assert config.benchmark.backbone == {"name": "resnet8", "weights": str(path), "sha256": sha256}
    printed = yaml.safe_load(config.to_yaml())
    assert resolve(printed) == config
    path.write_bytes(others)
    assert "has changed" in refusal(user=printed)
    assert resolve(settings=[setting]) != config
    path.write_bytes(b"nonsense")
    assert "weights.safetensors" in refusal(settings=[setting])


# --- evaluation sets -------------------------------------------------------------------------------


def test_shifted_sets_that_are_named_replace_those_below() -> None:
    shipped = resolve().benchmark.shifted["corrupted"]
    for none in ("benchmark.shifted=[]", "benchmark.shifted={}", "benchmark.sets=[{name: noise, role: far}]"):
        assert not resolve(settings=[none]).benchmark.shifted
    for mine in ("mine", {"mine": None}):
        assert resolve({"benchmark": {"shifted": mine}}).benchmark.shifted == {"mine": ShiftedSet()}
    changed = resolve(settings=["benchmark.shifted.corrupted.seed=3"]).benchmark.shifted
    assert changed == {"corrupted": replace(shipped, seed=3)}


def test_ood_sets_of_one_kind_are_enough() -> None:
    values = yaml.safe_load(resolve().to_yaml())["benchmark"] | {"name": "mine"}
    for gone in ("near", "far"):
        kept = {key: value for key, value in values.items() if key != gone}
        assert getattr(resolve({"benchmark": kept}).benchmark, gone) == ()
    neither = {key: value for key, value in values.items() if key not in ("near", "far")}
    assert "near and far = []" in refusal(user={"benchmark": neither})


@pytest.mark.parametrize(
    "benchmark",
    [
        *(
            {"sets": sets}
            for sets in (3, "noise", ["x"], [{"role": "far"}], [{"name": "noise", "role": "beside"}])
        ),
        {"sets": [{"name": "noise", "role": "far", "seed": 1}]},
        {"sets": [{"name": "noise", "role": "far"}], "near": []},
        {"sets": [{"name": "x", "role": "shifted"}, {"name": "x", "role": "shifted"}]},
        {"sets": [{"name": "noise", "role": "far"}, {"name": "noise", "role": "near"}]},
        {"shifted": [3]},
        {"shifted": "noise"},
        {"shifted": ["future"]},
        {"datasets": {"future": {"folder": "x"}}},
    ],
    ids=str,
)
def test_sets_that_cannot_be_used(benchmark: Any) -> None:
    key = next(iter(benchmark))
    assert refusal(user={"benchmark": {"name": "digits", **benchmark}}).startswith(f"benchmark.{key}")


# --- methods that do not go together ---------------------------------------------------------------


@pytest.mark.parametrize("scorer", ["vim", "{name: fdbd, divided_by: norm}"])
def test_a_detector_that_reads_w_and_b_needs_a_linear_head(scorer: str) -> None:
    config = resolve(
        {"benchmark": "digits", "cil": "lucir,icarl", "detector": "msp,ber@scored,ber"},
        settings=[f"detector.ber@scored.scored_by={scorer}"],
    )
    assert list(config.left_out("lucir", 2).values()) == [["ber@scored"]]
    assert config.left_out("icarl", 2) == {}
    assert list(config.detectors_of("lucir", 2)) == ["msp", "ber"]


def test_a_config_has_no_endless_list_of_runs() -> None:
    assert refusal(user={"seed": {"runs": list(range(10_001))}}).startswith("seed.runs")


def test_a_detector_that_needs_more_images_than_the_memory_has_is_left_out_before_training() -> None:
    user = {"benchmark": {"name": "digits", "memory": 39}, "cil": "icarl,ewc"}
    config = resolve(user | {"detector": "all"})
    ((why, names),) = config.left_out("icarl", 2).items()
    assert (names, "nnguide" in config.detectors_of("icarl", 2)) == (["nnguide"], False)
    assert "40 images" in why
    assert "nnguide" in config.detectors_of("ewc", 2), "without a memory it is set up on all that a step has"
    said = refusal(
        user=user | {"cil": "icarl", "detector": "nnguide,ber@nn"},
        settings=["detector.ber@nn.scored_by={name: nnguide, neighbours: 40}"],
    )
    assert said.startswith("icarl cannot have nnguide, ber@nn")


def test_the_memory_is_that_of_the_step_which_leaves_it_the_fewest_images() -> None:
    def fewest(k: int | str) -> int:
        return resolve({"benchmark": {"name": "digits", "memory": 40}}).benchmark.fewest_kept(k)

    assert fewest(2) == 36, "6 images of each of 6 classes"
    assert fewest(4) == 40
    assert fewest("3-5") == 39


def test_a_fixed_number_per_class_takes_the_place_of_the_total_and_the_upper_layer_wins() -> None:
    def memory(user: dict[str, Any], flags: dict[str, Any]) -> BenchmarkConfig:
        return resolve({"benchmark": user}, flags={"benchmark": flags}).benchmark

    each, total = {"memory_per_class": 5}, {"memory": 24}
    assert memory({}, each).fewest_kept(2) == 10, "after the first step"
    assert [memory(each, {}).empty_memory.quota(seen) for seen in (2, 8)] == [5, 5]
    assert memory(total, each).empty_memory.quota(8) == 5
    assert memory(each, total).empty_memory.quota(8) == 3
    assert opencil.resolve({"benchmark": {"memory": 0, **each}, "cil": "icarl", "detector": "msp"})
    assert "nnguide" not in resolve(settings=["benchmark.memory_per_class=5"]).detectors_of("icarl", 2)
