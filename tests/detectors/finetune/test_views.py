"""Test the views that tuners train on, and the head that they start with."""

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
from opencil.data.transforms import Transform
from opencil.detectors.finetune import views as views_module
from opencil.detectors.finetune.logitnorm import LogitNorm
from opencil.detectors.finetune.more import TaskHead
from opencil.detectors.finetune.npos import NPOS
from opencil.detectors.finetune.t2fnorm import T2FNorm
from opencil.detectors.finetune.tuner import Tuner, Tuning
from opencil.detectors.finetune.views import Views, ViewSource, head_size
from opencil.detectors.finetune.vos import VOS
from opencil.engine.arithmetic import Arithmetic
from opencil.engine.forward import Inputs
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
    """A model whose only feature is an image's first pixel, its identity. ``calls`` are batch sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []

    def features(self, images: Tensor) -> Tensor:
        self.calls.append(len(images))
        return images[:, 0, 0, 0, None].clone()

    def classify(self, features: Tensor) -> Tensor:
        return features.expand(-1, 4)


def epoch(source: ViewSource, number: int, batch: int) -> Iterator[list[Views]]:
    """Yield each iteration's views of the current images and, if there is one, of the memory."""
    for _, parts in source.chunks(number, batch):
        for start in range(0, len(parts[0].labels), batch):
            yield [Views(*(tensor[start : start + batch] for tensor in views)) for views in parts]


def numbered(old: list[bool], seed: int = 0, **inputs: Any) -> ViewSource:
    """Images 0, 1, 2 … whose pixels are all their number, and whose labels are their number times ten."""
    images = torch.arange(float(len(old))).view(-1, 1, 1, 1).expand(-1, 3, 2, 2)
    labels = 10 * torch.arange(len(old))
    return ViewSource(Inputs(Reader(), images, **inputs), labels, torch.tensor(old), seed=(seed,))


def serve_images(source: ViewSource, epochs: int, batch: int) -> list[list[list[int]]]:
    """Return the numbers of the images of each iteration and part; check their features and labels."""
    found = []
    for number in range(epochs):
        for parts in epoch(source, number, batch):
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
    batch = min(size, len(current))
    iterations = serve_images(source, epochs, batch)
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


def test_images_of_old_classes_alone_are_refused() -> None:
    with pytest.raises(BadInput):
        numbered([True, True])


def test_orders_follow_from_the_seed_and_the_epoch_alone() -> None:
    old = [True] * 20 + [False] * 20
    first = serve_images(numbered(old), 2, 20)
    torch.manual_seed(99)  # the global generator has no say
    assert serve_images(numbered(old), 2, 20) == first
    assert first[0] != first[1]
    assert serve_images(numbered(old, seed=1), 2, 20) != first
    current, memory = first[0]
    assert [i - 20 for i in current] != memory, "the two parts have orders of their own"
    # An epoch does not depend on earlier epochs.
    source = numbered(old)
    assert [[v.labels.div(10).int().tolist() for v in parts] for parts in epoch(source, 1, 20)] == first[1:]


class Streamed:
    """Images that have to be decoded, which are their numbers here."""

    decodes = True

    def __init__(self) -> None:
        self.begun, self.ended = 0, 0

    def batches(self, indices: Tensor, size: int) -> Iterator[Tensor]:
        self.begun += 1
        yield from indices.split(size)
        self.ended += 1


def test_chunks_are_decoded_by_one_iterator() -> None:
    indices, streamed = torch.tensor([7, 2, 9, 4, 1]), Streamed()
    reader = views_module._ChunkReader(streamed, indices, 2)  # type: ignore[arg-type]
    assert [reader.read(number).tolist() for number in range(3)] == [[7, 2], [9, 4], [1]]
    assert (streamed.begun, streamed.ended) == (1, 1)
    assert reader.read(1).tolist() == [9, 4]  # and from anywhere
    assert streamed.begun == 2


@pytest.fixture
def images() -> ImageSet:
    return replace(Noise(count=12).load("train", 8, None), labels=torch.arange(12) % 4)


def test_views_are_augmented_as_the_transform_allows(images: ImageSet) -> None:
    """Of each part on its own: every view is one of an image's eighteen, and epochs differ."""
    known: dict[bytes, tuple[int, int, int, bool]] = {}
    for top in range(3):
        for left in range(3):
            for flip in (False, True):
                draw = [torch.full((12,), value) for value in (top, left, flip)]
                for i, view in enumerate(TRANSFORM.train(images.images, draw)):
                    known[view.numpy().tobytes()] = (i, top, left, flip)
    source = ViewSource(Inputs(Reader(), images, TRANSFORM), images.labels, images.labels < 2)
    seen: list[Counter[tuple[int, int, int, bool]]] = [Counter(), Counter()]
    for number in range(30):
        for parts in epoch(source, number, 4):
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
        return [v.images for number in range(4) for (v,) in epoch(source, number, 1)]

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
        [v for (v,) in epoch(ViewSource(Inputs(Reader(), given), labels), 0, 2)]
        for given in (images, TensorDataset(images))
    ]
    assert all(
        torch.equal(a, b) for one, other in zip(*served, strict=True) for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("chunk", [1, 10, 17, 10**6])
def test_how_many_views_are_computed_together_changes_nothing(
    images: ImageSet, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    def views() -> list[Tensor]:
        source = ViewSource(Inputs(Reader(), images, TRANSFORM), images.labels, images.labels < 2)
        return [tensor for n in (0, 1) for parts in epoch(source, n, 4) for v in parts for tensor in v]

    expected = views()
    monkeypatch.setattr(views_module, "CHUNK", chunk)
    assert all(torch.equal(a, b) for a, b in zip(views(), expected, strict=True))


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


def test_a_model_with_a_non_linear_head_needs_extra_head() -> None:
    source = ViewSource(Inputs(Corrected(curve=0.3), torch.randn(6, 3, 2, 2)), torch.zeros(6).long())
    with pytest.raises(BadInput):
        source.extra_head()


def test_a_head_with_other_logits_than_the_model_is_refused() -> None:
    """A model that changed ``classify`` and forgot ``extra_head``."""

    class Cosine(Model):
        def classify(self, features: Tensor) -> Tensor:
            return nn.functional.cosine_similarity(features[:, None], self.head.weight[None], dim=2)

    model = Cosine(BACKBONES.create("resnet8"), 3).eval()
    source = ViewSource(Inputs(model, torch.randn(6, 3, 8, 8)), torch.arange(6) % 3)
    with pytest.raises(BadInput):
        source.extra_head()


HEADS: dict[str, Callable[[], nn.Module]] = {
    "cosine": lambda: CosineHead(6, (2, 3), proxies=4),
    "distances": lambda: DistanceHead(6, (2, 3), power=0.5),
    "random features": lambda: RandomFeatureHead(6, 20, 5, "normal"),
    "tasks": lambda: TaskHead(CosineHead(6, (2, 3), proxies=4), torch.tensor([1, 1, 2, 2, 2])),
    "corrected": lambda: nn.Sequential(nn.Linear(6, 5), nn.Identity()),
}


@pytest.mark.parametrize("kind", HEADS)
def test_size_of_a_head(kind: str) -> None:
    """Its first matrix may have as many rows as there are proxies of old classes, or random features."""
    with seeded(0):
        head = HEADS[kind]()
    assert head_size(head) == (5, 6)
    assert head(torch.ones(3, 6)).shape == (3, 5)


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
