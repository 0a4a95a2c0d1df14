"""Shares of a grid: disjoint, complete, of about equal cost, and together the whole."""

from collections.abc import Callable
from pathlib import Path

import pytest

import opencil
from opencil.config import Config
from opencil.errors import BadInput
from opencil.runs.plan import plan
from opencil.runs.run import Run
from opencil.runs.shares import planned_share
from opencil.runs.store import RunFolder

Make = Callable[..., Config]
THREE = ("1/3", "2/3", "3/3")


@pytest.mark.parametrize(("of", "methods", "seeds"), [(1, 2, 2), (2, 4, 3), (3, 1, 4), (5, 4, 1), (20, 2, 3)])
def test_every_run_is_in_exactly_one_share(of: int, methods: int, seeds: int, tiny: Make) -> None:
    cil = ",".join(["icarl", "foster", "wa", "joint"][:methods])
    config = tiny(Path("r"), "benchmark.classes_per_step=[2, 4]", cil=cil, seed=list(range(seeds)))
    shares = [planned_share(f"{number}/{of}")(config) for number in range(1, of + 1)]
    dealt = [str(spec) for share in shares for spec in share]
    assert sorted(dealt) == sorted(map(str, plan(config)))
    for share in shares:
        names = set(map(str, share))
        assert [str(spec) for spec in plan(config) if str(spec) in names] == list(map(str, share)), "in order"


def test_shares_cost_about_the_same(tmp_path: Path, tiny: Make) -> None:
    """Nobody has more than one run's cost beyond another, where runs differ by a factor of three or so."""
    config = tiny(tmp_path, "cil.foster.epochs=6", cil="icarl,foster,wa,joint", seed=[0, 1, 2])
    data = opencil.benchmark("digits")
    costs = {str(spec): Run(spec, RunFolder(tmp_path), data).expected_work for spec in plan(config)}
    loads = [sum(costs[str(spec)] for spec in planned_share(only)(config)) for only in THREE]
    assert max(loads) - min(loads) < 0.05 * sum(loads)
    assert max(loads) < sum(sorted(costs.values())[-4:]), "not the dearest four to one"


def test_shares_do_not_depend_on_what_is_done(finished: Path, tiny: Make) -> None:
    config = tiny(finished, seed=[0, 1, 2, 3], cil="icarl,foster")
    elsewhere = tiny(finished / "elsewhere", seed=[0, 1, 2, 3], cil="icarl,foster")
    for only in THREE:
        assert list(map(str, planned_share(only)(config))) == list(map(str, planned_share(only)(elsewhere)))


def test_images_of_ones_own_are_shared_by_method(tmp_path: Path) -> None:
    """Their classes are not known before they are read: each share has some runs of each method."""
    own = {"mine": {"path": "mine", "train": "train", "test": "test"}}
    benchmark = {"name": "own", "id": "mine", "datasets": own, "near": ["digits-held-out"], "far": []}
    shape = {"image_size": 8, "transform": {"mean": [0.5] * 3, "std": [0.5] * 3, "crop": 8}, "memory": 8}
    benchmark |= shape | {"backbone": "resnet8", "classes_per_step": 2}
    config = opencil.resolve(
        {"benchmark": benchmark, "cil": "icarl,wa", "detector": "msp", "seed": [0, 1, 2, 3]}
    )
    for only in ("1/2", "2/2"):
        assert sorted(spec.cil for spec in planned_share(only)(config)) == ["icarl", "icarl", "wa", "wa"]


def test_three_thirds_are_the_whole(tmp_path: Path, tiny: Make) -> None:
    settings = ["benchmark.classes_per_step=8", "cil.*.epochs=1"]

    def grid(runs: Path) -> Config:
        return tiny(runs, *settings, cil="icarl,wa", seed=[0, 1], detector="msp")

    whole = opencil.run(grid(tmp_path / "whole"))
    parts = [opencil.run(grid(tmp_path / "thirds"), only=only) for only in THREE]
    assert sum(len(part.folders) for part in parts) == 4
    assert sum(len(part.rows) for part in parts) == len(whole.rows)
    together = opencil.read_rows(tmp_path / "thirds")
    assert together.equals(opencil.read_rows(tmp_path / "whole"))
    assert len(together)


@pytest.mark.parametrize("only", ["4/3", "0/3", "1", "1/0", "a/b", "1/3/5", "-1/3", " 1/3"])
def test_what_is_no_share(only: str, tmp_path: Path, tiny: Make) -> None:
    with pytest.raises(BadInput, match="not allowed: a share of all is, as 1/3, 2/3 or 3/3"):
        opencil.run(tiny(tmp_path), only=only)


def test_a_share_may_be_empty(tmp_path: Path, tiny: Make) -> None:
    results = opencil.run(tiny(tmp_path), only="2/2")
    assert (results.folders, len(results.rows)) == ((), 0)
    assert not any(tmp_path.iterdir())
