"""Ranks: shares, meetings, agreement, batch norm over all of them; one that fails, and one that is lost."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from opencil import create_detector
from opencil.data.images import ImageSet
from opencil.data.transforms import Transform
from opencil.engine import ranks as module
from opencil.engine.arithmetic import FULL
from opencil.engine.batch_norm import average_statistics, synchronised
from opencil.engine.forward import forward
from opencil.engine.loop import Stage, train
from opencil.engine.ranks import LostRank, Ranks, Stopped, at_work, by_itself, joined, several
from opencil.engine.schedule import Schedule
from opencil.errors import BadInput, OpenCILError
from opencil.evaluation.protocol import measure
from opencil.nets.model import Model

OnRanks = Callable[..., list[Any]]


def without_others(rank: int, size: int) -> Ranks:
    """One of several ranks that it cannot talk to."""
    made = Ranks.__new__(Ranks)
    made.rank, made.size = rank, size
    return made


def here(seconds: float = 30.0) -> Ranks:
    """This process among those that a test has started."""
    ranks = joined("cpu", seconds)
    assert ranks is not None
    return ranks


@given(st.integers(1, 9), st.integers(0, 40))
def test_shares_are_the_rows_in_order(size: int, more: int) -> None:
    rows = list(range(size + more))
    shares = [without_others(rank, size).share(len(rows)) for rank in range(size)]
    assert [row for share in shares for row in rows[share.start : share.stop]] == rows
    assert [len(share) for share in shares] == without_others(0, size).counts(len(rows))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert sum(share.weight for share in shares) == pytest.approx(1)


def test_fewer_images_than_ranks_are_refused() -> None:
    with pytest.raises(BadInput, match="a batch has 3 images for 4 ranks: use at most 3"):
        without_others(0, 4).share(3)


def test_a_single_process_has_no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (joined("cpu", 1.0), several(), at_work(), module.follows()) == (None, None, None, False)
    told = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "here", "MASTER_PORT": "1"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert joined("cpu", 1.0) is None  # torchrun with one process is the plain path
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert (module.started(), module.follows()) == (2, False)
    monkeypatch.setenv("RANK", "1")
    assert module.follows()


@pytest.mark.usefixtures("interruptible")
def test_who_waits_for_ranks_that_do_not_come_can_be_interrupted(on_ranks: OnRanks) -> None:
    """As torchrun does where rank 0 has refused what it is asked for."""

    def call() -> str:
        if os.environ["RANK"] == "0":
            store = dist.TCPStore(
                "127.0.0.1", int(os.environ["MASTER_PORT"]), 2, True, wait_for_workers=False
            )
            store.wait(["opencil/rank 1", "process"])
            os.kill(int(store.get("process")), signal.SIGINT)
            store.wait(["end"])
            return ""
        store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), 2, False)
        store.set("process", str(os.getpid()))
        try:
            here()
        except KeyboardInterrupt:
            return "interrupted"
        finally:
            store.set("end", "")
        return "all have come"

    assert on_ranks(call) == ["", "interrupted"]


def test_ranks_that_do_not_come_are_lost(on_ranks: OnRanks) -> None:
    """Though they were there before torchrun has started all of them again."""

    def call() -> str:
        if os.environ["RANK"] == "0":
            store = dist.TCPStore(
                "127.0.0.1", int(os.environ["MASTER_PORT"]), 2, True, wait_for_workers=False
            )
            for said in ("rank 0", "rank 1", "earlier/rank 0", "earlier/rank 1"):
                store.set(f"opencil/{said}", "earlier")
            store.set("ready", "")
            store.wait(["end"])
            return ""
        store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), 2, False)
        store.wait(["ready"])
        with pytest.raises(LostRank) as caught:
            here(seconds=0.5)
        store.set("end", "")
        return str(caught.value)

    told = "a rank of 2 is lost, or was silent for 0.5 s (not all have come)"
    assert on_ranks(call) == ["", told]


def test_ranks_that_are_started_again_meet_in_the_store_that_was_kept(on_ranks: OnRanks) -> None:
    """Of two machines only that counts a restart on which a rank was lost."""

    def call() -> list[float]:
        kept, found = [], []
        for attempt in range(2):
            os.environ["TORCHELASTIC_RESTART_COUNT"] = str(attempt * int(os.environ["RANK"]))
            module._joined = None
            ranks = here(seconds=5)
            kept.append(module._store())  # rank 0 serves it
            found.append(float(ranks.sum_(torch.ones(1))))
            ranks.meet("the end")
            dist.destroy_process_group()
        return found

    assert on_ranks(call) == [[2.0, 2.0]] * 2


def test_all_ranks_have_sums_and_rows_of_all_in_order(on_ranks: OnRanks) -> None:
    def call() -> list[Any]:
        ranks = here()
        rows = torch.arange(7.0)[:, None].repeat(1, 2)
        share = ranks.share(7)
        assert at_work() is None
        with ranks.together():
            assert at_work() is ranks
            with by_itself():
                assert several() is None
            ranks.agree("this", rows, "text")
            summed = ranks.sum_(torch.tensor([ranks.rank + 1.0]))
            return [ranks.leads, summed, ranks.gathered(rows[share.start : share.stop], ranks.counts(7), "x")]

    for rank, found in enumerate(on_ranks(call, size=3)):
        leads, summed, gathered = found
        assert (leads, float(summed)) == (rank == 0, 6.0)
        assert torch.equal(gathered, torch.arange(7.0)[:, None].repeat(1, 2))


@pytest.mark.parametrize("shape", [(10, 3, 4, 4), (10, 3)])
def test_batch_norm_of_shares_is_that_of_the_whole_batch(on_ranks: OnRanks, shape: tuple[int, ...]) -> None:
    numbers = torch.Generator().manual_seed(0)
    batch, slope = (torch.randn(shape, generator=numbers, dtype=torch.float64) * 3 + 5 for _ in range(2))
    kind = nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm1d

    def normalised(rows: slice, ranks: Ranks | None) -> list[Tensor]:
        norm = kind(3, momentum=0.3, dtype=torch.float64)
        nn.init.uniform_(norm.weight, 1, 2, generator=torch.Generator().manual_seed(1))
        images = batch[rows].clone().requires_grad_(True)
        with synchronised(ranks):
            out = norm(images)
        (out * slope[rows]).sum().backward()
        assert images.grad is not None
        assert norm.weight.grad is not None
        assert norm.bias.grad is not None
        with torch.no_grad(), synchronised(ranks):
            assert torch.equal(norm.eval()(images), norm(images))  # evaluation is none of it
        of_all = [out.detach(), images.grad]
        assert norm.running_mean is not None
        assert norm.running_var is not None
        return [*of_all, norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var]

    def call() -> list[Tensor]:
        ranks = here()
        share = ranks.share(len(batch))
        return normalised(slice(share.start, share.stop), ranks)

    whole, found = normalised(slice(None), None), on_ranks(call, size=3)
    for i, expected in enumerate(whole):
        parts = [one[i] for one in found]
        if i < 2:  # rows of each rank
            together = torch.cat(parts)
        elif i < 4:  # gradients, which are summed with all the others
            together = torch.stack(parts).sum(dim=0)
        else:  # the same everywhere
            together = parts[0]
            assert all(torch.equal(part, together) for part in parts)
        torch.testing.assert_close(together, expected, rtol=1e-10, atol=1e-10)


def trained(model: Model, images: ImageSet, transform: Transform, **arithmetic: Any) -> dict[str, Any]:
    """Losses of two short epochs, and the weights after them."""
    model.double()

    def loss(batch: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(batch.double()), labels)

    stage = Stage("train", model, loss, Schedule(epochs=2, lr=0.1, weight_decay=1e-3), torch.arange(10))
    losses = [
        float(progress.loss)
        for progress in train(stage, images, transform, 7, (0,), replace(FULL, **arithmetic))
    ]
    return {"losses": losses, "weights": model.state_dict()}


def test_a_training_in_uneven_shares_is_that_of_one_process(
    on_ranks: OnRanks, model: Model, images: ImageSet, plain: Transform
) -> None:
    # Seven images a batch: four and three; and choices of crops and flips, which each image keeps.
    transform = replace(plain, padding=2, flip=True)

    def call() -> dict[str, Any]:
        with here().together():
            return trained(model, images, transform)

    found = on_ranks(call)
    expected = trained(model, images, transform)
    for one in found:
        assert one["losses"] == pytest.approx(expected["losses"], rel=1e-9)
        torch.testing.assert_close(one["weights"], expected["weights"], rtol=1e-7, atol=1e-9)


def test_local_batch_norm_has_statistics_of_the_shares_and_keeps_their_mean(
    on_ranks: OnRanks, model: Model, images: ImageSet, plain: Transform
) -> None:
    def call() -> dict[str, Any]:
        with here().together():
            return trained(model, images, plain, batch_norm="local")

    one, two = on_ranks(call)
    for name, weights in one["weights"].items():
        assert torch.equal(weights, two["weights"][name]), name
    whole = trained(model, images, plain)
    assert abs(one["losses"][0] - whole["losses"][0]) > 1e-3


def test_statistics_that_are_frozen_keep_their_bits() -> None:
    """A sum of shares may round: 1/3 of a number three times is not always the number."""

    class Three(Ranks):
        def sum_(self, tensor: Tensor) -> Tensor:
            return tensor.mul_(3)

    frozen, trained = nn.BatchNorm1d(999).eval(), nn.BatchNorm1d(999)
    means = torch.rand(999, generator=torch.Generator().manual_seed(0))
    frozen.running_mean, trained.running_mean = means.clone(), means.clone()
    average_statistics(nn.Sequential(frozen, trained), Three.__new__(Three), module.Share(0, 1, 3))
    assert torch.equal(frozen.running_mean, means)
    assert not torch.equal(trained.running_mean, means), "what the test is about"


def test_a_pass_in_whole_batches_has_the_same_bits(
    on_ranks: OnRanks, model: Model, images: ImageSet, plain: Transform
) -> None:
    indices = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5])

    def call() -> list[Any]:
        calls: list[int] = []
        model.backbone.register_forward_hook(lambda _, given, __: calls.append(len(given[0])))
        with here().together():
            found = [forward(model, images, plain, indices, batch_size=size) for size in (2, 8)]
        return [*((one.features, one.logits, one.labels) for one in found), calls]

    expected = [forward(model, images, plain, indices, batch_size=size) for size in (2, 8)]
    for *found, calls in on_ranks(call):
        for outputs, (features, logits, labels) in zip(expected, found, strict=True):
            assert torch.equal(features, outputs.features)
            assert torch.equal(logits, outputs.logits)
            assert torch.equal(labels, outputs.labels)
        assert sum(calls[:-1]) + calls[-1] < 2 * len(indices), "a rank has computed all of it"


@dataclass(frozen=True, repr=False)
class Corrupt(ImageSet):
    """Images of which one rank cannot read the second batch."""

    def batches(self, indices: Tensor, size: int) -> Iterator[Tensor]:
        """The first batch, then on rank 1 an error."""
        for i, batch in enumerate(super().batches(indices, size)):
            if i and os.environ["RANK"] == "1":
                raise OpenCILError("image 7 is corrupt")
            yield batch


def test_an_error_of_one_rank_is_one_of_all_and_they_go_on(
    on_ranks: OnRanks, model: Model, images: ImageSet, plain: Transform
) -> None:
    bad = Corrupt(images.name, images.images, images.labels)

    def call() -> list[str]:
        ranks, told = here(), []
        for batch in (bad, images):
            try:
                with ranks.together():
                    trained(model, batch, plain)
            except OpenCILError as error:
                told.append(f"{type(error).__name__}: {error}")
        return told

    assert on_ranks(call) == [["Left: rank 1: image 7 is corrupt"], ["OpenCILError: image 7 is corrupt"]]


def test_an_error_of_all_is_each_ones_own(on_ranks: OnRanks) -> None:
    def call() -> str:
        ranks = here()
        with pytest.raises(BadInput) as caught, ranks.together():
            raise BadInput(f"bad on {ranks.rank}")
        return str(caught.value)

    assert on_ranks(call) == ["bad on 0", "bad on 1"]


def test_ranks_that_differ_are_told(on_ranks: OnRanks) -> None:
    def call() -> str:
        ranks = here()
        with pytest.raises(OpenCILError) as caught, ranks.together():
            ranks.agree("the memory", torch.tensor([1, 2, ranks.rank]))
        return str(caught.value)

    assert all("the memory is not the same on all ranks, on rank 1" in text for text in on_ranks(call))


def test_ranks_at_different_places_do_not_go_on(on_ranks: OnRanks) -> None:
    def call() -> str:
        ranks = here()
        with pytest.raises(LostRank) as caught:
            ranks.meet(f"place {ranks.rank}")
        return str(caught.value)

    assert all("at different places" in text for text in on_ranks(call))


def test_a_lost_rank_ends_the_wait(on_ranks: OnRanks) -> None:
    def call() -> str:
        ranks = here()
        ranks.meet("begin")
        if ranks.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(LostRank) as caught:
            ranks.meet("end")
        return str(caught.value)

    told, dead = on_ranks(call)
    assert dead is None
    assert told.startswith("a rank of 2 is lost, or was silent for 30 s (")


@pytest.fixture
def as_if_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch norm is torch's own for a GPU; its kernels, which it has for nothing else, give constants."""
    ones = torch.ones(3)
    kernels = {
        "batch_norm_stats": (ones, ones),
        "batch_norm_gather_stats_with_counts": (ones, ones),
        "batch_norm_elemt": torch.ones(4, 3),
        "batch_norm_backward_reduce": (ones, ones, ones, ones),
    }
    for name, found in kernels.items():
        monkeypatch.setattr(torch, name, lambda *_, found=found: found)
    monkeypatch.setattr(Tensor, "is_cuda", True)


@pytest.mark.parametrize("way", ["forward", "backward"])
@pytest.mark.parametrize("place", ["cpu", "gpu"])
def test_a_rank_that_is_lost_in_batch_norm_is_told_as_any_other(
    on_ranks: OnRanks, request: pytest.FixtureRequest, place: str, way: str
) -> None:
    if place == "gpu":
        request.getfixturevalue("as_if_on_a_gpu")

    def call() -> str:
        ranks, norm = here(), nn.BatchNorm1d(3)
        try:
            with ranks.together(), synchronised(ranks):
                for step in ("forward", "backward"):
                    ranks.meet(step)
                    if (ranks.rank, way) == (1, step):
                        os.kill(os.getpid(), signal.SIGKILL)
                    if step == "forward":
                        made = norm(torch.ones(4, 3, requires_grad=True))
                    else:
                        made.sum().backward()
        except LostRank as lost:
            return str(lost)
        return "nobody is missed"

    told, dead = on_ranks(call)
    assert dead is None
    assert told.startswith("a rank of 2 is lost, or was silent for 30 s (")


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, torch.AcceleratorError])
def test_trouble_of_ones_own_device_is_no_lost_rank(error: type[RuntimeError]) -> None:
    with pytest.raises(error), without_others(0, 2).reachable():
        raise error("of this rank alone")


def test_a_silent_rank_is_waited_for_no_longer_than_is_said(on_ranks: OnRanks) -> None:
    def call() -> str:
        ranks = here(seconds=0.5)
        ranks.meet("begin")
        if ranks.rank == 1:
            time.sleep(30)
        with pytest.raises(LostRank) as caught:
            ranks.meet("end")
        os.kill(os.getppid(), 0)
        return str(caught.value)

    assert "silent for 0.5 s" in on_ranks(call, answers=1)[0]


def test_a_follower_that_takes_nothing_is_waited_for_no_longer_than_is_said(on_ranks: OnRanks) -> None:
    """It is halted, with its connections open."""

    def call() -> str:
        ranks = here(seconds=2)
        ranks.meet("begin")
        if ranks.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.5)
        with pytest.raises(LostRank) as caught:
            ranks.hand_out("work")
        return str(caught.value)

    assert "silent for 2 s" in (on_ranks(call, answers=1)[0] or "no answer")


def test_last_words_reach_those_who_wait(on_ranks: OnRanks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 fails where rank 0 waits for its part of a sum: no meeting comes."""
    monkeypatch.setattr(module, "_GRACE", 0.5)

    def call() -> str:
        ranks = here()
        try:
            with ranks.together():
                if ranks.rank == 1:
                    raise RuntimeError("out of memory")
                ranks.sum_(torch.ones(1))
        except LostRank as lost:
            return str(lost)
        return ""

    told = on_ranks(call)
    assert told[1] == "rank 1 has failed, and cannot go on: RuntimeError: out of memory"
    assert "rank 1: RuntimeError: out of memory" in told[0]


def test_what_rank_0_hands_out_is_followed(on_ranks: OnRanks) -> None:
    def call() -> list[Any]:
        ranks = here()
        if ranks.leads:
            for work in ({"step": torch.arange(3)}, "more", None):
                ranks.hand_out(work)
            return []
        found = []
        while (work := ranks.next_work()) is not None:
            found.append(work)
        return found

    _, found = on_ranks(call)
    assert found[0]["step"].tolist() == [0, 1, 2]
    assert found[1:] == ["more"]


def test_stopping_a_turn_is_not_leaving_the_work(on_ranks: OnRanks) -> None:
    def call() -> str:
        ranks = here()
        with ranks.together():
            if ranks.rank == 1:
                ranks.tell(ValueError("no"))
                return ""
            with pytest.raises(Stopped) as caught:
                ranks.meet("a turn")
            return str(caught.value)

    assert on_ranks(call) == ["rank 1: ValueError: no", ""]


def test_scores_that_take_the_network_are_shared_by_whole_batches(
    on_ranks: OnRanks, model: Model, images: ImageSet, plain: Transform
) -> None:
    """Rank 0 leads: the other computes its rows of what is handed out, a pass and ODIN's scores."""
    detector = create_detector("odin", batch_size=2)
    asked = {"transform": plain, "indices": torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5]), "batch_size": 4}

    def measured() -> list[Any]:
        outputs = forward(model, images, **asked)
        return measure(detector, None, outputs, {"other": outputs})

    def call() -> list[Any]:
        ranks, works = here(), []
        if ranks.leads:
            found = measured()
            ranks.hand_out(None)
            return found
        while (work := ranks.next_work()) is not None:
            works.append(type(work).__name__)
            with ranks.together():
                work.follow(images, ranks)
        return works

    found, works = on_ranks(call)
    assert found == measured()
    assert works == ["Pass"] * 3


def test_a_model_that_cannot_be_sent_is_computed_by_rank_0(
    on_ranks: OnRanks, model: Model, images: ImageSet, plain: Transform
) -> None:
    model.register_forward_hook(lambda *_: None)  # pickle refuses a function that has no name

    def call() -> Tensor | None:
        return forward(model, images, plain, batch_size=2).logits if here().leads else None

    found, _ = on_ranks(call)
    assert torch.equal(found, forward(model, images, plain, batch_size=2).logits)
