"""The run store: a folder per run, and who may write in it.

::

    runs/<benchmark>/k<k>/<cil>/seed<s>/
        config.yml           every value that decides the result; detectors are added as they are evaluated
        environment.json     versions, device, command and data of the last process that wrote here
        error.txt            why the last attempt failed
        .lock                locked by the process that writes here
        .open                there while a process writes here, and left where it was killed
        step01/
            step.json        what made the step, and the checksum of each of its other files
            model.safetensors, memory.safetensors (exemplars as indices), model.parquet (rows of the model)
            heads/ber.safetensors       head of a fine-tuning detector
            detectors/msp.parquet       rows of a detector
            statistics/moments.safetensors      of the step's classes, for detectors at later steps
            checkpoint, heads/ber.checkpoint    while the step is trained, or the head is tuned

``step.json`` is written after the files in its list: a file outside of the list counts as absent.
"""

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from errno import ENOENT
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from filelock import FileLock, Timeout
from safetensors.torch import load, save
from torch import Tensor

from opencil.config import dump_yaml
from opencil.config.short_forms import parse_yaml
from opencil.errors import BadInput, OpenCILError
from opencil.files import (
    Damaged,
    DiskError,
    checksum,
    damaged,
    disk_errors,
    find_temporary,
    read_bytes,
    read_checked,
    read_json,
    write_bytes,
    write_checked,
    write_json,
)
from opencil.runs.spec import RunSpec, training_values
from opencil.study.records import Identity
from opencil.study.rows import read_tables, write_rows
from opencil.validation import flat

_log = logging.getLogger("opencil.runs")
#: Version of the folder's layout. Other versions are refused.
FORMAT = 2
_FIRST_LINE = f"# opencil run, format {FORMAT}, sha256 of what follows: "
#: Seconds to wait for another process that is about to leave the run.
_PATIENCE = 5.0
#: ``step.json`` as a mapping: see ``StepFolder.info``.
Info = dict[str, Any]


class LockedRun(OpenCILError):
    """Another process writes the run."""


def digest_values(values: Any) -> str:
    """Return a checksum of plain values, to compare the values behind two files."""
    return checksum(json.dumps(values, sort_keys=True, default=str).encode())


@dataclass(frozen=True)
class StepFolder:
    """The files of one step; without ``writes`` nothing is written, as on all ranks but the first."""

    path: Path
    writes: bool = True

    @property
    def number(self) -> int:
        """Return the step's number, counted from 1."""
        return int(self.path.name.removeprefix("step"))

    @property
    def record(self) -> Path:
        """Return the path of ``step.json``."""
        return self.path / "step.json"

    @property
    def trained(self) -> bool:
        """Return whether the step's model is stored."""
        with disk_errors(self.record, "read"):
            return self.record.exists()

    def info(self) -> Info:
        """Read ``step.json``.

        ``run``, ``step``, ``steps``, ``training`` (digest of the values that decided the training),
        ``previous`` (checksum of the previous step's model), ``images``, ``files`` with their checksums,
        ``rows`` by detector ('' for the model) with their ``metrics``, ``made``, and digests of ``values``,
        ``model`` and ``head``; ``heads`` with the digest of all behind each; ``seconds`` by kind of work.
        """
        info = read_json(self.record)
        if info.get("step") != self.number:
            raise damaged(self.record, f"it is of step {info.get('step')}")
        mappings = all(isinstance(info.get(key), dict) for key in ("files", "heads", "rows", "seconds"))
        if not mappings or not {"run", "steps", "training", "previous", "images"} <= info.keys():
            raise damaged(self.record, "it is not the record of a step")
        return info

    def save_info(self, info: Info) -> None:
        """Write ``step.json``."""
        if self.writes:
            write_json(self.record, info)

    # --- files that step.json lists ---

    @staticmethod
    def head(detector: str) -> str:
        """Return the name of a head's file."""
        return f"heads/{detector}.safetensors"

    @staticmethod
    def statistics(kind: str) -> str:
        """Return the name of a file of statistics of the step's classes."""
        return f"statistics/{kind}.safetensors"

    @staticmethod
    def table(detector: str) -> str:
        """Return the name of a detector's file of rows, or the model's for ''."""
        return f"detectors/{detector}.parquet" if detector else "model.parquet"

    def listed(self, name: str, info: Info) -> str:
        """Return the noted checksum of a file."""
        if name not in info["files"]:
            raise damaged(self.path / name, "step.json does not list it")
        return str(info["files"][name])

    def read(self, name: str, info: Info) -> bytes:
        """Read a file, which must have its noted checksum."""
        return read_bytes(self.path / name, self.listed(name, info))

    def save_tensors(self, name: str, tensors: dict[str, Tensor], info: Info) -> None:
        """Write a file of tensors, and note its checksum."""
        if self.writes:
            info["files"][name] = write_bytes(self.path / name, pack(tensors))

    def tensors(self, name: str, info: Info) -> dict[str, Tensor]:
        """Read a file of tensors."""
        return load(self.read(name, info))

    def save_rows(self, detector: str, rows: pd.DataFrame, info: Info) -> None:
        """Write rows of a detector, or of the model for '', and note their checksum."""
        if self.writes:
            info["files"][self.table(detector)] = write_rows(self.path / self.table(detector), rows)

    def rows(self, detector: str, info: Info) -> pd.DataFrame:
        """Read rows of a detector, or of the model for ''."""
        return read_tables([(self.path / self.table(detector), self.listed(self.table(detector), info))])

    def made_on(self, detector: str, info: Info) -> dict[str, str]:
        """Return digests of the step's model and, if it has one, of the detector's head."""
        of_head = {"head": info["heads"][detector]} if detector in info["heads"] else {}
        return {"model": info["files"].get("model.safetensors", ""), **of_head}

    def misfit(self, detector: str, values: dict[str, Any] | None, info: Info) -> str:
        """Return why noted rows are not of a detector's values, the step's model and its head; or ''."""
        note = info["rows"][detector]
        if note["values"] != digest_values(values):
            return "was made with other values than the run's"
        made_on = self.made_on(detector, info)
        differs = any(note.get(key, digest) != digest for key, digest in made_on.items())
        return "was made on another model or head than the step's" if differs else ""

    def lacking(self, spec: RunSpec, info: Info) -> list[str]:
        """Return the detectors, and '' for the model, whose rows are missing, damaged or incomplete.

        The rows of a missing or damaged head count as missing.
        """
        return [name for name in ("", *spec.detectors) if not self._has_rows(name, spec, info)]

    def _has_rows(self, name: str, spec: RunSpec, info: Info) -> bool:
        if name not in info["rows"] or self.misfit(name, spec.detectors.get(name), info):
            return False
        if set(spec.metrics_of(name)) - set(info["rows"][name]["metrics"]):
            return False
        with suppress(Damaged):
            for file in [self.table(name), *[self.head(name)] * (name in info["heads"])]:
                self.read(file, info)
            return True
        return False

    def checkpoint(self, head: str = "") -> Path:
        """Return the checkpoint file of the step's training, or of the tuning of a head."""
        return self.path / (f"heads/{head}.checkpoint" if head else "checkpoint")

    def remove_checkpoint(self, head: str = "") -> None:
        """Delete the checkpoint of a finished training, if there is one."""
        if self.writes and self.checkpoint(head).exists():
            self.checkpoint(head).unlink()


def check_record(step: StepFolder, info: Info, run: str, training: str, previous: str | None) -> None:
    """Refuse a step's record that does not belong to a run; ``previous`` is a model's checksum."""
    if info["run"] != run:
        raise damaged(step.record, f"it is of run {info['run']}")
    if info["training"] != training:
        raise damaged(step.record, "it is of a training with other values than the run's")
    if previous is not None and info["previous"] != previous:
        raise damaged(step.record, "it is of a training on another model than that of the step before")


def pack(tensors: dict[str, Tensor]) -> bytes:
    """Return the content of a safetensors file."""
    return save({name: t.detach().cpu().contiguous() for name, t in tensors.items()})


@dataclass(frozen=True)
class RunFolder:
    """The files of one run; without ``writes`` nothing is written, as on all ranks but the first."""

    path: Path
    writes: bool = True

    @property
    def config(self) -> Path:
        """Return the path of the run's config."""
        return self.path / "config.yml"

    @property
    def environment(self) -> Path:
        """Return the path of the record of the last process that wrote here."""
        return self.path / "environment.json"

    @property
    def error(self) -> Path:
        """Return the path of the last attempt's error."""
        return self.path / "error.txt"

    def step(self, number: int) -> StepFolder:
        """Return the folder of a step, counted from 1."""
        return StepFolder(self.path / f"step{number:02d}", self.writes)

    def steps(self) -> list[StepFolder]:
        """Return the folders of steps, in their order."""
        numbers = sorted({int(p.name[4:]) for p in self.path.glob("step*") if p.name[4:].isdecimal()})
        return [self.step(number) for number in numbers if self.step(number).path.is_dir()]

    def trained(self) -> list[StepFolder]:
        """Return the steps whose models are stored, in their order."""
        return [step for step in self.steps() if step.trained]

    def lost(self) -> list[StepFolder]:
        """Return the steps without ``step.json``, but with rows of a detector or a later step."""
        last = max((step.number for step in self.trained()), default=0)
        known = {step.number: step for step in (*map(self.step, range(1, last)), *self.steps())}
        lost = (s for s in known.values() if not s.trained)
        return [s for s in lost if s.number < last or any(s.path.glob("detectors/*"))]

    def failure(self) -> str:
        """Return the last attempt's error in a line; '' where there was none."""
        with suppress(OpenCILError):
            return read_bytes(self.error, most=2**20).decode(errors="replace").partition("\n")[0]
        return ""

    # --- config ---

    def stored(self) -> dict[str, Any]:
        """Read the run's config; empty before there is one."""
        if not self.config.exists():
            if any(self.path.glob("step*/*.safetensors")):
                raise damaged(self.config, "it is missing")
            return {}
        try:
            return parse_yaml(read_checked(self.config, _FIRST_LINE), str(self.config))
        except Damaged:
            if read_bytes(self.config).startswith(_FIRST_LINE.encode()):
                raise
            why = f"it is damaged, or not of format {FORMAT}"
            way = f"keep it and name another folder with --runs, or delete {self.path} to compute it again"
            raise Damaged(f"{self.config} cannot be used ({why}): {way}", why) from None

    def _write_config(self, record: dict[str, Any]) -> None:
        write_checked(self.config, dump_yaml(record).encode(), _FIRST_LINE)

    def identity(self, config: dict[str, Any]) -> Identity:
        """Return which run the folder is of, as its config says."""
        if not config:
            raise damaged(self.config, "it is missing")
        benchmark, (cil,) = config["benchmark"], config["cil"]
        return benchmark["name"], benchmark["classes_per_step"][0], cil, config["seed"]["run"]

    def announce(self, spec: RunSpec) -> None:
        """Write the config of a future run, so that reports list it."""
        if self.writes and not self.config.exists():
            self._write_config(spec.record())

    def check(self, spec: RunSpec) -> dict[str, Any]:
        """Refuse to continue a run under other values than those that its files were made with.

        Return its config.
        """
        if differences := self.compare(spec):
            lines = [f"\n  {key}: {before} in the stored run, {now} now" for key, before, now in differences]
            raise BadInput(
                f"{self.path} is a run with other values. The same command with --overwrite makes it again, "
                f"with --runs OTHER-FOLDER it keeps both{''.join(lines)}"
            )
        return self.stored()

    def compare(self, spec: RunSpec) -> list[tuple[str, str, str]]:
        """Return the key of each value that its files were made with and a run has otherwise, and both."""
        stored = self.stored()
        if not stored or not any(self.path.glob("step*/*.safetensors")):  # nothing has been trained under it
            return []
        both = [
            name
            for name in set(stored["detector"]) & set(spec.detectors)
            if any(self.path.glob(f"step*/{StepFolder.table(name)}"))
        ]
        then, now = (
            training_values(record) | flat({"detector": {name: record["detector"][name] for name in both}})
            for record in (stored, spec.record())
        )
        return [
            (key, _say(then, key), _say(now, key))
            for key in sorted(then.keys() | now.keys())
            if then.get(key, ...) != now.get(key, ...) and now.get(key) != "compute"  # as in a dry run
        ]

    def overwrite(self, spec: RunSpec, whole: bool = False) -> bool:
        """Delete the run if it was trained with other values, or ``whole``; return whether anything changes.

        Of a detector with other values, the rows are made again.
        """
        other, detectors = self.differs(spec)
        with self.lock():
            if whole or other:
                self.clear()
            elif detectors:
                stored = self.stored()
                self._write_config(stored | {"detector": stored["detector"] | spec.detectors})
        return whole or other or bool(detectors)

    def differs(self, spec: RunSpec) -> tuple[bool, set[str]]:
        """Return whether the run was trained with other values, and the detectors that have others."""
        keys = [key.split(".") for key, *_ in self.compare(spec)]
        detectors = {key[1] for key in keys if key[0] == "detector"}
        return any(key[0] != "detector" for key in keys), detectors

    def clear(self) -> None:
        """Delete all files of a locked run but its lock."""
        for path in self.path.iterdir():
            if path.name != ".lock":
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def finished(self, spec: RunSpec) -> bool:
        """Return whether every step is trained, each on the one before, and measured with every detector.

        A run whose last process was killed is not: its folder is to be tidied up.
        """
        if (self.path / ".open").exists() or not self.step(1).trained:
            return False
        if set(spec.detectors) - set(self.stored().get("detector", {})):  # an older config was restored
            return False
        training, previous = digest_values(training_values(spec.record())), ""
        for step in (self.step(number) for number in range(1, self.step(1).info()["steps"] + 1)):
            if not step.trained:
                return False
            check_record(step, info := step.info(), str(spec), training, previous)
            if step.lacking(spec, info):
                return False
            previous = info["files"]["model.safetensors"]
        return True

    # --- writing ---

    @contextmanager
    def opened(self, spec: RunSpec, environment: dict[str, Any]) -> Iterator[None]:
        """Lock the run for writing, under an unchanged config and without half-written files."""
        if not self.writes:
            yield
            return
        with self.lock(_PATIENCE):
            stored, record = self.check(spec), spec.record()
            for leftover in find_temporary(self.path):
                leftover.unlink()
            if self.error.exists():
                self.error.unlink()
            record["detector"] = {**stored.get("detector", {}), **spec.detectors}
            if plugins := stored.get("plugins", {}) | record.get("plugins", {}):
                record["plugins"] = plugins
            if record != stored:
                self._write_config(record)
            environment = {"run": str(spec), **environment}
            write_json(self.environment, environment)
            if (open_ := self.path / ".open").exists():
                _log.warning("run %s: its last attempt ended without a word, as if killed; it goes on", spec)
            open_.write_bytes(b"")
            try:
                yield
            finally:
                open_.unlink(missing_ok=True)
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                peak = round(torch.cuda.max_memory_allocated() / 2**20)
                write_json(self.environment, {**environment, "peak_memory_mib": peak})

    @contextmanager
    def lock(self, seconds: float = 0.0) -> Iterator[None]:
        """Lock the run inside the block, or raise ``LockedRun``."""
        try:
            with disk_errors(self.path):
                held = FileLock(self.path / ".lock").acquire(timeout=seconds)  # it makes the folder
        except Timeout:
            raise LockedRun(f"{self.path} is written by another process: wait for it, or stop it") from None
        except FileNotFoundError as error:  # such as below /proc
            raise DiskError(f"the folder {self.path} cannot be made: {error.strerror}") from None
        with held:
            yield

    @property
    def locked(self) -> bool:
        """Return whether a process is writing the run."""
        try:
            with self.lock():
                return False
        except OpenCILError as error:  # else a read-only disk, where nobody writes
            return isinstance(error, LockedRun)


def bytes_of(tensor: Tensor) -> memoryview:
    """Return a tensor's bytes."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data


# --- folders of runs -------------------------------------------------------------------------------


def find_runs(root: Path, refused: Callable[[OSError], object] | None = None) -> list[RunFolder]:
    """Return the runs at or below a folder, also those without a finished step; links are followed.

    ``refused`` is called with the error of an unreadable folder.
    """
    if not root.is_dir():
        raise BadInput(f"there is no folder {root} to read runs from")
    found, seen = set(), set[str]()
    for place, folders, files in os.walk(root, onerror=refused, followlinks=True):
        if (real := os.path.realpath(place)) in seen:
            folders.clear()
            continue
        seen.add(real)
        if {"environment.json", "config.yml"} & {*files}:
            found.add(Path(place))
        elif Path(place).name.startswith("step") and "step.json" in files:
            found.add(Path(place).parent)
        for link in (Path(place, name) for name in files if "." not in name):  # files of runs have endings
            if refused and link.is_symlink() and not link.exists():
                refused(FileNotFoundError(ENOENT, f"it is a link to {link.readlink()}", str(link)))
        folders.sort(key=lambda name: ((Path(place) / name).is_symlink(), name))  # links come last
    return [RunFolder(path) for path in sorted(found)]


def _say(values: dict[str, Any], key: str) -> str:
    return repr(values[key]) if key in values else "not set"
