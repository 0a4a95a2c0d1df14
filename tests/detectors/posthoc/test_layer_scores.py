"""Detectors that read maps against numpy: whole Gram matrices, whole singular value decompositions."""

import copy
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
import torch
from scipy.special import logsumexp, softmax
from torch import Tensor, nn

import opencil
from opencil import BadInput, Inputs, Outputs, create_detector, forward
from opencil.cil.bic import CorrectedModel
from opencil.cil.foster import BoostedModel
from opencil.detectors.posthoc.rankfeat import _same, first_direction
from opencil.engine.seeding import generator, seeded
from opencil.nets.growing import GrownModel, SideBySide
from opencil.nets.model import Model
from opencil.nets.resnet import resnet8
from opencil.runs.given import GivenModel

Array = np.ndarray


class Network(nn.Module):
    """Two stages of convolutions, of which the first has maps of both signs; features are the last's mean."""

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


@pytest.mark.parametrize("dark", [False, True])
def test_gram_of_images_that_are_all_alike(dark: bool) -> None:
    """None of those held out leaves the range, which in the dark ends at 0: nothing is divided by 0."""
    network = Network()
    if dark:
        nn.init.zeros_(network.one.bias)
        nn.init.zeros_(network.two.bias)
    image = torch.randn(1, 3, 6, 6, generator=torch.Generator().manual_seed(1)) * (not dark)
    known, out = forward(network, image.expand(12, -1, -1, -1)), outputs(network, 9, 2)
    total = np.zeros(9)
    for of_known, of_out in zip(maps_of(known), maps_of(out), strict=True):
        bound = rooted_rows(of_known[0], 5)
        total += [deviation(rooted_rows(m, 5), bound, bound) / 1e-7 for m in of_out]
    expected = -total / softmax(out.logits.double().numpy(), axis=1).max(axis=1)
    np.testing.assert_allclose(create_detector("gram").fit(known).score(out).numpy(), expected, rtol=1e-4)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_gram_of_few_images_of_a_class(count: int) -> None:
    network = Network()
    assert create_detector("gram").fit(outputs(network, count, 1)).score(outputs(network, 5, 2)).shape == (5,)


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


def drifted(model: Model) -> Model:
    """In training mode, with statistics of batch norm that are none of a batch's, and a head that decides."""
    with torch.no_grad(), seeded(3, "statistics"):
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                assert module.running_mean is not None
                assert module.running_var is not None
                module.running_mean.copy_(torch.randn(module.num_features) / 5)
                module.running_var.copy_(torch.rand(module.num_features) + 1)
    return model.train()


def models() -> dict[str, Model]:
    with seeded(0, "models"):
        shared, newest = resnet8().split()
        corrected = CorrectedModel(resnet8(), [2, 3])
        found: dict[str, Model] = {
            "plain": Model(resnet8(), 5),
            "bic": corrected,
            "boosted": BoostedModel(Model(resnet8(), 3), 5, "boosted"),
            "compressed": BoostedModel(Model(resnet8(), 3), 5, "compressed"),
            "der": GrownModel([resnet8(), resnet8()], resnet8(), 5, 2),
            "memo": GrownModel([copy.deepcopy(newest)], newest, 5, 2, shared=shared),
        }
    nn.init.constant_(corrected.corrections[1].alpha, 0.6)
    return {name: drifted(model) for name, model in found.items()}


def scored_by_hand(model: Any, image: Tensor) -> float:
    """RankFeat of one image [1, 3, 8, 8], layer by layer in float64."""
    if getattr(model, "evaluate", "") == "compressed":
        model = model.student
    backbones = model.backbones() if isinstance(model, SideBySide) else [model.backbone]
    shared = getattr(model, "shared", None)
    before = []
    for network in backbones if shared is None else [shared]:
        x = network.stem(image)
        for block in list(network.blocks)[:2]:
            x = block(x)
        before.append(x)

    def last_of(maps: list[Tensor]) -> Tensor:
        given = maps if shared is None else maps * len(backbones)
        return torch.cat([net.blocks[-1](one) for net, one in zip(backbones, given, strict=True)], dim=1)

    def less_first(maps: Tensor) -> Tensor:
        return torch.from_numpy(without_first(maps[0].flatten(1).numpy())).view(maps.shape)

    rest = list(less_first(torch.cat(before, dim=1)).split([m.shape[1] for m in before], dim=1))
    features = [maps.mean(dim=(2, 3)) for maps in (less_first(last_of(before)), last_of(rest))]
    one, other = ((f @ model.head.weight.T + model.head.bias)[0] for f in features)
    if isinstance(model, CorrectedModel):
        scale = torch.tensor([1, 1, 0.6, 0.6, 0.6])
        one, other = scale * one, scale * other
    return float(logsumexp(((one + other) / 2).numpy()))


@pytest.mark.parametrize("name", ["plain", "bic", "boosted", "compressed", "der", "memo"])
def test_rankfeat_runs_the_last_stage_of_each_model_as_it_is_in_evaluation(name: str) -> None:
    """Image by image in their order, in eval mode whatever mode the model is in, without gradients."""
    model = models()[name]
    images = torch.randn(7, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    modes = [module.training for module in model.modules()]
    scores = create_detector("rankfeat").score(forward(model, images, batch_size=4))
    assert [module.training for module in model.modules()] == modes
    assert not scores.requires_grad
    assert all(p.grad is None for p in model.parameters())
    exact: Any = copy.deepcopy(model).double().eval()
    with torch.no_grad():
        expected = [scored_by_hand(exact, image[None].double()) for image in images]
    np.testing.assert_allclose(scores.numpy(), expected, rtol=1e-5, atol=1e-5)
    last = create_detector("rankfeat", maps="last").score(forward(model, images))
    assert float((last - scores).abs().min()) > 1e-3


def test_rankfeat_by_a_tuned_head_and_of_a_model_that_was_given() -> None:
    model = models()["plain"]
    images = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    plain = create_detector("rankfeat").score(forward(model, images))
    assert torch.equal(create_detector("rankfeat").score(forward(GivenModel(model, None), images)), plain)
    tuner = create_detector("logitnorm", scored_by="rankfeat")
    tuner.use(nn.Linear(64, 5))
    out, found = forward(model, images), copy.deepcopy(tuner._extra.head)
    of_tuner = tuner.score(out)
    model.head = found  # type: ignore[assignment]
    torch.testing.assert_close(of_tuner, create_detector("rankfeat").score(forward(model, images)))
    assert not torch.allclose(of_tuner, plain)


def test_first_directions_of_maps_of_any_scale() -> None:
    maps = torch.rand(6, 5, 4, 4, generator=torch.Generator().manual_seed(0)) + 0.1
    expected = np.linalg.svd(maps.flatten(2).double().numpy())[0][:, :, 0]
    for scale in (1e-20, 1.0, 1e20):
        found = first_direction(scale * maps).double().numpy()
        np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-5)
    assert first_direction(torch.zeros(2, 5, 4, 4)).tolist() == [[0.0] * 5] * 2


@pytest.mark.parametrize("shape", [(5, 16), (16, 4)])
def test_a_first_direction_that_is_hardly_stronger_than_the_next(shape: tuple[int, int]) -> None:
    u, _, vt = np.linalg.svd(np.random.default_rng(0).normal(size=shape), full_matrices=False)
    strengths = np.array([1, 0.996, 0.5, 0.1, 0.1])[: min(shape)]
    maps = torch.tensor(u * strengths @ vt).float().view(1, shape[0], 4, -1)
    found = first_direction(maps)[0].numpy()
    np.testing.assert_allclose(np.abs(found), np.abs(u[:, 0]), atol=2e-3)


def test_two_directions_that_are_as_strong_leave_a_finite_score() -> None:
    maps = torch.eye(4).view(1, 4, 2, 2)
    assert first_direction(maps).norm() == pytest.approx(1.0)


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
    with pytest.raises(BadInput, match="features that are the mean over pixels of the last maps"):
        create_detector("rankfeat").score(out)
    narrow = Outputs(out.features[:, :3], out.logits, None, lambda f: f, Inputs(network, images))
    with pytest.raises(BadInput, match="features that are the mean over pixels of the last maps"):
        create_detector("rankfeat").score(narrow)


def test_what_rankfeat_takes_for_a_rounding_of_features() -> None:
    """A thousandth of each, and of the largest: half of a bfloat16's last bit is four thousandths."""
    features = torch.tensor([[500.0, 1.0, 0.0]])
    for off, same in (([0.9, 0.4, 0.4], True), ([1.1, 0, 0], False), ([0, 0.51, 0], False)):
        assert _same(features + torch.tensor(off), features) == same
    assert not _same(features[:, :2], features)


class Untold(Network):
    """One that does not say how its last stage runs."""

    last_stage = None  # type: ignore[assignment]


class OneStage(Network):
    def maps(self, images: Tensor) -> list[Tensor]:
        return super().maps(images)[1:]


def test_gram_of_a_model_of_one_stage() -> None:
    scores = create_detector("gram").fit(outputs(OneStage(), 30, 1)).score(outputs(OneStage(), 5, 2))
    assert scores.shape == (5,)


class Skipping(Network):
    """Of which a last stage that reads its maps makes other features."""

    def last_stage(self, maps: Tensor) -> Tensor:
        return super().last_stage(maps) + 1


class Late(Network):
    """Whose eighth image, the last that is looked at, is the first that comes out otherwise."""

    def last_stage(self, maps: Tensor) -> Tensor:
        return super().last_stage(maps) + (torch.arange(len(maps)) > 6)[:, None]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (Late, "needs a last stage that makes the features of the maps before it alone"),
        (Untold, r"Untold has no last stage that runs by itself: a method last_stage\(maps\) gives"),
        (OneStage, "RankFeat needs maps of two stages: this model has one"),
        (Skipping, "needs a last stage that makes the features of the maps before it alone"),
    ],
)
def test_rankfeat_says_what_to_do_with_a_model_whose_last_stage_does_not_run(
    make: type[Network], sentence: str
) -> None:
    network = make()
    out = outputs(network, 9, 2)
    with pytest.raises(BadInput, match=f"{sentence}.*; RankFeat of the last maps alone .*: maps = last$"):
        create_detector("rankfeat").score(out)
    expected = create_detector("rankfeat", maps="last").score(outputs(Network(), 9, 2))
    assert torch.equal(create_detector("rankfeat", maps="last").score(out), expected)


def test_rankfeat_of_a_wrapped_model() -> None:
    """Named layers are its stages, and the last of them is run."""
    with seeded(5):
        stages = [nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), nn.Sequential(nn.Conv2d(4, 6, 2), nn.ReLU())]
        network = nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5))
    images = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    found = create_detector("rankfeat").score(forward(opencil.wrap(network, "4", stages=["0", "1"]), images))
    expected = []
    with torch.no_grad():
        for image in images:
            before = stages[0](image[None]).double()[0].flatten(1).numpy()
            last = stages[1](stages[0](image[None])).double()[0].flatten(1).numpy()
            rest = torch.from_numpy(without_first(before)).float().view(1, 4, 6, 6)
            of_last = network[4](torch.from_numpy(without_first(last).mean(axis=1)).float())
            z = (of_last + network[2:](stages[1](rest))[0]) / 2
            expected.append(float(z.logsumexp(dim=0)))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["gram", "rankfeat"])
def test_batches_change_nothing(name: str) -> None:
    network = Network()
    scores = [
        create_detector(name).fit(outputs(network, 50, 1, batch)).score(outputs(network, 21, 2, batch))
        for batch in (1, 8, 64)
    ]
    for other in scores[1:]:
        torch.testing.assert_close(other, scores[0], rtol=1e-4, atol=1e-5)
