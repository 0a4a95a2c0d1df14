"""Detectors that read maps against numpy: whole Gram matrices, whole singular value decompositions."""

import copy
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
import torch
from scipy.special import logsumexp, softmax
from torch import Tensor, nn

from opencil import BadInput, Inputs, Outputs, create_detector, forward
from opencil.detectors.posthoc.rankfeat import first_direction
from opencil.engine.seeding import generator, seeded

Array = np.ndarray


class Network(nn.Module):
    """Two stages of convolutions; the first has maps of both signs, features are the mean of the last."""

    def __init__(self, channels: int = 7) -> None:
        super().__init__()
        with seeded(11):
            self.one, self.two = nn.Conv2d(3, 5, 3, padding=1), nn.Conv2d(5, channels, 3, 2, 1)
            self.head = nn.Linear(channels, 4)
            with torch.no_grad():  # so that every class is predicted
                mean = self.features(torch.randn(99, 3, 6, 6)).mean(dim=0)
                self.head.bias.copy_(-self.head.weight @ mean)

    def maps(self, images: Tensor) -> list[Tensor]:
        first = self.one(images)
        return [first, self.two(first).relu()]

    def features(self, images: Tensor) -> Tensor:
        return self.maps(images)[-1].mean(dim=(2, 3))

    def last_stage(self, maps: Tensor) -> Tensor:
        return self.two(maps).relu().mean(dim=(2, 3))

    def classify(self, features: Tensor) -> Tensor:
        return 20 * self.head(features)


def outputs(network: nn.Module, count: int, seed: int, batch: int = 16) -> Outputs:
    images = torch.randn(count, 3, 6, 6, generator=torch.Generator().manual_seed(seed))
    return forward(network, images, batch_size=batch)


def maps_of(out: Outputs) -> list[Array]:
    """Of each stage, float64 [N, channels, pixels]."""
    batches = list(out.layers())
    return [torch.cat([b[i] for b in batches]).flatten(2).double().numpy() for i in range(len(batches[0]))]


def rooted_rows(maps: Array, powers: int) -> Array:
    """[powers, channels] of one image, by its whole Gram matrices."""
    found = []
    for p in range(1, powers + 1):
        gram = (maps**p) @ (maps**p).T
        rows = gram.sum(axis=1)
        found.append(np.sign(rows) * np.abs(rows) ** (1 / p))
    return np.array(found)


def deviation(rows: Array, low: Array, high: Array) -> float:
    below = np.maximum(0, low - rows) / (np.abs(low) + 1e-6)
    return float((below + np.maximum(0, rows - high) / (np.abs(high) + 1e-6)).sum())


@pytest.mark.parametrize(("powers", "share"), [(5, 0.1), (2, 0.4), (10, 0.0)])
def test_gram(powers: int, share: float) -> None:
    network = Network()
    known, out = outputs(network, 70, 1), outputs(network, 21, 2)
    y_known = known.logits.argmax(dim=1).numpy()
    numbers, held = generator(5, "gram"), set[int]()
    for c in np.unique(y_known):
        members = np.flatnonzero(y_known == c)
        order = torch.randperm(len(members), generator=numbers).numpy()
        held |= set(members[order[: int(np.ceil(share * len(members)))]].tolist())
    assert np.bincount(y_known).min() > 5
    assert bool(held) == (share > 0)
    z, total = out.logits.double().numpy(), np.zeros(21)
    for of_known, of_out in zip(maps_of(known), maps_of(out), strict=True):
        rows = [rooted_rows(m, powers) for m in of_known]
        bounds = {}
        for c in range(4):
            mine = [rows[j] for j in range(70) if y_known[j] == c and j not in held]
            mine = mine or [rows[j] for j in range(70) if j not in held]
            bounds[c] = np.min(mine, axis=0), np.max(mine, axis=0)
        mean = np.mean([deviation(rows[j], *bounds[y_known[j]]) for j in held]) + 1e-7 if held else 1.0
        total += [
            deviation(rooted_rows(m, powers), *bounds[z[i].argmax()]) / mean for i, m in enumerate(of_out)
        ]
    detector = create_detector("gram", powers=powers, held_out=share, seed=5).fit(known)
    expected = -total / softmax(z, axis=1).max(axis=1)
    np.testing.assert_allclose(detector.score(out).numpy(), expected, rtol=1e-5, atol=1e-5)


def test_gram_of_a_class_that_nothing_is_predicted_as_has_the_range_of_all() -> None:
    network = Network()
    known, out = outputs(network, 30, 1), outputs(network, 9, 2)
    known.logits[:, 1] = -50.0
    out.logits[:, 1] = 50.0
    one = create_detector("gram", held_out=0.0)
    of_missing = one.fit(known).score(out)
    known.logits[:], out.logits[:] = 0.0, 0.0
    known.logits[:, 0] = out.logits[:, 0] = 50.0  # all are of one class
    torch.testing.assert_close(of_missing, one.fit(known).score(out))


def test_gram_neither_overflows_nor_loses_its_scale() -> None:
    """Maps a thousand times as large have the same deviations: tenth powers of them have no float32."""
    small, large = Network(), Network()
    with torch.no_grad():
        for layer in (large.one.weight, large.one.bias):
            layer.mul_(1000)
        large.two.bias.mul_(1000)
        large.head.weight.div_(1000)  # the same logits
    scores = [
        create_detector("gram", powers=10).fit(outputs(n, 40, 1)).score(outputs(n, 9, 2))
        for n in (small, large)
    ]
    torch.testing.assert_close(*scores, rtol=2e-3, atol=1e-3)


def without_first(maps: Array) -> Array:
    """Maps [channels, pixels] of one image less their first singular component, by all of them."""
    u, s, vt = np.linalg.svd(maps)
    return maps - s[0] * np.outer(u[:, 0], vt[0])


@pytest.mark.parametrize("channels", [3, 7, 20])  # fewer and more than the nine pixels
@pytest.mark.parametrize("temperature", [1.0, 7.0])
@pytest.mark.parametrize("which", ["both", "last"])
def test_rankfeat(channels: int, temperature: float, which: Literal["both", "last"]) -> None:
    network = Network(channels)
    out = outputs(network, 21, 2)
    w, b = (20 * p.detach().double().numpy() for p in (network.head.weight, network.head.bias))
    stage, expected = copy.deepcopy(network.two).double(), []
    for before, last in zip(*maps_of(out), strict=True):
        z = w @ without_first(last).mean(axis=1) + b
        if which == "both":
            rest = torch.from_numpy(without_first(before)).view(1, 5, 6, 6)
            z = (z + w @ stage(rest).relu().mean(dim=(2, 3))[0].detach().numpy() + b) / 2
        expected.append(temperature * logsumexp(z / temperature))
    found = create_detector("rankfeat", temperature=temperature, maps=which).score(out)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5)


def test_first_directions_of_maps_of_any_scale() -> None:
    maps = torch.rand(6, 5, 4, 4, generator=torch.Generator().manual_seed(0)) + 0.1
    expected = np.linalg.svd(maps.flatten(2).double().numpy())[0][:, :, 0]
    for scale in (1e-20, 1.0, 1e20):
        found = first_direction(scale * maps).double().numpy()
        np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-5)
    assert first_direction(torch.zeros(2, 5, 4, 4)).tolist() == [[0.0] * 5] * 2


@dataclass(frozen=True)
class Maxima:
    """Features that are not the last maps' mean."""

    network: Network

    def maps(self, images: Tensor) -> list[Tensor]:
        return self.network.maps(images)

    def features(self, images: Tensor) -> Tensor:
        return self.maps(images)[-1].amax(dim=(2, 3))

    def classify(self, features: Tensor) -> Tensor:
        return self.network.classify(features)


def test_rankfeat_refuses_features_that_are_not_the_mean_of_the_last_maps() -> None:
    network = Maxima(Network())
    images = torch.randn(5, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    out = forward(network, images)
    with pytest.raises(BadInput):
        create_detector("rankfeat").score(out)
    narrow = Outputs(out.features[:, :3], out.logits, None, lambda f: f, Inputs(network, images))
    with pytest.raises(BadInput):
        create_detector("rankfeat").score(narrow)


class Untold(Network):
    """One that does not say how its last stage runs."""

    last_stage = None  # type: ignore[assignment]


class OneStage(Network):
    def maps(self, images: Tensor) -> list[Tensor]:
        return super().maps(images)[1:]


class Skipping(Network):
    """A network whose last stage computes other features from the maps."""

    def last_stage(self, maps: Tensor) -> Tensor:
        return super().last_stage(maps) + 1


@pytest.mark.parametrize("make", [Untold, OneStage, Skipping])
def test_rankfeat_refuses_a_last_stage_that_does_not_run_alone(make: type[Network]) -> None:
    out = outputs(make(), 9, 2)
    with pytest.raises(BadInput, match="maps = last"):
        create_detector("rankfeat").score(out)
    expected = create_detector("rankfeat", maps="last").score(outputs(Network(), 9, 2))
    assert torch.equal(create_detector("rankfeat", maps="last").score(out), expected)
