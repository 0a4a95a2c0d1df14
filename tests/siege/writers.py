"""Kills while images are prepared, and while reports, pages and published studies are written.

``python -m tests.siege.writers --count 60 --seed 1``. Whatever the moment, each file is absent, what it was
before, or what it would have become; a published study is read as one of the two, or refused; and the same
command, once more, leaves what it leaves undisturbed.
"""

import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from opencil.cli.guard import STOPPED
from tests.siege.grounds import SHORT, At, Camp, operations, succeed
from tests.siege.siege import Tally, siege
from tests.stored import differences

_SIGNALS = [signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT]
_YML = """
benchmark:
  name: patches
  id: patches
  near: [others]
  far: [scans]
  datasets:
    patches: {path: patches, train: train, test: test}
    others: {path: others}
    scans: {path: scans, layout: flat}
  image_size: 16
  transform: {mean: compute, std: compute, crop: 16, padding: 2, flip: true}
  backbone: resnet8
  memory: 8
  classes_per_step: 2
cil: icarl
detector: msp
"""

Files = dict[str, bytes]


@dataclass
class Writing:
    """A command that writes below a folder, what is there before it, and how to look at what it left."""

    words: list[str]
    folder: Path
    before: Files
    look: Callable[[Files, Files], str | None] = lambda before, after: None
    after: Files = field(default_factory=dict)
    operations: int = 0

    def trial(self, camp: Camp, random: random.Random) -> tuple[str | None, str]:
        """Disturb it once or twice and let it end; what is wrong, and which signal it was."""
        put(self.folder, self.before)
        number = random.choice(_SIGNALS)
        for _ in range(random.choice([1, 2])):
            at = At(random.randint(1, self.operations), str(self.folder), number)
            victim = camp.start(*self.words, at=at)
            code = victim.ended()
            if "Traceback" in victim.said or code not in (0, 130, STOPPED, -number):
                return f"it ends with exit code {code}:\n{victim.said}", number.name
            if torn := self._torn():
                return f"neither old nor new: {torn}", number.name
            if wrong := self.look(self.before, self.after):
                return wrong, number.name
        last = camp.start(*self.words)
        if last.ended() != 0:
            return f"it does not go on:\n{last.said}", number.name
        others = differences(dict(files(self.folder)), dict(self.after))
        return (f"it ends with other files: {others}" if others else None), number.name

    def _torn(self) -> list[str]:
        there = files(self.folder)
        return [
            name
            for name, content in there.items()
            if content not in (self.before.get(name), self.after.get(name))
        ]

    def undisturbed(self, camp: Camp) -> None:
        """Find out what it leaves, and in how many file operations."""
        put(self.folder, self.before)
        journal = camp.folder / "operations.txt"
        journal.unlink(missing_ok=True)
        succeed(camp.start(*self.words, journal=journal))
        self.after, self.operations = files(self.folder), operations(journal, self.folder)


def files(folder: Path) -> Files:
    """Every file below a folder, but locks and what was being written."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix not in (".held", ".part") and path.name != ".held"
    }


def put(folder: Path, content: Files) -> None:
    """Make a folder hold these files and no others."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, content_of in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content_of)


def preparing(camp: Camp) -> Writing:
    """``opencil data prepare`` of some images."""
    root, yml, random = camp.folder / "downloads", camp.folder / "patches.yml", np.random.default_rng(0)
    yml.write_text(_YML)
    split = [f"patches/{part}/class{c}" for part in ("train", "test") for c in range(4)]
    for place in [*split, "others/cat", "others/dog", "scans"]:
        (root / place).mkdir(parents=True)
        for i in range(12):
            pixels = random.integers(0, 256, (20, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / place / f"{i}.png")
    cache = camp.folder / "cache"
    return Writing(["data", "prepare", str(root), "--config", str(yml), "--cache", str(cache)], cache, {})


def reporting(camp: Camp) -> Writing:
    """``opencil report --out`` of two runs, over the report of one: study, tables, figures and page."""
    one, two, out = camp.folder / "one", camp.folder / "two", camp.folder / "report"
    succeed(camp.start("run", *SHORT, "--cil", "icarl", "--seed", "0", "--runs", str(one), "--quiet"))
    shutil.copytree(one, two)
    succeed(camp.start("run", *SHORT, "--cil", "icarl", "--seed", "0,1", "--runs", str(two), "--quiet"))
    succeed(camp.start("report", str(one), "--out", str(out)))
    before = files(out)

    def shown(study: Files) -> str:
        place = camp.folder / "shown"
        put(place, study)
        reader = camp.start("report", str(place), "--format", "csv")
        return reader.said if reader.ended() == 0 else ""

    def look(before: Files, after: Files) -> str | None:
        there = files(out)
        if {"rows.parquet", "runs.json"} <= there.keys():
            said = shown(there)
            if said and said not in (shown(before), shown(after)):
                return f"the half-written study is read as a third one:\n{said}"
        return None

    return Writing(["report", str(two), "--out", str(out)], out, before, look)


def besiege(camp: Camp, numbers: Iterable[int], seed: int, tally: Tally) -> str:
    """Some trials; what there is to say of them all."""
    kinds = {"prepare": preparing(camp), "report": reporting(camp)}
    for writing in kinds.values():
        writing.undisturbed(camp)
    counts: Counter[str] = Counter()
    for number in numbers:
        chance = random.Random(f"{seed} {number}")
        kind = chance.choice(list(kinds))
        wrong, name = kinds[kind].trial(camp, chance)
        tally.note(f"seed {seed} trial {number}, {kind}", wrong)
        counts.update([kind, name])
    return ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))


if __name__ == "__main__":
    siege("writers left whole files or none", besiege, count=60)
