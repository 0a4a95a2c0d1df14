"""The unified YML: layers, short forms, round trip, and every refusal in a sentence."""

import hashlib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

import opencil
from opencil import BadInput, Schedule
from opencil.config import SECTIONS, Config, config_keys, dump_yaml, parse_yaml, read_yaml, resolve
from opencil.data.shifted import ShiftedSet
from opencil.published import published_results
from opencil.validation import flat, plain


def again(config: Config) -> Config:
    return resolve(parse_yaml(config.to_yaml(), "printed"))


# --- round trip ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        {},
        {"flags": {"benchmark": "digits"}},
        {"cil": ["icarl"], "detector": ["msp", "energy"]},
        {"cil": ["all"], "detector": ["all"], "flags": {"seed": [0, 1, 2]}},
        {"settings": ["cil.icarl.epochs=5", "detector.energy.temperature=0.5", "seed.class_order=run"]},
        {"settings": ["cil.*.epochs_scale=0.01", "benchmark.near=[]", "place.device=cpu"]},
        {"user": {"cil": {"icarl": {"first": {"milestones": [3, 9], "lr": 1e-5}}}, "detector": "msp"}},
        {
            "flags": {
                "benchmark": {"classes_per_step": [1, 2, 8]},
                "place": {"data_root": "data", "runs": "r"},
            }
        },
    ],
)
def test_printed_yml_gives_the_same_config(command: dict[str, Any]) -> None:
    config = resolve(command.pop("user", None), **command)
    assert again(config) == config
    assert again(config).to_yaml() == config.to_yaml()


@settings(max_examples=30)
@given(
    epochs=st.integers(1, 10**6),
    lr=st.floats(0, 1e38, exclude_min=True),
    temperature=st.floats(0, 1e308, exclude_min=True),
    seeds=st.lists(st.integers(0, 2**32 - 1), min_size=1, unique=True),
    steps=st.lists(st.integers(1, 8), min_size=1, unique=True),
    memory=st.integers(8, 10**9),
)
def test_printed_yml_gives_the_same_config_whatever_the_values(
    epochs: int, lr: float, temperature: float, seeds: list[int], steps: list[int], memory: int
) -> None:
    config = resolve(
        {
            "benchmark": {"name": "digits", "memory": memory, "classes_per_step": steps},
            "cil": {"icarl": {"epochs": epochs, "later": {"lr": lr}}},
            "detector": {"energy": {"temperature": temperature}},
            "seed": seeds,
        }
    )
    assert config.cil["icarl"]["later"]["lr"] == lr
    assert config.detector == {"energy": {"temperature": temperature}}
    assert config.seed.runs == tuple(seeds)
    assert again(config) == config


@settings(max_examples=30)
@given(st.text(st.characters(categories=["L", "N", "P", "S"], include_characters=" "), min_size=1))
@example("null")
@example("yes")
@example("12")
@example("2024-01-02")
@example("runs: [a")
def test_a_folder_of_any_name_survives_the_printed_yml(name: str) -> None:
    config = resolve({"cil": "icarl", "detector": "msp", "place": {"runs": name, "data_root": name}})
    assert again(config) == config


def test_a_home_folder_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "house")
    monkeypatch.setenv("USERPROFILE", "house")  # where HOME is called so
    names = ("data_root", "cache", "runs", "outputs", "tensorboard")
    place = resolve({"place": dict.fromkeys(names, "~/x")}).place
    assert {Path(getattr(place, name)) for name in names} == {Path("house/x")}
    assert resolve({"place": {"data_root": "~nobody at all/x"}}).place.data_root == "~nobody at all/x"


def test_printed_yml_holds_every_value() -> None:
    printed = yaml.safe_load(resolve(cil=["icarl"], detector=["msp", "energy"]).to_yaml())
    assert list(printed) == list(SECTIONS)
    assert set(printed["benchmark"]) == {
        "name",
        "id",
        "near",
        "far",
        "image_size",
        "transform",
        "backbone",
        "memory",
        "classes_per_step",
        "batch_size",
        "ood_order",
        "datasets",
        "shifted",
    }
    schedule = {field.name for field in fields(Schedule)}
    assert {n: set(v) for n, v in printed["cil"]["icarl"].items() if isinstance(v, dict)} == {
        "first": schedule,
        "later": schedule,
    }
    assert printed["cil"]["icarl"]["temperature"] == 2.0
    assert printed["detector"] == {"msp": {}, "energy": {"temperature": 1.0}}
    assert printed["seed"] == {
        "runs": [0],
        "class_order": 1993,
        "initialisation": "run",
        "data_order": "run",
        "ood_subset": "run",
    }
    assert printed["training"] == {
        "precision": "bf16",
        "deterministic": True,
        "compile": False,
        "batch_norm": "synchronised",
    }
    assert printed["place"] == {
        "data_root": None,
        "cache": None,
        "store": "auto",
        "resident_mb": 1024,
        "threads": 1,
        "workers": None,
        "runs": "runs",
        "outputs": None,
        "outputs_limit": "2GB",
        "checkpoint_seconds": 60.0,
        "device": "auto",
        "pack": 1,
        "tensorboard": None,
        "only_deterministic": False,
        "rank_seconds": 600.0,
        "jobs": None,
        "launcher": "local",
        "address": None,
        "decoded_mb": None,
    }


# --- layers ----------------------------------------------------------------------------------------


def test_layers_of_a_benchmark_value() -> None:
    user = {"benchmark": {"name": "digits", "batch_size": 32, "classes_per_step": 4, "memory": 100}}
    flags = {"benchmark": {"classes_per_step": [1], "memory": 200}}
    settings = ["benchmark.memory=300"]
    # batch_size: 128 by default, 64 as shipped; classes_per_step: 2 as shipped.
    assert resolve().benchmark.batch_size == 64
    top = resolve(user, flags=flags, settings=settings).benchmark
    assert (top.batch_size, top.classes_per_step, top.memory) == (32, (1,), 300)
    assert resolve(user, flags=flags).benchmark.memory == 200
    assert resolve(user).benchmark.classes_per_step == (4,)
    assert resolve(user).benchmark.image_size == 8, "what the user does not name stays as shipped"


def test_layers_of_a_method_value() -> None:
    method = opencil.create_learner("icarl")
    assert (method.first.epochs, method.first.milestones) == (200, (60, 120, 170))

    shipped = resolve().cil["icarl"]
    assert (shipped["first"]["epochs"], shipped["first"]["milestones"]) == (30, [9, 18, 26])

    user = {"cil": {"*": {"epochs": 20}, "icarl": {"temperature": 3.0}}}
    written = resolve(user).cil["icarl"]
    assert (written["first"]["epochs"], written["later"]["epochs"]) == (20, 20)
    assert (written["temperature"], written["first"]["weight_decay"]) == (3.0, 5e-4)

    settings = ["cil.icarl.epochs=5", "cil.icarl.temperature=4.5", "cil.icarl.first.lr=2e-4"]
    top = resolve(user, settings=settings).cil["icarl"]
    assert (top["first"]["epochs"], top["temperature"], top["first"]["lr"]) == (5, 4.5, 2e-4)
    assert top["later"]["lr"] == 0.1


def test_a_method_by_name_is_laid_on_the_star_of_the_same_layer() -> None:
    user = {"cil": {"icarl": {"epochs": 4}, "*": {"epochs": 9}}}
    assert resolve(user).cil["icarl"]["first"]["epochs"] == 4
    assert resolve(user, settings=["cil.*.epochs=3"]).cil["icarl"]["first"]["epochs"] == 3


def test_later_settings_win_and_mappings_are_laid_key_by_key() -> None:
    settings = ["cil.icarl.first={lr: 0.3, momentum: 0.5}", "cil.icarl.first.lr=0.2"]
    first = resolve(settings=settings).cil["icarl"]["first"]
    assert (first["lr"], first["momentum"], first["epochs"]) == (0.2, 0.5, 30)


def test_a_list_replaces_a_list() -> None:
    benchmark = resolve({"benchmark": {"far": ["noise"]}}).benchmark
    assert (benchmark.near, benchmark.far) == (("digits-held-out",), ("noise",))


def test_a_benchmark_of_ones_own_needs_no_shipped_file() -> None:
    values = yaml.safe_load(resolve().to_yaml())["benchmark"] | {"name": "mine", "memory": 16}
    config = resolve({"benchmark": values})
    assert (config.benchmark.name, config.benchmark.memory) == ("mine", 16)
    assert config.cil["icarl"]["first"]["epochs"] == 200, "the shipped scale belongs to digits"
    assert again(config) == config


def test_resolving_changes_nothing_that_it_is_given() -> None:
    user = {"benchmark": {"classes_per_step": 4}, "cil": {"icarl": None}, "seed": 3}
    resolve(user, settings=["cil.icarl.epochs=5"])
    assert user == {"benchmark": {"classes_per_step": 4}, "cil": {"icarl": None}, "seed": 3}


# --- choosing methods, short forms -----------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        "msp,energy",
        "msp energy",
        " msp , energy ",
        ["msp", "energy"],
        {"msp": None, "energy": {}},
        {"*": {}, "msp": {}, "energy": None},
    ],
)
def test_short_forms_of_a_list_of_methods(value: Any) -> None:
    assert list(resolve({"detector": value}).detector) == ["msp", "energy"]


@pytest.mark.parametrize("value", [None, "all", ["all"], {}, {"*": {}}, {"*": None}])
def test_all_methods(value: Any) -> None:
    assert list(resolve({"detector": value}).detector) == opencil.list_detectors()
    assert list(resolve().detector) == opencil.list_detectors()


def test_groups_of_methods() -> None:
    tables = published_results()
    paper = {kind: sorted(set(tables[kind]) - {""}) for kind in ("cil", "detector")}
    config = resolve(cil=["paper"], detector=["paper"])
    assert {"cil": list(config.cil), "detector": list(config.detector)} == paper
    assert resolve({"detector": "paper"}).detector == config.detector
    chosen = list(resolve(detector=["msp", "fine-tuning", "ber", "gen"]).detector)
    assert chosen == ["msp", *opencil.list_detectors("fine-tuning"), "gen"]
    assert {"augmix", "ber", "vos"} <= set(chosen)


def test_a_group_takes_no_values_and_gives_its_name_to_nobody() -> None:
    with pytest.raises(BadInput, match=r"detector\.paper takes no values: detector\.\* stands for every"):
        resolve({"detector": {"paper": {"temperature": 2}}})
    with pytest.raises(BadInput, match=r"for several of them all, paper.*did you mean 'paper'"):
        resolve(detector=["papr"])
    with pytest.raises(BadInput, match="'all' and 'paper' have meanings of their own"):
        opencil.register_detector("paper")


def test_chosen_methods_replace_those_of_the_yml_and_keep_its_values() -> None:
    user = {"detector": {"energy": {"temperature": 3.0}, "msp": {}}}
    assert resolve(user, detector=["energy", "maxlogit", "energy"]).detector == {
        "energy": {"temperature": 3.0},
        "maxlogit": {},
    }
    assert list(resolve(user, detector=["all"]).detector) == opencil.list_detectors()


def test_a_setting_selects_no_method() -> None:
    assert list(resolve(settings=["detector.energy.temperature=2"]).detector) == opencil.list_detectors()
    chosen = resolve(detector=["msp", "energy"], settings=["detector.energy.temperature=2"]).detector
    assert chosen == {"msp": {}, "energy": {"temperature": 2.0}}


@pytest.mark.parametrize("where", ["flag", "yml"])
def test_a_setting_for_a_method_that_is_not_chosen_is_refused(where: str) -> None:
    chosen: dict[str, Any] = {"detector": ["msp"]} if where == "flag" else {"user": {"detector": "msp"}}
    with pytest.raises(BadInput, match=r"detector\.energy.*msp"):
        resolve(**chosen, settings=["detector.energy.temperature=2"])


def test_short_forms_of_benchmark_and_seed() -> None:
    assert resolve({"benchmark": "digits"}) == resolve({"benchmark": {"name": "digits"}}) == resolve()
    assert resolve({"seed": 4}).seed.runs == resolve({"seed": {"runs": 4}}).seed.runs == (4,)
    assert resolve({"seed": [4, 2]}).seed.runs == (4, 2)
    assert resolve({"benchmark": {"classes_per_step": 3}}).benchmark.classes_per_step == (3,)
    assert resolve(settings=["benchmark.classes_per_step=3", "seed.runs=7"]).seed.runs == (7,)


# --- labels ----------------------------------------------------------------------------------------


def test_a_labelled_method_has_values_of_its_own() -> None:
    user = {
        "detector": {"energy": {}, "energy@warm": {"temperature": 3.0}, "energy@hot": {"temperature": 9.0}}
    }
    config = resolve(user)
    assert config.detector == {
        "energy": {"temperature": 1.0},
        "energy@warm": {"temperature": 3.0},
        "energy@hot": {"temperature": 9.0},
    }
    assert again(config) == config
    assert list(resolve({"cil": "icarl, icarl@slow"}).cil) == ["icarl", "icarl@slow"]


def test_a_labelled_method_begins_with_what_is_said_of_the_method() -> None:
    """Layer by layer, and in each layer from the star to the label."""
    user = {"cil": {"*": {"epochs": 9}, "icarl": {"temperature": 3.0}, "icarl@mine": {"temperature": 4.0}}}
    chosen = resolve(user, cil=["icarl", "icarl@mine", "icarl@bare"]).cil
    assert {name: values["temperature"] for name, values in chosen.items()} == {
        "icarl": 3.0,
        "icarl@mine": 4.0,
        "icarl@bare": 3.0,
    }
    assert {values["first"]["epochs"] for values in chosen.values()} == {9}
    above = resolve(user, cil=["icarl@mine"], settings=["cil.icarl.temperature=5.0"]).cil
    assert above["icarl@mine"]["temperature"] == 5.0, "a higher layer"
    above = resolve(user, cil=["icarl@mine"], settings=["cil.icarl@mine.temperature=6.0"]).cil
    assert above["icarl@mine"]["temperature"] == 6.0


def test_what_is_shipped_for_a_method_holds_for_its_labels() -> None:
    assert resolve(detector=["vos@mine"]).detector["vos@mine"]["queue"] == 100  # 1,000 by default


def test_a_label_that_a_method_ships_needs_no_values() -> None:
    chosen = resolve({"benchmark": "cifar100"}, detector=["ber", "ber@stated", "ber@mine"]).detector
    assert {name: v["schedule"]["lr"] for name, v in chosen.items()} == {
        "ber": 0.001,
        "ber@stated": 0.1,
        "ber@mine": 0.001,
    }
    less_lr = {name: {**v, "schedule": v["schedule"] | {"lr": None}} for name, v in chosen.items()}
    assert less_lr["ber@stated"] == less_lr["ber"]
    assert again(resolve(detector=["ber@stated"])).detector == resolve(detector=["ber@stated"]).detector


def test_what_a_shipped_label_fixes_holds_against_the_method_and_not_against_star_or_label() -> None:
    said = ["detector.ber.schedule.lr=0.3", "detector.ber.alpha=0.7"]
    chosen = resolve(detector=["ber", "ber@stated"], settings=said).detector
    assert [v["schedule"]["lr"] for v in chosen.values()] == [0.3, 0.1]
    assert [v["alpha"] for v in chosen.values()] == [0.7, 0.7]
    for name in ("ber@stated", "*"):
        changed = resolve(detector=["ber@stated"], settings=[f"detector.{name}.schedule.lr=0.2"]).detector
        assert changed["ber@stated"]["schedule"]["lr"] == 0.2


def test_labels_beside_all() -> None:
    chosen = resolve(detector=["all", "energy@hot"], settings=["detector.energy@hot.temperature=9"]).detector
    assert list(chosen) == [*opencil.list_detectors(), "energy@hot"]
    assert (chosen["energy"]["temperature"], chosen["energy@hot"]["temperature"]) == (1.0, 9.0)
    assert list(resolve(detector=["all"]).detector) == opencil.list_detectors(), "labels are nobody's default"


def test_the_four_configs_of_bers_ablation() -> None:
    switches = {
        "ber": {},
        "ber@nter": {"oter": False},
        "ber@oter": {"nter": False},
        "ber@none": {"nter": False, "oter": False},
    }
    chosen = resolve({"detector": switches}).detector
    assert [(values["nter"], values["oter"]) for values in chosen.values()] == [
        (True, True),
        (True, False),
        (False, True),
        (False, False),
    ]
    assert len({str({k: v for k, v in c.items() if k not in ("nter", "oter")}) for c in chosen.values()}) == 1


@pytest.mark.parametrize(
    ("choice", "fragments"),
    [
        ({"detector": ["enrgy@hot"]}, ["detector 'enrgy'", "did you mean 'energy'"]),
        ({"detector": ["energy@"]}, ["'energy@'", "lower-case letters"]),
        ({"detector": ["energy@../up"]}, ["'energy@../up'", "lower-case letters"]),
        ({"user": {"detector": {"energy@hot": {"temp": 2}}}}, ["detector.energy@hot.temp", "did you mean"]),
        (
            {"detector": ["energy"], "settings": ["detector.energy@hot.temperature=2"]},
            ["detector.energy@hot has no use", "energy"],
        ),
        (
            {"detector": ["ber@stated"], "settings": ["detector.ber.schedule.lr=0.2"]},
            ["detector.ber has no use", "is set as detector.ber@stated"],
        ),
    ],
)
def test_refused_labels_say_why(choice: dict[str, Any], fragments: list[str]) -> None:
    with pytest.raises(BadInput) as raised:
        resolve(choice.pop("user", None), **choice)
    assert [f for f in fragments if f not in str(raised.value)] == [], str(raised.value)


# --- refusals --------------------------------------------------------------------------------------

REFUSED = [
    # setting, what the sentence must hold: key, value, what is allowed, nearest name
    ("cil.icarl.epoch=3", ["cil.icarl.epoch", "3", "epochs_scale", "temperature", "did you mean 'epochs'"]),
    ("cil.icarl.first.lrr=3", ["cil.icarl.first.lrr", "3", "momentum", "did you mean 'lr'"]),
    ("cil.*.temprature=3", ["temprature", "did you mean 'temperature'"]),
    ("benchmark.transform.crp=8", ["benchmark.transform.crp", "8", "padding", "did you mean 'crop'"]),
    ("benchmark.memry=8", ["benchmark.memry", "did you mean 'memory'"]),
    ("seed.run=8", ["seed.run", "8", "did you mean 'runs'"]),
    ("place.devise=cpu", ["place.devise", "cpu", "data_root", "did you mean 'device'"]),
    ("detector.energy.temp=2", ["detector.energy.temp", "2", "did you mean 'temperature'"]),
    ("cil.icarl.epochs=true", ["cil.icarl.epochs", "true", "integer"]),
    ("cil.icarl.epochs='5'", ["cil.icarl.epochs", '"5"', "integer"]),
    ("cil.icarl.epochs=5.0", ["cil.icarl.epochs", "5.0", "integer"]),
    ("cil.icarl.epochs=many", ["cil.icarl.epochs", '"many"', "integer"]),
    ("cil.icarl.epochs=0", ["cil.icarl.epochs", "0", "greater than or equal to 1"]),
    ("cil.icarl.temperature=true", ["cil.icarl.temperature", "true", "number"]),
    ("cil.icarl.temperature=0", ["cil.icarl.temperature", "0", "greater than 0"]),
    ("cil.icarl.temperature=.nan", ["cil.icarl.temperature", "NaN", "finite"]),
    ("cil.icarl.temperature=.inf", ["cil.icarl.temperature", "Infinity", "finite"]),
    ("cil.icarl.first.momentum=1.5", ["cil.icarl.first.momentum", "1.5", "less than or equal to 1"]),
    ("cil.icarl.first.decay=linear", ["cil.icarl.first.decay", "linear", "steps", "cosine"]),
    ("cil.icarl.first=3", ["cil.icarl.first", "3", "object"]),
    ("cil.icarl=3", ["cil.icarl", "3", "mapping"]),
    ("cil.icarl.first.milestones=[99]", ["cil.icarl.first.milestones", "[99]", "below epochs = 30"]),
    ("cil.icarl.first.milestones=[9, 4]", ["cil.icarl.first.milestones", "[9, 4]", "increase"]),
    ("benchmark.classes_per_step=0", ["benchmark.classes_per_step", "0", "greater than or equal to 1"]),
    ("benchmark.classes_per_step=[2, 0]", ["benchmark.classes_per_step[1]", "0"]),
    ("benchmark.classes_per_step=9", ["benchmark.classes_per_step", "9", "1 to 8", "'digits'"]),
    ("benchmark.classes_per_step=[4, 2, 2]", ["benchmark.classes_per_step", "each once", "20-20-10"]),
    ("benchmark.classes_per_step=[]", ["benchmark.classes_per_step", "are needed"]),
    ("benchmark.memory=7", ["benchmark.memory", "7", "8 classes"]),
    ("benchmark.memory=99999999999999999999", ["benchmark.memory", "less than 9223372036854775808"]),
    ("benchmark.memory=0", ["benchmark.memory", "0", "greater than or equal to 1"]),
    ("benchmark.id=digit", ["benchmark.id", "'digit'", "photo-patches", "did you mean 'digits'"]),
    ("benchmark.near=[nois]", ["benchmark.near", "'nois'", "did you mean 'noise'"]),
    ("benchmark.far=[foto-patches]", ["benchmark.far", "'foto-patches'", "did you mean 'photo-patches'"]),
    ("benchmark.far=noise", ["benchmark.far", '"noise"', "array"]),
    ("benchmark.far=[noise, digits-held-out]", ["near and far", "digits-held-out", "twice"]),
    ("benchmark.backbone=resnet7", ["benchmark.backbone", "'resnet7'", "resnet32", "did you mean 'resnet8'"]),
    ("benchmark.backbone=3", ["benchmark.backbone", "3", "string", "object"]),
    ("benchmark.backbone.blocks=3", ["benchmark.backbone.blocks", "unknown"]),
    ("benchmark.backbone={freeze: true, name: 3}", ["benchmark.backbone.name"]),
    ("benchmark.backbone.freeze=maybe", ["benchmark.backbone.freeze", "maybe", "boolean"]),
    ("benchmark.backbone.weights=gone.safetensors", ["backbone.weights", "gone.safetensors", "No such file"]),
    ("benchmark.backbone=timm", ["benchmark.backbone.model is missing"]),
    ("benchmark.backbone.sha256=abc", ["benchmark.backbone.sha256", "without backbone.weights"]),
    ("benchmark.backbone={name: timm, model: 3}", ["benchmark.backbone.model", "3", "string"]),
    ("benchmark.name=digit", ["benchmark", "'digit'", "did you mean 'digits'"]),
    ("benchmark.setup=memory", ["benchmark.setup", "take it out", "'detector.*.setup=memory'"]),
    ("detector.*.setup=train", [".setup = ", "train", "train+", "memory"]),
    ("detector.*.setups=memory", ["detector.*.setups", "no detector has it", "did you mean 'setup'"]),
    ("benchmark.transform.std=[0.1, 0.1]", ["benchmark.transform.std"]),
    ("benchmark.transform.std=[0, 1, 1]", ["benchmark.transform.std[0]", "0", "greater than 0"]),
    ("seed.runs=-1", ["seed.runs[0]", "-1", "greater than or equal to 0"]),
    ("seed.runs=4294967296", ["seed.runs[0]", "4294967296", "less than 4294967296"]),
    ("seed.class_order=walk", ["seed.class_order", "walk", "run"]),
    ("place.runs=3", ["place.runs", "3", "string"]),
    ("place.pack=0", ["place.pack", "0", "greater than or equal to 1"]),
    ("place.checkpoint_seconds=-1", ["place.checkpoint_seconds", "-1", "greater than or equal to 0"]),
    ("place.outputs_limit=much", ["place.outputs_limit", "'much'", "2GB"]),
    ("place.outputs_limit=-3", ["place.outputs_limit", "-3"]),
    ("place.outputs_limit=true", ["place.outputs_limit", "true"]),
    ("training.precision=fp8", ["training.precision", "fp8", "fp32", "tf32", "bf16"]),
    ("training.precison=fp32", ["training.precison", "did you mean 'precision'"]),
    ("sed.runs=3", ["section", "'sed'", "place", "did you mean 'seed'"]),
    ("detector.enrgy.temperature=3", ["detector 'enrgy'", "msp", "did you mean 'energy'"]),
]


@pytest.mark.parametrize(("setting", "fragments"), REFUSED, ids=[setting for setting, _ in REFUSED])
def test_refused_settings_say_why(setting: str, fragments: list[str]) -> None:
    with pytest.raises(BadInput) as raised:
        resolve(settings=[setting])
    message = str(raised.value)
    assert [f for f in fragments if f not in message] == [], message
    assert "validation error" not in message
    assert "pydantic" not in message


MISPLACED = [
    ("icarl.epochs=5", "did you mean cil.icarl.epochs?"),
    ("icarl.lr=5", "did you mean cil.icarl.first.lr or cil.icarl.later.lr?"),
    ("cil.icarl.lr=0.1", "did you mean cil.icarl.first.lr or cil.icarl.later.lr?"),
    ("cil.*.lr=0.1", "did you mean cil.*.first.lr, cil.*.train.lr, cil.*.later.lr"),
    ("cil.epochs=5", "did you mean cil.*.epochs?"),
    ("cil.first.lr=0.1", "did you mean cil.*.first.lr?"),
    ("epochs=5", "did you mean cil.*.epochs?"),
    ("memory=100", "did you mean benchmark.memory?"),
    ("memroy=100", "did you mean benchmark.memory?"),
    ("benchmark.crop=8", "did you mean benchmark.transform.crop?"),
    ("cil.icarl.memory=100", "did you mean benchmark.memory?"),
    ("place.precision=bf16", "did you mean training.precision?"),
    ("benchmark.weights=x", "did you mean benchmark.backbone.weights?"),
    ("cil.energy.temperature=2", "did you mean detector.energy.temperature?"),
    ("benchmark.backbone.nam=x", "here are freeze, name, sha256, signed, weights; did you mean 'name'?"),
]


@pytest.mark.parametrize(("setting", "hint"), MISPLACED, ids=[setting for setting, _ in MISPLACED])
def test_a_key_in_a_wrong_place_is_told_where_it_belongs(setting: str, hint: str) -> None:
    with pytest.raises(BadInput) as raised:
        resolve(settings=[setting])
    assert hint in str(raised.value)


def test_a_labelled_method_is_told_with_its_label() -> None:
    with pytest.raises(BadInput, match=r"did you mean detector\.ber@nter\.schedule\.lr\?"):
        resolve(detector=["ber@nter"], settings=["detector.ber@nter.lr=1"])


def test_every_key_that_is_known_can_be_set() -> None:
    """What hints and completion offer is what a config takes."""
    flat_config = flat(plain(resolve(detector=["all"], cil=["all"])))
    keys = {".".join(key) for key in config_keys()}
    assert {key for key in flat_config if not key.startswith(("benchmark.shifted", "metric"))} <= keys
    assert {"benchmark.backbone.weights", "cil.icarl.epochs", "seed.runs", "metric"} <= keys


@pytest.mark.parametrize("setting", ["epochs", "cil.icarl.epochs", "=3", "cil..epochs=3", ".a=1", ""])
def test_a_setting_that_is_no_setting(setting: str) -> None:
    with pytest.raises(BadInput, match="key=value") as raised:
        resolve(settings=[setting])
    assert repr(setting) in str(raised.value)


def test_a_setting_that_is_no_yml() -> None:
    with pytest.raises(BadInput, match=r"cil\.icarl\.first=\{.*not valid YML"):
        resolve(settings=["cil.icarl.first={"])


@pytest.mark.parametrize(
    ("choice", "fragments"),
    [
        ({"detector": ["enrgy"]}, ["detector 'enrgy'", "maxlogit", "did you mean 'energy'"]),
        ({"user": {"detector": "msp,enrgy"}}, ["detector 'enrgy'", "did you mean 'energy'"]),
        ({"cil": ["iCarl2"]}, ["CIL method 'iCarl2'", "did you mean 'icarl'"]),
        ({"user": {"cil": {"zzz": {}}}}, ["CIL method 'zzz'", "icarl"]),
        ({"flags": {"benchmark": "digitz"}}, ["benchmark 'digitz'", "did you mean 'digits'"]),
        ({"user": {"benchmark": "nothing-like-it"}}, ["benchmark 'nothing-like-it'", "digits"]),
        ({"user": {"benchmrk": {}}}, ["section 'benchmrk'", "place", "did you mean 'benchmark'"]),
        ({"user": {"cils": "icarl"}}, ["section 'cils'", "did you mean 'cil'"]),
        ({"user": {"x": 3}}, ["section 'x' is unknown: allowed are benchmark, cil"]),
        ({"user": {"benchmark": 5}}, ["benchmark = 5", "mapping"]),
        ({"user": {"place": "here"}}, ["place = 'here'", "mapping"]),
        ({"user": {"cil": 5}}, ["cil = 5", "mapping"]),
        ({"user": {"detector": {"msp": 3}}}, ["detector.msp = 3", "mapping"]),
        ({"user": {"seed": True}}, ["seed.runs[0] = true", "integer"]),
        ({"user": {"seed": "0"}}, ['seed.runs[0] = "0"', "integer"]),
        ({"user": {"benchmark": {"near": [], "far": []}}}, ["near and far", "at least one"]),
        (
            {"user": {"benchmark": {"name": "a/b", "memory": 8}}},
            ["benchmark.id, benchmark.near, "],
        ),
    ],
)
def test_refused_choices_say_why(choice: dict[str, Any], fragments: list[str]) -> None:
    with pytest.raises(BadInput) as raised:
        resolve(choice.pop("user", None), **choice)
    assert [f for f in fragments if f not in str(raised.value)] == [], str(raised.value)


def test_a_benchmark_name_cannot_lead_out_of_the_folder_of_runs() -> None:
    values = yaml.safe_load(resolve().to_yaml())["benchmark"]
    for name in ("../up", "a/b", "a b", ""):
        with pytest.raises(BadInput):
            resolve(
                {"benchmark": {**values, "name": name}}, flags={"benchmark": {"name": name}} if name else None
            )


def test_several_errors_are_a_sentence_each() -> None:
    with pytest.raises(BadInput) as raised:
        resolve({"benchmark": {"memory": "x", "batch_size": 0, "bckbone": "resnet8"}})
    lines = str(raised.value).split("\n")
    assert [line.split(" = ")[0] for line in lines] == [
        "benchmark.memory",
        "benchmark.batch_size",
        "benchmark.bckbone",
    ]


def test_a_key_that_cannot_be_shown_is_escaped() -> None:
    with pytest.raises(BadInput, match=r"benchmark\.shifted\.a\\x00b\.seed = \"x\" is not allowed"):
        resolve({"benchmark": {"shifted": {"a\0b": {"seed": "x"}}}})


def test_of_many_errors_the_first_are_told() -> None:
    with pytest.raises(BadInput) as raised:
        resolve({"seed": ["x"] * 2000})
    lines = str(raised.value).split("\n")
    assert (len(lines), lines[-1]) == (21, "and 1980 more")


@pytest.mark.parametrize(
    "setting", ["cil=" + "9" * 9000, "metric=\x7f\0", "benchmark.classes_per_step=" + "10-" * 3000 + "1"]
)
def test_a_long_setting_is_cut_in_the_sentence(setting: str) -> None:
    with pytest.raises(BadInput) as raised:
        resolve(settings=[setting])
    assert len(str(raised.value)) < 500
    assert str(raised.value).isprintable()


def test_a_long_value_is_cut_in_the_sentence() -> None:
    with pytest.raises(BadInput) as raised:
        resolve({"cil": {"icarl": {"temperature": "x" * 5000}}})
    assert len(str(raised.value)) < 300


# --- YML -------------------------------------------------------------------------------------------


def test_numbers_as_people_write_them() -> None:
    assert parse_yaml("a: [2e-4, 1E5, -1e+3, .5e3, 1.e2, 7, 0.5, -3]", "x") == {
        "a": [0.0002, 1e5, -1000.0, 500.0, 100.0, 7, 0.5, -3]
    }
    assert parse_yaml("a: [0, -0, 0.10, 1_000, 0x1F, '010', '1:30']", "x") == {
        "a": [0, 0, 0.1, 1000, 31, "010", "1:30"]
    }
    assert parse_yaml("a: [e5, 1e, 2e-, v1e5]", "x") == {"a": ["e5", "1e", "2e-", "v1e5"]}
    assert resolve(settings=["cil.icarl.first.lr=2e-4"]).cil["icarl"]["first"]["lr"] == 0.0002


def test_an_empty_yml_is_the_default() -> None:
    assert resolve(parse_yaml("", "x")) == resolve(parse_yaml("# nothing\n", "x")) == resolve()


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        ("cil: icarl\ncil: icarl\n", ["'cil'", "twice"]),
        ("cil:\n  icarl:\n    epochs: 3\n    epochs: 4\n", ["'epochs'", "twice", "line 4"]),
        ("cil: [icarl\n", ["not valid YML", "line"]),
        ("cil: icarl: 3\n", ["not valid YML", "line 1"]),
        ("a: !!python/object/apply:os.getcwd []\n", ["not valid YML"]),
        ("- cil\n- detector\n", ["list", "benchmark, cil, detector, training, seed, place"]),
        ("icarl\n", ["str", "benchmark, cil, detector, training, seed, place"]),
        ("3\n", ["int", "benchmark, cil, detector, training, seed, place"]),
    ],
)
def test_a_yml_that_cannot_be_used(text: str, fragments: list[str], tmp_path: Path) -> None:
    path = tmp_path / "mine.yml"
    path.write_text(text)
    with pytest.raises(BadInput) as raised:
        read_yaml(path)
    message = str(raised.value)
    assert [f for f in [str(path), *fragments] if f not in message] == [], message
    assert "\n" not in message


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    binary = tmp_path / "binary.yml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "absent.yml", tmp_path, binary):
        with pytest.raises(BadInput, match="cannot be read") as raised:
            read_yaml(path)
        assert str(path) in str(raised.value)


def test_short_lists_stand_on_one_line() -> None:
    assert dump_yaml({"b": [1, 2], "a": {"c": []}}) == "b: [1, 2]\na:\n  c: []\n"


def test_shipped_benchmarks_resolve() -> None:
    assert "digits" in opencil.list_benchmarks()
    for name in opencil.list_benchmarks():
        assert resolve(flags={"benchmark": name}).benchmark.name == name


# --- bugs that are known: each of these must pass once its bug is mended, and then loses its mark --


@pytest.mark.parametrize("name", ["1e5", "2e-4"])
def test_a_folder_that_looks_like_a_number_survives_the_printed_yml(name: str) -> None:
    config = resolve({"place": {"runs": name}})
    assert again(config) == config


@pytest.mark.parametrize("text", ["cil: {1: {}}", "detector: {yes: {}}"])
def test_a_method_name_that_is_no_text_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        resolve(parse_yaml(text, "x"))


def test_an_impossible_date_is_refused() -> None:
    with pytest.raises(BadInput):
        resolve(settings=["place.runs=2024-13-45"])


def test_anchors_and_merge_keys() -> None:
    text = "cil:\n  icarl:\n    first: &same {lr: 0.2, momentum: 0.5}\n    later: {<<: *same, lr: 0.3}\n"
    icarl = resolve(parse_yaml(text, "x")).cil["icarl"]
    assert (icarl["later"]["lr"], icarl["later"]["momentum"]) == (0.3, 0.5)


def test_values_under_all_are_used_or_refused() -> None:
    try:
        config = resolve({"cil": {"all": {"epochs": 3}}})
    except BadInput:
        return
    assert config.cil["icarl"]["first"]["epochs"] == 3


def test_an_unknown_name_beside_all_is_refused() -> None:
    with pytest.raises(BadInput, match="enrgy"):
        resolve(detector=["all", "enrgy"])


def test_an_unknown_method_in_the_yml_is_refused_also_when_flags_choose() -> None:
    with pytest.raises(BadInput, match="icrl"):
        resolve({"cil": {"icrl": {"epochs": 3}}}, cil=["icarl"])


def test_no_seeds_are_refused() -> None:
    with pytest.raises(BadInput, match=r"seed\.runs"):
        resolve({"seed": []})


def test_a_crop_larger_than_the_image_is_refused() -> None:
    with pytest.raises(BadInput, match="crop"):
        resolve(settings=["benchmark.transform.crop=9"])


# --- contradictions --------------------------------------------------------------------------------


def test_a_yml_is_not_run_under_the_name_of_another_benchmark() -> None:
    written = parse_yaml(resolve({"benchmark": "digits"}).to_yaml(), "mine.yml")
    with pytest.raises(BadInput, match="'cifar100' is asked for, and the YML describes 'digits'"):
        resolve(written, flags={"benchmark": "cifar100"})
    assert resolve(written, flags={"benchmark": "digits"}).benchmark.id == "digits"
    assert resolve({"benchmark": "digits"}, flags={"benchmark": "cifar100"}).benchmark.id == "cifar100"


@pytest.mark.parametrize("setting", ["seed.runs=[0,0]", "benchmark.classes_per_step=[2,2]", "place.runs=''"])
def test_values_that_would_collide_are_refused(setting: str) -> None:
    with pytest.raises(BadInput, match=setting.partition("=")[0].replace(".", r"\.")):
        resolve(settings=[setting])


def test_yml_that_no_value_can_be_made_of() -> None:
    with pytest.raises(BadInput, match="seed cannot be used"):
        resolve(parse_yaml("seed: {2020-01-01: 3}", "odd.yml"))


@pytest.mark.parametrize(
    "setting", ["augmix.severity=11", "augmix.severity=0.01", "regmix.concentration=1e-6"]
)
def test_values_that_a_draw_could_not_use_are_refused(setting: str) -> None:
    with pytest.raises(BadInput, match=setting.partition("=")[0]):
        resolve(detector=[setting.partition(".")[0]], settings=[f"detector.{setting}"])


# --- backbones ------------------------------------------------------------------------------------


def test_a_backbone_that_is_only_a_name_is_that_word() -> None:
    """So that runs stored under the word compare equal."""
    for written in ("resnet32", {"name": "resnet32"}, {"name": "resnet32", "freeze": False}):
        assert resolve({"benchmark": {"backbone": written}}).benchmark.backbone == "resnet32"


def test_values_of_a_backbone_are_laid_on_those_below_unless_another_is_named() -> None:
    frozen = {"benchmark": {"backbone": {"name": "resnet32", "freeze": True}}}
    assert resolve(settings=["benchmark.backbone.freeze=true"]).benchmark.backbone == {
        "name": "resnet8",
        "freeze": True,
    }
    both = ["benchmark.backbone=resnet32", "benchmark.backbone.freeze=true"]
    for order in (both, both[::-1]):
        assert resolve(settings=order) == resolve(frozen)
    assert resolve(frozen, settings=["benchmark.backbone=resnet18"]).benchmark.backbone == "resnet18"
    config = resolve(frozen)
    assert resolve(yaml.safe_load(config.to_yaml())) == config


def test_a_file_of_weights_is_pinned_by_its_checksum(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    some, others = (save({"weight": torch.full((2,), value)}) for value in (1.0, 2.0))
    path.write_bytes(some)
    setting = f"benchmark.backbone.weights={path}"
    config = resolve(settings=[setting])
    assert config.benchmark.backbone == {
        "name": "resnet8",
        "weights": str(path),
        "sha256": hashlib.sha256(some).hexdigest(),
    }
    printed = yaml.safe_load(config.to_yaml())
    assert resolve(printed) == config
    path.write_bytes(others)
    with pytest.raises(BadInput, match=r"weights\.safetensors' has changed: its sha256 is"):
        resolve(printed)
    assert resolve(settings=[setting]) != config
    path.write_bytes(b"nonsense")
    with pytest.raises(BadInput, match="is no safetensors file"):
        resolve(settings=[setting])


# --- metrics ---------------------------------------------------------------------------------------


def test_metrics_are_names_in_a_list_or_a_text() -> None:
    assert resolve().metric == ()
    assert resolve({"metric": "auc, oscr"}).metric == ("auc", "oscr")
    assert resolve({"metric": ["auc"]}, flags={"metric": ["oscr", "oscr"]}).metric == ("oscr",)
    with pytest.raises(BadInput, match=r"metric 'osc' is unknown.*did you mean 'oscr'"):
        resolve({"metric": ["osc"]})
    with pytest.raises(BadInput, match="a list of names"):
        resolve({"metric": 3})


def test_evaluation_sets_have_roles() -> None:
    listed = [{"name": "noise", "role": "far"}, {"name": "dim", "role": "shifted", "severities": [5]}]
    benchmark = resolve({"benchmark": {"name": "digits", "sets": listed}}).benchmark
    assert (benchmark.near, benchmark.far) == ((), ("noise",))
    assert {name: made.severities for name, made in benchmark.shifted.items()} == {"dim": (5,)}
    assert resolve({"benchmark": {"name": "cifar100", "shifted": "corrupted"}}).benchmark.shifted.keys() == {
        "corrupted"
    }


def test_shifted_sets_that_are_named_stand_for_those_below() -> None:
    shipped = resolve().benchmark.shifted["corrupted"]
    for none in ("benchmark.shifted=[]", "benchmark.shifted={}", "benchmark.sets=[{name: noise, role: far}]"):
        assert not resolve(settings=[none]).benchmark.shifted
    assert resolve({"benchmark": {"shifted": "mine"}}).benchmark.shifted.keys() == {"mine"}
    changed = resolve(settings=["benchmark.shifted.corrupted.seed=3"]).benchmark.shifted
    assert changed == {"corrupted": replace(shipped, seed=3)}


@pytest.mark.parametrize(
    "entry",
    [{"name": "noise", "role": "beside"}, {"role": "far"}, {"name": "noise", "role": "far", "seed": 1}, "x"],
)
def test_sets_without_a_usable_role(entry: Any) -> None:
    with pytest.raises(BadInput, match=r"near, far, shifted; only shifted sets have values"):
        resolve({"benchmark": {"name": "digits", "sets": [entry]}})


@pytest.mark.parametrize(
    ("benchmark", "said"),
    [
        ({"sets": 3}, "sets = 3 is not allowed: it should be a list"),
        ({"sets": "noise"}, "'noise' is not allowed: it should be a list"),
        ({"sets": [{"name": "noise", "role": "far"}], "near": []}, "in place of near, far, shifted"),
        ({"sets": [{"name": "x", "role": "shifted"}, {"name": "x", "role": "shifted"}]}, "'x' twice"),
        ({"sets": [{"name": "noise", "role": "far"}, {"name": "noise", "role": "near"}]}, "'noise' twice"),
        ({"shifted": [3]}, r"benchmark.shifted = \[3\]"),
    ],
)
def test_sets_that_are_no_list_of_sets(benchmark: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        resolve({"benchmark": {"name": "digits", **benchmark}})


def test_a_shifted_set_needs_no_values() -> None:
    assert resolve({"benchmark": {"shifted": {"mine": None}}}).benchmark.shifted == {"mine": ShiftedSet()}


def test_a_shifted_set_has_a_name_of_its_own() -> None:
    with pytest.raises(BadInput, match="shifted: the name 'noise' is not allowed"):
        resolve({"benchmark": {"name": "digits", "shifted": "noise"}})


@pytest.mark.parametrize("scorer", ["vim", "{name: fdbd, divided_by: norm}"])
def test_a_head_that_is_scored_by_one_that_reads_w_and_b_needs_a_linear_head(scorer: str) -> None:
    config = resolve(
        {"benchmark": "digits", "cil": "lucir,icarl", "detector": "msp,ber@scored,ber"},
        settings=[f"detector.ber@scored.scored_by={scorer}"],
    )
    assert config.left_out("lucir", 2) == {"the head is not linear, and is read as W and b": ["ber@scored"]}
    assert config.left_out("icarl", 2) == {}
    assert list(config.detectors_of("lucir", 2)) == ["msp", "ber"]


def test_a_detector_that_needs_more_images_than_the_memory_has_is_left_out_before_training() -> None:
    user = {"benchmark": {"name": "digits", "memory": 39}, "cil": "icarl,ewc"}
    config = resolve(user | {"detector": "all"})
    ((why, names),) = config.left_out("icarl", 2).items()
    assert (names, "nnguide" in config.detectors_of("icarl", 2)) == (["nnguide"], False)
    assert why.startswith(
        "40 images at least are needed for the set-up, and the memory of some step has 32 ("
    )
    assert "nnguide" in config.detectors_of("ewc", 2), "without a memory it is set up on all that a step has"
    with pytest.raises(BadInput, match=r"^icarl cannot have nnguide, ber@nn: 40 images .* some step has 32 "):
        resolve(
            user | {"cil": "icarl", "detector": "nnguide,ber@nn"},
            settings=["detector.ber@nn.scored_by={name: nnguide, neighbours: 40}"],
        )


def test_the_memory_is_that_of_the_step_which_leaves_it_the_fewest_images() -> None:
    def fewest(k: int | str) -> int:
        return resolve({"benchmark": {"name": "digits", "memory": 40}}).benchmark.fewest_kept(k)

    assert fewest(2) == 36, "6 images of each of 6 classes"
    assert fewest(4) == 40
    assert fewest("3-5") == 39


@pytest.mark.parametrize(
    ("detector", "setting"),
    [
        ("nnguide", "benchmark.memory=42"),  # 42 // 2 * 2, 42 // 4 * 4 = 40, 42 // 6 * 6 and 42 // 8 * 8 = 40
        ("nnguide", "detector.nnguide.setup=train+"),
        ("nnguide", "detector.nnguide.neighbours=32"),
        ("vos", "detector.vos={scored_by: knn, queue: 1000}"),
    ],
)
def test_a_detector_whose_images_may_be_enough_is_kept(detector: str, setting: str) -> None:
    user = {"benchmark": {"name": "digits", "memory": 39}, "cil": "icarl", "detector": detector}
    config = resolve(user, settings=[setting])
    assert list(config.detectors_of("icarl", 2)) == [detector]
