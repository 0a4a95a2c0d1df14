"""Every post-hoc score against a reference in float64, sample by sample, straight from its formula."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from opencil import Inputs, Outputs, Transform, create_detector
from opencil.detectors import moments
from opencil.engine.seeding import generator


def random_outputs(count: int, classes: int, width: int = 16, seed: int = 0, spread: float = 4.0) -> Outputs:
    random = torch.Generator().manual_seed(seed)
    features = torch.randn(count, width, generator=random).clamp(min=0)
    return Outputs(features, spread * torch.randn(count, classes, generator=random))


def softmax(z: list[float]) -> list[float]:
    top = max(z)
    e = [math.exp(v - top) for v in z]
    return [v / sum(e) for v in e]


def logsumexp(z: list[float]) -> float:
    top = max(z)
    return top + math.log(sum(math.exp(v - top) for v in z))


def rows(tensor: Tensor) -> list[list[float]]:
    return tensor.double().tolist()


def close(found: Tensor, expected: list[float], tolerance: float = 1e-5) -> None:
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.double().numpy(), np.array(expected), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("classes", "largest"), [(5, 100), (150, 100), (7, 3), (2, 100)])
@pytest.mark.parametrize("spread", [0.1, 4.0, 40.0])
def test_gen(classes: int, largest: int, spread: float) -> None:
    out = random_outputs(20, classes, spread=spread)

    def reference(z: list[float]) -> float:
        z = sorted(z, reverse=True)
        e = [math.exp(v - z[0]) for v in z]
        total = 0.0
        for i in range(min(largest, len(z))):
            others = sum(e[:i] + e[i + 1 :])  # 1 − p without cancellation
            total += (e[i] / sum(e)) ** 0.1 * (others / sum(e)) ** 0.1
        return -total

    close(create_detector("gen", largest=largest).score(out), [reference(z) for z in rows(out.logits)])


def test_gen_of_a_confident_prediction() -> None:
    # p = 1 − 1e-9 is 1 in float32, yet (1 − p)^0.1 is 0.13.
    score = create_detector("gen").score(logits=torch.tensor([[math.log(1e9), 0.0]]))
    assert score.item() == pytest.approx(-2 * (1e-9) ** 0.1, rel=1e-4)


@pytest.mark.parametrize("percentile", [0.0, 90.0, 37.3, 100.0])
def test_react(percentile: float) -> None:
    setup, out = random_outputs(50, 6, seed=1), random_outputs(20, 6, seed=2)
    head = nn.Linear(16, 6)
    weight, bias = rows(head.weight.detach()), head.bias.detach().double().tolist()
    ordered = sorted(v for row in rows(setup.features) for v in row)
    place = (len(ordered) - 1) * percentile / 100
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    limit = low + (high - low) * (place - math.floor(place))

    def reference(f: list[float]) -> float:
        cut = [min(v, limit) for v in f]
        pairs = zip(weight, bias, strict=True)
        return logsumexp([sum(a * b for a, b in zip(w, cut, strict=True)) + c for w, c in pairs])

    found = (
        create_detector("react", percentile=percentile).fit(setup.features).score(out.features, classify=head)
    )
    close(found, [reference(f) for f in rows(out.features)])


@pytest.mark.parametrize("spread", [1.0, 4.0, 60.0])
def test_klm(spread: float) -> None:
    setup, out = random_outputs(40, 6, seed=1, spread=spread), random_outputs(30, 6, seed=2, spread=spread)
    setup.logits[:, 4:] = -50.0  # nothing is predicted as class 5: its q is one-hot
    for row in range(3):  # and a single image as class 4
        setup.logits[row, 4] = setup.logits[row].max() + (0.5 if row == 0 else -0.5)
    tiny = float(np.finfo(np.float32).tiny)
    p_setup, q = [softmax(z) for z in rows(setup.logits)], []
    for c in range(6):
        mine = [p for p in p_setup if max(range(6), key=p.__getitem__) == c]
        mean = (
            [sum(p[j] for p in mine) / len(mine) for j in range(6)]
            if mine
            else [float(j == c) for j in range(6)]
        )
        q.append([max(v, tiny) for v in mean])

    def reference(z: list[float]) -> float:
        p = softmax(z)
        return -min(sum(a * (math.log(a) - math.log(b)) for a, b in zip(p, qc, strict=True) if a) for qc in q)

    found = create_detector("klm").fit(logits=setup.logits).score(logits=out.logits)
    close(found, [reference(z) for z in rows(out.logits)], tolerance=2e-5)


@pytest.mark.parametrize(("power", "threshold"), [(1.0, 0.03), (2.0, 0.0), (0.5, 0.2)])
def test_relation(power: float, threshold: float) -> None:
    setup, out = random_outputs(60, 6, seed=1), random_outputs(20, 6, seed=2)
    f_setup, p_setup = rows(setup.features), [softmax(z) for z in rows(setup.logits)]
    margin = math.inf

    def reference(f: list[float], z: list[float]) -> float:
        nonlocal margin
        p, total = softmax(z), 0.0
        for f_j, p_j in zip(f_setup, p_setup, strict=True):
            cosine = sum(a * b for a, b in zip(f, f_j, strict=True)) / math.hypot(*f) / math.hypot(*f_j)
            r = max(0.0, cosine) * sum(a * b for a, b in zip(p, p_j, strict=True))
            margin = min(margin, abs(r - threshold))
            total += r**power if r > threshold else 0.0
        return total

    pairs = zip(rows(out.features), rows(out.logits), strict=True)
    expected = [reference(f, z) for f, z in pairs]
    assert threshold == 0 or margin > 1e-6  # no relation so near the threshold that rounding decides
    found = create_detector("relation", power=power, threshold=threshold)
    found = found.fit(setup.features, setup.logits).score(out.features, out.logits)
    close(found, expected)


@pytest.mark.parametrize(("count", "share", "smallest", "bank"), [(300, 0.01, 128, 128), (300, 0.5, 20, 150)])
def test_nnguide(count: int, share: float, smallest: int, bank: int) -> None:
    setup, out = random_outputs(count, 6, seed=1), random_outputs(20, 6, seed=2)
    chosen = torch.randperm(count, generator=generator(5, "nnguide"))[:bank].tolist()
    f_setup, z_setup = rows(setup.features), rows(setup.logits)
    points = [[logsumexp(z_setup[j]) * v / math.hypot(*f_setup[j]) for v in f_setup[j]] for j in chosen]

    def reference(f: list[float], z: list[float]) -> float:
        similar = sorted(
            (sum(a * b for a, b in zip(f, point, strict=True)) / math.hypot(*f) for point in points),
            reverse=True,
        )
        return logsumexp(z) * sum(similar[:10]) / 10

    detector = create_detector("nnguide", neighbours=10, share=share, smallest_bank=smallest, seed=5)
    found = detector.fit(setup.features, setup.logits).score(out.features, out.logits)
    pairs = zip(rows(out.features), rows(out.logits), strict=True)
    close(found, [reference(f, z) for f, z in pairs])


class Bent(nn.Module):
    """A network whose gradient can be written by hand: f = x per pixel, z = W tanh(f) + b."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 5)
        self.norm = nn.BatchNorm1d(12)

    def features(self, images: Tensor) -> Tensor:
        return self.norm(images.flatten(1))

    def classify(self, features: Tensor) -> Tensor:
        return self.layer(features.tanh())


@pytest.mark.parametrize(("temperature", "epsilon"), [(1000.0, 0.0014), (2.0, 0.3)])
def test_odin(temperature: float, epsilon: float) -> None:
    torch.manual_seed(0)
    model, images = Bent().eval(), torch.randn(9, 3, 2, 2)
    images[::2, 0, 0, 0] = 99.0  # where tanh has no gradient: such pixels stay
    std = (0.2, 0.5, 2.0)
    transform = Transform(mean=(0.0, 0.0, 0.0), std=std, crop=2)
    weight = model.layer.weight.detach().double().numpy()
    bias = model.layer.bias.detach().double().numpy()
    scale = 1 / math.sqrt(1 + 1e-5)  # batch-norm in eval mode, as it is at first

    def logits(x: np.ndarray) -> np.ndarray:
        return weight @ np.tanh(x.flatten() * scale) + bias

    expected = []
    for x in images.double().numpy():
        z = logits(x) / temperature
        p = np.array(softmax(z.tolist()))
        wrong = p - np.eye(5)[p.argmax()]  # ∂CE/∂(z/T)
        gradient = (weight.T @ wrong / temperature) * (1 - np.tanh(x.flatten() * scale) ** 2) * scale
        moved = x - epsilon * np.sign(gradient).reshape(3, 2, 2) / np.array(std)[:, None, None]
        expected.append(max(softmax((logits(moved) / temperature).tolist())))
    odin = create_detector("odin", temperature=temperature, epsilon=epsilon)
    found = odin.score(inputs=Inputs(model, images, transform))
    np.testing.assert_allclose(found.numpy(), expected, rtol=2e-6)
    assert not np.allclose(found.numpy(), odin.score(inputs=Inputs(model, images)).numpy(), rtol=1e-7)


@pytest.mark.parametrize("name", ["klm", "knn", "nnguide", "relation"])
def test_chunks_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    setup, out = random_outputs(300, 6, seed=1), random_outputs(50, 6, seed=2)
    whole = create_detector(name).fit(setup).score(out)
    monkeypatch.setattr(moments, "BUDGET", 5000)  # a row or a few at a time
    torch.testing.assert_close(create_detector(name).fit(setup).score(out), whole, rtol=1e-5, atol=1e-5)
