"""Single bits of stored files flip: whoever reads such a file, or checks its store, must notice.

``python -m tests.siege.flips --count 10000 --seed 1``, in turn over all kinds of files that a run, the
cache of outputs, the image cache and a published study have. A flip is silent where the file's reader gives
anything but an error that names the file, a cache anything but nothing, or where checking the store finds
nothing.
"""

import signal
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

from opencil import open_run, resolve
from opencil.config import read_yaml
from opencil.data.file_dataset import FileDataset
from opencil.errors import OpenCILError
from opencil.runs import file_formats, loading, outputs_cache
from opencil.runs.reading import read_study
from opencil.runs.store import RunFolder
from opencil.runs.verifying import verify
from tests.siege import damage, writers
from tests.siege.grounds import SHORT, At, Camp, succeed
from tests.siege.siege import Tally, siege

RUN = ["run", "--cil", "icarl", *SHORT]
PLACE = "digits/k4/icarl/seed0"

#: Reads a file as whoever uses it does; None says that it is not used.
Read = Callable[[Path], object]


@dataclass(frozen=True)
class Kind:
    """Files of one kind, how they are read, and the run that they belong to."""

    name: str
    files: list[Path]
    read: Read
    run: RunFolder | None = None

    def trial(self, number: int, seed: int) -> str | None:
        """Flip a bit of one of the files; what was wrong with the answer, if anything was."""
        path = self.files[number % len(self.files)]
        content = path.read_bytes()
        (position,) = damage.flips(path, 1, f"{seed} {number}")
        damage.flip(path, position)
        try:
            return self._answer(path, position)
        finally:
            path.write_bytes(content)

    def _answer(self, path: Path, position: int) -> str | None:
        try:
            if self.read(path) is not None:
                return f"bit {position} of {path} is read as if nothing were wrong"
        except OpenCILError as error:
            if path.name not in str(error):
                return f"bit {position} of {path}: the error does not name it: {error}"
        except Exception as error:
            return f"bit {position} of {path}: {type(error).__name__}: {error}"
        if self.run and not any(f.path == path and f.state == "damaged" for f in verify(self.run)):
            return f"bit {position} of {path} is not found by checking the store"
        return None


def kinds(camp: Camp) -> list[Kind]:
    """Files of every kind: of a finished run, of two that were killed with a checkpoint, and others."""
    runs, finished = run_of(camp)
    found = kinds_of_finished(runs, finished)
    for kind in damage.KINDS:
        if "checkpoint" in kind:
            run = halted(camp, runs, kind)
            found.append(Kind(kind, damage.stored(run, kind), file_formats.read_checked, RunFolder(run)))
    entries = sorted((runs / ".outputs").glob("*.safetensors"))
    found.append(Kind("kept outputs", entries, outputs_cache._read))
    published = camp.folder / "published"
    succeed(camp.start("report", str(runs), "--out", str(published)))
    both = [published / "rows.parquet", published / "runs.json"]
    found.append(Kind("published study", both, study_of(published)))
    found.append(prepared(camp))
    assert all(kind.files for kind in found), "there is a file of every kind"
    return found


def kinds_of_finished(runs: Path, run: Path) -> list[Kind]:
    """The files of a finished run below a folder of runs, each with what reads it."""
    readers: dict[str, Read] = {
        "step*/model.safetensors": lambda path: open_run(run).model(_step(path)),
        "step*/memory.safetensors": lambda path: open_run(run).memory(_step(path)),
        "step*/heads/*[!t].safetensors": lambda path: open_run(run).detector(path.stem, _step(path)),
    }
    reading = study_of(runs)
    return [
        Kind(kind, damage.stored(run, kind), readers.get(kind, reading), RunFolder(run))
        for kind in damage.KINDS
        if "checkpoint" not in kind
    ]


def study_of(folder: Path) -> Read:
    """Reads a folder as a report does; what it names is an error, if all rows that it shows are good."""
    good = set(read_study(folder).rows.itertuples(index=False, name=None))

    def read(path: Path) -> object:
        study = read_study(folder)
        if study.problems and good.issuperset(study.rows.itertuples(index=False, name=None)):
            raise OpenCILError("; ".join(study.problems))
        return study

    return read


def run_of(camp: Camp) -> tuple[Path, Path]:
    """A folder of runs with one that is finished, and that one's folder."""
    runs = camp.folder / "finished"
    succeed(camp.start(*RUN, "--runs", str(runs), journal=camp.folder / "journal.txt"))
    return runs, runs / PLACE


def halted(camp: Camp, like: Path, kind: str) -> Path:
    """The folder of a run that was killed as soon as its second step had a checkpoint of a kind."""
    journal = (camp.folder / "journal.txt").read_text().splitlines()
    below = [line for line in journal if line.partition(" ")[2].startswith(str(like))]
    renamed = (i for i, line in enumerate(below, 2) if fnmatch(line, f"os.rename */step02/{kind[6:]}"))
    runs = camp.folder / f"halted{kind.count('/')}"
    at = At(next(renamed), str(runs), signal.SIGKILL)
    assert camp.start(*RUN, "--runs", str(runs), at=at).ended() == -signal.SIGKILL
    return runs / PLACE


def prepared(camp: Camp) -> Kind:
    """Images that have been prepared; their files are looked at as one."""
    writing = writers.preparing(camp)
    succeed(camp.start(*writing.words))
    root = camp.folder / "downloads"
    config = resolve(read_yaml(camp.folder / "patches.yml"), flags={"place": {"data_root": str(root)}})
    access = replace(loading.access(config.place), cache=str(writing.folder))
    files = sorted(path for path in writing.folder.iterdir() if path.suffix in (".npy", ".json"))

    def read(path: Path) -> object:
        for asked in loading.splits(config):
            assert isinstance(asked.dataset, FileDataset)
            on_disk = asked.dataset.locate(asked.name, asked.split, root)
            kept = asked.dataset.cache_file(asked.name, asked.split, 16, access, on_disk)
            if kept.path.stem == path.stem:
                return kept.load(quiet=True)
        raise AssertionError(f"nobody reads {path}")

    return Kind("prepared images", files, read)


def _step(path: Path) -> int:
    return next(int(part.removeprefix("step")) for part in path.parts if part.startswith("step"))


def besiege(camp: Camp, numbers: Iterable[int], seed: int, tally: Tally) -> str:
    """Some trials; what there is to say of them all."""
    found, counts = kinds(camp), Counter[str]()
    for number in numbers:
        kind = found[number % len(found)]
        tally.note(f"seed {seed} trial {number}, {kind.name}", kind.trial(number // len(found), seed))
        counts[kind.name] += 1
    return f"{len(found)} kinds of files, at least {min(counts.values()):,} flips each"


if __name__ == "__main__":
    siege("flips noticed, of single bits,", besiege, count=10_000)
