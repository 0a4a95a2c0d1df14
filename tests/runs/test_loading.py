"""From a config to its data, and the record of what was read."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import opencil
from opencil.config import Config, PlaceConfig
from opencil.data.streamed import count_workers
from opencil.errors import BadInput
from opencil.runs.loading import describe_data, load, with_share

Make = Callable[..., Config]


def test_the_public_benchmark_is_the_configs_data(tiny: Make, tmp_path: Path) -> None:
    public, ours = opencil.benchmark("digits"), load(tiny(tmp_path))
    assert {name: ood.distance for name, ood in public.ood.items()} == {
        "digits-held-out": "near",
        "photo-patches": "far",
        "noise": "far",
    }
    assert public.train.fingerprint == ours.train.fingerprint
    with pytest.raises(BadInput, match="did you mean 'digits'"):
        opencil.benchmark("digit")


def test_the_record_of_the_data(tiny: Make, tmp_path: Path) -> None:
    config = tiny(tmp_path)
    found = describe_data(config, load(config))["datasets"]
    assert {(d["name"], d["role"], d["split"]): d["images"] for d in found} == {
        ("digits", "ID", "train"): 965,
        ("digits", "ID", "test"): 478,
        ("digits-held-out", "near", "test"): 354,
        ("photo-patches", "far", "test"): 520,
        ("noise", "far", "test"): 500,
        ("corrupted", "shifted", "test"): 478,
    }


def test_more_classes_than_there_are_are_refused(tiny: Make, tmp_path: Path) -> None:
    config = tiny(tmp_path)
    with pytest.raises(BadInput, match="classes_per_step = 100"):
        load(replace(config, benchmark=replace(config.benchmark, classes_per_step=(100,))))


def test_processes_share_a_machine() -> None:
    assert with_share(PlaceConfig(), 3).workers == max(1, count_workers() // 3)
    assert with_share(PlaceConfig(workers=5), 3).workers == 5
