"""Detectors that shape features or read the head as W and b, against numpy, scipy and scikit-learn."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from sklearn.covariance import EmpiricalCovariance
from torch import nn

from opencil import BadInput, Detector, Outputs, create_detector
from opencil.cil.bic import CorrectedModel
from opencil.cil.foster import BoostedModel
from opencil.detectors import chunks
from opencil.detectors.posthoc.residual import authors_dimensions
from opencil.engine.forward import forward
from opencil.engine.seeding import seeded
from opencil.nets.model import Model
from opencil.nets.resnet import resnet8

Array = np.ndarray
CLASSES, WIDTH = 6, 16
NAMES = ["vim", "residual", "ash", "ash@p", "ash@b", "scale", "vra", "vra@openood", "dice", "fdbd", "nci"]


@pytest.fixture(scope="module")
def head() -> nn.Linear:
    with seeded(3):
        return nn.Linear(WIDTH, CLASSES)


@pytest.fixture(scope="module")
def w(head: nn.Linear) -> Array:
    return head.weight.detach().double().numpy()


@pytest.fixture(scope="module")
def b(head: nn.Linear) -> Array:
    return head.bias.detach().double().numpy()


@pytest.fixture(scope="module")
def make(head: nn.Linear) -> Callable[..., Outputs]:
    """Features, those below ``floor`` at it, with their logits and head."""

    def made(count: int, seed: int, floor: float = 0.0) -> Outputs:
        numbers = torch.Generator().manual_seed(seed)
        features = (torch.randn(count, WIDTH, generator=numbers) * 2).clamp(min=floor)
        with torch.no_grad():
            return Outputs(features, head(features), torch.arange(count) % CLASSES, head)

    return made


@pytest.fixture(scope="module")
def setup(make: Callable[..., Outputs]) -> Outputs:
    return make(60, 1)


@pytest.fixture(scope="module")
def out(make: Callable[..., Outputs]) -> Outputs:
    return make(25, 2)


def close(detector: Detector, setup: Outputs, out: Outputs, expected: Array) -> None:
    found = detector.fit(setup).score(out)
    np.testing.assert_allclose(found.double().numpy(), expected, rtol=1e-5, atol=1e-5)


def of(outputs: Outputs) -> tuple[Array, Array]:
    return outputs.features.double().numpy(), outputs.logits.double().numpy()


# --- shaped features ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["p", "b", "s"])
@pytest.mark.parametrize("percentile", [0.0, 65.0, 90.0, 100.0])
def test_ash(variant: str, percentile: float, setup: Outputs, out: Outputs, w: Array, b: Array) -> None:
    shaped = []
    for f in of(out)[0]:
        kept = np.argsort(-f, kind="stable")[: max(1, WIDTH - round(WIDTH * percentile / 100))]
        new = np.zeros(WIDTH)
        new[kept] = {"p": f[kept], "b": f.sum() / len(kept), "s": f[kept] * np.exp(f.sum() / f[kept].sum())}[
            variant
        ]
        shaped.append(new)
    expected = logsumexp(np.array(shaped) @ w.T + b, axis=1)
    close(create_detector("ash", variant=variant, percentile=percentile), setup, out, expected)


@pytest.mark.parametrize("percentile", [0.0, 85.0, 95.0])
def test_scale(percentile: float, setup: Outputs, out: Outputs, w: Array, b: Array) -> None:
    count = WIDTH - round(WIDTH * percentile / 100)
    scaled = np.array([f * np.exp(f.sum() / np.sort(f)[-count:].sum()) for f in of(out)[0]])
    close(create_detector("scale", percentile=percentile), setup, out, logsumexp(scaled @ w.T + b, axis=1))


@pytest.mark.parametrize("label", ["vra", "vra@openood"])
def test_vra(label: str, make: Callable[..., Outputs], w: Array, b: Array) -> None:
    setup, out = make(60, 1, floor=-9.0), make(25, 2, floor=-9.0)
    f, known = of(out)[0], of(setup)[0]
    if label == "vra":
        low, high = np.quantile(known, 0.6, axis=0), np.quantile(known, 0.95, axis=0)
        shaped = np.where(f < low, 0.0, np.where(f > high, high, f))
    else:
        shaped = np.clip(f, np.quantile(known, 0.1), np.quantile(known, 0.9))
    close(create_detector(label), setup, out, logsumexp(shaped @ w.T + b, axis=1))


def test_vra_keeps_features_that_are_the_lower_threshold(head: nn.Linear) -> None:
    known = torch.arange(1.0, 4.0)[:, None].expand(-1, WIDTH)
    found = create_detector("vra", low=50.0, high=100.0).fit(known, classify=head).score(known[:2])
    with torch.no_grad():
        expected = head(torch.stack([torch.zeros(WIDTH), known[1]])).logsumexp(dim=1)
    torch.testing.assert_close(found, expected)


def test_vra_refuses_thresholds_in_the_wrong_order() -> None:
    with pytest.raises(BadInput, match=r"vra.low = 70.0 is not allowed: it should be at most high = 60.0"):
        create_detector("vra", low=70.0, high=60.0)
    create_detector("vra", low=60.0, high=60.0)


def test_a_percentile_of_equal_features_is_the_same_everywhere(head: nn.Linear) -> None:
    """ASH-B fills as many features as it keeps, zeros too where there are no others: the first of them."""
    features = torch.zeros(1, WIDTH)
    features[0, 9] = 6.0
    filled = torch.zeros(1, WIDTH)
    filled[0, [9, 0, 1, 2, 3, 4]] = 1.0
    with torch.no_grad():
        expected = head(filled).logsumexp(dim=1)
    torch.testing.assert_close(create_detector("ash@b").score(features, classify=head), expected)


# --- the head as W and b -----------------------------------------------------------------------------------


@pytest.mark.parametrize("percentile", [0.0, 70.0, 90.0])
def test_dice(percentile: float, setup: Outputs, out: Outputs, w: Array, b: Array) -> None:
    contribution = w * of(setup)[0].mean(axis=0)
    masked = np.where(contribution > np.percentile(contribution, percentile), w, 0.0)
    expected = logsumexp(of(out)[0] @ masked.T + b, axis=1)
    close(create_detector("dice", percentile=percentile), setup, out, expected)


@pytest.mark.parametrize("divided_by", ["distance", "norm"])
def test_fdbd(divided_by: str, setup: Outputs, out: Outputs, w: Array) -> None:
    mean, expected = of(setup)[0].mean(axis=0), []
    for f, z in zip(*of(out), strict=True):
        y = int(z.argmax())
        apart = [(z[y] - z[c]) / np.linalg.norm(w[y] - w[c]) for c in range(CLASSES) if c != y]
        scale = np.linalg.norm(f - mean if divided_by == "distance" else f)
        expected.append(np.mean(apart) / scale)
    close(create_detector("fdbd", divided_by=divided_by), setup, out, np.array(expected))


def test_fdbd_of_a_sample_at_the_mean_is_as_if_it_were_hardly_away(setup: Outputs) -> None:
    detector = create_detector("fdbd").fit(setup.features, classify=lambda f: f[:, :2])
    mean, logits = setup.features.double().mean(dim=0)[None].float(), torch.tensor([[3.0, 1.0]])
    expected = 2 / math.sqrt(2) / 1e-12
    assert float(detector.score(mean, logits)) == pytest.approx(expected)


def test_fdbd_of_a_feature_of_zeros_is_not_the_surest(setup: Outputs) -> None:
    detector = create_detector("fdbd@norm").fit(setup.features, classify=lambda f: f[:, :2])
    assert detector.score(torch.zeros(1, WIDTH), torch.tensor([[1.0, 0.0]])).item() == 0


@pytest.mark.parametrize("name", ["ash", "scale", "react"])
def test_the_head_may_be_given_once(name: str, setup: Outputs, out: Outputs) -> None:
    detector = create_detector(name).fit(setup.features, classify=setup.classify)
    given = create_detector(name).fit(setup).score(out.features, classify=setup.classify)
    torch.testing.assert_close(detector.score(out.features), given, rtol=0, atol=0)


def test_fdbd_counts_no_boundary_between_classes_of_equal_weights() -> None:
    """Of two such classes and a third, 3 away: (0 + 6 / 3) / 2, over a distance of 4 to the mean."""
    head = nn.Linear(1, 3)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0], [1.0], [-2.0]]))
        head.bias.copy_(torch.tensor([0.0, -5.0, 3.0]))
    detector = create_detector("fdbd").fit(torch.tensor([[-1.0], [-1.0]]), classify=head)
    features = torch.tensor([[3.0]])
    assert float(detector.score(features, head(features).detach())) == pytest.approx(2 / 2 / 4)


@pytest.mark.parametrize("alpha", [0.0, 1e-4, 0.3])
def test_nci(alpha: float, setup: Outputs, out: Outputs, w: Array) -> None:
    mean, expected = of(setup)[0].mean(axis=0), []
    for f, z in zip(*of(out), strict=True):
        centred = f - mean
        expected.append(w[z.argmax()] @ centred / np.linalg.norm(centred) + alpha * np.abs(f).sum())
    close(create_detector("nci", alpha=alpha), setup, out, np.array(expected))


def residuals(known: Array, features: Array, w: Array, b: Array, dimensions: int) -> Array:
    u = -np.linalg.pinv(w) @ b
    values, vectors = np.linalg.eig(EmpiricalCovariance(assume_centered=True).fit(known - u).covariance_)
    rest = vectors.T[np.argsort(-values)[dimensions:]].T
    return np.linalg.norm((features - u) @ rest, axis=1)


@pytest.mark.parametrize(("dimensions", "used"), [(0, WIDTH // 2), (3, 3), (15, 15)])
def test_residual_and_vim(
    dimensions: int, used: int, setup: Outputs, out: Outputs, w: Array, b: Array
) -> None:
    (known, z_known), (f, z) = of(setup), of(out)
    lengths = residuals(known, f, w, b, used)
    close(create_detector("residual", dimensions=dimensions), setup, out, -lengths)
    alpha = z_known.max(axis=1).mean() / residuals(known, known, w, b, used).mean()
    expected = logsumexp(z, axis=1) - alpha * lengths
    close(create_detector("vim", dimensions=dimensions), setup, out, expected)


def test_dimensions_are_the_authors() -> None:
    widths = {4096: 1000, 2048: 1000, 2047: 512, 768: 512, 767: 383, 64: 32, 1: 0}
    assert {width: authors_dimensions(width) for width in widths} == widths


@pytest.mark.parametrize(("width", "kept"), [(64, 32), (1, 0)])
def test_the_principal_space_has_the_authors_dimensions(width: int, kept: int) -> None:
    """All set-up features lie in one direction more than the space has: what is left is that one's rest."""
    count = kept + 1
    axes = torch.eye(count, width) * torch.arange(count + 1, 1, -1)[:, None]
    detector = create_detector("residual").fit(axes, classify=lambda f: f[:, :1])
    probe = torch.zeros(2, width)
    probe[0, kept] = 3.0
    probe[1, max(0, kept - 1)] = 3.0
    found = detector.score(probe).tolist()
    assert found == pytest.approx([-3.0, 0.0 if kept else -3.0], abs=1e-5)


@pytest.mark.parametrize("name", ["vim", "residual"])
def test_a_principal_space_as_wide_as_the_features_is_refused(name: str, setup: Outputs) -> None:
    with pytest.raises(BadInput, match=r"dimensions = 16 leave nothing of 16 features: fewer are needed"):
        create_detector(name, dimensions=16).fit(setup)


def test_a_principal_space_that_holds_every_set_up_feature(make: Callable[..., Outputs]) -> None:
    """Five samples span five directions of eight: all others are residual, and ViM has no scale for it."""
    few, out = make(5, 4), make(9, 5)
    features = few.features.double().numpy()
    basis = np.linalg.svd(features)[2][:5]
    f = out.features.double().numpy()
    expected = -np.linalg.norm(f - f @ basis.T @ basis, axis=1)
    for scale in (1.0, 1e7):  # whatever features are measured in: what is left of them is rounding
        known = replace(few, features=scale * few.features)
        assert torch.equal(create_detector("vim").fit(known).score(out), create_detector("energy").score(out))
        known = create_detector("residual").fit(known.features, classify=lambda f: f @ few.features[:2].T)
        found = known.score(scale * out.features).numpy() / scale
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_small_residual_is_no_rounding() -> None:
    """Three features, and thirteen of a millionth of them: seven digits tell them apart from nothing."""
    numbers = torch.Generator().manual_seed(0)
    known, some = (torch.randn(count, WIDTH, generator=numbers) for count in (400, 5))
    for features in (known, some):
        features[:, 3:] *= 8e-7
    detector = create_detector("vim", dimensions=3).fit(known, known[:, :2], classify=lambda f: f[:, :2])
    apart = known[:, 3:].norm(dim=1).double().mean()
    assert 1e-6 < float(apart / known.norm(dim=1).mean()) < 2e-6
    alpha = known[:, :2].amax(dim=1).double().mean() / apart
    virtual = some[:, :2].logsumexp(dim=1) - detector.score(some, some[:, :2])
    np.testing.assert_allclose(virtual.numpy(), (alpha * some[:, 3:].norm(dim=1)).numpy(), rtol=0.1)


def test_vim_of_set_up_features_that_are_all_zero(out: Outputs) -> None:
    dead = torch.zeros_like(out.features)
    detector = create_detector("vim").fit(dead, out.logits, classify=lambda f: f[:, :6])
    assert torch.equal(detector.score(out), create_detector("energy").score(out))


# --- what all of them bear ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", ["negative", "zero", "at the mean", "one sample", "one class", "equal rows"])
def test_odd_features_have_finite_scores(
    name: str, case: str, make: Callable[..., Outputs], setup: Outputs
) -> None:
    """``score`` refuses what is not finite; that a sample's score is its own alone is in the contract."""
    known, out = setup, make(4, 7)
    if case == "negative":
        known, out = make(40, 6, floor=-100.0), make(4, 7, floor=-100.0)
        out.features[0] = -out.features[0].abs()
    elif case == "zero":
        out.features[:] = 0.0
    elif case == "at the mean":
        out.features[:] = known.features.mean(dim=0)
    elif case == "one sample":
        known = make(1, 8)
    elif case == "one class":
        known = Outputs(known.features, known.logits[:, :1], classify=lambda f: f[:, :1])
        out = Outputs(out.features, out.logits[:, :1], classify=known.classify)
    else:
        known = Outputs(known.features, known.logits, classify=lambda f: f[:, :1].expand(-1, CLASSES))
        out = Outputs(out.features, out.logits, classify=known.classify)
    assert create_detector(name).fit(known).score(out).shape == (4,)


@pytest.mark.parametrize("name", NAMES)
def test_chunks_change_nothing(
    name: str, setup: Outputs, out: Outputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = create_detector(name).fit(setup).score(out)
    monkeypatch.setattr(chunks, "BUDGET", 1000)  # a row or a few at a time
    torch.testing.assert_close(create_detector(name).fit(setup).score(out), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["vim", "dice", "fdbd", "nci"])
def test_plain_tensors_need_a_head_in_the_set_up_alone(name: str, setup: Outputs, out: Outputs) -> None:
    found = create_detector(name).fit(setup.features, setup.logits, classify=setup.classify)
    assert torch.equal(found.score(out.features, out.logits), create_detector(name).fit(setup).score(out))


@pytest.mark.parametrize("name", ["fdbd", "nci"])
def test_logits_of_another_width_than_the_heads_are_refused(name: str, setup: Outputs, out: Outputs) -> None:
    detector = create_detector(name).fit(setup.features, classify=setup.classify)
    with pytest.raises(BadInput, match=r"logits have 5 columns: .* was set up on 6"):
        detector.score(out.features, out.logits[:, :5])


@pytest.fixture(scope="module")
def grown() -> dict[str, tuple[Outputs, Outputs]]:
    """Outputs of BiC's corrected head and of FOSTER's over two backbones."""
    with seeded(0, "models"):
        corrected, boosted = (
            CorrectedModel(resnet8(), [2, 3]),
            BoostedModel(Model(resnet8(), 2), 5, "boosted"),
        )
    with torch.no_grad():
        corrected.corrections[1].alpha.fill_(0.6)
        corrected.corrections[1].beta.fill_(-0.4)
    images = torch.randn(40, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    models = {"bic": corrected.eval(), "foster": boosted.eval()}
    return {name: (forward(m, images[:30]), forward(m, images[30:])) for name, m in models.items()}


@pytest.mark.parametrize("name", [*NAMES, "gram", "rankfeat"])
@pytest.mark.parametrize("cil", ["bic", "foster"])
def test_heads_of_other_forms(name: str, cil: str, grown: dict[str, tuple[Outputs, Outputs]]) -> None:
    known, out = grown[cil]
    scores = create_detector(name).fit(known).score(out)
    assert scores.unique().numel() > 5


def test_a_corrected_head_is_read_with_its_corrections(grown: dict[str, tuple[Outputs, Outputs]]) -> None:
    known, out = grown["bic"]
    assert known.inputs is not None
    head = known.inputs.model.head  # type: ignore[attr-defined]
    factor = np.array([1, 1, 0.6, 0.6, 0.6])
    w = head.weight.detach().double().numpy() * factor[:, None]
    b = head.bias.detach().double().numpy() * factor - np.array([0, 0, 0.4, 0.4, 0.4])
    contribution = w * of(known)[0].mean(axis=0)
    masked = np.where(contribution > np.percentile(contribution, 90), w, 0.0)
    close(create_detector("dice"), known, out, logsumexp(of(out)[0] @ masked.T + b, axis=1))
