"""Operations that cannot be deterministic are refused inside the block, and known by their name."""

from typing import Any

import pytest
import torch

from opencil.engine.determinism import only_deterministic, refused_operation


def twice() -> None:
    """Which of the two values stays is not said."""
    torch.zeros(3).put_(torch.tensor([1, 1]), torch.tensor([1.0, 2.0]))


@pytest.mark.parametrize("before", [False, True])
def test_inside_the_block_alone_operations_are_refused(before: bool) -> None:
    memory: Any = torch.utils.deterministic
    fills = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(before, warn_only=before)
    try:
        with only_deterministic(True):
            with pytest.raises(RuntimeError) as refused:
                twice()
            assert not memory.fill_uninitialized_memory
        assert torch.are_deterministic_algorithms_enabled() == before
        assert torch.is_deterministic_algorithms_warn_only_enabled() == before
        assert memory.fill_uninitialized_memory == fills
        with only_deterministic(False):
            assert torch.are_deterministic_algorithms_enabled() == before
    finally:
        torch.use_deterministic_algorithms(False)
    assert refused_operation(refused.value) == "put_"


def test_an_operation_is_known_by_the_cause_of_an_error_too() -> None:
    inner = RuntimeError("index_add_cuda_ does not have a deterministic implementation, but you set …")
    outer = ValueError("a step failed")
    outer.__cause__ = inner
    assert refused_operation(outer) == "index_add_cuda_"
    cublas = RuntimeError("Deterministic behavior was enabled … set CUBLAS_WORKSPACE_CONFIG=:4096:8")
    assert "a product of matrices" in str(refused_operation(cublas))
    assert refused_operation(RuntimeError("out of memory")) is None
    assert refused_operation(None) is None
