"""Collect the checks of a contract, and run them on one subject."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from opencil.errors import OpenCILError

T = TypeVar("T")
Checks = dict[str, Callable[..., None]]
#: Default side of images in the checks of backbones and datasets: CIFAR's.
SIDE = 32


def collect_checks(namespace: Mapping[str, Any]) -> Checks:
    """Return a module's functions ``check_NAME`` by ``NAME``, in the order of their definition."""
    names = [name for name in namespace if name.startswith("check_")]
    return {name.removeprefix("check_"): namespace[name] for name in names}


def run_checks(checks: Checks, subject: object, *arguments: Any) -> None:
    """Run all checks; an ``AssertionError`` names the subject and says how it breaks the contract."""
    name = subject if isinstance(subject, str) else type(subject).__name__
    for check in checks.values():
        try:
            check(*arguments)
        except OpenCILError as error:
            raise AssertionError(f"{name} refuses valid input: {error}") from error
        except AssertionError as error:
            raise AssertionError(f"{name} {error}") from error


def call_twice(make: Callable[[], T]) -> list[T]:
    """Return the results of a call under two states of torch's global generator, which must not change."""
    found = []
    with torch.random.fork_rng(devices=[]):
        for seed in (0, 1):
            before = torch.manual_seed(seed).get_state()
            found.append(make())
            same = torch.equal(torch.get_rng_state(), before)
            assert same, "draws from torch's global generator: create one with a seed of its own"
    return found


def nearly_equal(actual: Tensor, expected: Tensor) -> bool:
    """Return whether two tensors are equal up to rounding."""
    least = 1e-5 * float(expected.abs().max())
    return actual.shape == expected.shape and torch.allclose(actual, expected, rtol=1e-4, atol=least)


def list_differences(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str:
    """Return the names of the first tensors that differ in any bit; an empty string if none does."""
    names = sorted(actual.keys() ^ expected.keys()) or [
        name for name, tensor in expected.items() if not torch.equal(actual[name], tensor)
    ]
    return ", ".join(names[:3])
