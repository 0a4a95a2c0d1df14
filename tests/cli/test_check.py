"""``opencil check``: a line for every promise, a reason and the place for each that is not kept."""

from pathlib import Path
from typing import Any

from opencil.cli.check import checks_of
from opencil.testing import BACKBONE_CHECKS, DETECTOR_CHECKS, LEARNER_CHECKS, METRIC_CHECKS
from tests.cli.common import call

PLUGINS = Path(__file__).parents[1] / "plugins"
MARGIN = (PLUGINS / "margin.py").read_text(encoding="utf-8")


def check(text: str, *words: str) -> Any:
    Path("mine.py").write_text(text, encoding="utf-8")
    return call("check", "mine.py", *words)


def test_every_check_of_a_good_file_has_a_line() -> None:
    result = check(MARGIN)
    assert (result.exit_code, result.stderr) == (0, "")
    first, *lines, last = result.stdout.splitlines()
    assert first == "detector margin"
    assert [line.split("✓")[1].split("  ")[0].strip().replace(" ", "_") for line in lines] == list(
        DETECTOR_CHECKS
    )
    assert "Scores are finite, float32, one for each sample, without a gradient." in lines[0]
    assert last == f"all {len(DETECTOR_CHECKS)} checks passed"


def test_a_promise_that_is_not_kept_has_a_reason() -> None:
    result = check(MARGIN.replace("first - second", "second - first"))
    assert result.exit_code == 1
    (line,) = [line for line in result.stdout.splitlines() if "✗" in line]
    assert line.split()[:4] == ["✗", "larger", "is", "id"]
    assert "does not score easy ID samples above noise" in line
    assert f"1 of {len(DETECTOR_CHECKS)} checks failed" in result.stderr


def test_a_bug_is_shown_in_the_user_s_own_file() -> None:
    result = check(MARGIN.replace("first - second", "first.nothing(second)"))
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert "✗" in lines[1]
    assert lines[1].endswith("AttributeError: 'Tensor' object has no attribute 'nothing'")
    assert lines[2].strip().startswith("mine.py, line 17, in scores: return self.scale * ")
    assert sum("AttributeError" in line for line in lines) == 1, "a repeated reason is told once"
    assert any(line.endswith("as above") for line in lines)
    assert "Traceback" not in result.output


def test_all_kinds_of_a_file_are_checked() -> None:
    for name in ("aurc", "small_net", "two_layers"):
        path = str(PLUGINS / f"{name}.py")
        assert all(one.file == path for one in checks_of(path))
    files = [str(PLUGINS / f"{name}.py") for name in ("aurc", "small_net", "nearest_mean")]
    result = call("check", *files, "--image-size", "8")
    assert result.exit_code == 0, result.output
    heads = [line for line in result.stdout.splitlines() if not line.startswith(" ")]
    assert heads[:-1] == ["metric aurc", "backbone small-net", "CIL method nearest-mean"]
    checks = len(METRIC_CHECKS) + len(BACKBONE_CHECKS) + len(LEARNER_CHECKS)
    assert heads[-1] == f"all {checks} checks passed"


def test_a_yml_is_checked_with_its_plugins() -> None:
    Path("mine.py").write_text(MARGIN, encoding="utf-8")
    Path("my.yml").write_text("plugins: mine.py\nbenchmark: digits\n", encoding="utf-8")
    result = call("check", "my.yml")
    assert result.exit_code == 0, result.output
    heads = [line for line in result.stdout.splitlines() if not line.startswith(" ")]
    assert heads[:2] == ["benchmark digits", "detector margin"]


def test_a_file_without_names_is_refused() -> None:
    result = check("import opencil\n")
    assert result.exit_code == 2
    assert "plugin mine.py registers nothing: decorate" in result.stderr
