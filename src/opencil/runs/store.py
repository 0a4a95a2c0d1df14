"""The run store: what lies where on disk.

::

    runs/<benchmark>/k<k>/<cil>/seed<s>/
        config.yml           every value that decides the result; detectors are added as they are evaluated
        environment.json     versions and device of what last wrote here, and the most memory of any process
        data.json            what images it read, and how many the paper has
        .held                who writes here just now: see opencil.locks
        error.txt            where the last attempt failed: why, of an error that nobody foresaw its traceback
        *.damaged            what was damaged and has been computed again, here and below
        step01/
            checkpoint.safetensors    while the step is being trained
            model.safetensors    θ_t, but for what an earlier step's file has and this one refers to
            memory.safetensors   exemplars after the step, as indices into the training set
            accuracy.parquet     rows of the model itself
            step.json            written last: its presence says that the step has been trained
            heads/ber.safetensors    f_t of a fine-tuning detector, and what it was made of
            detectors/msp.parquet
"""

import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from torch import Tensor

from opencil.atomic_files import remove_temporary, temporary
from opencil.config import dump_yaml, read_yaml
from opencil.data.memory import Memory
from opencil.disk import told as disk_told
from opencil.errors import BadInput, OpenCILError
from opencil.locks import Held, Lock
from opencil.plugins import Notes, joined, missing, told
from opencil.runs import file_formats
from opencil.runs.plan import RunSpec, defaults, in_todays_terms
from opencil.runs.weights import Stock, read_weights, write_weights
from opencil.seals import BLANK, Damaged, read_sealed, write_json, write_sealed
from opencil.study.records import IDENTITY, USABLE, Identity, name_of
from opencil.study.rows import Table, measured_metrics, read_tables, write_rows
from opencil.validation import flat

#: Values that say where a file lies; its checksum, beside them, says what it is.
_PLACES = {"benchmark.backbone.weights"}
#: Records of a run, beside its config.
ENVIRONMENT, DATA = "environment.json", "data.json"


@dataclass(frozen=True)
class StepFolder:
    """The files of one step."""

    path: Path

    @property
    def trained(self) -> bool:
        """Whether the step's model is stored."""
        return (self.path / "step.json").exists()

    def info(self, run: Identity | None = None, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What is noted of a stored step: number, steps, seconds by kind of work, digest of the weights.

        It must be the step of its place, and of the run and of its config, if these are named.
        """
        path = self.path / "step.json"
        info = file_formats.read_json(path)
        if not isinstance(info.get("steps"), int):
            raise file_formats.damaged(path, "it does not say how many steps there are")
        if info.get("step", self.number) != self.number:
            raise file_formats.damaged(path, f"it is of step {info['step']}")
        if run and info.get("run", name_of(*run)) != name_of(*run):  # it was not noted once
            raise file_formats.damaged(path, f"it is of run {info['run']}")
        if config and isinstance(noted := info.get("config"), dict):  # steps of earlier versions have none
            for key, value in trained_under(config).items():
                if noted.get(key, value) != value:
                    raise file_formats.damaged(path, f"it was trained with {key} = {noted[key]}, not {value}")
        return info

    @property
    def number(self) -> int:
        """Which step it is, counted from 1."""
        return int(self.path.name.removeprefix("step"))

    def save(
        self,
        weights: dict[str, Tensor],
        stock: Stock,
        memory: Memory,
        accuracy: pd.DataFrame,
        info: dict[str, Any],
    ) -> Stock:
        """Store a trained step; the mark that it is there comes last.

        What the ``stock`` of the step before has is referred to; the next step's is returned. The checksums
        of the weights and of the memory are added to ``info``.
        """
        stock = write_weights(self.model, self.number, weights, stock)
        info["weights_sha256"] = stock.checksums[self.number]
        info["memory_sha256"] = file_formats.write_tensors(self.memory_file, memory.tensors())
        accuracy.attrs["model"] = info["weights_sha256"]
        write_rows(self.model_rows, accuracy)
        self.save_info(info)
        self.checkpoint.unlink(missing_ok=True)
        return stock

    def save_info(self, info: dict[str, Any]) -> None:
        """Note what ``info`` is to read."""
        write_json(self.path / "step.json", info)

    @property
    def model(self) -> Path:
        """The file of θ_t."""
        return self.path / "model.safetensors"

    def weights(self, sha256: str) -> tuple[dict[str, Tensor], Stock]:
        """θ_t's tensors, unless a file has another checksum than when it was written; and their stock."""
        return read_weights(self.model, self.number, self._model_of, sha256)

    def _model_of(self, number: int) -> Path:
        return RunFolder(self.path.parent).step(number).model

    @property
    def memory_file(self) -> Path:
        """The file of the memory after the step."""
        return self.path / "memory.safetensors"

    def memory(self, size: int, sha256: str | None = None) -> Memory:
        """The memory after the step, unless its file has another checksum than when it was written."""
        path = self.memory_file
        tensors, _, _ = file_formats.read_checked(path, sha256)
        try:
            return Memory.from_tensors(size, tensors)
        except (KeyError, RuntimeError, ValueError) as error:
            raise file_formats.damaged(path, f"not a memory: {error}") from None

    @property
    def checkpoint(self) -> Path:
        """A step in the middle of its training; deleted when it is stored."""
        return self.path / "checkpoint.safetensors"

    def save_checkpoint(self, tensors: dict[str, Tensor], stock: Stock, seconds: float, made_of: str) -> None:
        """Store a step in the middle of its training, of what, and how long it took to get there."""
        notes = {"seconds": str(seconds), "made_of": made_of}
        write_weights(self.checkpoint, self.number, tensors, stock, notes)

    def checkpoint_tensors(self, made_of: str) -> dict[str, Tensor] | None:
        """What a checkpoint of this training holds; None where there is none. One of another is set aside.

        Checkpoints did not say once what they are of.
        """
        notes = file_formats.metadata(self.checkpoint)
        if notes is None:
            return None
        if notes.get("made_of", made_of) != made_of:
            self.without_checkpoint("it is of another training")
            return None
        return read_weights(self.checkpoint, self.number, self._model_of)[0]

    def without_checkpoint(self, problem: object) -> None:
        """Set a checkpoint aside that cannot be gone on from: the step begins anew."""
        file_formats.set_aside(self.checkpoint, problem)

    @property
    def checkpoint_seconds(self) -> float:
        """How long the training took up to its checkpoint; 0 without one, or where it does not say."""
        try:
            seconds = float((file_formats.metadata(self.checkpoint) or {}).get("seconds", 0))
        except ValueError:
            return 0.0
        return seconds if 0 <= seconds < float("inf") else 0.0

    def head(self, name: str) -> Path:
        """The file of a fine-tuning detector's head."""
        return self.path / "heads" / f"{name}.safetensors"

    def head_tensors(self, name: str, model: str, trained_as: str | None = None) -> dict[str, Tensor]:
        """What a head's file holds; it must be that detector's, tuned on the model with this checksum.

        It may have been tuned under another label; ``trained_as`` says which, where that is known.
        """
        path = self.head(name)
        tensors, notes, _ = file_formats.read_checked(path)
        found = notes.get("detector", trained_as or name)  # heads did not say once whose they are
        if found != trained_as and (trained_as or found.partition("@")[0] != name.partition("@")[0]):
            raise file_formats.damaged(path, f"it is the head of {notes['detector']}")
        if notes.get("model", model) != model:
            raise file_formats.damaged(path, "it was tuned on another model than the step's")
        return tensors

    def head_checkpoint(self, name: str) -> Path:
        """A head in the middle of its tuning; deleted when it is stored."""
        return self.path / "heads" / f"{name}.checkpoint.safetensors"

    def tables(self) -> list[Path]:
        """The files of the step's rows: of the model itself, then of the detectors evaluated so far."""
        return [self.model_rows, *sorted((self.path / "detectors").glob("*.parquet"))]

    def placed(self, tables: Iterable[Path], run: Identity | None, info: dict[str, Any]) -> list[Table]:
        """Files of the step's rows with what they must be of: the step, its model, the detector, the run."""
        of_run = dict(zip(IDENTITY, run, strict=True)) if run else {}
        model = str(info.get("weights_sha256", ""))
        detectors = {path: "" if path == self.model_rows else path.stem for path in tables}
        return [
            Table(path, {**of_run, "step": self.number, "detector": detector}, model)
            for path, detector in detectors.items()
        ]

    @property
    def model_rows(self) -> Path:
        """The file of the model's own rows."""
        return self.path / "accuracy.parquet"

    def detector_rows(self, name: str) -> Path:
        """The file of a detector's rows."""
        return self.path / "detectors" / f"{name}.parquet"

    def unmeasured(self, spec: RunSpec, info: dict[str, Any] | None = None) -> list[str]:
        """Those of a run's detectors, and '' for the model, whose rows are not all there and usable."""
        tables = {name: self.detector_rows(name) for name in spec.detectors} | {"": self.model_rows}
        placed = self.placed(tables.values(), spec.identity, info or self.info(spec.identity, spec.record()))
        asked = {self.model_rows: spec.metrics_of_model}
        return [
            name
            for name, table in zip(tables, placed, strict=True)
            if not _measured(table, asked.get(table.path, spec.metrics_of_detectors))
        ]

    def complete(self, spec: RunSpec) -> bool:
        """Whether the step is trained, and all that is asked of it measured."""
        return self.trained and not self.unmeasured(spec)

    def mend(self, run: Identity) -> None:
        """Set aside what is damaged, or of another place, and can be computed again from the rest."""
        middles = [self.checkpoint, *(self.path / "heads").glob("*.safetensors")]
        for path in middles:
            # The head that rows were measured with is not made again under them: whoever needs it is told.
            if path.exists() and not self.detector_rows(path.stem).exists():
                _set_aside_if_damaged(path, partial(file_formats.read_checked, path))
        for table in self.placed(self.tables(), run, self.info(run)) if self.trained else ():
            if table.path.exists() and not _measured(table, ()):
                # Rows are of another model where step.json is: then it is what is damaged.
                file_formats.read_checked(self.model, table.model)
                _set_aside_if_damaged(table.path, partial(measured_metrics, table, file_formats.damaged))


def _measured(table: Table, metrics: Iterable[str]) -> bool:
    """Whether a file of rows is there and usable, and its rows were measured with some metrics."""
    try:
        return table.path.exists() and measured_metrics(table, file_formats.damaged) >= set(metrics)
    except Damaged:
        return False


def _set_aside_if_damaged(path: Path, read: Callable[[], object]) -> None:
    try:
        read()
    except Damaged as problem:
        file_formats.set_aside(path, problem.reason)


@dataclass(frozen=True)
class RunFolder:
    """The files of one run."""

    path: Path

    @property
    def config(self) -> Path:
        """The file of the config that the run is made under."""
        return self.path / "config.yml"

    @property
    def error(self) -> Path:
        """The file that says why the last attempt failed."""
        return self.path / "error.txt"

    def failed(self) -> str:
        """What the error said that ended the last attempt; empty where none did."""
        try:
            lines = self.error.read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError:
            return ""
        if not any(line.startswith("Traceback ") for line in lines):
            return lines[0]  # of an error that was foreseen
        named = [line for line in lines if re.match(r"[A-Za-z_][\w.]*(: |$)", line)]
        return named[-1] if named else "an error"

    def step(self, number: int) -> StepFolder:
        """The folder of a step, counted from 1."""
        return StepFolder(self.path / f"step{number:02d}")

    def finished(self, spec: RunSpec) -> bool:
        """Whether every step is trained and every detector evaluated, under this very config."""
        first = self.step(1)
        if not first.trained or self.differences(spec) or not self._records_usable(spec.identity):
            return False
        steps = [self.step(t) for t in range(1, first.info()["steps"] + 1)]
        return all(step.complete(spec) for step in steps)

    def differences(self, spec: RunSpec) -> dict[str, tuple[Any, Any]]:
        """Stored values that a spec has otherwise, and its own; not of detectors that only one has."""
        stored = self.stored()
        if not stored or not any(self.path.glob("step*/*.safetensors")):  # nothing has been trained under it
            return {}
        both = {d for d in set(stored["detector"]) & set(spec.detectors) if self._evaluated(d)}
        record = _decisive(spec.record(), both)
        then, now = flat(_decisive(stored, both)), flat(record)
        # A value that did not exist when the run was stored was what it is by default.
        for key, value in flat(defaults(record)).items():
            if key in now:
                then.setdefault(key, value)
        return {
            key: (then.get(key, "absent"), now.get(key, "absent"))
            for key in sorted((then.keys() | now.keys()) - _PLACES)
            if then.get(key, ...) != now.get(key, ...)
        }

    def _evaluated(self, detector: str) -> bool:
        return any(self.path.glob(f"step*/detectors/{detector}.parquet"))

    def check(self, spec: RunSpec) -> None:
        """Refuse to go on with a run under another config than its own."""
        stored = self.stored()
        if stored and bool(stored.get("foreign")) != (spec.foreign is not None):
            raise BadInput(
                f"run {spec} is there, of models that were trained "
                f"{'elsewhere' if stored.get('foreign') else 'here'}: choose another name or seed or another "
                f"folder of runs, or delete {self.path}"
            )
        if differences := self.differences(spec):
            raise BadInput(
                f"run {spec} exists with another config: {', '.join(self._ways(differences))}"
                + "".join(
                    f"\n  {key}: {a!r} in the stored run, {b!r} now" for key, (a, b) in differences.items()
                )
            )

    def _ways(self, differences: dict[str, tuple[Any, Any]]) -> Iterator[str]:
        """What can be done about a run that exists with another config."""
        if self.stored().get("foreign"):
            yield "say what was said then, choose another name, seed or folder of runs"
            yield f"or delete {self.path}"
            return
        methods = {tuple(key.split(".")[:2]) for key in differences}
        section, method = min(methods) if len(methods) == 1 else ("", "")
        if section in ("cil", "detector"):
            label = f"{method.partition('@')[0]}@mine"
            ours = {key: now for key, (_, now) in differences.items() if now not in ("absent", {})}
            settings = _settings({key.replace(method, label, 1): now for key, now in ours.items()})
            yield f"keep both by a label, --{section} {label} {settings}"
        if all(
            key.startswith(("training.", "cil.", "detector.", "benchmark.shifted")) for key in differences
        ):
            values = {key: then for key, (then, _) in differences.items()}
            if any(key.startswith("benchmark.shifted") for key in differences):  # named whole, as near is
                values = {key: v for key, v in values.items() if not key.startswith("benchmark.")}
                values["benchmark.shifted"] = self.stored()["benchmark"].get("shifted", {})
            if "absent" not in values.values():
                yield f"go on with it as it is by {_settings(values)}"
        yield "use another --runs folder or seed"
        of_detector = f"/step*/detectors/{method}.parquet" if section == "detector" else ""
        yield f"or delete {self.path}{of_detector}"

    def announce(self, spec: RunSpec, environment: dict[str, Any]) -> None:
        """Leave the config of a run that is to come, unless the run is there already."""
        if self.config.exists():
            return
        with disk_told(self.path), suppress(Held):  # whoever holds it leaves one
            self.path.mkdir(parents=True, exist_ok=True)
            with self.lock():
                if not self.config.exists():
                    plugins = spec.plugins(*spec.detectors)
                    self._write_config(spec.record() | ({"plugins": plugins} if plugins else {}))
                    self.note(environment)

    def _write_config(self, record: dict[str, Any]) -> None:
        # The seal comes first: of a file that was cut off, the rest could be a config too.
        write_sealed(self.config, f"# {BLANK}\n{dump_yaml(record)}".encode())

    def note(self, environment: dict[str, Any], peak_memory_mib: int = 0) -> None:
        """Record what writes here, and the most memory that a process on this kind of GPU needed so far."""
        try:
            before = self.record(ENVIRONMENT)
        except OpenCILError:  # none that can be read: it is about to be written
            before = {}
        known = before.get("peak_memory_mib", 0) if before.get("device") == environment["device"] else 0
        peak = max(peak_memory_mib, known if isinstance(known, int) else 0)
        self._write_record(ENVIRONMENT, environment | ({"peak_memory_mib": peak} if peak else {}))

    def note_data(self, read: dict[str, Any]) -> None:
        """Record what images the run reads."""
        self._write_record(DATA, read)

    def _write_record(self, name: str, content: dict[str, Any]) -> None:
        config = self.stored()
        run = {"run": name_of(*self.identity(config))} if config else {}
        write_json(self.path / name, {**content, **run})

    def record(self, name: str, run: Identity | None = None) -> dict[str, Any]:
        """What is noted of the run in a file, which must be its own; empty where there is none."""
        path = self.path / name
        content = file_formats.read_json(path) if path.exists() else {}
        found = content.pop("run", None)  # it was not noted once
        if run and found not in (None, name_of(*run)):
            raise file_formats.damaged(path, f"it is of run {found}")
        return content

    def _records_usable(self, run: Identity) -> bool:
        try:
            return all(isinstance(self.record(name, run), dict) for name in (ENVIRONMENT, DATA))
        except Damaged:
            return False

    def mend(self, run: Identity) -> None:
        """Set aside every damaged file that can be computed again, saying so; the run must be held."""
        for name in (ENVIRONMENT, DATA):
            _set_aside_if_damaged(self.path / name, partial(self.record, name, run))
        for step in self.steps():
            step.mend(run)

    def lock(self, timeout: float = 0.0) -> Lock:
        """What only one process at a time holds, who may write here."""
        return Lock(self.path / ".held", timeout)

    @contextmanager
    def opened(self, spec: RunSpec) -> Iterator[None]:
        """Hold the run for writing: alone, under an unchanged config, with no half-written files."""
        lock = self.lock(timeout=0.2)  # somebody may just be announcing it
        try:
            with disk_told(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
                lock.acquire()
        except Held as held:
            raise OpenCILError(
                f"run {spec} is being written by another process: wait for it, or stop it ({held})"
            ) from None
        try:
            self.check(spec)
            remove_temporary(self.path)
            self.mend(spec.identity)
            self.error.unlink(missing_ok=True)  # of an attempt before this one
            stored = self.stored()
            kept = {d: values for d, values in stored.get("detector", {}).items() if self._evaluated(d)}
            detectors = {**kept, **spec.detectors}
            record = {**spec.record(), "detector": detectors}
            if plugins := joined(stored.get("plugins"), spec.plugins(*spec.detectors)):
                record["plugins"] = plugins
            if record != stored:
                self._write_config(record)
            yield
        finally:
            lock.release()

    def tidy(self) -> None:
        """Delete what a killed process left half-written in a finished run, unless another holds the run."""
        if any(temporary(self.path)):
            with suppress(OSError), self.lock():
                remove_temporary(self.path)

    def steps(self) -> list[StepFolder]:
        """The folders of steps, in their order; one by another name, as a copy has, is none."""
        numbers = sorted({int(p.name[4:]) for p in self.path.glob("step*") if p.name[4:].isdecimal()})
        return [self.step(number) for number in numbers if self.step(number).path.is_dir()]

    def trained(self) -> list[StepFolder]:
        """The steps whose models are stored, in their order; none that cannot be looked into."""
        marks = {mark.parent for mark in self.path.glob("step*/step.json")}
        return [step for step in self.steps() if step.path in marks]

    def lost(self) -> list[StepFolder]:
        """The steps that were trained and no longer say so, in their order.

        Detectors are evaluated, and a next step is trained, only where a step has its notes.
        """
        there = {step.number for step in self.trained()}
        tables = {table.parents[1] for table in self.path.glob("step*/detectors/*.parquet")}
        evaluated = {step.number for step in self.steps() if step.path in tables}
        return [self.step(n) for n in sorted((set(range(1, max(there, default=0))) | evaluated) - there)]

    def stored(self) -> dict[str, Any]:
        """The config that the run was made under; empty before there is one."""
        path = self.config
        if not path.exists():
            if any(self.path.glob("step*/*.safetensors")):
                raise OpenCILError(f"{path} is missing: delete the folder {self.path} to compute it again")
            return {}
        read_sealed(path, file_formats.damaged)
        record = read_yaml(path)
        if not all(
            isinstance(record.get(section), dict) for section in ("benchmark", "cil", "seed", "detector")
        ):
            raise file_formats.damaged(path, "it lacks a section")
        return in_todays_terms(record)

    def identity(self, config: dict[str, Any]) -> Identity:
        """Which run the folder is of, as its config says."""
        try:
            benchmark = config["benchmark"]
            k = benchmark["classes_per_step"][0]
            found = benchmark["name"], k, next(iter(config["cil"])), config["seed"]["run"]
        except (KeyError, IndexError, TypeError, StopIteration):
            found = (None,) * 4
        if not all(USABLE[key](value) for key, value in zip(IDENTITY, found, strict=True)):
            raise file_formats.damaged(self.config, "it does not say which run it is of")
        return found

    def rows(self) -> pd.DataFrame:
        """The rows of all steps that are trained; a file of other rows than those of its place is refused."""
        config = self.stored()
        run = self.identity(config) if config else None
        tables = [
            table
            for step in self.trained()
            for table in step.placed(step.tables(), run, step.info(run, config))
        ]
        return read_tables(tables, file_formats.damaged)


def trained_under(record: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a run's record that decide what is trained, by flat keys, as JSON has them."""
    decisive = {
        key: value
        for key, value in flat(record).items()
        if key not in _PLACES and key.partition(".")[0] not in ("detector", "plugins")
    }
    found: dict[str, Any] = json.loads(json.dumps(decisive, default=str))
    return found


def find_runs(root: Path) -> list[RunFolder]:
    """The runs at or below a folder, those too that have no finished step, or have lost what says so."""
    if not root.is_dir():
        raise BadInput(f"there is no folder {root} to read runs from")
    found = set()
    for folder, names in folders_below(root):
        if {"environment.json", "config.yml"} <= names:
            found.add(folder)
        elif folder.name.startswith("step") and any(
            name == "step.json" or name.endswith(".safetensors") for name in names
        ):
            found.add(folder.parent)
    return [RunFolder(path) for path in sorted(found)]


def folders_below(
    root: Path, refused: Callable[[OSError], object] | None = None
) -> Iterator[tuple[Path, set[str]]]:
    """The folders at or below one, with the names in each; those too that lie elsewhere and are linked to.

    Each comes once, by its own place if that is below the first: a run may have been moved to another disk.
    ``refused`` is told why one cannot be looked into.
    """
    waiting, seen = [root], set[str]()
    for top in waiting:  # it grows: links come after all that lies here
        for place, folders, files in os.walk(top, onerror=refused):
            if (real := os.path.realpath(place)) in seen:
                folders.clear()
                continue
            seen.add(real)
            folder = Path(place)
            waiting += [link for name in sorted(folders) if (link := folder / name).is_symlink()]
            yield folder, {*folders, *files}


def plugins_noted(root: Path, problem: str) -> str:
    """Which plugin has a name that a problem calls unknown, as runs below a folder have noted; or nothing."""
    notes: Notes = {}
    for path in root.rglob("config.yml") if root.is_dir() else ():
        with suppress(OpenCILError, OSError, UnicodeDecodeError):  # the problem is to be told, not another
            if "\nplugins:" in path.read_text(encoding="utf-8"):
                notes = joined(RunFolder(path.parent).stored().get("plugins"), notes)
    lacking = {
        plugin: [name for name in names if f"{name} is unknown" in problem]
        for plugin, names in missing(notes).items()
    }
    return told({plugin: names for plugin, names in lacking.items() if names})


def read_rows(root: str | Path) -> pd.DataFrame:
    """All rows of all runs below a folder."""
    runs = [run for run in find_runs(Path(root)) if run.trained()]
    if not runs:
        raise BadInput(f"there are no finished steps below {root}: 'opencil run' makes some")
    return pd.concat([run.rows() for run in runs], ignore_index=True)


def _settings(values: dict[str, Any]) -> str:
    """Values by their keys as flags of the command line."""
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
    return " ".join(f"--set {shlex.quote(f'{key}={text}')}" for key, text in texts.items())


def _decisive(record: dict[str, Any], detectors: set[str]) -> dict[str, Any]:
    """What of a record must stay as it is: of some detectors; which text a plugin has is noted with rows."""
    kept = {key: value for key, value in record.items() if key != "plugins"}
    return {**kept, "detector": {name: record["detector"][name] for name in detectors}}
