"""From a config to its runs."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import yaml

import opencil
from opencil.config import Config, dump_yaml
from opencil.data.stream import Step
from opencil.runs.plan import Seeds, plan


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
