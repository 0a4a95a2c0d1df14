"""Ranks: shares, sums, agreement, batch norm over all of them; a rank that fails, and one that is lost."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import opencil
from opencil.data.images import ImageSet
from opencil.data.transforms import Transform
from opencil.engine import ranks as ranks_module
from opencil.engine.arithmetic import FULL
from opencil.engine.batch_norm import synchronised
from opencil.engine.forward import forward
from opencil.engine.loop import Stage, batches, optimise
from opencil.engine.ranks import LostRank, Ranks, agree, current, from_first, join, using
from opencil.engine.schedule import Schedule
from opencil.errors import BadInput, OpenCILError
from opencil.evaluation.protocol import measure
from opencil.files import Damaged
from opencil.nets.model import Model

OnRanks = Callable[..., list[Any]]


def unconnected(rank: int, size: int) -> Ranks:
    """Return one of several ranks without connections to the others."""
    ranks = Ranks.__new__(Ranks)
    ranks.rank, ranks.size, ranks._seconds = rank, size, 1.0
    return ranks


def joined(seconds: float = 30.0) -> Ranks:
    """Join the processes that ``on_ranks`` started."""
    ranks = join("cpu", seconds)
    assert ranks is not None
    return ranks


@given(st.integers(1, 9), st.integers(0, 40))
def test_shares_are_the_rows_in_order(size: int, more: int) -> None:
    rows = list(range(size + more))
    shares = [unconnected(rank, size).share(len(rows)) for rank in range(size)]
    assert [row for share in shares for row in rows[share.rows]] == rows
    counts = unconnected(0, size).counts(len(rows))
    assert [len(rows[share.rows]) for share in shares] == counts
    assert max(counts) - min(counts) <= 1
    assert counts == sorted(counts, reverse=True), "the first ranks take one more"
    assert sum(share.weight for share in shares) == pytest.approx(1)
    with pytest.raises(BadInput, match="ranks"):
        unconnected(0, size).share(size - 1)


def test_a_single_process_has_no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    world_size, is_first_rank = ranks_module.world_size, ranks_module.is_first_rank
    assert (join("cpu", 1.0), current(), world_size(), is_first_rank()) == (None, None, 1, True)
    variables = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "here", "MASTER_PORT": "1"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert join("cpu", 1.0) is None  # torchrun with one process
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert (world_size(), is_first_rank()) == (2, True)
    monkeypatch.setenv("RANK", "1")
    assert not is_first_rank()


def test_ranks_have_sums_rows_of_all_and_decisions_of_the_first(on_ranks: OnRanks) -> None:
    def call() -> list[Any]:
        ranks = joined()
        assert join("cpu", 1.0) is ranks
        rows = torch.arange(7.0)[:, None].repeat(1, 2)
        share = ranks.share(7)
        with using(ranks):
            assert current() is ranks
            with using(None):
                assert current() is None
            agree("this", rows, "text")
            decided = from_first(lambda: {"rank": ranks.rank})
        assert current() is None
        ranks.same_fate(None)
        summed = ranks.sum_(torch.tensor([ranks.rank + 1.0]))
        gathered = ranks.gather(rows[share.rows], ranks.counts(7))
        return [ranks.first, summed, gathered, decided]

    for rank, (first, summed, gathered, decided) in enumerate(on_ranks(call, size=3)):
        assert (first, float(summed), decided) == (rank == 0, 6.0, {"rank": 0})
        assert torch.equal(gathered, torch.arange(7.0)[:, None].repeat(1, 2))


def test_an_error_of_the_firsts_decision_is_raised_on_all(on_ranks: OnRanks) -> None:
    def damaged() -> None:
        raise Damaged("a file is damaged", "its checksum differs")

    def call() -> tuple[str, str, bool]:
        ranks = joined()
        with using(ranks), pytest.raises(Damaged) as caught:
            from_first(damaged)
        ranks.same_fate(caught.value)  # all have failed, so they can go on
        return str(caught.value), caught.value.reason, bool(ranks.sum_(torch.ones(1)) == 2)

    assert on_ranks(call) == [("a file is damaged", "its checksum differs", True)] * 2


def test_ranks_that_differ_are_refused_on_all(on_ranks: OnRanks) -> None:
    def call() -> str:
        ranks = joined()
        with using(ranks), pytest.raises(OpenCILError, match="the memory"):
            agree("the memory", torch.tensor([1, 2, ranks.rank]))
        return "refused"

    assert on_ranks(call) == ["refused"] * 2


@pytest.mark.parametrize("waiting", [False, True])
def test_a_rank_that_fails_alone_ends_all(
    on_ranks: OnRanks, monkeypatch: pytest.MonkeyPatch, waiting: bool
) -> None:
    """Also where another one waits in a sum for the one that has failed."""
    monkeypatch.setattr(ranks_module, "_GRACE", 0.5)

    def call() -> None:
        ranks = joined()
        if ranks.rank == 1:
            ranks.same_fate(RuntimeError("no memory"))
        elif waiting:
            ranks.sum_(torch.ones(1))
        else:
            ranks.same_fate(None)

    first, failed = on_ranks(call)
    assert isinstance(first, LostRank)
    assert isinstance(failed, LostRank)
    assert "rank 1 has failed (RuntimeError: no memory)" in str(failed)
    assert waiting or "rank 1 has failed (RuntimeError: no memory)" in str(first)


@pytest.mark.parametrize("place", ["sum", "forward", "backward", "fate"])
def test_the_end_of_a_rank_is_noticed(on_ranks: OnRanks, place: str) -> None:
    def call() -> None:
        ranks, norm = joined(5.0), nn.BatchNorm1d(3)

        def end(here: str) -> None:
            ranks.collect(here)
            if (ranks.rank, place) == (1, here):
                os.kill(os.getpid(), signal.SIGKILL)

        end("sum")
        ranks.sum_(torch.ones(1))
        with synchronised(ranks):
            end("forward")
            output = norm(torch.ones(4, 3, requires_grad=True))
            end("backward")
            output.sum().backward()
        end("fate")
        ranks.same_fate(None)

    first, dead = on_ranks(call)
    assert dead is None
    assert isinstance(first, LostRank)


def test_a_silent_rank_is_waited_for_no_longer_than_its_seconds(on_ranks: OnRanks) -> None:
    def call() -> None:
        ranks = joined(seconds=0.5)
        if ranks.rank == 1:
            time.sleep(30)
        ranks.sum_(torch.ones(1))

    assert isinstance(on_ranks(call, answers=1)[0], LostRank)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, torch.AcceleratorError])
def test_errors_of_the_ranks_own_device_are_no_lost_rank(error: type[RuntimeError]) -> None:
    with pytest.raises(error), unconnected(0, 2).connected():
        raise error("of this rank alone")


@pytest.mark.parametrize(("shape", "affine"), [((10, 3, 4, 4), True), ((10, 3), True), ((10, 3), False)])
def test_batch_norm_of_shares_is_that_of_the_whole_batch(
    on_ranks: OnRanks, shape: tuple[int, ...], affine: bool
) -> None:
    numbers = torch.Generator().manual_seed(0)
    batch, slope = (torch.randn(shape, generator=numbers, dtype=torch.float64) * 3 + 5 for _ in range(2))
    kind = nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm1d

    def normalise(rows: slice, ranks: Ranks | None) -> list[Tensor]:
        norm = kind(3, momentum=0.3, dtype=torch.float64, affine=affine)
        for parameter in norm.parameters():
            nn.init.uniform_(parameter, 1, 2, generator=torch.Generator().manual_seed(1))
        images = batch[rows].clone().requires_grad_(True)
        with synchronised(ranks):
            output = norm(images)
        (output * slope[rows]).sum().backward()
        with torch.no_grad(), synchronised(ranks):
            assert torch.equal(norm.eval()(images), norm(images))  # evaluation stays as it is
        tensors = [output.detach(), images.grad, norm.running_mean, norm.running_var]
        return [t for t in (*tensors, *(p.grad for p in norm.parameters())) if t is not None]

    def call() -> list[Tensor]:
        ranks = joined()
        return normalise(ranks.share(len(batch)).rows, ranks)

    whole, of_ranks = normalise(slice(None), None), on_ranks(call, size=3)
    assert len(whole) == (6 if affine else 4)
    for i, expected in enumerate(whole):
        parts = [tensors[i] for tensors in of_ranks]
        if i < 2:  # rows of each rank
            together = torch.cat(parts)
        elif i < 4:  # statistics, the same everywhere
            together = parts[0]
            assert all(torch.equal(part, together) for part in parts)
        else:  # gradients, which are summed with all the others
            together = torch.stack(parts).sum(dim=0)
        # Without weights torch computes in float32: nothing says otherwise.
        tolerance = 1e-10 if affine else 1e-5
        torch.testing.assert_close(together, expected, rtol=tolerance, atol=tolerance)


def test_local_batch_norm_keeps_the_mean_of_the_shares_statistics(
    on_ranks: OnRanks, model: Model, images: ImageSet, plain: Transform
) -> None:
    def train_twice(batch_norm: Literal["synchronised", "local"]) -> dict[str, Tensor]:
        stage = Stage(
            "train", model, lambda x, y: F.cross_entropy(model(x), y), Schedule(epochs=2), torch.arange(10)
        )
        feed, loss = batches(stage, images, plain, 7, (0,), 0)
        list(optimise(stage, loss, feed, replace(FULL, batch_norm=batch_norm), None))
        return model.state_dict()

    def call() -> dict[str, Tensor]:
        with using(joined()):
            return train_twice("local")

    (one, two), whole = on_ranks(call), train_twice("synchronised")
    assert all(torch.equal(weights, two[name]) for name, weights in one.items())
    assert not torch.allclose(one["head.weight"], whole["head.weight"])


def test_passes_and_scores_in_whole_batches_have_the_same_bits(
    on_ranks: OnRanks, model: Model, images: ImageSet, plain: Transform
) -> None:
    """Those of a forward pass, and those of ODIN, which runs the network again."""
    indices = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5])
    odin = opencil.create_detector("odin", batch_size=2)

    def compute() -> list[Any]:
        outputs = [forward(model, images, plain, indices, batch_size=size) for size in (2, 4, 8)]
        tensors = [tensor for one in outputs for tensor in (one.features, one.logits, one.labels)]
        return [tensors, measure(odin, None, outputs[1], {"other": outputs[0]})]

    def call() -> list[Any]:
        with using(joined()):
            return [*compute(), sum(batch_sizes)]

    batch_sizes: list[int] = []
    model.backbone.register_forward_hook(lambda _, inputs, __: batch_sizes.append(len(inputs[0])))
    of_ranks, (expected, measured) = on_ranks(call), compute()
    for tensors, measurements, rows in of_ranks:
        assert all(map(torch.equal, tensors, expected))
        assert measurements == measured
        assert rows < sum(batch_sizes), "a rank computed all of it"
