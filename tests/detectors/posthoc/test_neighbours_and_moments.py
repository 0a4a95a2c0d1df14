"""Scores by neighbours, class statistics and shares of features, against references written from formulas."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import brentq, minimize_scalar
from scipy.special import log_softmax, logsumexp, softmax
from sklearn.covariance import EmpiricalCovariance
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import StandardScaler, normalize
from torch import Tensor, nn

from opencil import BadInput, Outputs, create_detector
from tests.cil.common import naive_fecam

Array = np.ndarray[Any, Any]
CLASSES, WIDTH = 6, 16
TASKS = torch.tensor([1, 1, 2, 2, 3, 3])


@pytest.fixture(scope="module")
def head() -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(WIDTH, CLASSES).requires_grad_(False)


@pytest.fixture(scope="module")
def make(head: nn.Linear) -> Callable[..., Outputs]:
    """Outputs of features around a mean for each class; the last class has but two images."""
    random = torch.Generator().manual_seed(1)
    means = 2 * torch.rand(CLASSES, WIDTH, generator=random)
    mixed = torch.randn(WIDTH, WIDTH, generator=random) / 4
    with torch.no_grad():
        head.weight.copy_(3 * (means - means.mean(dim=0)))

    def outputs(count: int, seed: int, strength: float = 1.0) -> Outputs:
        random = torch.Generator().manual_seed(seed)
        labels = torch.arange(count) % (CLASSES - 1)
        labels[:2] = CLASSES - 1
        noise = torch.randn(count, WIDTH, generator=random) @ mixed
        features = (strength * means[labels] + noise).relu()
        return Outputs(features, head(features), labels, head, tasks=TASKS)

    return outputs


@pytest.fixture(scope="module")
def setup(make: Callable[..., Outputs]) -> Outputs:
    return make(120, 2)


@pytest.fixture(scope="module")
def test(make: Callable[..., Outputs]) -> Outputs:
    return make(40, 3)


def wide(tensor: Tensor | None) -> Array:
    assert tensor is not None
    return tensor.numpy().astype(np.float64 if tensor.is_floating_point() else np.int64)


def close(found: Tensor, expected: Any) -> None:
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.double().numpy(), np.asarray(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("neighbours", [1, 10, 120])
def test_knn(setup: Outputs, test: Outputs, neighbours: int) -> None:
    unit = [normalize(wide(outputs.features)) for outputs in (setup, test)]
    far, _ = NearestNeighbors(n_neighbors=neighbours, algorithm="brute").fit(unit[0]).kneighbors(unit[1])
    close(create_detector("knn", neighbours=neighbours).fit(setup).score(test), -(far[:, -1] ** 2))


def gaussian(features: Array, labels: Array) -> tuple[list[Array], Array]:
    """Means of the classes, and the precision of features around them."""
    means = [features[labels == c].mean(axis=0) for c in np.unique(labels)]
    centred = np.concatenate(
        [features[labels == c] - m for c, m in zip(np.unique(labels), means, strict=True)]
    )
    return means, np.asarray(EmpiricalCovariance(assume_centered=True).fit(centred).precision_)


def distance(x: Array, mean: Array, precision: Array) -> float:
    return float((x - mean) @ precision @ (x - mean))


@pytest.mark.parametrize("name", ["mahalanobis", "relative-mahalanobis"])
def test_mahalanobis(setup: Outputs, test: Outputs, name: str) -> None:
    features = wide(setup.features)
    means, precision = gaussian(features, wide(setup.labels))
    background, flat = gaussian(features, np.zeros(len(features)))
    expected = []
    for x in wide(test.features):
        own = min(distance(x, mean, precision) for mean in means)
        expected.append((distance(x, background[0], flat) if name.startswith("relative") else 0) - own)
    close(create_detector(name).fit(setup.features, labels=setup.labels).score(test.features), expected)


def test_fecam_distance(setup: Outputs, test: Outputs) -> None:
    assert setup.labels is not None
    features = [setup.features[setup.labels == c] for c in range(CLASSES)]
    expected = [-min(naive_fecam(features, x)) for x in wide(test.features)]
    found = create_detector("fecam-distance").fit(setup).score(test)
    np.testing.assert_allclose(found.numpy(), expected, rtol=2e-3)


def test_she(setup: Outputs, test: Outputs) -> None:
    features, labels, predicted = wide(setup.features), wide(setup.labels), wide(setup.logits).argmax(axis=1)
    labels = labels.copy()
    labels[labels == 4] = 3  # no image of class 4 is left
    labels[1] = 3  # and one of class 5
    predicted = np.where((labels == 2) | (labels == 5), 0, predicted)  # none of 2 and 5 is predicted rightly
    logits = torch.nn.functional.one_hot(torch.tensor(predicted), CLASSES).float()
    expected = []
    for x, z in zip(wide(test.features), wide(test.logits), strict=True):
        c = z.argmax()
        right = features[(labels == c) & (predicted == c)]
        mine = features[labels == c]
        pattern = next(part for part in (right, mine, features) if len(part)).mean(axis=0)
        expected.append(x @ pattern)
    assert {2, 4, 5} <= set(wide(test.logits).argmax(axis=1))
    close(create_detector("she").fit(setup.features, logits, torch.tensor(labels)).score(test), expected)


@pytest.mark.parametrize("variance", [0.5, 0.9, 1.0])
@pytest.mark.parametrize("max_logit", [False, True])
def test_neco(setup: Outputs, test: Outputs, variance: float, max_logit: bool) -> None:
    """One feature is constant in the set-up, and one sample is near the mean."""
    known = setup.features.clone()
    known[:, 3] = 2.0
    features, logits = (
        torch.cat([own, more])
        for own, more in ((test.features, known.mean(dim=0)[None] + 0.01), (test.logits, test.logits[:1]))
    )
    scaler = StandardScaler().fit(wide(known))
    axes = PCA().fit(scaler.transform(wide(known)))
    held = np.cumsum(axes.explained_variance_ratio_)
    count = next(i + 1 for i, share in enumerate(held) if share >= variance - 1e-9)
    assert (count < WIDTH - 1) == (variance < 1)
    x = scaler.transform(wide(features))
    expected = np.linalg.norm(axes.transform(x)[:, :count], axis=1) / np.linalg.norm(x, axis=1)
    expected = expected * (wide(logits).max(axis=1) if max_logit else 1)
    detector = create_detector("neco", variance=variance, max_logit=max_logit).fit(known, setup.logits)
    close(detector.score(features, logits), expected)


def test_pnml(setup: Outputs, test: Outputs, head: nn.Linear) -> None:
    x, unit = normalize(wide(setup.features)), normalize(wide(test.features))
    inverse = np.linalg.pinv(x) @ np.linalg.pinv(x).T
    weight, bias = wide(head.weight), wide(head.bias)
    expected = []
    for f in unit:
        p, q = softmax(weight @ f + bias), f @ inverse @ f
        expected.append(-np.log(np.sum(p / (p + (1 - p) * p ** (q / (1 + q))))) / np.log(CLASSES))
    close(create_detector("pnml").fit(setup.features).score(test.features, classify=head), expected)


def test_pnml_outside_the_span_of_the_set_up(setup: Outputs, test: Outputs, head: nn.Linear) -> None:
    """Three features are 0 in the set-up: their length in a sample lowers its score."""
    dead = torch.arange(WIDTH) < 3
    x, unit = normalize(wide(setup.features * ~dead)), normalize(wide(test.features))
    inverse = np.linalg.pinv(x) @ np.linalg.pinv(x).T
    weight, bias = wide(head.weight), wide(head.bias)
    expected, by_span = [], []
    for f in unit:
        p, q, outside = softmax(weight @ f + bias), f @ inverse @ f, (f[:3] ** 2).sum()
        kappa = max(q / (1 + q), outside)
        by_span.append(outside > q / (1 + q))
        expected.append(-np.log(np.sum(p / (p + (1 - p) * p**kappa))) / np.log(CLASSES))
    assert 0 < sum(by_span) < len(unit)
    detector = create_detector("pnml").fit(setup.features * ~dead, classify=head)
    close(detector.score(test.features), expected)


@pytest.mark.parametrize("share", [0.05, 0.09, 0.3, 1.0])
def test_lts(test: Outputs, share: float) -> None:
    expected = []
    for f, z in zip(wide(test.features - 0.2), wide(test.logits), strict=True):
        positive = np.sort(np.maximum(f, 0))[::-1]
        largest = positive[: max(1, WIDTH - round(WIDTH * (1 - share)))]
        expected.append(logsumexp((positive.sum() / largest.sum()) ** 2 * z))
    for scale in (1.0, 0.001):  # the share that some features have of all is that of smaller ones
        close(create_detector("lts", share=share).score(scale * (test.features - 0.2), test.logits), expected)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_gradnorm_is_that_of_a_gradient(test: Outputs, head: nn.Linear, temperature: float) -> None:
    expected = []
    for f in test.features.double():
        weight = head.weight.double().clone().requires_grad_()
        z = (weight @ f + head.bias.double()) / temperature
        (-z.log_softmax(dim=0).sum()).backward()  # type: ignore[no-untyped-call]
        assert weight.grad is not None
        expected.append(float(weight.grad.abs().sum()))
    close(create_detector("gradnorm", temperature=temperature).score(test), expected)


def log_odds(logits: Array, temperature: float) -> Array:
    """log p / (1 − p) of the largest p, by the sum of the others."""
    found = [z[z.argmax()] - logsumexp(np.delete(z, z.argmax())) for z in logits / temperature]
    return np.array(found)


def test_tempscale(setup: Outputs, test: Outputs) -> None:
    logits, labels = wide(setup.logits), wide(setup.labels).copy()
    labels[::7] = 0  # some that are wrong, so that there is a best temperature

    def loss(temperature: float) -> float:
        return float(-log_softmax(logits / temperature, axis=1)[np.arange(len(labels)), labels].mean())

    best = minimize_scalar(loss, bounds=(0.1, 10), method="bounded", options={"xatol": 1e-10}).x
    assert 0.2 < best < 9
    detector = create_detector("tempscale").fit(logits=setup.logits, labels=torch.tensor(labels))
    close(detector.score(logits=test.logits), log_odds(wide(test.logits), best))


@pytest.mark.parametrize(("tail", "alpha"), [(20, 3), (5, 10)])
def test_openmax(setup: Outputs, test: Outputs, tail: int, alpha: int) -> None:
    """None of class 1 is predicted rightly, and one of class 3: it has a step for a distribution."""
    logits, labels = wide(setup.logits), wide(setup.labels).copy()
    right = logits.argmax(axis=1) == labels
    labels[np.flatnonzero(right & (labels == 1))[5:]] = 2
    labels[np.flatnonzero(right & (labels == 3))[1:]] = 2
    logits[labels == 1, 1] -= 60
    right = logits.argmax(axis=1) == labels
    assert np.bincount(labels[right], minlength=CLASSES)[[1, 3]].tolist() == [0, 1]
    assert np.bincount(labels)[[1, 3]].min() > 1
    models: dict[int, tuple[Array, float, float, float]] = {}
    for c in range(CLASSES):
        mine = logits[(labels == c) & right] if (right & (labels == c)).any() else logits[labels == c]
        mean = mine.mean(axis=0)
        far = np.sort(np.linalg.norm(mine - mean, axis=1))[-tail:]
        x = far - far[0] + 1e4
        if np.ptp(x) < 1e-9:
            models[c] = mean, far[0], math.exp(20), 1e4
            continue

        def slope(k: float, x: Array = x) -> float:
            power = np.exp(k * np.log(x / x.max()))
            return float((power * np.log(x)).sum() / power.sum() - 1 / k - np.log(x).mean())

        k = brentq(slope, 1, 1e8, xtol=1e-9, rtol=1e-14)
        models[c] = mean, far[0], k, x.max() * np.mean((x / x.max()) ** k) ** (1 / k)
    expected = []
    for z in wide(test.logits):
        revised, taken = z.copy(), 0.0
        for rank, c in enumerate(np.argsort(-z)[:alpha]):
            mean, smallest, k, scale = models[c]
            far = np.linalg.norm(z - mean) - smallest + 1e4
            with np.errstate(over="ignore"):
                share = (alpha - rank) / alpha * (1 - np.exp(-np.exp(k * np.log(far / scale))))
            revised[c], taken = z[c] * (1 - share), taken + z[c] * share
        expected.append(logsumexp(revised) - taken)
        unknown = np.exp(taken) / (np.exp(revised).sum() + np.exp(taken))
        assert 1 / (1 + np.exp(expected[-1])) == pytest.approx(unknown, rel=1e-9), "log-odds of the known"
    detector = create_detector("openmax", tail=tail, alpha=alpha)
    detector.fit(logits=torch.tensor(logits).float(), labels=torch.tensor(labels))
    close(detector.score(logits=test.logits), expected)


def test_openmax_fits_by_maximum_likelihood() -> None:
    from scipy.stats import weibull_min

    from opencil.detectors.posthoc.openmax import _fit_weibull

    values = weibull_min.rvs(3.0, scale=2.0, size=(5, 50), random_state=0)
    values[3, 10:] = np.nan
    values[4] = 7.0
    shapes, scales = _fit_weibull(torch.tensor(values).log())
    assert shapes[4].log().item() == pytest.approx(20.0), "a step, as steep as they get"
    assert scales[4].exp().item() == pytest.approx(7.0)
    for row, shape, scale in zip(values[:4], shapes[:4].tolist(), scales[:4].exp().tolist(), strict=True):
        row = row[~np.isnan(row)]
        fitted, _, size = weibull_min.fit(row, floc=0)
        assert (shape, scale) == pytest.approx((fitted, size), rel=1e-3)
        assert (
            weibull_min.logpdf(row, shape, 0, scale).sum()
            >= weibull_min.logpdf(row, fitted, 0, size).sum() - 1e-9
        )


def naive_tpl(setup: Outputs, test: Outputs, tasks: Array) -> Array:
    """Task by task, as the paper says it, with torch's own SGD."""
    features, logits, labels = wide(setup.features), wide(setup.logits), wide(setup.labels)
    own, unit = tasks[labels], normalize(features)

    def parts(f: Array, z: Array, t: int) -> tuple[Array, Array, Array]:
        means, precision = gaussian(features[own == t], labels[own == t])
        near = np.array([max(20 / max(distance(x, mean, precision), 1e-6) for mean in means) for x in f])
        out = np.zeros(len(f))
        if len(np.unique(own)) > 1:
            others = NearestNeighbors(n_neighbors=5, algorithm="brute").fit(unit[own != t])
            out = others.kneighbors(normalize(f))[0][:, -1] ** 2
        return near, out, z[:, tasks == t].max(axis=1)

    def scores(f: Array, z: Array) -> Array:
        found = []
        for t in np.unique(own):
            near, out, largest = parts(f, z, t)
            mine, _, theirs = parts(features[own == t], logits[own == t], t)
            # One that lies at its class's mean is infinitely near.
            apart = mine < 20 / 1e-6
            e = np.stack(
                [
                    near / mine[apart if apart.any() else slice(None)].mean() + out,
                    largest / np.abs(theirs).mean(),
                ]
            )
            found.append(-logsumexp(-e, axis=0))
        return np.stack(found, axis=1)

    inside, target = (
        torch.tensor(scores(features, logits)),
        torch.tensor(np.searchsorted(np.unique(own), own)),
    )
    slope = torch.ones(inside.shape[1], dtype=torch.float64, requires_grad=True)
    shift = torch.zeros(inside.shape[1], dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.SGD([slope, shift], lr=0.01, momentum=0.8)
    for _ in range(100):
        optimiser.zero_grad()
        nn.functional.cross_entropy(slope * inside + shift, target).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    outside = scores(wide(test.features), wide(test.logits))
    return np.asarray((slope.detach().numpy() * outside + shift.detach().numpy()).max(axis=1))


@pytest.mark.parametrize("tasks", [TASKS, torch.ones(CLASSES, dtype=torch.int64)], ids=["three", "one"])
@pytest.mark.parametrize("left_out", [0, 1], ids=["", "one image of a class"])
def test_tpl(setup: Outputs, test: Outputs, tasks: Tensor, left_out: int) -> None:
    assert setup.labels is not None
    features, logits, labels = (t[left_out:] for t in (setup.features, setup.logits, setup.labels))
    known = Outputs(features, logits, labels, tasks=tasks)
    close(create_detector("tpl").fit(known).score(test), naive_tpl(known, test, wide(tasks)))


def test_tpl_without_tasks_has_one_and_refuses_those_of_other_classes(setup: Outputs, test: Outputs) -> None:
    ones = Outputs(setup.features, setup.logits, setup.labels, tasks=torch.ones(CLASSES, dtype=torch.int64))
    plain = create_detector("tpl").fit(setup.features, setup.logits, setup.labels)
    assert torch.equal(plain.score(test), create_detector("tpl").fit(ones).score(test))
    assert not torch.equal(plain.score(test), create_detector("tpl").fit(setup).score(test))
    with pytest.raises(BadInput):
        create_detector("tpl").fit(Outputs(setup.features, setup.logits, setup.labels, tasks=TASKS[:3]))
