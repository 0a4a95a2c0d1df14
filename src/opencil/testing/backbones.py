"""The backbones' contract as checks."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from opencil.engine.seeding import seeded
from opencil.errors import BadInput, OpenCILError
from opencil.nets.create import Named, create_backbone
from opencil.nets.model import Backbone

#: Side of the images that a backbone is tried on, unless another is said: CIFAR's.
SIDE = 32


def check_backbone(backbone: Named, side: int = SIDE) -> None:
    """Run every check on a backbone: a registered name, or a mapping with its values as in a config."""
    for check in BACKBONE_CHECKS.values():
        try:
            check(backbone, side)
        except OpenCILError as error:
            raise AssertionError(f"{_name(backbone)} refuses good images: {error}") from error


def _name(backbone: Named) -> str:
    return backbone if isinstance(backbone, str) else str(backbone.get("name"))


def _made(backbone: Named, seed: int = 0) -> Backbone:
    with seeded(seed, "backbone"):
        return create_backbone(**({"name": backbone} if isinstance(backbone, str) else backbone)).eval()


def _images(side: int, count: int = 6) -> Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def _features(made: Backbone, images: Tensor) -> Tensor:
    features: Tensor = made(images)
    return features


def check_result(backbone: Named, side: int = SIDE) -> None:
    """Images [B, 3, H, H] give finite float32 features [B, width]."""
    made, images = _made(backbone), _images(side)
    features = _features(made, images)
    shape = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
    assert shape == [len(images), made.width], (
        f"{_name(backbone)} gives {shape} for {len(images)} images of {side} × {side} pixels: "
        f"[{len(images)}, {made.width}] is promised, by its width"
    )
    assert features.dtype == torch.float32, f"{_name(backbone)} gives {features.dtype}: float32 is promised"
    assert torch.isfinite(features).all(), f"{_name(backbone)} gives features that are not finite"


def check_alone(backbone: Named, side: int = SIDE) -> None:
    """In evaluation an image's features do not depend on the images beside it, nor on chance."""
    made, images = _made(backbone), _images(side)
    whole = _features(made, images)
    assert torch.equal(whole, _features(made, images)), (
        f"{_name(backbone)} gives other features the second time, in eval mode"
    )
    alone = torch.cat([_features(made, image[None]) for image in images])
    assert _near(alone, whole), (
        f"{_name(backbone)} gives an image other features when it stands alone, in eval mode"
    )


def check_seeded(backbone: Named, side: int = SIDE) -> None:
    """The same seed of torch's global generator makes the same weights, another seed others."""
    images = _images(side)
    first, again, other = (_features(_made(backbone, seed), images) for seed in (0, 0, 1))
    assert torch.equal(first, again), f"{_name(backbone)} is made with other weights by the same seed"
    assert not torch.equal(first, other), (
        f"{_name(backbone)} is made with the same weights by every seed: draw them with torch's generator"
    )


def check_stored(backbone: Named, side: int = SIDE) -> None:
    """Its state dict is all that it is: a fresh one with it, and a copy, compute the same."""
    made, fresh, images = _made(backbone), _made(backbone, 1), _images(side)
    made.train()(images)
    made.eval()
    fresh.load_state_dict(made.state_dict(), strict=True)
    for what, other in (("with its weights loaded", fresh), ("copied", copy.deepcopy(made))):
        assert torch.equal(_features(other, images), _features(made, images)), (
            f"{_name(backbone)} computes otherwise when it is {what}: all that it is must be parameters or "
            "buffers"
        )


def check_trains(backbone: Named, side: int = SIDE) -> None:
    """A loss on its features has finite gradients, in float32 and under bfloat16 autocast as on a GPU."""
    for bfloat16 in (False, True):
        made, images = _made(backbone).train(), _images(side)
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            features = made(images)
        if features.requires_grad:
            features.float().square().mean().backward()
        found = {name: p.grad for name, p in made.named_parameters() if p.grad is not None}
        where = "under bfloat16 autocast" if bfloat16 else "in float32"
        assert found or made.frozen, f"{_name(backbone)} has no parameter that a loss reaches, {where}"
        bad = [name for name, gradient in found.items() if not torch.isfinite(gradient).all()]
        assert not bad, f"{_name(backbone)} has gradients that are not finite, {where}: {', '.join(bad[:3])}"


def check_inputs_unchanged(backbone: Named, side: int = SIDE) -> None:
    """The images, and in evaluation the weights and statistics, stay as they are."""
    made, images = _made(backbone), _images(side)
    before, kept = images.clone(), copy.deepcopy(made.state_dict())
    _features(made, images)
    assert torch.equal(images, before), f"{_name(backbone)} changes the images that it is given"
    changed = [name for name, tensor in made.state_dict().items() if not torch.equal(tensor, kept[name])]
    assert not changed, f"{_name(backbone)} changes {', '.join(changed[:3])} in eval mode"


def check_maps(backbone: Named, side: int = SIDE) -> None:
    """``maps`` gives one tensor [B, C, H, W] a stage, or says in a sentence that there are none."""
    made, images = _made(backbone), _images(side)
    try:
        with torch.no_grad():
            found = made.maps(images)
    except BadInput:
        return
    shapes = [list(one.shape) if isinstance(one, Tensor) else type(one).__name__ for one in found]
    assert shapes, f"{_name(backbone)}'s maps are an empty list: leave `maps` out where there are none"
    assert all(len(shape) == 4 and shape[0] == len(images) for shape in shapes), (
        f"{_name(backbone)}'s maps are {shapes} for {len(images)} images: [B, C, H, W] each is promised"
    )
    with torch.no_grad():
        features, maps = made.features_and_maps(images)
    same = (
        len(maps) == len(found) and all(map(_near, maps, found)) and _near(features, _features(made, images))
    )
    assert same, f"{_name(backbone)}'s features_and_maps are not what it gives as features and as maps"


def check_split(backbone: Named, side: int = SIDE) -> None:
    """``split`` gives two parts that compute the features one after the other, or says why it does not."""
    made, images = _made(backbone), _images(side)
    whole = _features(made, images)
    try:
        shared, last = made.split()
    except BadInput:
        return
    with torch.no_grad():
        found = _features(last, shared.maps(images)[-1])
    assert _near(found, whole), (
        f"{_name(backbone)}'s parts give other features than the whole: the last one should read the last "
        "maps of the other"
    )


def _near(one: Tensor, other: Tensor) -> bool:
    """Whether they are the same but for rounding."""
    least = 1e-5 * float(other.abs().max())
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-4, atol=least)


#: Every check of the backbones' contract, by name.
BACKBONE_CHECKS: dict[str, Callable[[Named, int], None]] = {
    check.__name__.removeprefix("check_"): check
    for check in (
        check_result,
        check_alone,
        check_seeded,
        check_stored,
        check_trains,
        check_inputs_unchanged,
        check_maps,
        check_split,
    )
}
