"""Files of weights from elsewhere: read in the order of their numbers, as data and never as code."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from opencil import BadInput
from opencil.data.stream import Step
from opencil.nets.wrap import wrap
from opencil.runs.model_files import ModelFiles, find_factory, read_weights_file


def net(classes: int) -> nn.Module:
    """A network whose bias says for how many classes it was made."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, classes))
    nn.init.constant_(module[1].bias, classes)
    return module


def step(number: int) -> Step:
    """One of twelve steps, two classes each."""
    return Step((2,) * number, 12, torch.arange(1), torch.arange(1))


SAVED: dict[str, Callable[[dict[str, Tensor], Path], Any]] = {
    "task{}.safetensors": lambda state, path: save_file(state, path),
    "task{}.pt": lambda state, path: torch.save(state, path),
    "model_{}.pkl": lambda state, path: torch.save({"tasks": 3, "model_state_dict": state}, path),
    "{}.ckpt": lambda state, path: torch.save({f"module.{name}": t for name, t in state.items()}, path),
}


@pytest.mark.parametrize("pattern", SAVED)
def test_files_are_taken_in_the_order_of_their_numbers(pattern: str, tmp_path: Path) -> None:
    for t in range(12):
        SAVED[pattern](net(2 * (t + 1)).state_dict(), tmp_path / pattern.format(t))
    (tmp_path / "notes.txt").write_text("not a model")
    files = ModelFiles(tmp_path, lambda classes: nn.Sequential(nn.Flatten(), nn.Linear(4, classes)))
    assert len(files) == 12
    for number in (1, 2, 10, 12):
        assert torch.equal(files(step(number))[1].bias, torch.full((2 * number,), 2.0 * number))


def test_weights_reach_the_network_inside_a_wrapped_model(tmp_path: Path) -> None:
    torch.save(net(2).state_dict(), tmp_path / "task1.pt")
    files = ModelFiles(
        tmp_path, lambda classes: wrap(nn.Sequential(nn.Flatten(), nn.Linear(4, classes)), head="1")
    )
    assert torch.equal(files(step(1)).head.bias, torch.tensor([2.0, 2.0]))


def test_a_factory_may_read_the_file_itself(tmp_path: Path) -> None:
    (tmp_path / "task1.bin").write_bytes(b"anything")
    files = ModelFiles(tmp_path, lambda path, classes: (path.read_bytes(), classes))
    assert files(step(1)) == (b"anything", 2)


class Evil:
    """What runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("evil"),))


def test_code_in_a_file_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": net(2).state_dict(), "extra": Evil()}, tmp_path / "torch.pt")
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps(Evil(), protocol=2))
    for name in ("torch.pt", "plain.pkl"):
        with pytest.raises(BadInput, match=f"{name} holds more than tensors and plain values"):
            read_weights_file(tmp_path / name)
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    "content",
    [
        {"model": {"a": torch.ones(1)}, "ema": {"a": torch.ones(1)}},
        *(5, {}, {0: torch.ones(1)}, {None: torch.ones(1)}, b"", b"hello there"),
    ],
    ids=["two", "number", "empty", "numbered", "unnamed", "nothing", "text"],
)
def test_files_that_cannot_be_used(content: Any, tmp_path: Path) -> None:
    for path in (tmp_path / "a.pt", tmp_path / "a.safetensors"):
        path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
        with pytest.raises(BadInput, match=str(path)):
            read_weights_file(path)


def test_weights_of_another_network(tmp_path: Path) -> None:
    torch.save(net(3).state_dict(), tmp_path / "task1.pt")
    with pytest.raises(BadInput, match=r"task1.pt does not fit what the factory makes: .*size mismatch"):
        ModelFiles(tmp_path, net)(step(1))


@pytest.mark.parametrize("factory", [lambda: None, lambda a, b, c: None, lambda classes: "text"])
def test_factories_that_cannot_be(factory: Callable[..., Any], tmp_path: Path) -> None:
    torch.save(net(2).state_dict(), tmp_path / "task1.pt")
    with pytest.raises(BadInput, match="the factory"):
        ModelFiles(tmp_path, factory)(step(1))


def test_folders_that_cannot_be(tmp_path: Path) -> None:
    for folder in (tmp_path / "not-there", tmp_path):
        with pytest.raises(BadInput, match=str(folder)):
            ModelFiles(folder, net)


def test_the_factory_is_found_in_its_file(tmp_path: Path) -> None:
    file = tmp_path / "my_file.py"
    file.write_text("value = 3\ndef make(classes): return value\ndef other(classes): return classes\n")
    assert find_factory(f"{file}:make")(2) == find_factory(str(file))(2) == 3
    assert find_factory(f"{file}:other")(2) == 2
    for place, key in (
        (f"{file}:mke", "'make'"),
        (f"{file}:value", "'value'"),
        (f"{file}x:make", "my_file.py"),
    ):
        with pytest.raises(BadInput, match=key):
            find_factory(place)
