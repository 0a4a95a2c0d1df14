"""What tuners learn from: which images, in which views, how often; and the head that they start with."""

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from opencil.data.digits import Noise
from opencil.data.images import ImageSet
from opencil.data.transforms import Draw, Transform
from opencil.detectors.finetune import views as views_module
from opencil.detectors.finetune.logitnorm import LogitNorm
from opencil.detectors.finetune.more import TaskHead
from opencil.detectors.finetune.npos import NPOS
from opencil.detectors.finetune.t2fnorm import T2FNorm
from opencil.detectors.finetune.tuner import Tuner, Tuning
from opencil.detectors.finetune.views import ViewSource, head_size
from opencil.detectors.finetune.vos import VOS
from opencil.engine.arithmetic import Arithmetic
from opencil.engine.forward import Inputs, evaluating
from opencil.engine.ranks import Ranks, among
from opencil.engine.schedule import Schedule
from opencil.engine.seeding import generator, seeded
from opencil.errors import BadInput
from opencil.nets.cosine import CosineHead
from opencil.nets.distances import DistanceHead
from opencil.nets.model import Model
from opencil.nets.random_features import RandomFeatureHead
from opencil.registry import BACKBONES

TRANSFORM = Transform((0.5, 0.5, 0.5), (0.25, 0.25, 0.25), crop=8, padding=1)


class Reader(nn.Module):
    """An image's first pixel is its only feature: views tell whose they are. ``calls`` are batch sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []

    def features(self, images: Tensor) -> Tensor:
        self.calls.append(len(images))
        return images[:, 0, 0, 0, None].clone()

    def classify(self, features: Tensor) -> Tensor:
        return features.expand(-1, 4)


def numbered(old: list[bool], seed: int = 0, **inputs: Any) -> ViewSource:
    """Images 0, 1, 2 … whose pixels are all their number, and whose labels are their number times ten."""
    images = torch.arange(float(len(old))).view(-1, 1, 1, 1).expand(-1, 3, 2, 2)
    labels = 10 * torch.arange(len(old))
    return ViewSource(Inputs(Reader(), images, **inputs), labels, torch.tensor(old), seed=(seed,))


def served(source: ViewSource, epochs: int, batch: int) -> list[list[list[int]]]:
    """Numbers of the images of each iteration and part, after a look at what comes with them."""
    found = []
    for number in range(epochs):
        for parts in source.epoch(number, batch):
            for views in parts:
                assert torch.equal(views.features, views.images[:, 0, 0, 0, None])
                assert torch.equal(views.labels, 10 * views.images[:, 0, 0, 0].long())
            found.append([views.labels.div(10).int().tolist() for views in parts])
    return found


@settings(max_examples=60)
@given(
    old=st.lists(st.booleans(), min_size=1, max_size=14).filter(lambda old: not all(old)),
    size=st.integers(1, 16),
    epochs=st.integers(1, 4),
)
@example(old=[True] * 3 + [False] * 10, size=4, epochs=3)
@example(old=[True] * 12 + [False], size=4, epochs=2)
def test_an_epoch_is_one_pass_over_the_current_images(old: list[bool], size: int, epochs: int) -> None:
    source = numbered(old)
    current = [i for i, is_old in enumerate(old) if not is_old]
    memory = [i for i, is_old in enumerate(old) if is_old]
    batch = source.batch_of(size)
    assert batch == min(size, len(current))
    iterations = served(source, epochs, batch)
    assert len(iterations) == epochs * source.iterations(batch) == epochs * -(-len(current) // batch)
    for parts in iterations:
        assert [len(part) for part in parts] == [batch] * (2 if memory else 1)  # as much memory as current
    for pool, part in ((current, 0), (memory, 1)) if memory else ((current, 0),):
        # One permutation after another: an epoch's ragged tail is filled from the next.
        joined = [number for parts in iterations for number in parts[part]]
        for start in range(0, len(joined), len(pool)):
            piece = joined[start : start + len(pool)]
            assert len(set(piece)) == len(piece)
            assert set(piece) <= set(pool)
    first = [number for parts in iterations[: source.iterations(batch)] for number in parts[0]]
    assert set(first) == set(current)


def test_without_a_mark_all_images_are_current() -> None:
    source = ViewSource(Inputs(Reader(), torch.zeros(5, 3, 2, 2)), torch.tensor([3, 0, 3, 7, 0]))
    assert len(source.pools) == 1
    assert source.new_counts == {0: 2, 3: 2, 7: 1}


def test_new_classes_are_those_of_current_images() -> None:
    assert list(numbered([True, False, True, False]).new_counts) == [10, 30]


def test_images_of_old_classes_alone_are_refused() -> None:
    with pytest.raises(BadInput, match="no images of new classes"):
        numbered([True, True])


def test_orders_follow_from_the_seed_and_the_epoch_alone() -> None:
    old = [True] * 20 + [False] * 20
    first = served(numbered(old), 2, 20)
    torch.manual_seed(99)  # the global generator has no say
    assert served(numbered(old), 2, 20) == first
    assert first[0] != first[1]
    assert served(numbered(old, seed=1), 2, 20) != first
    current, memory = first[0]
    assert [i - 20 for i in current] != memory, "the two parts have orders of their own"
    # And an epoch can be had without those before it.
    source = numbered(old)
    assert [[v.labels.div(10).int().tolist() for v in parts] for parts in source.epoch(1, 20)] == first[1:]


def test_chosen_images_alone_are_served() -> None:
    """Labels and marks belong to the chosen ones, in their order."""
    images = torch.arange(10.0).view(-1, 1, 1, 1).expand(-1, 3, 2, 2)
    indices = torch.tensor([7, 2, 9, 4])
    source = ViewSource(
        Inputs(Reader(), images, indices=indices), 10 * indices, torch.tensor([1, 0, 0, 1]) > 0
    )
    for current, memory in served(source, 3, 2):
        assert sorted(current) == [2, 9]
        assert sorted(memory) == [4, 7]


class Streamed:
    """Images that have to be decoded, which are their numbers here."""

    decodes = True

    def __init__(self) -> None:
        self.begun, self.ended = 0, 0

    def batches(self, indices: Tensor, size: int) -> Iterator[Tensor]:
        self.begun += 1
        yield from indices.split(size)
        self.ended += 1


def test_chunks_are_decoded_in_one_go_and_nothing_is_left_open() -> None:
    indices, streamed = torch.tensor([7, 2, 9, 4, 1]), Streamed()
    reader = views_module._ChunkReader(streamed, indices, 2)  # type: ignore[arg-type]
    assert [reader.read(first).tolist() for first in (0, 2, 4)] == [[7, 2], [9, 4], [1]]
    assert (streamed.begun, streamed.ended) == (1, 1)
    assert reader.read(2).tolist() == [9, 4]  # and from anywhere
    assert streamed.begun == 2


def test_each_rank_decodes_its_rows_of_a_chunk() -> None:
    indices, found = torch.arange(10, 18), []
    for rank in range(2):
        ranks, streamed = Ranks.__new__(Ranks), Streamed()
        ranks.rank, ranks.size, ranks.working = rank, 2, True
        gathered: list[tuple[list[int], list[int]]] = []

        def of_all(rows: Tensor, counts: list[int], _: str, told: list[Any] = gathered) -> Tensor:
            told.append((rows.tolist(), counts))
            return rows

        ranks.gathered = of_all  # type: ignore[method-assign, assignment]
        with among(ranks):
            reader = views_module._ChunkReader(streamed, indices, 5)  # type: ignore[arg-type]
            for first in (0, 5):
                reader.read(first)
        assert (streamed.begun, streamed.ended) == (1, 1)
        found.append(gathered)
    assert found[0] == [([10, 11, 12], [3, 2]), ([15, 16], [2, 1])]
    assert found[1] == [([13, 14], [3, 2]), ([17], [2, 1])]


def first_of(size: int) -> Ranks:
    """The first of some ranks, which has nothing of the others."""
    ranks = Ranks.__new__(Ranks)
    ranks.rank, ranks.size, ranks.working = 0, size, True
    ranks.gathered = lambda rows, counts, what: rows  # type: ignore[method-assign, assignment]
    return ranks


@pytest.mark.parametrize(
    ("count", "decodes", "read"), [(4, True, [0]), (6, True, [0]), (5, True, [0, 1]), (4, False, [0, 1])]
)
def test_ranks_share_what_is_decoded_where_every_chunk_has_a_row_for_each(
    count: int, decodes: bool, read: list[int]
) -> None:
    streamed = Streamed()
    streamed.decodes = decodes
    with among(first_of(2)):
        reader = views_module._ChunkReader(streamed, torch.arange(count), 2)  # type: ignore[arg-type]
        assert reader.read(0).tolist() == read


def test_ranks_share_the_features_of_views() -> None:
    source = numbered([False] * 5)
    for size, own in ((2, 3), (6, 5)):  # too few for six
        with among(first_of(size)):
            assert len(source.features(torch.zeros(5, 3, 2, 2))) == own


@pytest.mark.parametrize("first", [0, 1])
def test_a_chunk_that_could_not_be_decoded_can_be_asked_for_again(first: int) -> None:
    class Failing(Streamed):
        def batches(self, indices: Tensor, size: int) -> Iterator[Tensor]:
            for part in super().batches(indices, size):
                if self.begun == 1:
                    raise OSError("a file is gone")
                yield part

    reader = views_module._ChunkReader(Failing(), torch.tensor([7, 2]), 1)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="a file is gone"):
        reader.read(first)
    assert reader.read(first).tolist() == [[7, 2][first]]


@pytest.fixture
def images() -> ImageSet:
    return replace(Noise(count=12).load("train", 8, None), labels=torch.arange(12) % 4)


def test_chunks_have_as_many_views_on_a_cpu_whatever_their_size(images: ImageSet) -> None:
    """Its rounding may depend on it."""
    source = ViewSource(Inputs(Reader(), images, TRANSFORM), images.labels, images.labels < 2)
    assert source._chunk_size == views_module.CHUNK != views_module.PIXELS // 8**2
    source.device = torch.device("cuda")  # which is given as many as have so many pixels
    assert source._chunk_size == 4096 * 4 * 4
    assert ViewSource(Inputs(Reader(), torch.zeros(5, 3, 2, 2)), torch.zeros(5).long())._chunk_size == 1024


def test_views_are_augmented_as_the_transform_allows(images: ImageSet) -> None:
    """Of each part on its own: every view is one of an image's eighteen, and epochs differ."""
    known: dict[bytes, tuple[int, int, int, bool]] = {}
    for top in range(3):
        for left in range(3):
            for flip in (False, True):
                draw = Draw(*(torch.full((12,), value) for value in (top, left, flip)))
                for i, view in enumerate(TRANSFORM.train(images.images, draw)):
                    known[view.numpy().tobytes()] = (i, top, left, flip)
    source = ViewSource(Inputs(Reader(), images, TRANSFORM), images.labels, images.labels < 2)
    seen: list[Counter[tuple[int, int, int, bool]]] = [Counter(), Counter()]
    for number in range(30):
        for parts in source.epoch(number, 4):
            for views, counter in zip(parts, seen, strict=True):
                choices = [known[image.numpy().tobytes()] for image in views.images]
                assert views.labels.tolist() == [i % 4 for i, *_ in choices]
                assert torch.equal(views.features[:, 0], views.images[:, 0, 0, 0])
                counter.update(choices)
    for counter, labels in zip(seen, ({2, 3}, {0, 1}), strict=True):
        assert {i % 4 for i, *_ in counter} == labels
        assert {choice[1:] for choice in counter} == {
            (t, x, f) for t in range(3) for x in range(3) for f in (False, True)
        }


def test_views_follow_from_the_seed_and_the_chosen_images_alone(images: ImageSet) -> None:
    def views(inputs: Inputs, labels: Tensor, **seed: Any) -> list[Tensor]:
        source = ViewSource(inputs, labels, **seed)
        return [v.images for number in range(4) for (v,) in source.epoch(number, 1)]

    one = ImageSet("one", images.images[7:8], images.labels[7:8])
    expected = views(Inputs(Reader(), one, TRANSFORM), one.labels)
    same = views(Inputs(Reader(), images, TRANSFORM, torch.tensor([7])), one.labels, seed=(0,))
    assert all(map(torch.equal, same, expected))
    other = views(Inputs(Reader(), one, TRANSFORM), one.labels, seed=(1,))
    assert not all(map(torch.equal, other, expected))
    draw = TRANSFORM.draw(1, 8, generator(0, "current", "augment", 3))
    assert torch.equal(TRANSFORM.train(one.images, draw), expected[3]), "stored runs can be made again"


def test_images_of_a_dataset_are_served_as_those_of_a_tensor() -> None:
    images, labels = torch.rand(5, 3, 2, 2), torch.tensor([0, 1, 1, 2, 0])
    served = [
        [v.tensors for (v,) in ViewSource(Inputs(Reader(), given), labels).epoch(0, 2)]
        for given in (images, TensorDataset(images))
    ]
    assert all(
        torch.equal(a, b) for one, other in zip(*served, strict=True) for a, b in zip(one, other, strict=True)
    )


def test_images_of_one_value_have_a_range_too() -> None:
    scale = ViewSource(Inputs(Reader(), torch.full((5, 3, 2, 2), 0.3)), torch.zeros(5).long()).scale
    assert scale.std == pytest.approx((1e6,) * 3)


@pytest.mark.parametrize("chunk", [1, 10, 17, 10**6])
def test_how_many_views_are_computed_together_changes_nothing(
    images: ImageSet, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    def views() -> list[Tensor]:
        source = ViewSource(Inputs(Reader(), images, TRANSFORM), images.labels, images.labels < 2)
        return [tensor for n in (0, 1) for parts in source.epoch(n, 4) for v in parts for tensor in v.tensors]

    expected = views()
    monkeypatch.setattr(views_module, "CHUNK", chunk)
    assert all(torch.equal(a, b) for a, b in zip(views(), expected, strict=True))


def test_epochs_and_batch_sizes_can_be_asked_for_in_turn(images: ImageSet) -> None:
    """As by tuners of which one is an epoch ahead, or has another batch size."""

    def source() -> ViewSource:
        return ViewSource(Inputs(Reader(), images, TRANSFORM), images.labels, images.labels < 2)

    wanted = [(0, 4), (0, 3), (1, 4), (1, 3)]  # epochs of 8 and of 6
    alone = [list(source().epoch(number, batch)) for number, batch in wanted]
    shared = source()
    turns = [shared.epoch(number, batch) for number, batch in wanted]
    for i in range(2):
        for turn, expected in zip(turns, alone, strict=True):
            for found, views in zip(next(turn), expected[i], strict=True):
                assert all(map(torch.equal, found.tensors, views.tensors))


@pytest.mark.usefixtures("has_bfloat16")
def test_features_are_the_models_in_its_trainings_arithmetic() -> None:
    class Scaled(Reader):
        def features(self, images: Tensor) -> Tensor:
            return images.flatten(1) @ torch.full((12, 1), 1.001)

    images = torch.rand(4, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    full, rough = (
        ViewSource(Inputs(Scaled(), images), torch.zeros(4).long(), arithmetic=a).features(images)
        for a in (Arithmetic("fp32"), Arithmetic("bf16"))
    )
    assert torch.equal(full, Scaled().features(images))
    assert full.dtype == rough.dtype == torch.float32
    assert torch.equal(rough, rough.bfloat16().float())
    assert not torch.equal(rough, full)


# --- shared ------------------------------------------------------------------------------------------------

SHORT: dict[str, Any] = {"schedule": Schedule(epochs=3, lr=0.01), "batch_size": 4}
FEATURE_TUNERS: dict[str, Tuner] = {
    "logitnorm": LogitNorm(**SHORT),
    "t2fnorm": T2FNorm(**SHORT),
    "vos": VOS(queue=4, samples=10, **SHORT),
    "npos": NPOS(queue=4, neighbours=2, boundary=2, chosen=1, perturbations=5, kept=2, **SHORT),
}


@pytest.mark.parametrize("names", [["logitnorm"], list(FEATURE_TUNERS)], ids=["one", "all"])
@pytest.mark.parametrize(("chunk", "passes"), [(1024, 1), (16, 2), (8, 3)])
def test_every_view_passes_the_backbone_once_for_all_feature_tuners(
    toy: Any,
    normalised: Callable[..., Tensor],
    monkeypatch: pytest.MonkeyPatch,
    names: list[str],
    chunk: int,
    passes: int,
) -> None:
    """Ten current images in batches of four: three iterations, 12 views of each part in an epoch."""
    monkeypatch.setattr(views_module, "CHUNK", chunk)
    labels = torch.tensor([2, 3] * 5 + [0, 1] * 3)
    source = ViewSource(Inputs(toy, normalised(16)), labels, labels < 2)
    turns = [Tuning(FEATURE_TUNERS[name], source).advance() for name in names]
    while turns:
        turns = [turn for turn in turns if next(turn, None) is not None]
    assert len(toy.asked) == 3 * 2 * passes  # epochs, parts
    assert sum(len(images) for images in toy.asked) == 3 * 2 * 12


@pytest.mark.parametrize(
    "sizes", [(4, 4), (4, 2), (4, 2, 8) * 2], ids=["alike", "of two sizes", "two of each of three"]
)
def test_tuners_of_other_batches_do_not_take_each_others_views_away(
    toy: Any, normalised: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...]
) -> None:
    monkeypatch.setattr(views_module, "CHUNK", 16)
    labels = torch.tensor([2, 3] * 8 + [0, 1] * 3)
    source = ViewSource(Inputs(toy, normalised(22)), labels, labels < 2)
    schedule = Schedule(epochs=2, lr=0.01)
    turns = [Tuning(LogitNorm(schedule=schedule, batch_size=size), source).advance() for size in sizes]
    while turns:
        turns = [turn for turn in turns if next(turn, None) is not None]
    kinds = len(set(sizes))
    assert sum(len(images) for images in toy.asked) == kinds * 2 * 2 * 16  # epochs, parts, images


# --- the head that is trained ------------------------------------------------------------------------------


def test_the_models_own_extra_head_is_taken(toy: Any) -> None:
    head = ViewSource(Inputs(toy, torch.zeros(1, 3, 4, 4)), torch.zeros(1).long()).extra_head()
    assert torch.equal(head.weight, toy.head.weight)
    assert head.weight is not toy.head.weight
    assert toy.asked == []


def test_a_plain_copy_of_a_head_can_be_trained_though_its_model_is_evaluated(toy: Any) -> None:
    toy.extra_head = lambda: copy.deepcopy(toy.head)
    source = ViewSource(Inputs(toy, torch.zeros(1, 3, 4, 4)), torch.zeros(1).long())
    with evaluating(toy):
        head = source.extra_head()
    assert all(parameter.requires_grad for parameter in head.parameters())


class Corrected(nn.Module):
    """A model without ``extra_head``: linear logits, some of them scaled and shifted."""

    def __init__(self, curve: float = 0.0) -> None:
        super().__init__()
        self.head, self.curve = nn.Linear(12, 3), curve
        with torch.no_grad():
            for p in self.head.parameters():
                p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.ndim)))

    def features(self, images: Tensor) -> Tensor:
        return images.flatten(1)

    def classify(self, features: Tensor) -> Tensor:
        z = self.head(features) * torch.tensor([1.0, 1.0, 3.0]) + torch.tensor([0.0, 0.0, 2.0])
        return z + self.curve * features[:, :3].square()


def test_the_head_of_a_model_without_one_is_what_its_classify_computes() -> None:
    images = torch.randn(6, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    model = Corrected()
    head = ViewSource(Inputs(model, images), torch.zeros(6).long()).extra_head()
    torch.testing.assert_close(head(images.flatten(1)), model.classify(images.flatten(1)))
    assert all(p.requires_grad for p in head.parameters())


def test_a_model_that_is_not_linear_is_asked_for_a_head() -> None:
    source = ViewSource(Inputs(Corrected(curve=0.3), torch.randn(6, 3, 2, 2)), torch.zeros(6).long())
    with pytest.raises(BadInput, match=r"Corrected has no head to begin with.*extra_head\(\)"):
        source.extra_head()


def test_probing_a_head_leaves_the_global_random_state() -> None:
    class Headless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(48, 3)

        def features(self, images: Tensor) -> Tensor:
            return images.flatten(1)

        def classify(self, features: Tensor) -> Tensor:
            return self.last(features)

    model, before = Headless(), torch.get_rng_state()
    ViewSource(Inputs(model, torch.zeros(4, 3, 4, 4)), torch.zeros(4, dtype=torch.int64)).extra_head()
    assert torch.equal(torch.get_rng_state(), before)


def test_a_head_that_does_not_begin_as_the_models_is_refused() -> None:
    """A model that changed ``classify`` and forgot ``extra_head``."""

    class Cosine(Model):
        def classify(self, features: Tensor) -> Tensor:
            return nn.functional.cosine_similarity(features[:, None], self.head.weight[None], dim=2)

    model = Cosine(BACKBONES.create("resnet8"), 3).eval()
    source = ViewSource(Inputs(model, torch.randn(6, 3, 8, 8)), torch.arange(6) % 3)
    with pytest.raises(BadInput, match="Cosine has no head to begin with"):
        source.extra_head()


HEADS: dict[str, Callable[[], nn.Module]] = {
    "cosine": lambda: CosineHead(6, (2, 3), proxies=4),
    "distances": lambda: DistanceHead(6, (2, 3), power=0.5),
    "random features": lambda: RandomFeatureHead(6, 20, 5, "normal"),
    "tasks": lambda: TaskHead(CosineHead(6, (2, 3), proxies=4), torch.tensor([1, 1, 2, 2, 2])),
    "corrected": lambda: nn.Sequential(nn.Linear(6, 5), nn.Identity()),
}


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_says_how_large_it_is(kind: str) -> None:
    """Its first matrix may have as many rows as there are proxies of old classes, or random features."""
    with seeded(0):
        head = HEADS[kind]()
    assert head_size(head) == (5, 6)
    assert head(torch.ones(3, 6)).shape == (3, 5)


def test_a_head_that_does_not_say_is_as_large_as_its_first_matrix() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.rows = nn.Parameter(torch.ones(5)), nn.Parameter(torch.ones(5, 6))

    assert head_size(Own()) == (5, 6)


@pytest.mark.parametrize("kind", ["cosine", "distances", "random features"])
def test_heads_that_are_not_linear_can_be_tuned_afresh(kind: str, toy: Any) -> None:
    """A fresh one has other weights than the model's, drawn by the seed alone, and follows a gradient."""
    with seeded(0):
        toy.head = HEADS[kind]()
    images, labels = torch.rand(6, 3, 4, 4), torch.tensor([0, 1, 2, 3, 4, 0])
    source = ViewSource(Inputs(toy, images), labels)
    copied, fresh, again = (
        LogitNorm(init=init).extra(source).head.state_dict() for init in ("copy", "fresh", "fresh")
    )
    changed = {key for key in copied if not torch.equal(copied[key], fresh[key])}
    assert changed == ({"last.weight"} if kind == "random features" else {"rows.0", "rows.1"})
    assert all(torch.equal(fresh[key], again[key]) for key in fresh)
    tuner = LogitNorm(schedule=Schedule(epochs=2, lr=0.05))
    tuning = Tuning(tuner, source)
    for _ in tuning.advance():
        pass
    trained = tuning.extra.head.state_dict()
    assert changed <= {key for key in copied if not torch.equal(copied[key], trained[key])}
