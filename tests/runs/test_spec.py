"""From a config to its runs: order, seeds, records, shares."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

import opencil
from opencil.config import Config, dump_yaml
from opencil.data.file_dataset import OwnDataset
from opencil.data.stream import Step
from opencil.errors import BadInput
from opencil.runs.spec import Seeds, plan, plan_share, training_values

Make = Callable[..., Config]
THREE = ("1/3", "2/3", "3/3")


def test_grid_order_and_folders(tiny: Make) -> None:
    config = tiny(Path("r"), "benchmark.classes_per_step=[4, 2]", seed=[7, 0], cil="icarl,wa")
    specs = plan(config)
    assert [str(spec) for spec in specs] == [
        f"digits/k{k}/{cil}/seed{seed}" for k in (4, 2) for seed in (7, 0) for cil in ("icarl", "wa")
    ]
    for spec in specs:
        assert spec.folder == Path(str(spec))
        assert spec.benchmark.classes_per_step == (spec.classes_per_step,)
        assert (spec.detectors, spec.values) == (config.detector, config.cil[spec.cil])
        assert spec.learner() == opencil.create_learner(spec.cil, **spec.values)


def test_seeds_are_numbers(tiny: Make) -> None:
    assert [spec.seeds for spec in plan(tiny(Path("r"), seed=[3, 5]))] == [
        Seeds(run=s, class_order=1993, initialisation=s, data_order=s, ood_subset=s) for s in (3, 5)
    ]
    settings = ["seed.class_order=run", "seed.initialisation=11", "seed.data_order=12", "seed.ood_subset=13"]
    assert [spec.seeds for spec in plan(tiny(Path("r"), *settings, seed=[3, 5]))] == [
        Seeds(run=s, class_order=s, initialisation=11, data_order=12, ood_subset=13) for s in (3, 5)
    ]


def test_a_record_is_plain_and_without_places(tiny: Make) -> None:
    (spec,) = plan(tiny(Path("some-folder"), "place.data_root=some-data"))
    record = spec.record()
    assert list(record) == ["benchmark", "cil", "training", "seed", "detector"]
    assert yaml.safe_load(dump_yaml(record)) == record
    assert "some-" not in dump_yaml(record)
    assert {key.partition(".")[0] for key in training_values(record)} == {
        "benchmark",
        "cil",
        "training",
        "seed",
    }
    (fixed,) = plan(tiny(Path("r"), "benchmark.memory_per_class=5"))
    assert fixed.record()["benchmark"] == record["benchmark"] | {"memory_per_class": 5}
    foreign = replace(spec, foreign=opencil.create_learner("icarl"))
    assert foreign.record() == record | {"foreign": True}
    assert foreign == spec
    assert foreign.learner() is foreign.foreign


def test_metrics_are_of_the_model_or_of_detectors(tiny: Make) -> None:
    (spec,) = plan(replace(tiny(Path("r")), metric=("accuracy", "auc", "oscr", "accuracy_shifted")))
    assert spec.metrics_of("") == ["accuracy", "accuracy_shifted"]
    assert spec.metrics_of("msp") == ["auc", "oscr"]
    with pytest.raises(BadInput, match="'accuracy_shifted' reads shifted images"):
        plan(replace(tiny(Path("r"), "benchmark.shifted={}"), metric=("accuracy_shifted",)))


def test_every_ood_set_has_an_order_of_its_own(tiny: Make) -> None:
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
    (listed,) = plan(tiny(Path("r"), "benchmark.ood_order=list"))
    assert listed.ood_seen("letters", 100, steps[0]).tolist() == list(range(25))


def test_the_names_that_rows_depend_on(tiny: Make) -> None:
    (spec,) = plan(replace(tiny(Path("r")), metric=("accuracy", "auc")))
    of_model = [(registry.kind, name) for registry, name in spec.names()]
    assert of_model[:2] == [("CIL method", "icarl"), ("backbone", "resnet8")]
    datasets = [spec.benchmark.id, *spec.benchmark.ood]
    assert [name for kind, name in of_model if kind == "dataset"] == datasets
    assert [name for kind, name in of_model if kind == "metric"] == ["accuracy"]
    of_rows = [(registry.kind, name) for registry, name in spec.names("msp")]
    assert set(of_rows) - set(of_model) == {("metric", "auc"), ("detector", "msp")}
    own = replace(spec.benchmark, near=("mine",), far=(), datasets={"mine": OwnDataset("some-folder")})
    found = replace(spec, benchmark=own).names()
    assert [name for registry, name in found if registry.kind == "dataset"] == [own.id]


# --- shares ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("of", "methods", "seeds"), [(1, 2, 2), (2, 4, 3), (5, 4, 1), (20, 2, 3)])
def test_shares_are_disjoint_and_complete(of: int, methods: int, seeds: int, tiny: Make) -> None:
    cil = ",".join(["icarl", "foster", "wa", "joint"][:methods])
    config = tiny(Path("r"), "benchmark.classes_per_step=[2, 4]", cil=cil, seed=list(range(seeds)))
    shares = [list(map(str, plan_share(f"{number}/{of}")(config))) for number in range(1, of + 1)]
    every = list(map(str, plan_share(None)(config)))
    assert sorted(name for share in shares for name in share) == sorted(every)
    for share in shares:
        assert share == [name for name in every if name in share], "in the order of the plan"


def test_shares_cost_about_the_same(tiny: Make) -> None:
    config = tiny(Path("r"), "cil.foster.epochs=6", cil="icarl,foster,wa,joint", seed=[0, 1, 2])
    loads = [sum(spec.expected_work for spec in plan_share(only)(config)) for only in THREE]
    assert max(loads) - min(loads) < 0.05 * sum(loads)


def test_a_long_run_is_shared_out_before_short_ones(tiny: Make) -> None:
    """Else it would follow them where they have been shared out already."""
    settings = ["benchmark.classes_per_step=8", "cil.*.epochs=1", "cil.wa.epochs=2"]
    config = tiny(Path("r"), *settings, cil="icarl,replay,wa")
    shares = [{spec.cil for spec in plan_share(only)(config)} for only in ("1/2", "2/2")]
    assert shares == [{"wa"}, {"icarl", "replay"}]


def test_the_expected_work_counts_images_and_epochs(tiny: Make) -> None:
    def work(*settings: str, cil: str = "icarl") -> float:
        (spec,) = plan(tiny(Path("r"), *settings, cil=cil))
        return spec.expected_work

    assert work("cil.*.epochs=4") == pytest.approx(2 * work())
    assert work() > work(cil="finetune") > 0


def test_runs_on_ones_own_images_are_shared_by_method() -> None:
    """Their number of classes is not known before they are read."""
    own = {"mine": {"path": "mine", "train": "train", "test": "test"}}
    benchmark = {"name": "own", "id": "mine", "datasets": own, "near": ["digits-held-out"], "far": []}
    shape = {"image_size": 8, "transform": {"mean": [0.5] * 3, "std": [0.5] * 3, "crop": 8}, "memory": 8}
    benchmark |= shape | {"backbone": "resnet8", "classes_per_step": 2}
    config = opencil.resolve(
        {"benchmark": benchmark, "cil": "icarl,wa", "detector": "msp", "seed": [0, 1, 2, 3]}
    )
    for only in ("1/2", "2/2"):
        assert sorted(spec.cil for spec in plan_share(only)(config)) == ["icarl", "icarl", "wa", "wa"]


@pytest.mark.parametrize("only", ["4/3", "0/3", "1", "1/0", "a/b", "1/3/5", "-1/3", " 1/3"])
def test_other_texts_are_no_share(only: str) -> None:
    with pytest.raises(BadInput, match="only = "):
        plan_share(only)


def test_a_share_may_be_empty(tmp_path: Path, tiny: Make) -> None:
    results = opencil.run(tiny(tmp_path), only="2/2")
    assert (results.folders, len(results.rows)) == ((), 0)
    assert not any(tmp_path.iterdir())
