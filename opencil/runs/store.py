"""The run store: what lies where on disk.

::

    runs/<benchmark>/k<k>/<cil>/seed<s>/
        config.yml           every value that decides the result; detectors are added as they are evaluated
        environment.json     versions and device of what last wrote here, and the most memory of any process
        data.json            what images it read, and how many the paper has
        error.txt            where the last attempt failed of an error that nobody foresaw: its traceback
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
import re
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock, Timeout
from torch import Tensor

from opencil.atomic_files import remove_temporary, write_json, write_text
from opencil.config import dump_yaml, read_yaml
from opencil.data.memory import Memory
from opencil.errors import BadInput, OpenCILError
from opencil.plugins import Notes, joined, missing, told
from opencil.runs import file_formats
from opencil.runs.plan import RunSpec, defaults, in_todays_terms
from opencil.runs.weights import Stock, read_weights, write_weights
from opencil.study.rows import measured_metrics, read_tables, write_rows
from opencil.validation import flat

#: Values that say where a file lies; its checksum, beside them, says what it is.
_PLACES = {"benchmark.backbone.weights"}


@dataclass(frozen=True)
class StepFolder:
    """The files of one step."""

    path: Path

    @property
    def trained(self) -> bool:
        """Whether the step's model is stored."""
        return (self.path / "step.json").exists()

    def info(self) -> dict[str, Any]:
        """What is noted of a stored step: number, steps, seconds by kind of work, digest of the weights."""
        path = self.path / "step.json"
        info = file_formats.read_json(path)
        if not isinstance(info.get("steps"), int):
            raise file_formats.damaged(path, "it does not say how many steps there are")
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

        What the ``stock`` of the step before has is referred to; the next step's is returned. The checksum of
        the weights is added to ``info``.
        """
        stock = write_weights(self.model, self.number, weights, stock)
        info["weights_sha256"] = stock.checksums[self.number]
        file_formats.write_tensors(self.path / "memory.safetensors", memory.tensors())
        write_rows(self.path / "accuracy.parquet", accuracy)
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

    def memory(self, size: int) -> Memory:
        """The memory after the step."""
        path = self.path / "memory.safetensors"
        tensors = file_formats.read_tensors(path)
        try:
            return Memory.from_tensors(size, tensors)
        except (KeyError, RuntimeError, ValueError) as error:
            raise file_formats.damaged(path, f"not a memory: {error}") from None

    @property
    def checkpoint(self) -> Path:
        """A step in the middle of its training; deleted when it is stored."""
        return self.path / "checkpoint.safetensors"

    def save_checkpoint(self, tensors: dict[str, Tensor], stock: Stock, seconds: float) -> None:
        """Store a step in the middle of its training, and how long it took to get there."""
        write_weights(self.checkpoint, self.number, tensors, stock, {"seconds": str(seconds)})

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds."""
        return read_weights(self.checkpoint, self.number, self._model_of)[0]

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

    def head_checkpoint(self, name: str) -> Path:
        """A head in the middle of its tuning; deleted when it is stored."""
        return self.path / "heads" / f"{name}.checkpoint.safetensors"

    def tables(self) -> list[Path]:
        """The files of the step's rows: of the model itself, then of the detectors evaluated so far."""
        return [self.path / "accuracy.parquet", *sorted((self.path / "detectors").glob("*.parquet"))]

    def lacks(self, table: Path, metrics: Iterable[str]) -> set[str]:
        """Those of some metrics that a table of rows, if it is there, was not measured with."""
        wanted = set(metrics)
        return wanted - measured_metrics(table, file_formats.damaged) if wanted and table.exists() else set()

    @property
    def model_rows(self) -> Path:
        """The file of the model's own rows."""
        return self.path / "accuracy.parquet"

    def complete(self, spec: RunSpec) -> bool:
        """Whether the step is trained, and all that is asked of it measured."""
        tables = [self.detector_rows(name) for name in spec.detectors]
        return (
            self.trained
            and all(table.exists() and not self.lacks(table, spec.metrics_of_detectors) for table in tables)
            and not self.lacks(self.model_rows, spec.metrics_of_model)
        )

    def detector_rows(self, name: str) -> Path:
        """The file of a detector's rows."""
        return self.path / "detectors" / f"{name}.parquet"


@dataclass(frozen=True)
class RunFolder:
    """The files of one run."""

    path: Path

    @property
    def error(self) -> Path:
        """The file of an unforeseen error's traceback."""
        return self.path / "error.txt"

    def failed(self) -> str:
        """What an unforeseen error said that ended the last attempt; empty where none did."""
        try:
            lines = self.error.read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError:
            return ""
        named = [line for line in lines if re.match(r"[A-Za-z_][\w.]*(: |$)", line)]
        return named[-1] if named else "an error"

    def step(self, number: int) -> StepFolder:
        """The folder of a step, counted from 1."""
        return StepFolder(self.path / f"step{number:02d}")

    def finished(self, spec: RunSpec) -> bool:
        """Whether every step is trained and every detector evaluated, under this very config."""
        first = self.step(1)
        if not first.trained or self.differences(spec):
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
            values = {key: then for key, (then, _) in differences.items() if then != "absent"}
            if any(key.startswith("benchmark.shifted") for key in differences):  # named whole, as near is
                values = {key: v for key, v in values.items() if not key.startswith("benchmark.")}
                values["benchmark.shifted"] = self.stored()["benchmark"].get("shifted", {})
            if settings := _settings(values):
                yield f"go on with it as it is by {settings}"
        yield "use another --runs folder or seed"
        of_detector = f"/step*/detectors/{method}.parquet" if section == "detector" else ""
        yield f"or delete {self.path}{of_detector}"

    def announce(self, spec: RunSpec, environment: dict[str, Any]) -> None:
        """Leave the config of a run that is to come, unless the run is there already."""
        if not (self.path / "config.yml").exists():
            plugins = spec.plugins(*spec.detectors)
            record = spec.record() | ({"plugins": plugins} if plugins else {})
            write_text(self.path / "config.yml", dump_yaml(record))
            self.note(environment)

    def note(self, environment: dict[str, Any], peak_memory_mib: int = 0) -> None:
        """Record what writes here, and the most memory that a process on this kind of GPU needed so far."""
        path = self.path / "environment.json"
        try:
            before = file_formats.read_json(path)
        except OpenCILError:  # no file, or none that can be read: it is about to be written
            before = {}
        known = before.get("peak_memory_mib", 0) if before.get("device") == environment["device"] else 0
        peak = max(peak_memory_mib, known if isinstance(known, int) else 0)
        write_json(path, environment | ({"peak_memory_mib": peak} if peak else {}))

    @contextmanager
    def opened(self, spec: RunSpec) -> Iterator[None]:
        """Hold the run for writing: alone, under an unchanged config, with no half-written files."""
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / ".lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise OpenCILError(
                f"run {spec} is being written by another process: wait for it, or stop it"
            ) from None
        try:
            self.check(spec)
            remove_temporary(self.path)
            self.error.unlink(missing_ok=True)  # of an attempt before this one
            stored = self.stored()
            kept = {d: values for d, values in stored.get("detector", {}).items() if self._evaluated(d)}
            detectors = {**kept, **spec.detectors}
            record = {**spec.record(), "detector": detectors}
            if plugins := joined(stored.get("plugins"), spec.plugins(*spec.detectors)):
                record["plugins"] = plugins
            if record != stored:
                write_text(self.path / "config.yml", dump_yaml(record))
            yield
        finally:
            lock.release()

    def trained(self) -> list[StepFolder]:
        """The steps whose models are stored, in their order."""
        return [StepFolder(mark.parent) for mark in sorted(self.path.glob("step*/step.json"))]

    def stored(self) -> dict[str, Any]:
        """The config that the run was made under; empty before there is one."""
        path = self.path / "config.yml"
        if not path.exists():
            if any(self.path.glob("step*/*.safetensors")):
                raise OpenCILError(f"{path} is missing: delete the folder {self.path} to compute it again")
            return {}
        record = read_yaml(path)
        if not all(
            isinstance(record.get(section), dict) for section in ("benchmark", "cil", "seed", "detector")
        ):
            raise file_formats.damaged(path, "it lacks a section")
        return in_todays_terms(record)


def find_runs(root: Path) -> list[RunFolder]:
    """The runs at or below a folder, those too that have no finished step, or have lost what says so."""
    if not root.is_dir():
        raise BadInput(f"there is no folder {root} to read runs from")
    begun = {p.parent for p in root.rglob("environment.json") if (p.parent / "config.yml").exists()}
    stored = [path for name in ("step.json", "*.safetensors") for path in root.rglob(f"step*/{name}")]
    return [RunFolder(path) for path in sorted(begun | {path.parent.parent for path in stored})]


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
    steps = [step for run in find_runs(Path(root)) for step in run.trained()]
    if not steps:
        raise BadInput(f"there are no finished steps below {root}: 'opencil run' makes some")
    return read_tables([path for step in steps for path in step.tables()], file_formats.damaged)


def _settings(values: dict[str, Any]) -> str:
    """Values by their keys as flags of the command line."""
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
    return " ".join(f"--set {shlex.quote(f'{key}={text}')}" for key, text in texts.items())


def _decisive(record: dict[str, Any], detectors: set[str]) -> dict[str, Any]:
    """What of a record must stay as it is: of some detectors; which text a plugin has is noted with rows."""
    kept = {key: value for key, value in record.items() if key != "plugins"}
    return {**kept, "detector": {name: record["detector"][name] for name in detectors}}
