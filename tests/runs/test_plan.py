"""From a config to its runs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import yaml

import opencil
from opencil.config import Config, dump_yaml
from opencil.data.own_dataset import OwnDataset
from opencil.data.stream import Step, ood_subset
from opencil.engine.seeding import derive
from opencil.errors import BadInput
from opencil.registry import Registry
from opencil.runs.plan import Seeds, defaults, in_todays_terms, plan


@pytest.fixture
def _second_method() -> None:
    @opencil.register_learner("aaa")
    @dataclass(frozen=True)
    class Second(type(opencil.create_learner("icarl"))):  # type: ignore[misc]
        """A second method."""


@pytest.mark.usefixtures("_second_method")
def test_grid_order_and_folders(tiny: Callable[..., Config]) -> None:
    config = tiny(Path("r"), "benchmark.classes_per_step=[4, 2]", seed=[7, 0], cil="icarl,aaa")
    assert [str(spec) for spec in plan(config)] == [
        f"digits/k{k}/{cil}/seed{seed}" for k in (4, 2) for seed in (7, 0) for cil in ("icarl", "aaa")
    ]
    for spec in plan(config):
        assert (
            spec.folder == Path("digits") / f"k{spec.classes_per_step}" / spec.cil / f"seed{spec.seeds.run}"
        )
        assert spec.benchmark.classes_per_step == (spec.classes_per_step,)
        assert spec.detectors == config.detector
        assert spec.values == config.cil[spec.cil]


def test_seeds_are_numbers(tiny: Callable[..., Config]) -> None:
    assert [spec.seeds for spec in plan(tiny(Path("r"), seed=[3, 5]))] == [
        Seeds(run=s, class_order=1993, initialisation=s, data_order=s, ood_subset=s) for s in (3, 5)
    ]
    settings = ["seed.class_order=run", "seed.initialisation=11", "seed.data_order=12", "seed.ood_subset=13"]
    assert [spec.seeds for spec in plan(tiny(Path("r"), *settings, seed=[3, 5]))] == [
        Seeds(run=s, class_order=s, initialisation=11, data_order=12, ood_subset=13) for s in (3, 5)
    ]


def test_a_record_is_plain_and_knows_no_place(tiny: Callable[..., Config]) -> None:
    (spec,) = plan(tiny(Path("some-folder"), "place.data_root=some-data"))
    record = spec.record()
    assert list(record) == ["benchmark", "cil", "training", "seed", "detector"]
    assert yaml.safe_load(dump_yaml(record)) == record
    assert "some-" not in dump_yaml(record)


def test_a_metric_of_shifted_images_needs_some(tiny: Callable[..., Config]) -> None:
    with_some, without = tiny(Path("r")), tiny(Path("r"), "benchmark.shifted={}")
    both = ("auc", "accuracy_shifted")
    assert len(plan(replace(with_some, metric=both))) == len(plan(replace(without, metric=both[:1]))) == 1
    with pytest.raises(BadInput, match="'accuracy_shifted' reads shifted images, and benchmark 'digits' has"):
        plan(replace(without, metric=both))


def test_every_ood_set_has_an_order_of_its_own(tiny: Callable[..., Config]) -> None:
    """Else the same positions of two sets would be seen together, at every step and under every seed."""
    first, other = plan(tiny(Path("r"), "benchmark.ood_order=permutation", seed=[0, 1]))
    nothing = torch.empty(0, dtype=torch.int64)
    steps = [Step((2,) * number, 4, nothing, nothing) for number in (1, 2)]
    draws = [
        frozenset(spec.ood_seen(name, 100, steps[0]).tolist())
        for spec in (first, other)
        for name in ("letters", "textures")
    ]
    assert [len(draw) for draw in draws] == [25] * 4
    assert len(set(draws)) == 4
    assert draws[0] < frozenset(first.ood_seen("letters", 100, steps[1]).tolist()), "steps are nested"
    assert draws[0] == frozenset(first.ood_seen("letters", 100, steps[0]).tolist())
    # Of no other draw with the name of an OOD set: what stored runs have seen stays what it was.
    seed = derive(first.seeds.ood_subset, "ood", "letters")
    assert draws[0] == frozenset(ood_subset(100, 1, 4, "permutation", seed).tolist())


def test_metrics_are_of_the_model_or_of_detectors(tiny: Callable[..., Config]) -> None:
    (spec,) = plan(tiny(Path("r")))
    spec = replace(spec, metrics=["accuracy", "auc", "oscr", "accuracy_shifted"])
    assert spec.metrics_of_model == ["accuracy", "accuracy_shifted"]
    assert spec.metrics_of_detectors == ["auc", "oscr"]


def test_a_record_says_whether_its_models_are_from_elsewhere(tiny: Callable[..., Config]) -> None:
    (spec,) = plan(tiny(Path("r")))
    assert "foreign" not in spec.record()
    elsewhere = replace(spec, foreign=opencil.create_learner("icarl")).record()
    assert elsewhere["foreign"] is True
    assert set(defaults(spec.record())["cil"]) == {"icarl"}
    assert "cil" not in defaults(elsewhere), "no method that is known here made them"


def test_optional_values_are_those_of_the_classes(tiny: Callable[..., Config]) -> None:
    (spec,) = plan(tiny(Path("r"), detector="react"))
    by_default, record = defaults(spec.record()), spec.record()
    assert set(by_default["benchmark"]) <= set(record["benchmark"]) | {"transform"}
    assert "name" not in by_default["benchmark"], "what must be said has no default"
    assert by_default["benchmark"]["datasets"] == {}
    assert set(by_default["benchmark"]["transform"]) < set(record["benchmark"]["transform"])
    assert by_default["training"] == record["training"]
    assert by_default["detector"] == record["detector"]


def test_plugins_are_those_of_what_made_the_rows(
    tiny: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    def notes(names: list[tuple[Registry[object], str]]) -> dict[str, str]:
        asked[:] = [(registry.kind, name) for registry, name in names]
        return {}

    monkeypatch.setattr("opencil.runs.plan.notes_of", notes)
    (spec,) = plan(tiny(Path("r")))
    spec = replace(spec, metrics=["accuracy", "auc"])
    spec.plugins()
    of_model = list(asked)
    assert of_model[0] == ("CIL method", "icarl")
    data = [name for kind, name in of_model if kind == "dataset"]
    assert data == [spec.benchmark.id, *spec.benchmark.ood]
    assert [name for kind, name in of_model if kind == "metric"] == ["accuracy"]
    assert ("backbone", "resnet8") in of_model
    with_values = replace(spec.benchmark, backbone={"name": "resnet8", "freeze": True})
    replace(spec, benchmark=with_values).plugins()
    assert asked == of_model, "a backbone is known by its name, whatever its values"
    spec.plugins("msp")
    assert ("detector", "msp") in asked
    assert [name for kind, name in asked if kind == "metric"] == ["accuracy", "auc"]
    own = replace(spec.benchmark, near=("mine",), far=(), datasets={"mine": OwnDataset("some-folder")})
    replace(spec, benchmark=own).plugins()
    assert [name for kind, name in asked if kind == "dataset"] == [own.id], "a user's images are no plugin"


def test_a_record_of_before_says_what_was_so_then() -> None:
    def today(values: object, **benchmark: str) -> object:
        return in_todays_terms({"benchmark": benchmark, "detector": {"react@mine": values, "msp": {}}})

    assert today({"share": 0.9}) == {
        "benchmark": {},
        "detector": {"react@mine": {"setup": "train+", "share": 0.9}, "msp": {}},
    }
    everywhere = today({}, setup="memory", id="digits")
    assert everywhere == {
        "benchmark": {"id": "digits"},
        "detector": {"react@mine": {"setup": "memory"}, "msp": {}},
    }
    assert today({"setup": "new"})["detector"]["react@mine"] == {"setup": "new"}
    assert today("junk")["detector"]["react@mine"] == "junk"


def test_what_stands_for_a_method_is_no_part_of_a_run(tiny: Callable[..., Config]) -> None:
    (spec,) = plan(tiny(Path("r")))
    given = replace(spec, foreign=opencil.create_learner("icarl"))
    assert given == spec
    assert repr(given) == repr(spec)
    assert given.learner() is given.foreign
    assert spec.learner() == opencil.create_learner("icarl", **spec.values)
