"""Every method on a frozen backbone trains the rest of its model."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import opencil
from opencil.cil.learner import Setting
from opencil.data.memory import Memory
from opencil.data.stream import Stream


def tensors(model: opencil.Model, of: str) -> dict[str, Tensor]:
    """Those of every backbone or of every head in a model, by the name that they have inside it."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items() if f".{of}." in f".{name}"}


@pytest.mark.parametrize("name", opencil.list_learners())
def test_a_frozen_backbone_is_the_same_bits_after_every_step(
    name: str, setting: Setting, stream: Stream, tmp_path: Path
) -> None:
    start, path = setting.new_backbone().state_dict(), tmp_path / "weights.safetensors"
    save_file(start, path)
    setting = replace(setting, backbone={"name": "resnet8", "freeze": True, "weights": str(path)})
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
