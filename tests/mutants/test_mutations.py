"""Mutants: each is another program, the same ones come each time, and a fault reaches the tests."""

import ast
import subprocess
import sys

import pytest

from tests.mutants.__main__ import ROOT, TESTS, all_mutants, files_of, main
from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.mutations import mutated, mutations

SOURCE = '''
"""Words."""
@dataclass(frozen=True)
class Thing:
    share: Annotated[float, Bound(ge=0)] = 0.5
    def of(self, a: int | None, seed: int, step: int) -> float:
        if a < 1 and not self.share:
            raise BadInput(f"{a + 1} is too small")
        draw = torch.randperm(3, generator=generator(seed, step))
        self.note(a)
        return max(x - 1 for x, y in zip(draw, draw, strict=True) if x)
'''


def test_every_kind_of_slip_is_made() -> None:
    assert [m.what for m in mutations(SOURCE)] == [
        "0.5 is 1.0",
        "never",
        "always",
        "And is Or",
        "Lt is LtE",
        "1 is 0",
        "no not",
        "no generator",
        "3 is 2",
        "a seed without seed",
        "a seed without step",
        "without self.note(a)",
        "max is min",
        "without if x",
        "Sub is Add",
        "1 is 0",
    ]


def test_each_is_a_program_of_its_own() -> None:
    programs = [ast.unparse(mutated(SOURCE, number)) for number in range(len(mutations(SOURCE)))]
    assert len({ast.unparse(ast.parse(SOURCE)), *programs}) == len(programs) + 1
    assert "generator(step)" in programs[9]


def test_every_pattern_has_modules_and_tests() -> None:
    found = {mutant.tests for mutant in all_mutants()}
    assert found == set(TESTS.values())
    assert all(path.is_file() for tests in found for path in files_of(tests, None))


@pytest.mark.parametrize("known", EQUIVALENT, ids=lambda known: f"{known[0]}: {known[2]}")
def test_a_mutant_that_is_said_to_change_nothing_exists(known: tuple[str, str, str, str]) -> None:
    """Else its line has changed, and the reason with it."""
    assert any((m.module, m.text, m.what) == known[:3] for m in all_mutants())


def test_faults_are_drawn_by_a_seed_and_noticed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--only", "engine/seeding", "--count", "2", "--seed", "1"]
    monkeypatch.setattr(sys, "argv", ["mutants", *words, "--list"])
    assert main() == 0
    listed = capsys.readouterr().out
    command = [sys.executable, "-m", "tests.mutants", *words]
    tried = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert len(listed.splitlines()) == 2
    assert all(f" s  {line}" in tried.stdout for line in listed.splitlines())
    assert "2 of 2 mutants caught, 100.0%" in tried.stdout
    assert tried.returncode == 0
