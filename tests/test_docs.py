"""Pages are right: their Python blocks run, commands are understood, links lead somewhere."""

import re
import runpy
import shlex
import shutil
import subprocess
import sys
import textwrap
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from torch.distributed.run import parse_args
from typer.testing import CliRunner

from opencil.cli import app
from opencil.runs.spec import plan_share

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; it is left out after a line ``<!-- no-run -->``."""

    page: Path
    line: int
    language: str
    text: str
    runs: bool

    @property
    def file(self) -> str | None:
        """Return the name of the file that the block shows, if its first line is a name: ``# my.yml``."""
        named = re.match(r"# (\w+\.(?:py|yml|toml))$", self.text.partition("\n")[0])
        return named[1] if named else None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.line}"


def blocks() -> Iterator[Block]:
    for page in PAGES:
        lines = page.read_text(encoding="utf-8").splitlines()
        fence, start = None, 0
        for i, line in enumerate(lines):
            mark = re.match(r"\s*(`{3,}|~{3,})\s*(\w*)", line)
            if fence is None and mark:
                fence, start = mark, i
            elif fence is not None and line.strip().startswith(fence[1]) and not line.strip().strip("`~"):
                before = next((above.strip() for above in reversed(lines[:start]) if above.strip()), "")
                text = textwrap.dedent("\n".join(lines[start + 1 : i]))
                yield Block(page, start + 1, fence[2], text, before != "<!-- no-run -->")
                fence = None
        assert fence is None, f"{page}: the block at line {start + 1} does not end"


def write_files(page: Path) -> None:
    """Write the files that a page shows."""
    for block in blocks():
        if block.page == page and block.file:
            Path(block.file).write_text(block.text, encoding="utf-8")


#: Without README, whose blocks and commands are run by another test, as one session.
PYTHON = [b for b in blocks() if b.language == "python" and b.runs and b.page.name != "README.md"]
SHELL = [b for b in blocks() if b.language in ("bash", "sh", "shell", "console") and b.runs]


def commands(block: Block) -> Iterator[list[str]]:
    """Yield the words of each command line without comments; continued lines are joined."""
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        if words:
            yield words


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_blocks_run(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(block.page)
    module = types.ModuleType(f"block_{block.page.stem}_{block.line}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(block.text, str(block), "exec"), vars(module))


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_commands_are_understood(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(block.page)
    for words in commands(block):
        if words[0] in ("opencil", "torchrun"):
            check_command(words[words.index("opencil") + 1 :])
        elif words[0] == "make":
            makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
            targets = [word for word in words[1:] if "=" not in word and not word.startswith("-")]
            assert [t for t in targets if not re.search(rf"^{re.escape(t)}:", makefile, re.M)] == []


def check_command(words: list[str]) -> None:
    """Fail if the command line is wrong; ``opencil run`` is only resolved to its config."""
    saved = None
    if ">" in words:
        saved, words = words[words.index(">") + 1], words[: words.index(">")]
    for word in words:
        if word.endswith((".yml", ".yaml", ".py")) and not word.startswith("-") and not Path(word).exists():
            Path(word).touch()  # a file that the page does not show
    name, *rest = words
    if name.startswith("-"):
        assert name in CliRunner().invoke(app, ["--help"]).stdout
        return
    group = typer.main.get_command(app)
    assert name in group.commands, f"there is no 'opencil {name}'"
    if name == "run":  # its own flags are not part of the config
        if "--only" in rest:
            plan_share(rest.pop(rest.index("--only") + 1))
        name, rest = "config", [w for w in rest if w not in ("--only", "--dry-run", "--quiet", "-q")]
    elif name not in ("config", "list"):
        group.commands[name].make_context(name, rest)  # unknown flags are errors
        return
    result = CliRunner().invoke(app, [name, *rest], env={"COLUMNS": "200"})
    assert result.exit_code == 0, f"opencil {shlex.join(words)}: {result.output}"
    if saved:
        Path(saved).write_text(result.stdout, encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_machines_of_torchrun_find_each_other() -> None:
    """With another backend, each machine would need a number."""
    shown = [found for page in PAGES for found in re.findall(r"`(torchrun --nnodes[^`]*)`", page.read_text())]
    assert shown
    for command in shown:
        asked = parse_args(shlex.split(command.replace("…", "-m opencil"))[1:])
        assert asked.rdzv_backend == "c10d", command


#: Stand-ins for the commands of a job's script: a signal arrives while bash waits, and the command ends then.
STUBS = """
mkfifo ends
opencil() { read < ends; exit 75; }
wait() { if kill -0 $1 2> /dev/null; then echo > ends; builtin wait $1; return 138; fi; builtin wait $1; }
scontrol() { echo "$@"; }
srun() { :; }
sleep() { :; }
SLURM_JOB_ID=5 SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=1 SLURM_NNODES=2
"""


@pytest.mark.parametrize("block", [b for b in blocks() if "#SBATCH" in b.text], ids=str)
def test_a_stopped_job_queues_itself_again(block: Block, tmp_path: Path) -> None:
    script = [shutil.which("bash") or "bash", "-c", STUBS + block.text]
    done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1:] in (["requeue 7_1"], ["requeue 5"]), done


def test_readme_begins_with_demo_and_test() -> None:
    first = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:40]
    shown = [line.split("#")[0].split() for line in first]
    assert ["make", "demo"] in shown
    assert ["make", "test"] in shown


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.stem)
def test_benchmarks_can_be_imported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(path.parent)
    assert runpy.run_path(str(path), run_name="imported")["__doc__"], "what it measures, and its command"
