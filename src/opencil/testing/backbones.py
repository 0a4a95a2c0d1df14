"""Check the contract of backbones."""

import copy

import torch
from torch import Tensor

from opencil.engine.seeding import seeded
from opencil.errors import BadInput
from opencil.nets.create import Named, create_backbone
from opencil.nets.model import Backbone
from opencil.testing.contract import SIDE, collect_checks, list_differences, nearly_equal, run_checks


def _create(backbone: Named, seed: int = 0) -> Backbone:
    with seeded(seed, "backbone"):
        return create_backbone(**({"name": backbone} if isinstance(backbone, str) else backbone)).eval()


def _images(side: int, count: int = 6) -> Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def _features(network: Backbone, images: Tensor) -> Tensor:
    return network(images)


def check_result(backbone: Named, side: int = SIDE) -> None:
    """Images [B, 3, H, H] give finite float32 features [B, width]."""
    network, images = _create(backbone), _images(side)
    features, expected = _features(network, images), [len(images), network.width]
    shape = list(getattr(features, "shape", ()))
    assert shape == expected, f"gives {shape} for {len(images)} images: {expected} is expected from its width"
    assert features.dtype == torch.float32, f"gives {features.dtype}: float32 is expected"
    assert torch.isfinite(features).all(), "gives features that are not finite"


def check_alone(backbone: Named, side: int = SIDE) -> None:
    """In eval mode an image's features depend neither on the other images nor on random numbers."""
    network, images = _create(backbone), _images(side)
    whole = _features(network, images)
    assert torch.equal(whole, _features(network, images)), "gives other features the second time"
    alone = torch.cat([_features(network, image[None]) for image in images])
    assert nearly_equal(alone, whole), "gives an image other features in a batch of its own, in eval mode"


def check_seeded(backbone: Named, side: int = SIDE) -> None:
    """The seed of torch's global generator determines the initial weights."""
    first, again, other = (_features(_create(backbone, seed), _images(side)) for seed in (0, 0, 1))
    assert torch.equal(first, again), "has other initial weights with the same seed"
    assert not torch.equal(first, other), "has the same initial weights with every seed"


def check_stored(backbone: Named, side: int = SIDE) -> None:
    """The state dict is complete: a new backbone with it, and a copy, compute the same."""
    network, fresh, images = _create(backbone), _create(backbone, 1), _images(side)
    network.train()(images)
    network.eval()
    fresh.load_state_dict(network.state_dict(), strict=True)
    for action, other in (("loaded from its state dict", fresh), ("copied", copy.deepcopy(network))):
        same = torch.equal(_features(other, images), _features(network, images))
        assert same, f"computes other features when {action}: all state must be parameters or buffers"


def check_trains(backbone: Named, side: int = SIDE) -> None:
    """A loss on the features has finite gradients, in float32 and under bfloat16 autocast."""
    for bfloat16, where in ((False, "in float32"), (True, "under bfloat16 autocast")):
        network = _create(backbone).train()
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            features = network(_images(side))
        if features.requires_grad:
            features.float().square().mean().backward()  # type: ignore[no-untyped-call]
        found = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
        assert found or network.frozen, f"has no parameter with a gradient, {where}"
        bad = [name for name, gradient in found.items() if not torch.isfinite(gradient).all()]
        assert not bad, f"has gradients that are not finite, {where}: {', '.join(bad[:3])}"


def check_inputs_unchanged(backbone: Named, side: int = SIDE) -> None:
    """The images and, in eval mode, the weights and statistics stay unchanged."""
    network, images = _create(backbone), _images(side)
    before, state = images.clone(), copy.deepcopy(network.state_dict())
    _features(network, images)
    assert torch.equal(images, before), "changes the images"
    changed = list_differences(network.state_dict(), state)
    assert not changed, f"changes {changed} in eval mode"


def check_maps(backbone: Named, side: int = SIDE) -> None:
    """``maps`` gives one tensor [B, C, H, W] for each stage, or raises ``BadInput``."""
    network, images = _create(backbone), _images(side)
    try:
        with torch.no_grad():
            found = network.maps(images)
            features, maps = network.features_and_maps(images)
    except BadInput:
        return
    shapes = [list(maps_of_stage.shape) for maps_of_stage in found]
    valid = bool(shapes) and all(len(shape) == 4 and shape[0] == len(images) for shape in shapes)
    assert valid, f"gives maps {shapes} for {len(images)} images: [B, C, H, W] for each stage are expected"
    maps, found = [features, *maps], [_features(network, images), *found]
    equal = len(maps) == len(found) and all(map(nearly_equal, maps, found))
    assert equal, "gives other features or maps by features_and_maps than by itself and by maps"


def check_split(backbone: Named, side: int = SIDE) -> None:
    """``split`` gives two parts that compute the features in turn, or raises ``BadInput``."""
    network, images = _create(backbone), _images(side)
    try:
        shared, last = network.split()
    except BadInput:
        return
    with torch.no_grad():
        found = last(shared.maps(images)[-1])
    assert nearly_equal(found, _features(network, images)), "has parts with other features than the whole"


#: Every check of the backbones' contract, by name.
BACKBONE_CHECKS = collect_checks(vars())


def check_backbone(backbone: Named, side: int = SIDE) -> None:
    """Run every check on a backbone: a registered name, or a mapping with its values as in a config."""
    name = backbone if isinstance(backbone, str) else str(backbone.get("name"))
    run_checks(BACKBONE_CHECKS, name, backbone, side)
