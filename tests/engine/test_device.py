"""Which device is used."""

import pytest
import torch

from opencil.engine.device import cpu_threads, present_devices, resolve_device
from opencil.errors import BadInput


@pytest.mark.parametrize(("accelerator", "automatic"), [("cuda", "cuda"), ("mps", "cpu")])
def test_gpu_is_the_accelerator_and_auto_where_it_has_float64(
    accelerator: str, automatic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = torch.device(accelerator)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: found)
    assert resolve_device("gpu").type == accelerator
    assert resolve_device("auto").type == automatic
    assert present_devices()[:3] == ["auto", "cpu", "gpu"]


def test_a_device_that_is_not_there_is_refused() -> None:
    assert resolve_device("cpu") == torch.device("cpu")
    for name in ("", "cuda:99", "cuda:x", "meta", "hpu"):
        with pytest.raises(BadInput, match=f"^device '{name}'.*auto, cpu"):
            resolve_device(name)


def test_a_cpu_computes_with_a_number_of_threads_inside_the_block() -> None:
    before = torch.get_num_threads()
    with cpu_threads(before + 1):
        assert torch.get_num_threads() == before + 1
        with cpu_threads(None):
            assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
