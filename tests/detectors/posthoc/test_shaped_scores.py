"""Detectors that shape features or read the head as W and b, against numpy, scipy and scikit-learn."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from sklearn.covariance import EmpiricalCovariance
from torch import nn

from opencil import BadInput, Detector, Outputs, create_detector
from opencil.engine.seeding import seeded

Array = np.ndarray
CLASSES, WIDTH = 6, 16


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
    """Return outputs with features clamped at ``floor``."""

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


def test_vra_refuses_thresholds_in_the_wrong_order() -> None:
    with pytest.raises(BadInput):
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


def test_fdbd_of_a_feature_of_zeros(setup: Outputs) -> None:
    detector = create_detector("fdbd@norm").fit(setup.features, classify=lambda f: f[:, :2])
    assert detector.score(torch.zeros(1, WIDTH), torch.tensor([[1.0, 0.0]])).item() == 0


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


@pytest.mark.parametrize(("width", "kept"), [(64, 32), (1, 0)])
def test_the_principal_space_has_the_authors_dimensions(width: int, kept: int) -> None:
    """Set-up features span one direction more than the principal space: that of the residual."""
    count = kept + 1
    axes = torch.eye(count, width) * torch.arange(count + 1, 1, -1)[:, None]
    detector = create_detector("residual").fit(axes, classify=lambda f: f[:, :1])
    probe = torch.zeros(2, width)
    probe[0, kept] = 3.0
    probe[1, max(0, kept - 1)] = 3.0
    found = detector.score(probe).tolist()
    assert found == pytest.approx([-3.0, 0.0 if kept else -3.0], abs=1e-5)


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
