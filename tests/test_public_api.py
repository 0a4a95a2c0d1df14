"""What `import opencil` gives and costs, and who may know whom inside."""

import ast
import inspect
import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest
import torch
from packaging.version import Version

import opencil

PACKAGE = Path(str(resources.files("opencil")))
MODULES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    """``data/stream.py`` as ``data.stream``; a package is named like its folder."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# --- cost ------------------------------------------------------------------------------------------


def test_importing_costs_nothing_and_names_cost_torch_and_numpy_only() -> None:
    code = """
        import json, sys
        before = {name.split(".")[0] for name in sys.modules}
        import opencil
        after = {name.split(".")[0] for name in sys.modules} - before
        import numpy, torch
        before = {name.split(".")[0] for name in sys.modules}
        opencil.list_detectors(), opencil.list_learners(), opencil.list_datasets(), opencil.list_backbones()
        opencil.Learner, opencil.Detector, opencil.evaluate, opencil.wrap
        listed = {name.split(".")[0] for name in sys.modules}
        new = [sorted(s - set(sys.stdlib_module_names) - {"opencil"}) for s in (after, listed - before)]
        print(json.dumps(new))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [[], []]


# --- names -----------------------------------------------------------------------------------------


def test_all_is_sorted_complete_and_what_dir_shows() -> None:
    assert len(set(opencil.__all__)) == len(opencil.__all__)
    assert dir(opencil) == sorted(opencil.__all__)
    public = {name for name in vars(opencil) if name[0].islower() and name.startswith(("create_", "list_"))}
    assert public <= set(opencil.__all__)


@pytest.mark.parametrize("name", opencil.__all__)
def test_every_public_name_is_there_and_says_what_it_is(name: str) -> None:
    thing = getattr(opencil, name)
    if name == "__version__":
        assert str(Version(thing)) == thing
        return
    doc = inspect.getdoc(thing)
    assert doc
    assert not doc.startswith(f"{name}("), "dataclass wrote this one by itself"


def public_definitions(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.AST]]:
    for node in body:
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        overload = any(isinstance(d, ast.Name) and d.id == "overload" for d in node.decorator_list)
        if node.name.startswith("_") or overload:
            continue
        yield f"{prefix}.{node.name}", node
        if isinstance(node, ast.ClassDef):
            yield from public_definitions(node.body, f"{prefix}.{node.name}")


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_module_class_function_and_method_has_a_docstring(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [(name_of(path), tree), *public_definitions(tree.body, name_of(path))]
    assert [name for name, node in found if not ast.get_docstring(node)] == []


def test_the_example_in_the_docstring_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, after = (opencil.__doc__ or "").partition("::\n\n")
    code = textwrap.dedent("\n".join(line for line in after.splitlines() if line[:4] in ("    ", "")))
    quick = 'settings=["cil.*.epochs=1", "detector.*.schedule.epochs=1"]'
    short = code.replace('detector="all"', f'detector="all", {quick}')
    assert short != code
    monkeypatch.chdir(tmp_path)
    names = {"opencil": opencil, "logits": torch.randn(20, 5), "id_logits": 9 * torch.randn(30, 5)}
    exec(short, names)
    assert set(names["results"].rows["detector"]) == {"", *opencil.list_detectors()}


# --- layers ----------------------------------------------------------------------------------------

COMMON = {"registry", "plugins", "validation", "arrays", "errors", "files", "_version"}
MODELS = COMMON | {"data", "nets", "engine"}
#: What a part of the package may import of ours, itself aside; others may import all.
MAY_IMPORT = {
    "errors": set(),
    "kernels": set(),
    "published": {"study"},
    "configs": set(),
    "arrays": {"errors"},
    "files": {"errors"},
    "validation": {"errors"},
    "plugins": {"registry", "errors", "files"},
    "registry": COMMON - {"plugins"},
    "data": COMMON,
    "nets": COMMON | {"kernels", "data"},
    "engine": COMMON | {"data", "nets"},
    "cil": MODELS,
    "detectors": MODELS,
    "evaluation": MODELS | {"detectors"},
    "evaluation.metrics": COMMON,
    "config": MODELS | {"configs"},
    "study": COMMON | {"data"},
    "report": COMMON | {"data", "evaluation", "published", "config", "study"},
    "runs": MODELS | {"config", "study", "cil", "detectors", "evaluation"},
    "openood": MODELS | {"detectors", "evaluation", "runs"},
    "submissions": MODELS | {"config", "study", "report", "runs", "evaluation"},
    "front": COMMON | {"config", "study", "report", "runs", "cli"},
}


def imported(path: Path) -> set[str]:
    """Modules of ours that a file imports, anywhere in it: ``data.stream`` for ``opencil.data.stream``."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            # "from opencil.runs import files" imports a module too, and "from opencil import run" from one
            names = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            if node.module == "opencil":
                found |= {getattr(getattr(opencil, n), "__module__", full) for n, full in names.items()}
            else:
                found |= {node.module, *names.values()}
    return {name.removeprefix("opencil.") for name in found if name.startswith("opencil.")} | {
        "" for name in found if name == "opencil"
    }


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_a_part_imports_only_what_it_may(part: str) -> None:
    inside = [path for path in MODULES if name_of(path) == part or name_of(path).startswith(f"{part}.")]
    assert inside
    allowed = MAY_IMPORT[part] | {part.split(".")[0]}
    for path in inside:
        others = {name.split(".")[0] for name in imported(path)} - allowed
        assert not others, f"{name_of(path)} imports {sorted(others)}"


def test_no_file_tests_a_method_by_its_name() -> None:
    methods = {*opencil.list_learners(), *opencil.list_detectors()}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare):
                compared = [node.left, *node.comparators]
            elif isinstance(node, ast.MatchValue):
                compared = [node.value]
            else:
                continue
            texts = {n.value for c in compared for n in ast.walk(c) if isinstance(n, ast.Constant)}
            assert not texts & methods, name_of(path)
