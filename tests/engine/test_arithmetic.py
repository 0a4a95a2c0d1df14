"""Arithmetic: precision, and operations that torch refuses."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from opencil.engine import arithmetic
from opencil.engine.arithmetic import Arithmetic, only_deterministic, refused_operation


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_arithmetic_holds_inside_the_block_only(precision: Any, deterministic: bool) -> None:
    def now() -> tuple[str, str, bool, bool]:
        cudnn = torch.backends.cudnn
        rounding = torch.backends.cuda.matmul.fp32_precision, cudnn.conv.fp32_precision
        return (*rounding, cudnn.deterministic, cudnn.benchmark)

    before, rounded = now(), "ieee" if precision == "fp32" else "tf32"
    with Arithmetic(precision, deterministic).active():
        assert now() == (rounded, rounded, deterministic, not deterministic)
    assert now() == before


@pytest.mark.parametrize(
    ("precision", "has", "expected"),
    [
        ("bf16", {"bf16", "tf32"}, "bf16"),
        ("bf16", {"tf32"}, "tf32"),
        ("bf16", set(), "fp32"),
        ("tf32", {"bf16", "tf32"}, "tf32"),
        ("fp32", {"bf16", "tf32"}, "fp32"),
    ],
)
def test_a_device_computes_in_the_precision_that_it_has(
    monkeypatch: pytest.MonkeyPatch, precision: Any, has: set[str], expected: str
) -> None:
    monkeypatch.setattr(arithmetic, "has_bfloat16", lambda device: "bf16" in has)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8 if "tf32" in has else 7, 0))
    assert Arithmetic(precision).on(torch.device("cuda")) == expected
    with Arithmetic(precision).autocast(torch.device("cpu")):
        assert torch.is_autocast_enabled("cpu") == (expected == "bf16")


@pytest.mark.parametrize("native", [True, False])
def test_emulated_bfloat16_does_not_count(monkeypatch: pytest.MonkeyPatch, native: bool) -> None:
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation: native or including_emulation
    )
    assert arithmetic.has_bfloat16(torch.device("cuda")) == native
    assert not arithmetic.has_bfloat16(torch.device("cpu"))


@pytest.mark.parametrize("before", [False, True])
def test_operations_are_refused_only_inside_the_block(before: bool) -> None:
    memory: Any = torch.utils.deterministic
    fills = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(before, warn_only=before)
    try:
        with only_deterministic(True), pytest.raises(RuntimeError) as refused:
            torch.zeros(3).put_(torch.tensor([1, 1]), torch.tensor([1.0, 2.0]))
        assert torch.are_deterministic_algorithms_enabled() == before
        assert torch.is_deterministic_algorithms_warn_only_enabled() == before
        assert memory.fill_uninitialized_memory == fills
    finally:
        torch.use_deterministic_algorithms(False)
    outer = ValueError("a step failed")
    outer.__cause__ = refused.value
    assert refused_operation(refused.value) == refused_operation(outer) == "put_"


def test_refused_products_of_matrices_are_found() -> None:
    cublas = RuntimeError("Deterministic behavior was enabled … set CUBLAS_WORKSPACE_CONFIG=:4096:8")
    assert "a product of matrices" in str(refused_operation(cublas))
    assert refused_operation(RuntimeError("out of memory")) is None


def test_blocks_of_two_threads_leave_the_settings_of_before() -> None:
    conv = torch.backends.cudnn.conv
    before = conv.fp32_precision
    first, second = Arithmetic(precision="fp32").active(), Arithmetic(precision="tf32").active()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert conv.fp32_precision == "tf32", "of the block that is open"
    second.__exit__(None, None, None)
    assert conv.fp32_precision == before
    with Arithmetic(precision="fp32").active():
        with Arithmetic(precision="tf32").active():
            pass
        assert conv.fp32_precision == "ieee"
    assert conv.fp32_precision == before
