"""Every method on a frozen backbone trains the rest of its model."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import opencil
from opencil.cil.learner import Setting
from opencil.data.images import FeatureImages, Images
from opencil.data.memory import Memory
from opencil.data.stream import Stream
from opencil.data.transforms import Untransformed
from opencil.engine.forward import forward
from opencil.engine.frozen import FrozenNetwork, compute_features
from opencil.nets.features import StoredFeatures
from opencil.registry import LEARNERS


def tensors(model: opencil.Model, of: str) -> dict[str, Tensor]:
    """Those of every backbone or of every head in a model, by the name that they have inside it."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items() if f".{of}." in f".{name}"}


@pytest.fixture
def frozen(setting: Setting, tmp_path: Path) -> Setting:
    """A setting whose backbone is frozen, with weights from a file."""
    path = tmp_path / "weights.safetensors"
    save_file(setting.new_backbone().state_dict(), path)
    return replace(setting, backbone={"name": "resnet8", "freeze": True, "weights": str(path)})


@pytest.mark.parametrize("name", opencil.list_learners())
def test_a_frozen_backbone_is_the_same_bits_after_every_step(
    name: str, frozen: Setting, stream: Stream
) -> None:
    setting, start = frozen, frozen.new_backbone().state_dict()
    learner, memory, previous = opencil.create_learner(name, epochs=1), Memory(12), None
    for step in (stream[0], stream[1]):
        task = learner.begin(setting, step, memory, previous)
        before, heads = tensors(task.model, "backbone"), tensors(task.model, "head")
        list(learner.learn(task))
        after = tensors(task.model, "backbone")
        assert before.keys() == after.keys()
        assert all(torch.equal(tensor, after[key]) for key, tensor in before.items())
        assert any(not torch.equal(t, heads[key]) for key, t in tensors(task.model, "head").items())
        memory, previous = learner.remember(task), task.model
    for tensor in tensors(previous, "backbone").values():  # grown copies too: of FOSTER, three of them
        assert any(torch.equal(tensor, given) for given in start.values())


def on_features(setting: Setting) -> Setting:
    """The same setting with features in place of images."""
    network = FrozenNetwork(setting.backbone, "torch")  # type: ignore[arg-type]

    def featurise(images: Images) -> FeatureImages:
        features = torch.cat([*compute_features(network, images, setting.transform)])
        return FeatureImages(images.name, features, images.labels, images.fingerprint)

    return replace(
        setting,
        images=featurise(setting.images),
        test_images=featurise(setting.test_images),
        transform=Untransformed(),
        backbone=StoredFeatures(network.width),
    )


@pytest.mark.parametrize(
    "name", [name for name in opencil.list_learners() if not LEARNERS.entry(name).make.needs_images]
)
def test_a_method_learns_from_features_in_place_of_images(name: str, frozen: Setting, stream: Stream) -> None:
    setting = on_features(frozen)
    learner, memory, previous = opencil.create_learner(name, epochs=1), Memory(12), None
    for step in (stream[0], stream[1]):
        task = learner.begin(setting, step, memory, previous)
        list(learner.learn(task))
        memory, previous = learner.remember(task), task.model
    assert not tensors(previous, "backbone")
    logits = forward(previous, setting.test_images, setting.transform, stream[1].test).logits
    assert logits.shape == (len(stream[1].test), stream[1].seen)
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize("name", ["simplecil", "fecam", "slda"])
def test_closed_forms_are_the_same_on_features_as_on_images(
    name: str, frozen: Setting, stream: Stream
) -> None:
    found = []
    for setting in (frozen, on_features(frozen)):
        task = (learner := opencil.create_learner(name)).begin(setting, stream[0], Memory(0), None)
        list(learner.learn(task))
        found.append(forward(task.model, setting.test_images, setting.transform, stream[0].test))
    torch.testing.assert_close(found[1].features, found[0].features)
    torch.testing.assert_close(found[1].logits, found[0].logits, rtol=1e-3, atol=1e-3)


def test_stored_features_have_no_stages() -> None:
    backbone = StoredFeatures(3)
    for call in (backbone.split, lambda: backbone.maps(torch.zeros(2, 3, 1, 1))):
        with pytest.raises(opencil.BadInput, match="recompute"):
            call()
