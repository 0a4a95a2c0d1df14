"""Backbones as the compiler makes them: when they are used, and that they are the same function."""

import copy

import pytest
import torch

from opencil.engine.arithmetic import Arithmetic
from opencil.engine.iteration import Iteration
from opencil.engine.schedule import Schedule
from opencil.nets import model as nets
from opencil.nets.model import Backbone, Model, fused_backbones
from opencil.registry import BACKBONES


def test_only_inside_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    fused: list[Backbone] = []

    def forward(backbone: Backbone, images: torch.Tensor) -> torch.Tensor:
        fused.append(backbone)
        return backbone.forward(images)

    monkeypatch.setattr(nets, "_compiled", lambda: forward)
    backbone = BACKBONES.create("resnet8").eval()
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    plain = backbone(images)
    assert not fused
    with fused_backbones(True):
        assert torch.equal(backbone(images), plain)
        with fused_backbones(False):
            backbone(images)
    assert fused == [backbone]
    backbone(images)
    assert len(fused) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the compiler is used on a CUDA device")
@pytest.mark.filterwarnings("default")  # of the compiler's own making
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-3), ("bf16", 5e-2)])
def test_compiled_and_plain_steps_agree_on_a_gpu(precision: str, tolerance: float) -> None:
    device, random = torch.device("cuda"), torch.Generator().manual_seed(0)
    images, labels = torch.randn(16, 3, 32, 32, generator=random), torch.arange(16) % 4
    start = Model(BACKBONES.create("resnet8"), 4).to(device)
    ends = []
    for compile in (False, True):
        model = copy.deepcopy(start).train()
        iterate = Iteration(
            model,
            lambda x, y, model=model: torch.nn.functional.cross_entropy(model(x), y),
            Schedule(epochs=1, lr=0.01),
            Arithmetic(precision, compile=compile),
            device,
        )
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(6):
                iterate(images.to(device), labels.to(device))
        torch.cuda.synchronize()
        ends.append(model.state_dict())
    for name, plain in ends[0].items():
        torch.testing.assert_close(
            ends[1][name].float(), plain.float(), rtol=tolerance, atol=tolerance / 10, msg=name
        )
