"""What does not change is stored once: frozen and grown models, their files, and what becomes of damage."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import opencil
from opencil import OpenCILError, Schedule, Stage, open_run
from opencil.cil.der import DER
from opencil.cil.learner import Setting, Task
from opencil.config import Config
from opencil.nets.growing import GrownModel
from opencil.nets.model import Model
from opencil.registry import LEARNERS
from opencil.runs import weights
from opencil.runs.events import Event, Failed, Finished
from opencil.runs.file_formats import metadata
from opencil.runs.weights import Stock, read_weights, write_weights

Make = Callable[..., Config]
RunAll = Callable[[Config], list[Event]]
GROWN = "digits/k2/der/seed0"
STEPS = (1, 2, 3, 4)


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> Iterator[None]:
    @opencil.register_learner("frozen")
    @dataclass(frozen=True)
    class Frozen(opencil.Learner):
        """A head on a backbone that nothing trains."""

        schedule: Schedule = Schedule(epochs=1, lr=0.1)

        def stages(self, task: Task) -> Iterator[Stage]:
            def loss(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
                return F.cross_entropy(task.model(images), labels)

            yield Stage("train", task.model.head, loss, self.schedule, task.train_plus)

    yield
    del LEARNERS._entries["frozen"]


def one_epoch(tiny: Make, runs: Path, cil: str = "der") -> Config:
    """A step takes one epoch of training and the scores of one detector."""
    return tiny(runs, "cil.*.epochs=1", cil=cil, detector="msp")


def model_file(run: Path, step: int) -> Path:
    return run / f"step{step:02d}" / "model.safetensors"


def sizes(run: Path) -> list[int]:
    return [model_file(run, step).stat().st_size for step in STEPS]


@pytest.fixture(scope="module")
def finished_once(tmp_path_factory: pytest.TempPathFactory, tiny: Make, run_all: RunAll) -> dict[str, Path]:
    """Runs of both methods: as they are stored, and with every file whole, as they were before."""
    found = {}
    for kind in ("shared", "whole"):
        found[kind] = tmp_path_factory.mktemp(kind)
        with pytest.MonkeyPatch.context() as patch:
            if kind == "whole":
                patch.setattr(weights, "WORTH_REFERRING", 10**12)
            assert isinstance(run_all(one_epoch(tiny, found[kind], "der,frozen"))[-1], Finished)
    return found


@pytest.fixture
def run(finished_once: dict[str, Path], tmp_path: Path) -> Path:
    """A finished run of what grows."""
    return Path(shutil.copytree(finished_once["shared"], tmp_path / "runs")) / GROWN


@pytest.mark.parametrize("cil", ["der", "frozen"])
def test_only_what_is_new_is_written_and_the_models_are_whole(
    cil: str, finished_once: dict[str, Path]
) -> None:
    run, whole = (finished_once[kind] / GROWN.replace("der", cil) for kind in ("shared", "whole"))
    pd.testing.assert_frame_equal(opencil.read_rows(run), opencil.read_rows(whole))
    assert metadata(model_file(whole, 4)) == {}
    first, *later = sizes(run)
    if cil == "der":
        assert sizes(whole)[3] > 3.9 * first
        assert max(later) < 1.2 * first, "a backbone, the wider head, and references"
    else:
        assert sizes(whole)[3] > first
        assert max(later) < 0.1 * first
    opened = open_run(run)
    for step in STEPS:
        tensors, found = load_file(model_file(whole, step)), opened.model(step).state_dict()
        assert found.keys() == tensors.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_rows_have_the_bytes_of_all_that_has_grown(finished_once: dict[str, Path]) -> None:
    rows = opencil.read_rows(finished_once["shared"] / GROWN)
    for step in STEPS:
        tensors = load_file(model_file(finished_once["whole"] / GROWN, step)).values()
        exemplars = len(open_run(finished_once["shared"] / GROWN).memory(step).indices)
        naive = {
            "model_bytes": sum(len(tensor.numpy().tobytes()) for tensor in tensors),
            "memory_bytes": exemplars * 3 * 8 * 8,
        }
        found = rows[(rows["step"] == step) & rows["metric"].isin(naive)]
        assert dict(zip(found["metric"], found["value"], strict=True)) == naive
    assert rows[rows["metric"] == "model_bytes"]["value"].is_monotonic_increasing


def test_a_run_of_whole_files_can_be_gone_on_with(
    finished_once: dict[str, Path], tmp_path: Path, tiny: Make, run_all: RunAll
) -> None:
    old = Path(shutil.copytree(finished_once["whole"], tmp_path / "old")) / GROWN
    for step in (3, 4):
        shutil.rmtree(old / f"step{step:02d}")
    assert isinstance(run_all(one_epoch(tiny, tmp_path / "old"))[-1], Finished)
    assert sizes(old)[2] < 1.2 * sizes(old)[0]
    expected, found = load_file(model_file(finished_once["whole"] / GROWN, 4)), open_run(old).model(4)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.state_dict().items())
    pd.testing.assert_frame_equal(opencil.read_rows(old), opencil.read_rows(finished_once["whole"] / GROWN))


def test_a_step_that_others_refer_to_is_computed_again(
    run: Path,
    tmp_path: Path,
    tiny: Make,
    run_all: RunAll,
    results: Callable[[Path], dict[str, object]],
) -> None:
    before = results(run)
    shutil.rmtree(run / "step02")
    opened = open_run(run)
    opened.model(1)
    with pytest.raises(OpenCILError, match=r"step02.model.safetensors is missing, and .*step03.* refers"):
        opened.model(3)
    assert isinstance(run_all(one_epoch(tiny, tmp_path / "runs"))[-1], Finished)
    assert results(run) == before


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_file_that_others_refer_to_is_named(
    damage: str, run: Path, tmp_path: Path, tiny: Make, run_all: RunAll
) -> None:
    path = model_file(run, 1)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content) if damage == "flipped" else bytes(content[:-10]))
    shutil.rmtree(run / "step04")
    (failed,) = run_all(one_epoch(tiny, tmp_path / "runs"))
    assert isinstance(failed, Failed)
    assert str(path) in str(failed.error)
    assert f"delete the folder {path.parent}" in str(failed.error)


def test_a_step_that_was_computed_anew_and_came_out_otherwise(run: Path, tmp_path: Path) -> None:
    """On another machine, say: the steps that refer to it are of no use any more."""
    other = open_run(run)
    tensors = {name: tensor + 1 for name, tensor in other.model(1).state_dict().items()}
    info = other.folder.step(1).info()
    memory, accuracy = other.memory(1), pd.read_parquet(run / "step01" / "accuracy.parquet")
    other.folder.step(1).save(tensors, Stock(), memory, accuracy, info)
    opened = open_run(run)
    opened.model(1)
    with pytest.raises(OpenCILError, match="has been computed anew") as raised:
        opened.model(2)
    assert f"delete the folder {run / 'step02'}" in str(raised.value)


def test_a_model_that_could_not_be_read_again_is_not_stored(
    tmp_path: Path, tiny: Make, run_all: RunAll
) -> None:
    @opencil.register_learner("forgetful")
    @dataclass(frozen=True)
    class Forgetful(DER):
        """Its blank model has the backbone of the first step alone."""

        def blank(self, setting: Setting, step: opencil.Step) -> Model:
            return GrownModel([], setting.new_backbone(), step.seen, step.new)

    failed = run_all(one_epoch(tiny, tmp_path, "forgetful"))[-1]
    assert isinstance(failed, Failed)
    assert "forgetful, step 2: the trained model does not fit into what blank makes" in str(failed.error)
    assert "\n" not in str(failed.error)
    assert not list(tmp_path.rglob("step02/*"))


# --- files, without a run --------------------------------------------------------------------------


def test_tensors_are_known_by_content_type_and_shape(tmp_path: Path) -> None:
    def file_of(step: int) -> Path:
        return tmp_path / f"{step}" / "model.safetensors"

    a, b = torch.arange(100.0), torch.arange(100, 200.0)
    first = {"a": a, "same": a.clone(), "small": torch.ones(3)}
    stock = write_weights(file_of(1), 1, first, Stock())
    second = {
        "moved": a,
        "b": b,
        "shaped": a.clone().view(10, 10),
        "typed": a.clone().view(torch.int32),
        "small": torch.ones(3),
    }
    stock = write_weights(file_of(2), 2, second, stock)
    third = {"moved": a, "b again": b, "new": a + 1}
    stock = write_weights(file_of(3), 3, third, stock, {"note": "x"})
    assert load_file(file_of(2)).keys() == second.keys() - {"moved"}
    assert load_file(file_of(3)).keys() == {"new"}
    for step, tensors in ((1, first), (2, second), (3, third)):
        found, again = read_weights(file_of(step), step, file_of, stock.checksums[step])
        assert found.keys() == tensors.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
        assert all(found[name].dtype == tensor.dtype for name, tensor in tensors.items())
    assert again == stock, "so a run that goes on refers to the same places"
    assert set(stock.places.values()) == {(1, "same"), (2, "b"), (3, "new")}
    assert (metadata(file_of(3)) or {})["note"] == "x"


@pytest.mark.parametrize("said", ["junk", "[]", '{"1": 3}', '{"x": {}}'])
def test_references_that_make_no_sense_are_named(tmp_path: Path, said: str) -> None:
    path = tmp_path / "model.safetensors"
    write_weights(path, 2, {"a": torch.ones(3)}, Stock(), {"elsewhere": said})
    with pytest.raises(OpenCILError, match=r"model\.safetensors"):
        read_weights(path, 2, lambda _: path)
