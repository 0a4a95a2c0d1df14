"""What ImageNet costs: the guide shows the output of the script, whose arithmetic is redone here."""

import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def printed() -> str:
    script = TOP / "benchmarks" / "scale_model.py"
    return subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout


def column(printed: str, gpus: int, store: str, which: int) -> float:
    """Return the number of a line in a column after the store, counted from 0."""
    line = next(line for line in printed.splitlines() if line.startswith(f"{gpus:4}  {store}"))
    return float(line[57:].split()[which].replace(",", ""))


def test_the_guide_shows_the_output(printed: str) -> None:
    assert f"```\n{printed}```" in (TOP / "docs" / "scaling.md").read_text()


def test_hours_of_one_gpu_by_hand(printed: str) -> None:
    images = 170 * (1_281_167 + 9 * 20_000)
    tuned, evaluated = 20 * 1_281_167, 6 * 103_509 * 5.5
    assert column(printed, 1, "prepared", 0) == round(16_127 * 3 / 4)
    by_hand = images / (16_127 * 3 / 4) + (tuned + evaluated) / (3 * 16_127)
    assert column(printed, 1, "prepared", 1) == pytest.approx(by_hand / 3600, abs=0.051)
    assert column(printed, 1, "files", 0) == 16 * 342
    by_hand = images / (16 * 342) + (tuned + evaluated) / (16 * 342)
    assert column(printed, 1, "files", 1) == pytest.approx(by_hand / 3600, abs=0.051)


def test_an_iteration_of_eight_gpus_by_hand(printed: str) -> None:
    seconds = 128 / 25_206 * 20 / 32 + 40 * 30e-6 + 2 * 7 / 8 * 11_689_512 * 4 / 300e9
    assert column(printed, 8, "prepared", 0) == round(128 / seconds)


def test_measured_rates_are_those_of_the_benchmarks(printed: str) -> None:
    measured = (TOP / "benchmarks" / "README.md").read_text()
    for rate in ("16,127 compiled", "| 11,704 |", "| 25,206 |", "2.92 ms", "0.21 ms"):
        assert rate in measured
