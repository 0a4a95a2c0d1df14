"""Detectors of 2024 to 2026 against their formulas, sample by sample, in float64."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from sklearn.decomposition import PCA
from torch import Tensor, nn

from opencil import BadInput, Detector, Inputs, Outputs, create_detector
from opencil.engine.seeding import generator, seeded

Array = np.ndarray
CLASSES, WIDTH = 6, 16


@pytest.fixture(scope="module")
def head() -> nn.Linear:
    with seeded(3):
        return nn.Linear(WIDTH, CLASSES)


@pytest.fixture(scope="module")
def make(head: nn.Linear) -> Callable[..., Outputs]:
    def made(count: int, seed: int) -> Outputs:
        features = (torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed)) * 2).relu()
        with torch.no_grad():
            return Outputs(features, head(features), torch.arange(count) % CLASSES, head)

    return made


@pytest.fixture(scope="module")
def setup(make: Callable[..., Outputs]) -> Outputs:
    return make(60, 1)


@pytest.fixture(scope="module")
def out(make: Callable[..., Outputs]) -> Outputs:
    return make(25, 2)


def doubles(*tensors: Tensor) -> list[Array]:
    return [tensor.detach().double().numpy() for tensor in tensors]


def close(detector: Detector, setup: Outputs, out: Outputs, expected: Array | list[float]) -> None:
    found = detector.fit(setup).score(out)
    np.testing.assert_allclose(found.double().numpy(), expected, rtol=1e-5, atol=1e-5)


# --- TOOD ---


def normalised_energies(known: Outputs, out: Outputs, tasks: list[range]) -> Array:
    z_known, z = doubles(known.logits, out.logits)
    assert known.labels is not None
    labels, columns = known.labels.numpy(), []
    energies = [logsumexp(z_known[np.isin(labels, [*task])][:, [*task]], axis=1) for task in tasks]
    middle = [np.median(energy) for energy in energies]
    spread = [np.median(np.abs(energy - m)) for energy, m in zip(energies, middle, strict=True)]
    for task, m, s in zip(tasks, middle, spread, strict=True):
        columns.append((logsumexp(z[:, [*task]], axis=1) - m) / s * spread[-1] + middle[-1])
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("margin", [0.0, 0.5, 3.0])
def test_tood(margin: float, setup: Outputs, out: Outputs) -> None:
    known = replace(setup, tasks=torch.tensor([1, 1, 2, 2, 2, 3]))
    ordered = np.sort(normalised_energies(known, out, [range(2), range(2, 5), range(5, 6)]), axis=1)
    expected = ordered[:, -1] + margin * (ordered[:, -1] - ordered[:, -2])
    close(create_detector("tood", margin=margin), known, out, expected)


def test_tood_of_one_task_is_energy(setup: Outputs, out: Outputs) -> None:
    close(create_detector("tood"), setup, out, doubles(create_detector("energy").score(out))[0])


def test_tood_leaves_a_task_without_images_as_it_is(setup: Outputs, out: Outputs) -> None:
    """As where a method keeps no memory: of old tasks there are no energies to compare with."""
    assert setup.labels is not None
    rows, tasks = (setup.labels > 1).nonzero().flatten(), torch.tensor([1, 1, 2, 2, 2, 2])
    known = Outputs(setup.features[rows], setup.logits[rows], setup.labels[rows], tasks=tasks)
    (z,) = doubles(out.logits)
    of_task = np.sort(np.stack([logsumexp(z[:, :2], axis=1), logsumexp(z[:, 2:], axis=1)]), axis=0)
    close(create_detector("tood"), known, out, 1.5 * of_task[1] - 0.5 * of_task[0])


# --- RAS, CADRef, ORA ---


def test_ras(setup: Outputs, out: Outputs, head: nn.Linear) -> None:
    w, b, known, features = doubles(head.weight, head.bias, setup.features, out.features)
    profile = np.sort(known, axis=1).mean(axis=0)
    expected = []
    for f in features:
        shaped = np.empty(WIDTH)
        shaped[np.argsort(f, kind="stable")] = profile
        expected.append(logsumexp(w @ shaped + b))
    close(create_detector("ras"), setup, out, expected)


def test_cadref(setup: Outputs, out: Outputs, head: nn.Linear) -> None:
    w, known, z_known, features, logits = doubles(
        head.weight, setup.features, setup.logits, out.features, out.logits
    )
    predicted, energies = z_known.argmax(axis=1), np.maximum(logsumexp(z_known, axis=1), 1e-6)
    expected = []
    for f, z in zip(features, logits, strict=True):
        y = z.argmax()
        own = known[predicted == y] if (predicted == y).any() else known
        apart, sign = f - own.mean(axis=0), np.sign(w[y])
        raising = sum(max(0.0, d * s) for d, s in zip(apart, sign, strict=True)) / np.abs(f).sum()
        lowering = sum(max(0.0, -d * s) for d, s in zip(apart, sign, strict=True)) / np.abs(f).sum()
        expected.append(-raising / max(logsumexp(z), 1e-6) - lowering / energies.mean())
    assert min(logsumexp(logits, axis=1)) > 0, "no energy is replaced"
    close(create_detector("cadref"), setup, out, expected)


def test_cadref_of_a_class_that_nothing_is_predicted_as(setup: Outputs, out: Outputs) -> None:
    shut = torch.tensor([0.0] * (CLASSES - 1) + [1e3])
    known = replace(setup, logits=setup.logits - shut)
    found = create_detector("cadref").fit(known).score(out.features, out.logits + shut)
    mean, sizes = setup.features.mean(dim=0), out.features.sum(dim=1)
    assert setup.classify is not None
    apart = (out.features - mean) * setup.classify.weight[-1].detach().sign()  # type: ignore[attr-defined]
    energy = known.logits.logsumexp(dim=1).clamp(min=1e-6).mean()
    own = (out.logits + shut).logsumexp(dim=1)
    expected = -(apart.clamp(min=0).sum(dim=1) / own - apart.clamp(max=0).sum(dim=1) / energy) / sizes
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_ora(setup: Outputs, out: Outputs, head: nn.Linear) -> None:
    w, b, features, logits = doubles(head.weight, head.bias, out.features, out.logits)
    mean, expected = doubles(setup.features)[0].mean(axis=0), []
    for f, z in zip(features, logits, strict=True):
        y, angles = z.argmax(), []
        for c in set(range(CLASSES)) - {int(y)}:
            normal = w[y] - w[c]
            moved = f - (z[y] - z[c]) / (normal @ normal) * normal
            assert moved @ w[y] + b[y] == pytest.approx(moved @ w[c] + b[c], abs=1e-5), "on the boundary"
            cosine = (f - mean) @ (moved - mean) / np.linalg.norm(f - mean) / np.linalg.norm(moved - mean)
            angles.append(np.arccos(np.clip(cosine, -1, 1)))
        expected.append(max(angles))
    close(create_detector("ora"), setup, out, expected)


def test_ora_of_equal_weights(setup: Outputs) -> None:
    """Without a boundary there is no angle."""
    detector = create_detector("ora").fit(setup.features, classify=lambda f: f[:, [0, 0]])
    assert detector.score(setup.features[:3], setup.logits[:3, [0, 0]]).tolist() == [0.0, 0.0, 0.0]


# --- Kernel PCA ---


@pytest.mark.parametrize("count", [40, 400], ids=["fewer images than axes", "more"])
@pytest.mark.parametrize("kernel", ["gaussian", "cosine"])
def test_kernel_pca(kernel: str, count: int, make: Callable[..., Outputs], out: Outputs) -> None:
    known, features = doubles(make(count, 1).features, out.features)
    random, mapped = generator(4, "kernel-pca"), []
    omega, phase = doubles(torch.randn(50, WIDTH, generator=random), torch.rand(50, generator=random))
    for f in (known, features):
        unit = f / np.linalg.norm(f, axis=1, keepdims=True)
        if kernel == "gaussian":
            unit = np.sqrt(2 / 50) * np.cos(unit @ (np.sqrt(2 * 0.7) * omega).T + 2 * np.pi * phase)
        mapped.append(unit)
    pca = PCA(0.8, svd_solver="full").fit(mapped[0])
    expected = -np.linalg.norm(mapped[1] - pca.inverse_transform(pca.transform(mapped[1])), axis=1)
    detector = create_detector("kernel-pca", kernel=kernel, variance=0.8, gamma=0.7, width=50, seed=4)
    close(detector, make(count, 1), out, expected)


def test_random_features_approximate_the_gaussian_kernel(setup: Outputs) -> None:
    detector = create_detector("kernel-pca", width=60_000, variance=0.5).fit(setup)
    mapped = detector._map(setup.features)
    unit = nn.functional.normalize(setup.features, dim=1)
    kernel = (-2.0 * torch.cdist(unit, unit).square()).exp()
    torch.testing.assert_close(mapped @ mapped.T, kernel, rtol=0, atol=0.03)


# --- AdaSCALE ---


class Network(nn.Module):
    """Two layers, whose gradients are those of the formula below."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(27, WIDTH), nn.Linear(WIDTH, CLASSES)

    def features(self, images: Tensor) -> Tensor:
        return torch.tanh(self.first(images.flatten(1)))

    def classify(self, features: Tensor) -> Tensor:
        found: Tensor = self.head(features)
        return found


def shift_of(image: Array, network: Network, k1: int, k2: int) -> tuple[Array, float]:
    w1, b1, w2, b2 = doubles(*network.parameters())
    x = image.ravel()
    f = np.tanh(w1 @ x + b1)
    gradient = w1.T @ ((1 - f**2) * w2[(w2 @ f + b2).argmax()])
    moved = x.copy()
    for i in np.argsort(np.abs(gradient))[: int(27 * 0.2)]:
        moved[i] += 0.5 * np.sign(gradient[i])
    other = np.tanh(w1 @ moved + b1)
    order = np.argsort(-f)
    return f, sum(max(0, other[i]) for i in order[:k1]) + 10 * sum(abs(f - other)[i] for i in order[:k2])


def test_adascale() -> None:
    with seeded(5):
        network = Network()
    random = torch.Generator().manual_seed(6)
    known, images = (torch.randn(count, 3, 3, 3, generator=random) for count in (40, 30))
    w2, b2 = doubles(network.head.weight, network.head.bias)
    shifts = [shift_of(image, network, k1=4, k2=2)[1] for image in doubles(known)[0]]
    expected, kept = [], set()
    for image in doubles(images)[0]:
        f, shift = shift_of(image, network, k1=4, k2=2)
        percentile = 30 + np.mean([s > shift for s in shifts]) * (80 - 30)
        k = WIDTH - round(WIDTH * percentile / 100)
        positive = np.maximum(f, 0)
        ratio = positive.sum() / np.sort(positive)[-k:].sum()
        expected.append(logsumexp(w2 @ (f * np.exp(ratio)) + b2))
        kept.add(k)
    assert len(kept) > 4, "percentiles differ"
    values = {"low": 30.0, "high": 80.0, "k1": 25.0, "k2": 12.5, "pixels": 0.2, "batch_size": 7}
    detector = create_detector("adascale", **values).fit(inputs=Inputs(network, known))
    found = detector.score(inputs=Inputs(network, images))
    np.testing.assert_allclose(found.double().numpy(), expected, rtol=1e-5, atol=1e-5)


def test_adascale_refuses_percentiles_in_the_wrong_order() -> None:
    with pytest.raises(BadInput, match="low"):
        create_detector("adascale", low=90.0)
