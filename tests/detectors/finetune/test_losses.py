"""Each of the nine losses against its formula, image by image, in Python's own numbers."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from opencil.detectors.finetune import augmix as augmix_module
from opencil.detectors.finetune.augmix import AugMix, divergence
from opencil.detectors.finetune.augmix_operations import AugMixDraw, Rule, augmix
from opencil.detectors.finetune.ber import BER
from opencil.detectors.finetune.energy_margins import Queue
from opencil.detectors.finetune.logitnorm import LogitNorm
from opencil.detectors.finetune.mixing import other_class
from opencil.detectors.finetune.more import MORE, TaskHead
from opencil.detectors.finetune.npos import NPOS
from opencil.detectors.finetune.oe import OE
from opencil.detectors.finetune.regmix import RegMix
from opencil.detectors.finetune.t2fnorm import T2FNorm
from opencil.detectors.finetune.tuner import Batch, Extra, Tuner
from opencil.detectors.finetune.views import Views
from opencil.detectors.finetune.vos import VOS
from opencil.errors import BadInput
from opencil.registry import DETECTORS

Rows = list[list[float]]
MakeBatch = Callable[..., Batch]
with_and_without = pytest.mark.parametrize("memory", [False, True], ids=["step 1", "with memory"])
#: Between the energies of the toy's samples, so that both hinges bite.
MARGINS: dict[str, Any] = {"alpha": 0.3, "margin_in": -4.5, "margin_out": -2.0}


def rows(tensor: Tensor) -> Rows:
    return tensor.detach().double().tolist()


def log_sum_exp(z: Sequence[float]) -> float:
    return math.log(sum(math.exp(v - max(z)) for v in z)) + max(z)


def softmax(z: Sequence[float]) -> list[float]:
    return [math.exp(v - log_sum_exp(z)) for v in z]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def ce(logits: Rows, labels: Sequence[int]) -> float:
    return mean([log_sum_exp(z) - z[y] for z, y in zip(logits, labels, strict=True)])


def hinge_in(logits: Rows, margin: float) -> float:
    """mean max(0, E − m_in)², with E = −logsumexp(z)."""
    return mean([max(0.0, -log_sum_exp(z) - margin) ** 2 for z in logits])


def hinge_out(logits: Rows, margin: float) -> float:
    """mean max(0, m_out − E)²."""
    return mean([max(0.0, margin + log_sum_exp(z)) ** 2 for z in logits])


def linear(layer: nn.Linear, inputs: Rows) -> Rows:
    weight, bias = rows(layer.weight), layer.bias.detach().double().tolist()
    return [
        [sum(w * v for w, v in zip(row, x, strict=True)) + b for row, b in zip(weight, bias, strict=True)]
        for x in inputs
    ]


def features(toy: Any, images: Tensor) -> Rows:
    """φ(x) of the toy model, whose normalisation divides by √(1 + 1e-5) alone."""
    hidden = linear(toy.first, rows(images.flatten(1)))
    return [[max(0.0, v / math.sqrt(1 + 1e-5)) for v in row] for row in hidden]


def other_head(tuner: Tuner, batch: Batch) -> Extra:
    """Return a head that differs from h: a loss must read f."""
    extra = tuner.extra(batch.source)
    with torch.no_grad():
        for p in extra.head.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.ndim)))
    return extra


def parts(batch: Batch) -> list[Views]:
    return [views for views in (batch.current, batch.memory) if views is not None]


def found(tuner: Tuner, extra: Extra, batch: Batch) -> float:
    loss = tuner.loss(extra, batch)
    assert loss.shape == ()
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in extra.head.parameters())
    return loss.item()


@with_and_without
@pytest.mark.parametrize("tau", [0.04, 0.5])
def test_logitnorm(make_batch: MakeBatch, memory: bool, tau: float) -> None:
    """CE(z/(‖z‖+1e-7)/τ), one for each part."""
    tuner = LogitNorm(tau=tau)
    batch = make_batch(tuner, memory)
    extra, expected = other_head(tuner, batch), 0.0
    for views in parts(batch):
        logits = linear(extra.head, rows(views.features))
        norms = [math.sqrt(sum(v * v for v in z)) for z in logits]
        scaled = [[v / (n + 1e-7) / tau for v in z] for z, n in zip(logits, norms, strict=True)]
        expected += ce(scaled, views.labels.tolist())
    assert found(tuner, extra, batch) == pytest.approx(expected, rel=1e-4)


@with_and_without
@pytest.mark.parametrize("tau", [0.1, 2.0])
def test_t2fnorm(make_batch: MakeBatch, memory: bool, tau: float) -> None:
    """CE with features f/(‖f‖·τ), one for each part."""
    tuner = T2FNorm(tau=tau)
    batch = make_batch(tuner, memory)
    extra, expected = other_head(tuner, batch), 0.0
    for views in parts(batch):
        scaled = [[v / (math.sqrt(sum(u * u for u in f)) * tau) for v in f] for f in rows(views.features)]
        expected += ce(linear(extra.head, scaled), views.labels.tolist())
    assert found(tuner, extra, batch) == pytest.approx(expected, rel=1e-4)


def jensen_shannon(*views: list[float]) -> float:
    """The mean KL of several predictions from their mean."""
    middle = [mean(p) for p in zip(*views, strict=True)]
    return mean([sum(a * math.log(a / m) for a, m in zip(p, middle, strict=True) if a > 0) for p in views])


@pytest.fixture
def augmented(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, Tensor]]:
    """Return pairs (pixels, augmented pixels) of all augmented images."""
    made: list[tuple[Tensor, Tensor]] = []

    def watched(pixels: Tensor, choices: AugMixDraw, rule: Rule) -> Tensor:
        result = augmix(pixels, choices, rule)
        made.extend(zip(pixels.clone(), result.clone(), strict=True))
        return result

    monkeypatch.setattr(augmix_module, "augmix", watched)
    return made


@with_and_without
def test_augmix(
    make_batch: MakeBatch, toy: Any, augmented: list[tuple[Tensor, Tensor]], memory: bool
) -> None:
    """CE(clean) + 12·JSD(clean, aug1, aug2): the two views of an image are its own, the memory's too."""
    tuner = AugMix(rule="original")  # torchvision's often leaves a view as the image is
    batch = make_batch(tuner, memory)
    extra = other_head(tuner, batch)
    value, expected = found(tuner, extra, batch), 0.0
    transform = batch.source.inputs.transform
    for views in parts(batch):
        clean = linear(extra.head, features(toy, views.images))
        apart = []
        for image, z in zip(views.images, clean, strict=True):
            whole = (
                (
                    image * torch.tensor(transform.std).view(3, 1, 1)
                    + torch.tensor(transform.mean).view(3, 1, 1)
                )
                * 255
            ).round()
            mine = [result for pixels, result in augmented if torch.equal(pixels, whole)]
            assert len(mine) == 2
            assert not torch.equal(mine[0], mine[1])
            again = linear(extra.head, features(toy, transform.normalise(torch.stack(mine))))
            apart.append(jensen_shannon(softmax(z), *(softmax(v) for v in again)))
        assert mean(apart) > 1e-4
        expected += ce(clean, views.labels.tolist()) + 12 * mean(apart)
    assert value == pytest.approx(expected, rel=1e-4)


def test_augmix_in_pieces_gives_the_same(make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    tuner = AugMix()
    (whole,) = make_batch(tuner).drawn
    sizes = list[int]()

    def counted(pixels: Tensor, *rest: Any) -> Tensor:
        sizes.append(len(pixels))
        return augmix(pixels, *rest)

    monkeypatch.setattr(augmix_module, "augmix", counted)
    # A CPU takes half: a byte less than five of the 24 images have.
    monkeypatch.setattr(augmix_module, "_LIMIT", 2 * (5 * 400 * 4 * 4 - 1))
    (in_pieces,) = make_batch(tuner).drawn
    assert torch.equal(in_pieces, whole)
    assert sizes == [4] * 6
    monkeypatch.setattr(augmix_module, "_LIMIT", 2)  # too little for any: one at a time
    assert torch.equal(make_batch(tuner).drawn[0], whole)


@given(st.lists(st.lists(st.floats(-8, 8), min_size=3, max_size=3), min_size=2, max_size=4))
def test_divergence(logits: Rows) -> None:
    """Of one image's predictions: 0 where they agree, never below, at most the log of their number."""
    views = [softmax(z) for z in logits]
    value = divergence(torch.tensor(logits, dtype=torch.float64)[:, None]).item()
    assert value == pytest.approx(jensen_shannon(*views), abs=1e-6)
    assert -1e-9 <= value <= math.log(len(views)) + 1e-6


@with_and_without
@pytest.mark.parametrize("share", [0.5, 0.2])
def test_regmix(make_batch: MakeBatch, toy: Any, memory: bool, share: float) -> None:
    """½CE(x, y) + ½(λ·CE(x̄, y_i) + (1−λ)·CE(x̄, y_j)), each part mixed with its own images."""
    tuner = RegMix(share=share)
    batch = make_batch(tuner, memory)
    extra, expected = other_head(tuner, batch), 0.0
    weights, partners = batch.drawn
    assert partners.tolist() != [list(range(6))] * len(partners)
    for views, weight, partner in zip(parts(batch), weights.tolist(), partners.tolist(), strict=True):
        labels = views.labels.tolist()
        mixed = torch.stack(
            [
                weight * views.images[i].double() + (1 - weight) * views.images[j].double()
                for i, j in enumerate(partner)
            ]
        )
        of_mixed = linear(extra.head, features(toy, mixed))
        mixup = weight * ce(of_mixed, labels) + (1 - weight) * ce(of_mixed, [labels[j] for j in partner])
        clean = ce(linear(extra.head, rows(views.features)), labels)
        expected += (1 - share) * clean + share * mixup
    assert found(tuner, extra, batch) == pytest.approx(expected, rel=1e-4)


def asked_mixtures(toy: Any, count: int) -> list[Tensor]:
    """The batches of images that a loss had passed through the backbone."""
    assert len(toy.asked) == count
    return list(toy.asked)


def pairs(mixed: Tensor, first: Tensor, second: Tensor, weight: float) -> list[tuple[int, int]]:
    """The only (i, j) with mixed = weight·first_i + (1−weight)·second_j, for each of the mixed images."""
    made = []
    for image in mixed:
        fits = [
            (i, j)
            for i in range(len(first))
            for j in range(len(second))
            if torch.allclose(image, weight * first[i] + (1 - weight) * second[j], atol=1e-5)
        ]
        assert len(fits) == 1
        made += fits
    return made


@with_and_without
@pytest.mark.parametrize("nter", [False, True])
@pytest.mark.parametrize("oter", [False, True])
def test_ber(make_batch: MakeBatch, toy: Any, memory: bool, nter: bool, oter: bool) -> None:
    """L = CE(x, y) + CE(m̄, y_m) + α(L_n + L_o); without OTER the memory is itself, without NTER no L_n."""
    tuner = BER(nter=nter, oter=oter, **MARGINS)
    batch = make_batch(tuner, memory)
    extra = other_head(tuner, batch)
    value = found(tuner, extra, batch)
    x, m = batch.current, batch.memory
    mixtures = asked_mixtures(toy, nter + (oter and memory))
    logits = linear(extra.head, rows(x.features))
    expected = ce(logits, x.labels.tolist())
    if nter:
        weight = float(batch.drawn[0])
        assert 0.05 < weight < 0.95
        mixed = mixtures.pop(0)
        for i, j in pairs(mixed, x.images, x.images, weight):
            assert x.labels[i] != x.labels[j], "a pair of different classes"
        outside = hinge_out(linear(extra.head, features(toy, mixed)), -2.0)
        assert outside > 0.01
        assert hinge_in(logits, -4.5) > 0.01
        expected += 0.3 * (hinge_in(logits, -4.5) + outside)
    if m is not None and oter:
        (mixed,) = mixtures
        assert [j for _, j in pairs(mixed, x.images, m.images, 0.002)] == list(range(6))
        of_mixed = linear(extra.head, features(toy, mixed))
        assert hinge_in(of_mixed, -4.5) > 0.01
        expected += ce(of_mixed, m.labels.tolist()) + 0.3 * hinge_in(of_mixed, -4.5)
    elif m is not None:
        expected += ce(linear(extra.head, rows(m.features)), m.labels.tolist())
    assert value == pytest.approx(expected, rel=1e-4)


LOG2 = math.log(2)


@with_and_without
def test_margins_of_the_model_are_its_mean_energies(make_batch: MakeBatch, toy: Any, memory: bool) -> None:
    """m_in and m_out of each kind of sample are its mean energies under h_t, for any f."""
    tuner = BER(margins="model", alpha=0.3, share=0.25)
    batch = make_batch(tuner, memory)
    extra = tuner.extra(batch.source)
    assert found(tuner, extra, batch) == pytest.approx(
        by_hand(toy, toy.head, toy.head, batch, tuner), rel=1e-4
    )
    with torch.no_grad():
        extra.head.weight.mul_(0.5).add_(0.05)
    assert found(tuner, extra, batch) == pytest.approx(
        by_hand(toy, extra.head, toy.head, batch, tuner), rel=1e-4
    )


def by_hand(toy: Any, head: Any, model_head: nn.Linear, batch: Batch, tuner: BER) -> float:
    """BER's loss with margins of the model, sample by sample."""

    def of(layer: Any, images: Tensor) -> tuple[Rows, float]:
        seen = features(toy, images)
        return linear(layer, seen), mean([-log_sum_exp(z) for z in linear(model_head, seen)])

    x, m = batch.current, batch.memory
    weight, chance = batch.drawn
    partner, _ = other_class(x.labels, chance)
    logits, margin = of(head, x.images)
    total = ce(logits, x.labels.tolist()) + tuner.alpha * hinge_in(logits, margin)
    total += tuner.alpha * hinge_out(*of(head, weight * x.images + (1 - weight) * x.images[partner]))
    if m is not None:
        logits, margin = of(head, tuner.share * x.images + (1 - tuner.share) * m.images)
        total += ce(logits, m.labels.tolist()) + tuner.alpha * hinge_in(logits, margin)
    return total


labelled = st.lists(
    st.tuples(st.integers(0, 3), st.floats(0, 1, exclude_max=True, width=32)), min_size=1, max_size=20
)


@settings(max_examples=200)
@given(labelled)
@example([(0, 0.0)])
@example([(2, 1 - 2**-24)] * 7 + [(5, 1 - 2**-24)] * 3)
def test_partners_are_of_another_class(drawn: list[tuple[int, float]]) -> None:
    labels = [label for label, _ in drawn]
    partner, possible = other_class(torch.tensor(labels), torch.tensor([chance for _, chance in drawn]))
    assert bool(possible) == (len(set(labels)) > 1)
    for i, label in enumerate(labels):
        assert 0 <= int(partner[i]) < len(labels)
        if possible:
            assert labels[int(partner[i])] != label


@with_and_without
@pytest.mark.parametrize("weight", [0.5, 2.0])
def test_oe(make_batch: MakeBatch, toy: Any, memory: bool, weight: float) -> None:
    """CE of both parts, and w times the mixtures' cross-entropy from the uniform prediction."""
    tuner = OE(weight=weight)
    batch = make_batch(tuner, memory)
    extra = other_head(tuner, batch)
    value = found(tuner, extra, batch)
    (mixed,) = asked_mixtures(toy, 1)
    x = batch.current
    assert all(x.labels[i] != x.labels[j] for i, j in pairs(mixed, x.images, x.images, float(batch.drawn[0])))
    expected = sum(ce(linear(extra.head, rows(v.features)), v.labels.tolist()) for v in parts(batch))
    undecided = [-mean([math.log(p) for p in softmax(z)]) for z in linear(extra.head, features(toy, mixed))]
    assert value == pytest.approx(expected + weight * mean(undecided), rel=1e-4)


def task_logits(extra: Extra, of: Tensor, tasks: Sequence[int]) -> dict[int, Rows]:
    """Of each task, each sample's logits of its classes and, last, of other."""
    head = extra.head
    assert isinstance(head, TaskHead)
    z, other = linear(head.classes, rows(of)), linear(head.other, rows(of))
    return {
        t: [
            [v[c] for c in range(len(tasks)) if tasks[c] == t] + [o[t - 1]]
            for v, o in zip(z, other, strict=True)
        ]
        for t in sorted(set(tasks))
    }


@with_and_without
def test_more(make_batch: MakeBatch, memory: bool) -> None:
    """For each task CE over its classes and other, of its images and of all others alike; mean over tasks."""
    tuner, tasks = MORE(), [1, 1, 2, 2]
    batch = make_batch(tuner, memory)
    extra, expected = other_head(tuner, batch), 0.0
    labels = [label for views in parts(batch) for label in views.labels.tolist()]
    features = torch.cat([views.features for views in parts(batch)])
    for t, logits in task_logits(extra, features, tasks).items():
        own = [c for c in range(4) if tasks[c] == t]
        sides: dict[bool, list[tuple[list[float], int]]] = {True: [], False: []}
        for z, y in zip(logits, labels, strict=True):
            sides[y in own].append((z, own.index(y) if y in own else len(own)))
        for side in filter(None, sides.values()):
            expected += ce([z for z, _ in side], [y for _, y in side]) / 2
    assert found(tuner, extra, batch) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", ["more", "more@class"])
def test_more_scores_by_its_most_confident_task(make_batch: MakeBatch, name: str) -> None:
    """By the largest 1 − p of other over tasks, in log odds, or by the largest log p of a class."""
    tuner = DETECTORS.create(name)
    batch = make_batch(tuner)
    extra = other_head(tuner, batch)
    tuner.use(extra.head)
    expected = []
    by_task = task_logits(extra, batch.current.features, [1, 1, 2, 2])
    for sample in zip(*by_task.values(), strict=True):
        p = [softmax(z) for z in sample]
        if name == "more":
            expected.append(max(math.log((1 - q[-1]) / q[-1]) for q in p))
        else:
            expected.append(max(math.log(v) for q in p for v in q[:-1]))
    assert tuner.score(batch.current.features).tolist() == pytest.approx(expected, rel=1e-4)


NPOS_VALUES = {"neighbours": 1, "boundary": 3, "chosen": 1, "perturbations": 4, "kept": 2}
SYNTHESISERS = {
    "vos": lambda queue: VOS(queue=queue, samples=20, **MARGINS),
    "npos": lambda queue: NPOS(queue=queue, **NPOS_VALUES, **MARGINS),
}


@with_and_without
@pytest.mark.parametrize("host", [True, False], ids=["host asks", "as on a GPU"])
@pytest.mark.parametrize("name", SYNTHESISERS)
def test_synthesisers(
    make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch, name: str, host: bool, memory: bool
) -> None:
    """CE + α(hinge_in(x) + hinge_out(outliers)) once the queues are full, CE before; the memory as BER's."""
    if not host:  # a captured step computes outliers of a queue that is filling, and must not count them
        monkeypatch.setattr(Queue, "may_be_full", True)
    tuner = SYNTHESISERS[name](6)  # of each of two classes: two batches of three fill it
    batch = make_batch(tuner, memory)
    extra = other_head(tuner, batch)
    outliers = torch.randn(5, 6, generator=torch.Generator().manual_seed(3)) + 1
    given: list[Tensor] = []

    def planted(contents: Tensor, _: Batch) -> Tensor:
        given.append(contents.clone())
        return outliers

    monkeypatch.setattr(tuner, "outliers", planted)
    logits = linear(extra.head, rows(batch.current.features))
    plain = ce(logits, batch.current.labels.tolist())
    if batch.memory is not None:  # unmixed: these two see features of unmixed views alone
        of_memory = linear(extra.head, rows(batch.memory.features))
        plain += ce(of_memory, batch.memory.labels.tolist()) + 0.3 * hinge_in(of_memory, -4.5)
    outside = hinge_out(linear(extra.head, rows(outliers)), -2.0)
    assert min(outside, hinge_in(logits, -4.5)) > 0.01
    full = plain + 0.3 * (hinge_in(logits, -4.5) + outside)
    values = [found(tuner, extra, batch) for _ in range(3)]
    assert values == [pytest.approx(plain, rel=1e-4), *[pytest.approx(full, rel=1e-4)] * 2]
    x = batch.current
    assert len(given) == (2 if host else 3)
    for contents in given[-2:]:  # of class 2 and of class 3, each pushed twice
        for label, stored in zip((2, 3), contents, strict=True):
            assert sorted(rows(stored)) == sorted(2 * rows(x.features[x.labels == label]))


class Corrected(nn.Module):
    """2 z + 1, a correction after a linear layer."""

    def forward(self, logits: Tensor) -> Tensor:
        return 2 * logits + 1


@pytest.mark.parametrize("name", SYNTHESISERS)
@pytest.mark.parametrize("by", ["head", "linear"])
def test_outliers_can_skip_what_comes_after_the_linear_layer(
    make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch, name: str, by: str
) -> None:
    tuner = replace(SYNTHESISERS[name](3), outliers_by=by)  # one batch fills the queue
    batch = make_batch(tuner, False)
    extra = other_head(tuner, batch)
    layer = extra.head
    extra.head = nn.Sequential(layer, Corrected())
    outliers = torch.randn(5, 6, generator=torch.Generator().manual_seed(3)) + 1
    monkeypatch.setattr(tuner, "outliers", lambda *_: outliers)
    logits = [[2 * v + 1 for v in z] for z in linear(layer, rows(batch.current.features))]
    beyond = linear(layer, rows(outliers))
    if by == "head":
        beyond = [[2 * v + 1 for v in z] for z in beyond]
    terms = hinge_in(logits, -4.5) + hinge_out(beyond, -2.0)
    expected = ce(logits, batch.current.labels.tolist()) + 0.3 * terms
    assert hinge_out(beyond, -2.0) > 0.01
    assert found(tuner, extra, batch) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    "values", [{"neighbours": 1000}, {"boundary": 1001}, {"chosen": 201}, {"kept": 9, "perturbations": 8}]
)
def test_npos_refuses_values_that_do_not_fit_each_other(values: dict[str, int]) -> None:
    with pytest.raises(BadInput, match=next(iter(values))):
        DETECTORS.create("npos", **values)
