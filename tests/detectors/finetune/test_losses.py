"""Each of the nine losses against its formula, image by image, in Python's own numbers."""

import math
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from types import SimpleNamespace
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
from opencil.detectors.finetune.energy_margins import EnergyTuner
from opencil.detectors.finetune.logitnorm import LogitNorm
from opencil.detectors.finetune.mixing import beta, dirichlet, other_class
from opencil.detectors.finetune.more import MORE, TaskHead
from opencil.detectors.finetune.npos import NPOS
from opencil.detectors.finetune.oe import OE
from opencil.detectors.finetune.regmix import RegMix
from opencil.detectors.finetune.synthesis import Queue
from opencil.detectors.finetune.t2fnorm import T2FNorm
from opencil.detectors.finetune.tuner import Batch, Extra, Tuner
from opencil.detectors.finetune.views import Views
from opencil.detectors.finetune.vos import VOS
from opencil.engine.schedule import Schedule
from opencil.errors import BadInput
from opencil.registry import DETECTORS

Rows = list[list[float]]
MakeBatch = Callable[..., Batch]
with_and_without = pytest.mark.parametrize("memory", [False, True], ids=["step 1", "with memory"])
#: Between the energies of the toy's samples, so that both hinges bite.
MARGINS: dict[str, Any] = {"alpha": 0.3, "margin_in": -4.5, "margin_out": -2.0}


# --- the reference -----------------------------------------------------------------------------------------


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
    """What is trained, moved away from h: a loss must read f."""
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


# --- LogitNorm, T2FNorm ------------------------------------------------------------------------------------


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


# --- AugMix ------------------------------------------------------------------------------------------------


def jensen_shannon(*views: list[float]) -> float:
    """The mean KL of several predictions from their mean."""
    middle = [mean(p) for p in zip(*views, strict=True)]
    return mean([sum(a * math.log(a / m) for a, m in zip(p, middle, strict=True) if a > 0) for p in views])


@pytest.fixture
def augmented(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, Tensor]]:
    """Pairs (pixels, what AugMix made of them) of all images that have been augmented, in whatever order."""
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
            again = linear(extra.head, features(toy, transform.normalised(torch.stack(mine))))
            apart.append(jensen_shannon(softmax(z), *(softmax(v) for v in again)))
        assert mean(apart) > 1e-4
        expected += ce(clean, views.labels.tolist()) + 12 * mean(apart)
    assert value == pytest.approx(expected, rel=1e-4)


def test_augmix_of_views_that_agree_is_cross_entropy(
    make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(augmix_module, "augmix", lambda pixels, *_: pixels)
    tuner = AugMix(weight=1000.0)
    batch = make_batch(tuner)
    extra = other_head(tuner, batch)
    expected = sum(ce(linear(extra.head, rows(v.features)), v.labels.tolist()) for v in parts(batch))
    assert found(tuner, extra, batch) == pytest.approx(expected, rel=1e-4)


def test_augmix_in_pieces_gives_the_same(make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    tuner = AugMix()
    (whole,) = make_batch(tuner).drawn
    sizes = list[int]()

    def counted(pixels: Tensor, *rest: Any) -> Tensor:
        sizes.append(len(pixels))
        return augmix(pixels, *rest)

    monkeypatch.setattr(augmix_module, "augmix", counted)
    # A CPU takes half: a byte less than five of the 24 images have.
    monkeypatch.setattr(augmix_module, "_AT_ONCE", 2 * (5 * 400 * 4 * 4 - 1))
    (in_pieces,) = make_batch(tuner).drawn
    assert torch.equal(in_pieces, whole)
    assert sizes == [4] * 6
    monkeypatch.setattr(augmix_module, "_AT_ONCE", 2)  # too little for any: one at a time
    assert torch.equal(make_batch(tuner).drawn[0], whole)


def test_augmix_takes_no_more_than_its_share_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for memory, most in ((2**34, 2**30), (2**40, 2**32)):
        monkeypatch.setattr(
            torch.cuda, "get_device_properties", lambda _, m=memory: SimpleNamespace(total_memory=m)
        )
        assert augmix_module._most_bytes(torch.device("cuda")) == most


def test_augmix_mixes_by_its_rule(make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(pixels: Tensor, choices: AugMixDraw, rule: Rule) -> Tensor:
        asked.append(rule)
        return pixels

    asked: list[Rule] = []
    monkeypatch.setattr(augmix_module, "augmix", plain)
    for tuner in (AugMix(), DETECTORS.create("augmix@original")):
        batch = make_batch(tuner)
        found(tuner, other_head(tuner, batch), batch)
    assert asked == ["torchvision", "original"]
    with pytest.raises(Exception, match=r"augmix.severity = 0.5 is not allowed: torchvision's rule has 1, 2"):
        DETECTORS.create("augmix", severity=0.5)
    assert DETECTORS.create("augmix@original", severity=0.5).severity == 0.5


@given(st.lists(st.lists(st.floats(-8, 8), min_size=3, max_size=3), min_size=2, max_size=4))
def test_divergence(logits: Rows) -> None:
    """Of one image's predictions: 0 where they agree, never below, at most the log of their number."""
    views = [softmax(z) for z in logits]
    value = divergence(torch.tensor(logits, dtype=torch.float64)[:, None]).item()
    assert value == pytest.approx(jensen_shannon(*views), abs=1e-6)
    assert -1e-9 <= value <= math.log(len(views)) + 1e-6


def test_a_class_that_no_view_believes_in_weighs_as_in_the_authors_code() -> None:
    """Its mean probability is taken for 1e-7."""
    rare = 1e-9
    views = torch.tensor([1 - rare, rare], dtype=torch.float64).log().expand(3, 1, 2)
    assert divergence(views).item() == pytest.approx(rare * math.log(rare / 1e-7), rel=1e-6)


def test_augmix_draws_as_its_values_say() -> None:
    operation, level, weights, strength = AugMix().draw(4, 10, 2, torch.Generator().manual_seed(0))
    assert operation.shape == level.shape == (4, 40, 3, 3)  # two views of two parts, width 3, at most 3 deep
    assert weights.shape == (4, 40, 3)
    assert strength.shape == (4, 40)
    assert float(level.abs().max()) <= 1.0
    lengths = (operation < 13).sum(dim=3)
    assert set(lengths.flatten().tolist()) == {1, 2, 3}
    operation, level, weights, _ = AugMix(width=2, depth=1, severity=5.0, concentration=1e6).draw(
        4, 10, 1, torch.Generator().manual_seed(0)
    )
    assert operation.shape == (4, 20, 2, 1)
    assert int(operation.max()) < 13
    assert 1.0 < float(level.abs().max()) <= 5.0
    assert float((weights - 0.5).abs().max()) < 0.01  # all of it in the middle


# --- RegMix ------------------------------------------------------------------------------------------------


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


def test_regmix_draws_permutations_and_beta_10_10() -> None:
    weights, partners = RegMix().draw(3000, 5, 2, torch.Generator().manual_seed(0))
    assert weights.shape == (3000, 2)
    assert partners.shape == (3000, 2, 5)
    assert torch.equal(partners.sort(dim=2).values, torch.arange(5).expand(3000, 2, 5))
    assert len({tuple(p) for p in partners.flatten(0, 1).tolist()}) == 120
    assert float(weights.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(weights.var()) == pytest.approx(1 / (4 * 21), rel=0.1)  # of Beta(a, a): 1 / (4·(2a + 1))
    assert not torch.equal(weights[:, 0], weights[:, 1])


# --- BER ---------------------------------------------------------------------------------------------------


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


def test_oter_mixes_by_its_share(make_batch: MakeBatch, toy: Any) -> None:
    tuner = BER(nter=False, share=0.4)
    batch = make_batch(tuner)
    found(tuner, other_head(tuner, batch), batch)
    (mixed,) = asked_mixtures(toy, 1)
    assert batch.memory is not None
    pairs(mixed, batch.current.images, batch.memory.images, 0.4)


@pytest.mark.parametrize("init", ["copy", "fresh"])
def test_oter_is_absent_at_step_1(make_batch: MakeBatch, toy: Any, init: str) -> None:
    values = []
    for oter in (False, True):
        tuner = BER(oter=oter, init=init)  # type: ignore[arg-type]
        batch = make_batch(tuner, memory=False)
        values.append(found(tuner, tuner.extra(batch.source), batch))
        asked_mixtures(toy, 1)  # NTER's
    assert values[0] == values[1]


class Poles(nn.Module):
    """One feature, |mean pixel|: images at opposite poles have it, their mixture in the middle has not."""

    def __init__(self, weight: float, bias: float) -> None:
        super().__init__()
        self.head = nn.Linear(1, 2)
        nn.init.constant_(self.head.weight, weight)
        nn.init.constant_(self.head.bias, bias)

    def features(self, images: Tensor) -> Tensor:
        return images.mean(dim=(1, 2, 3)).abs()[:, None]

    def classify(self, features: Tensor) -> Tensor:
        logits: Tensor = self.head(features)
        return logits


def at_the_poles(make_batch: MakeBatch, tuner: BER, model: Poles) -> Batch:
    """Images of class 0 at +1 and of class 1 at −1, mixed half and half; the memory at +1."""
    batch = make_batch(tuner, current=[0, 1, 0, 1, 0, 1])
    pole = torch.tensor([1.0, -1.0] * 3).view(6, 1, 1, 1).expand(6, 3, 4, 4)
    current = Views(pole, model.features(pole), batch.current.labels)
    memory = Views(pole.abs(), model.features(pole), torch.zeros(6, dtype=torch.int64))
    batch.source.inputs = replace(batch.source.inputs, model=model)  # type: ignore[arg-type]
    return replace(batch, current=current, memory=memory, drawn=(torch.tensor(0.5), batch.drawn[1]))


LOG2 = math.log(2)


def test_right_of_the_margins_there_is_no_penalty(make_batch: MakeBatch) -> None:
    """E(x) = −30.7 < −27 and E(x̄) = −.7 > −5, under the values of the sheet: CE is all there is."""
    model = Poles(weight=30.0, bias=0.0)
    batch = at_the_poles(make_batch, BER(), model)
    assert found(BER(), Extra(model.head), batch) == pytest.approx(2 * LOG2, rel=1e-5)


@pytest.mark.parametrize("oter", [False, True])
def test_wrong_of_the_margins_there_is_one(make_batch: MakeBatch, oter: bool) -> None:
    """The other way round: E(x) = −.7, far above −27, and E(x̄) = −30.7, far below −5."""
    model = Poles(weight=-30.0, bias=30.0)
    tuner = BER(oter=oter, share=0.0)  # so that m̄ = m, whose energy is the current images'
    batch = at_the_poles(make_batch, tuner, model)
    inside, outside = (27 - LOG2) ** 2, (30 + LOG2 - 5) ** 2
    expected = 2 * LOG2 + 0.1 * (inside + outside + oter * inside)
    assert found(tuner, Extra(model.head), batch) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("side", [-1, 1])
def test_hinges_are_0_to_one_side_of_their_margin(side: int) -> None:
    class Margins(EnergyTuner):
        def loss(self, extra: Extra, batch: Batch) -> Tensor:
            raise AssertionError

    tuner = Margins(margin_in=-10.0, margin_out=-10.0)
    extra = Extra(nn.Identity())
    logits = torch.full((3, 1), 10.0 + side)  # E = −10 − side
    assert float(tuner.hinge_in(extra, logits)) == (0.0 if side > 0 else 1.0)
    assert float(tuner.hinge_out(extra, logits)) == (1.0 if side > 0 else 0.0)
    for hinge in (tuner.hinge_in, tuner.hinge_out):  # logits that are there are not computed again
        assert hinge(extra, torch.zeros(3, 1), logits) == hinge(extra, logits)


@with_and_without
def test_margins_of_the_model_are_its_mean_energies(make_batch: MakeBatch, toy: Any, memory: bool) -> None:
    """m_in and m_out of each kind of sample are the mean of what h_t gives it, whatever f has become."""
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


@pytest.mark.parametrize("memory", [False, True])
def test_a_batch_of_a_single_class_has_no_mixtures(make_batch: MakeBatch, memory: bool) -> None:
    """There is no pair of different classes: L_n is hinge_in(x) alone, and all is finite."""
    tuner = BER(oter=False, **MARGINS)
    batch = make_batch(tuner, memory, current=[3] * 6)
    extra = other_head(tuner, batch)
    logits = linear(extra.head, rows(batch.current.features))
    expected = ce(logits, [3] * 6) + 0.3 * hinge_in(logits, -4.5)
    if batch.memory is not None:
        expected += ce(linear(extra.head, rows(batch.memory.features)), batch.memory.labels.tolist())
    assert found(tuner, extra, batch) == pytest.approx(expected, rel=1e-4)


labelled = st.lists(
    st.tuples(st.integers(0, 3), st.floats(0, 1, exclude_max=True, width=32)), min_size=1, max_size=20
)


def test_a_share_is_the_first_part_of_what_is_drawn() -> None:
    """A seed's runs stay what they were: the second part would be as good a draw."""
    drawn = dirichlet(0.5, (4, 2), torch.Generator().manual_seed(3))
    assert torch.equal(beta(0.5, (4,), torch.Generator().manual_seed(3)), drawn[:, 0])


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


def test_every_possible_partner_is_as_likely() -> None:
    labels = [0, 1, 0, 2, 1, 0]
    grid = (torch.arange(60) + 0.5) / 60
    chosen = [other_class(torch.tensor(labels), chance.expand(6))[0].tolist() for chance in grid]
    for i, label in enumerate(labels):
        others = [j for j, other in enumerate(labels) if other != label]
        picks = [row[i] for row in chosen]
        assert {j: picks.count(j) for j in set(picks)} == {j: 60 // len(others) for j in others}


def test_ber_draws_one_b_a_batch_from_beta_1_1() -> None:
    weights, chance = BER().draw(4000, 3, 2, torch.Generator().manual_seed(0))
    assert weights.shape == (4000,)
    assert chance.shape == (4000, 3)
    assert float(weights.mean()) == pytest.approx(0.5, abs=0.02)
    assert float(weights.var()) == pytest.approx(1 / 12, rel=0.05)  # uniform
    narrow, _ = BER(concentration=50.0).draw(4000, 3, 2, torch.Generator().manual_seed(0))
    assert float(narrow.var()) == pytest.approx(1 / (4 * 101), rel=0.1)


# --- OE, on BER's mixtures ---------------------------------------------------------------------------------


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


def test_oe_has_the_mixtures_of_ber(make_batch: MakeBatch, toy: Any) -> None:
    made = []
    for tuner in (OE(), BER(oter=False)):
        batch = make_batch(tuner)
        found(tuner, tuner.extra(batch.source), batch)
        made += asked_mixtures(toy, 1)
    assert torch.equal(*made)


def test_oe_of_a_single_class_is_cross_entropy(make_batch: MakeBatch) -> None:
    tuner = OE()
    batch = make_batch(tuner, memory=False, current=[3] * 6)
    extra = other_head(tuner, batch)
    expected = ce(linear(extra.head, rows(batch.current.features)), [3] * 6)
    assert found(tuner, extra, batch) == pytest.approx(expected, rel=1e-4)


# --- MORE --------------------------------------------------------------------------------------------------


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
def test_more_scores_by_its_surest_task(make_batch: MakeBatch, name: str) -> None:
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


def test_more_begins_as_the_model_with_no_other(make_batch: MakeBatch, toy: Any) -> None:
    tuner = MORE()
    batch = make_batch(tuner)
    head = tuner.extra(batch.source).head
    assert isinstance(head, TaskHead)
    assert torch.equal(head(batch.current.features), toy.classify(batch.current.features))
    assert not any(parameter.any() for parameter in head.other.parameters())
    assert head.member.tolist() == [[True, False]] * 2 + [[False, True]] * 2
    batch.source.tasks = None  # nobody says: one task
    assert tuner.extra(batch.source).head.member.tolist() == [[True]] * 4
    batch.source.tasks = torch.tensor([1, 2, 2])
    with pytest.raises(BadInput, match="tasks are of 3 classes: the model's head has 4"):
        tuner.extra(batch.source)


def test_more_tells_tasks_apart(make_batch: MakeBatch) -> None:
    """Trained on its images, a task is far surer of its own than of another's."""
    tuner = MORE()
    batch = make_batch(tuner)
    extra = tuner.extra(batch.source)
    head = extra.head
    assert isinstance(head, TaskHead)
    assert batch.memory is not None

    def gap() -> float:
        """Log odds of images in their own task, less those in the other."""
        z = [head.by_task(views.features) for views in (batch.memory, batch.current)]
        (a, b), (c, d) = ((known - other).mean(dim=0).tolist() for _, other, known in z)
        return a - b + d - c

    before = gap()
    optimiser = torch.optim.SGD(extra.parameters(), lr=0.5)
    for _ in range(60):
        optimiser.zero_grad()
        tuner.loss(extra, batch).backward()
        optimiser.step()
    assert gap() > before + 3


# --- VOS, NPOS ---------------------------------------------------------------------------------------------

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
        monkeypatch.setattr(Queue, "known_to_wait", False)
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
    """2 z + 1: what a model may have after its linear layer."""

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


# --- all nine ----------------------------------------------------------------------------------------------


def test_values_are_those_of_the_methods_sheet() -> None:
    """And there are seven of the paper's, and two more."""
    energy = {"alpha": 0.1, "margins": "fixed", "margin_in": -27.0, "margin_out": -5.0}
    augmix_values = {
        "weight": 12.0,
        "severity": 1.0,
        "width": 3,
        "depth": 0,
        "concentration": 1.0,
        "rule": "torchvision",
    }
    npos = {"neighbours": 400, "boundary": 200, "chosen": 2, "perturbations": 1000, "kept": 300, "sigma": 0.1}
    own: dict[str, dict[str, Any]] = {
        "logitnorm": {"tau": 0.04},
        "t2fnorm": {"tau": 0.1, "scored": "raw"},
        "augmix": augmix_values,
        "regmix": {"share": 0.5, "concentration": 10.0},
        "vos": {**energy, "queue": 1000, "outliers_by": "head", "samples": 10_000, "ridge": 1e-4},
        "npos": {**energy, "queue": 1000, "outliers_by": "head", **npos, "distances": "directions"},
        "ber": {**energy, "nter": True, "oter": True, "concentration": 1.0, "share": 0.002},
        "oe": {"weight": 0.5, "concentration": 1.0},
        "more": {"scored": "task"},
    }
    tuners = {name: DETECTORS.create(name) for name in DETECTORS.names()}
    tuners = {name: tuner for name, tuner in tuners.items() if isinstance(tuner, Tuner)}
    schedule = Schedule(epochs=10, lr=0.001, decay="cosine", momentum=0.9, weight_decay=5e-4)
    for name, tuner in tuners.items():
        assert DETECTORS.create(f"{name}@stated").schedule == replace(schedule, lr=0.1)
        assert tuner.family == ("continual" if name == "more" else "fine-tuning")
        common = {"schedule": schedule, "batch_size": 128, "init": "copy", "temperature": 1.0}
        common |= {"by_task": False, "scored_by": None, "head_of": None}
        assert {f.name: getattr(tuner, f.name) for f in fields(tuner)} == common | own[name], name
    assert tuners.keys() == own.keys()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"neighbours": 1000}, "npos.neighbours = 1000 is not allowed: it should be below queue = 1000"),
        ({"boundary": 1001}, "npos.boundary = 1001 is not allowed: it should be at most queue = 1000"),
        ({"chosen": 201}, "npos.chosen = 201 is not allowed: it should be at most boundary = 200"),
        ({"kept": 9, "perturbations": 8}, "npos.kept = 9 is not allowed: it should be at most perturbations"),
    ],
)
def test_npos_refuses_values_that_do_not_fit_each_other(values: dict[str, int], said: str) -> None:
    with pytest.raises(Exception, match=said):
        DETECTORS.create("npos", **values)


def test_logits_of_almost_no_length_are_not_stretched_to_full_length() -> None:
    """A logit of 1e-7 is divided by twice that, so it is half as long as others."""
    z, label = torch.tensor([[1e-7, 0.0, 0.0]]), torch.tensor([0])
    part = SimpleNamespace(features=z, labels=label)
    found = LogitNorm(tau=0.5).loss(lambda features: features, SimpleNamespace(current=part, parts=[part]))  # type: ignore[arg-type]
    assert float(found) == pytest.approx(ce([[1.0, 0.0, 0.0]], [0]), rel=1e-5)


@pytest.mark.parametrize("name", ["ber", "regmix", "augmix"])
def test_concentrations_are_those_that_can_be_drawn(name: str) -> None:
    for allowed in (0.01, 1e6):
        assert DETECTORS.create(name, concentration=allowed).concentration == allowed
    for refused in (0.0099, 1.1e6):
        with pytest.raises(BadInput, match="concentration"):
            DETECTORS.create(name, concentration=refused)
