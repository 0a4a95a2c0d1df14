"""Calls that nobody should make: odd arrays, odd models and things that are no arrays, to every entry point.

``python -m tests.siege.odd_calls --count 3000 --seed 1``. A call is right but for something in it; it
either answers with finite numbers or is refused with a sentence: an error of ours. Any other is a fault.
"""

import argparse
import contextlib
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

import opencil
from opencil import OpenCILError
from tests.siege.siege import Tally

N, C, D = 8, 3, 5


@dataclass(frozen=True)
class Call:
    """One call: which function, and what is odd in it."""

    name: str
    odd: str
    make: Callable[[], object]


# --- things to give --------------------------------------------------------------------------------


def plain(shape: tuple[int, ...], draw: random.Random) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(draw.randrange(1 << 30)))


def of_torch(shape: tuple[int, ...], draw: random.Random) -> dict[str, Callable[[], Any]]:
    """Tensors that are no dense matrices of real numbers, and some that are, in odd forms."""
    x = plain(shape, draw)
    matrix = x.reshape(len(x), -1) if x.ndim > 1 else x
    return {
        "sparse_coo": lambda: x.to_sparse(),
        "sparse_csr": lambda: matrix[None].flatten(0, 1).to_sparse_csr() if x.ndim > 1 else x.to_sparse(),
        "sparse_bsr": lambda: torch.ones(4, 4).to_sparse_bsr((2, 2)),
        "meta": lambda: x.to("meta"),
        "fake": lambda: fake(x),
        "mkldnn": lambda: x.to_mkldnn(),
        "quantized": lambda: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
        "nested": lambda: torch.nested.nested_tensor([x, x]),
        "complex": lambda: x.to(torch.complex64),
        "conjugate": lambda: x.to(torch.complex64).conj(),
        "bool": lambda: x > 0,
        "uint8": lambda: (x * 10).to(torch.uint8),
        "int64": lambda: (x * 10).long(),
        "huge int": lambda: torch.full(shape, 2**63 - 1),
        "uint64": lambda: torch.full(shape, 2**63, dtype=torch.uint64),
        "float16": lambda: x.half(),
        "bfloat16": lambda: x.bfloat16(),
        "float8": lambda: x.to(torch.float8_e4m3fn),
        "float64": lambda: x.double(),
        "huge float64": lambda: x.double() * 1e300,
        "nan": lambda: x * float("nan"),
        "infinite": lambda: x / 0,
        "scalar": lambda: x.sum(),
        "no rows": lambda: x[:0],
        "no columns": lambda: torch.empty(len(x), 0),
        "one more axis": lambda: x[None],
        "flat": lambda: x.flatten(),
        "other length": lambda: torch.cat([x, x]),
        "asks for gradients": lambda: x.clone().requires_grad_(),
        "parameter": lambda: nn.Parameter(x),
        "expanded": lambda: x[:1].expand(shape),
        "backwards": lambda: x.flip(0),
        "inference": lambda: inference(x),
        "undefined": lambda: torch.tensor([]),
    }


def of_numpy(shape: tuple[int, ...], draw: random.Random) -> dict[str, Callable[[], Any]]:
    """The same of numpy."""
    x = plain(shape, draw).numpy()
    return {
        "numpy": lambda: x,
        "numpy float64": lambda: x.astype(np.float64),
        "numpy float16": lambda: x.astype(np.float16),
        "numpy longdouble": lambda: x.astype(np.longdouble),
        "numpy complex": lambda: x.astype(np.complex128),
        "numpy bool": lambda: x > 0,
        "numpy uint16": lambda: (x * 10).astype(np.uint16),
        "numpy uint64": lambda: np.full(shape, 2**64 - 1, dtype=np.uint64),
        "numpy objects": lambda: x.astype(object),
        "numpy nothing": lambda: np.full(shape, None),
        "numpy huge ints": lambda: np.full(shape, 10**30, dtype=object),
        "numpy texts": lambda: x.astype(str),
        "numpy bytes": lambda: x.astype("S8"),
        "numpy times": lambda: x.astype("datetime64[s]"),
        "numpy records": lambda: np.zeros(shape, dtype=[("a", "f4"), ("b", "i4")]),
        "numpy void": lambda: np.zeros(shape, dtype="V4"),
        "numpy big-endian": lambda: x.astype(">f4"),
        "numpy read-only": lambda: read_only(x),
        "numpy backwards": lambda: x[::-1],
        "numpy fortran": lambda: np.asfortranarray(x),
        "numpy masked": lambda: np.ma.masked_array(x, x > 0),  # type: ignore[no-untyped-call]
        "numpy empty": lambda: x[:0],
        "numpy scalar": lambda: np.float32(1.5),
        "numpy no axes": lambda: np.array(1.5),
        "numpy nan": lambda: x * np.nan,
    }


def no_arrays(draw: random.Random) -> dict[str, Callable[[], Any]]:
    """Things that are no arrays at all."""
    return {
        "None": lambda: None,
        "int": lambda: 7,
        "huge number": lambda: 10**400,
        "float": lambda: 0.5,
        "nan number": lambda: float("nan"),
        "True": lambda: True,
        "text": lambda: "energy",
        "empty text": lambda: "",
        "bytes": lambda: b"\x00\xff",
        "list": lambda: [0.1, 0.2, 0.3],
        "empty list": lambda: [],
        "ragged list": lambda: [[1.0, 2.0], [3.0]],
        "texts": lambda: ["msp", "energy"],
        "list of nothing": lambda: [None, None],
        "list of tensors": lambda: [torch.ones(3), torch.ones(2)],
        "tuple": lambda: (1, 2),
        "dict": lambda: {"a": 1},
        "dict of odd keys": lambda: {1: torch.ones(2), None: 3},
        "empty dict": dict,
        "set": lambda: {1, 2},
        "range": lambda: range(3),
        "generator": lambda: (i for i in range(3)),
        "object": object,
        "class": lambda: Tensor,
        "function": lambda: lambda *_: None,
        "module": lambda: nn.Linear(D, C),
        "numpy module": lambda: np,
        "device": lambda: torch.device("cpu"),
        "dtype": lambda: torch.float32,
        "frame": lambda: pd.DataFrame({"a": [1.0, 2.0]}),
        "series": lambda: pd.Series([1.0, 2.0]),
        "detector": lambda: opencil.create_detector("msp"),
        "outputs": lambda: opencil.Outputs(torch.randn(N, D), torch.randn(N, C)),
        "odd outputs": lambda: opencil.Outputs(draw.choice([None, torch.ones(2), "x"]), None),  # type: ignore[arg-type]
    }


def fake(x: Tensor) -> Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode().from_tensor(x)


def inference(x: Tensor) -> Tensor:
    with torch.inference_mode():
        return x.clone()


def read_only(x: Any) -> Any:
    x = x.copy()
    x.flags.writeable = False
    return x


def odd(shape: tuple[int, ...], draw: random.Random) -> tuple[str, Callable[[], Any]]:
    """Something to give in the place of an array of some shape, and what it is."""
    kinds = draw.choice(
        [of_torch(shape, draw), of_torch(shape, draw), of_numpy(shape, draw), no_arrays(draw)]
    )
    return draw.choice(sorted(kinds.items()))


# --- calls -----------------------------------------------------------------------------------------


def calls(count: int, seed: int) -> Iterator[Call]:
    """So many of them; each is another, and the same for the same seed."""
    makers = [
        metrics,
        metrics,
        joint,
        accuracies,
        score,
        score,
        score,
        fit,
        fit,
        evaluate,
        evaluate,
        openood,
        inputs,
    ]
    for number in range(count):
        draw = random.Random(f"{seed} {number}")
        yield draw.choice(makers)(draw)


def replaced(
    name: str,
    function: Callable[..., object],
    right: dict[str, Any],
    shapes: dict[str, tuple[int, ...]],
    draw: random.Random,
) -> Call:
    """A call whose arguments are right but for one or two, which are odd."""
    chosen = draw.sample(sorted(shapes), k=min(len(shapes), draw.choice([1, 1, 1, 2])))
    things = {one: odd(shapes[one], draw) for one in chosen}
    told = ", ".join(f"{one} = {what}" for one, (what, _) in things.items())

    def make() -> object:
        made = {}
        for one, (_, thing) in things.items():
            try:
                made[one] = thing()
            except Exception:  # torch or numpy cannot make such a thing of this shape
                return None
        return function(**{**right, **made})

    return Call(name, told, make)


def metrics(draw: random.Random) -> Call:
    right = {"id_scores": plain((N,), draw), "ood_scores": plain((N,), draw)}
    return replaced("ood_metrics", opencil.ood_metrics, right, dict.fromkeys([*right, "recall"], (N,)), draw)


def joint(draw: random.Random) -> Call:
    right: dict[str, Any] = {"id_scores": plain((N,), draw), "ood_scores": plain((N,), draw)}
    names = [*right, "correct", "recall", "subsets", "subset"]

    def call(**values: Any) -> object:
        if "subset" in values:
            values["subsets"] = {"new": values.pop("subset")}
        return opencil.joint_metrics(**values)

    return replaced("joint_metrics", call, right, dict.fromkeys(names, (N,)), draw)


def accuracies(draw: random.Random) -> Call:
    right = {"predicted": torch.arange(N), "labels": torch.arange(N)}
    return replaced("accuracy", opencil.accuracy, right, dict.fromkeys(right, (N,)), draw)


def head(features: Tensor) -> Tensor:
    return features[:, :C] * 2.0


class Net(nn.Module):
    """A model of ours in small."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, D)
        self.fc = nn.Linear(D, C)

    def features(self, images: Tensor) -> Tensor:
        return torch.relu(self.layer(images.flatten(1)))

    def classify(self, features: Tensor) -> Tensor:
        logits: Tensor = self.fc(features)
        return logits

    def forward(self, images: Tensor) -> Tensor:
        return self.classify(self.features(images))

    def maps(self, images: Tensor) -> list[Tensor]:
        return [images, images.flatten(1).reshape(len(images), -1, 2, 2)]


NET = Net()
SHAPES = {"features": (N, D), "logits": (N, C), "labels": (N,), "classify": (C, D), "inputs": (N, 1, 4, 4)}


def arguments(draw: random.Random) -> dict[str, Any]:
    """What a detector reads."""
    return {
        "features": plain((N, D), draw).abs(),
        "logits": plain((N, C), draw),
        "classify": NET.classify,
        "inputs": opencil.Inputs(NET, plain((N, 1, 4, 4), draw)),
    }


@cache
def names_posthoc() -> list[str]:
    """The detectors that train nothing."""
    return [n for n in opencil.list_detectors() if opencil.create_detector(n).family == "post-hoc"]


def posthoc(draw: random.Random) -> Any:
    """Any detector that is quickly made and set up."""
    return opencil.create_detector(draw.choice(names_posthoc()))


def fit(draw: random.Random) -> Call:
    detector, right = posthoc(draw), arguments(draw) | {"labels": torch.arange(N) % C}
    return replaced(f"{detector.registered_name}.fit", detector.fit, right, SHAPES, draw)


def score(draw: random.Random) -> Call:
    detector, right = posthoc(draw), arguments(draw)
    with contextlib.suppress(OpenCILError):  # one that needs more than there is here is not ready
        detector.fit(**right, labels=torch.arange(N) % C)
    shapes = {name: shape for name, shape in SHAPES.items() if name != "labels"}
    return replaced(f"{detector.registered_name}.score", detector.score, right, shapes, draw)


def model(draw: random.Random) -> tuple[str, Any]:
    """A model, or a function that gives something odd in a model's place."""
    what, thing = odd((N, C), draw)
    given = {
        "a net": NET,
        "a function": lambda images: images.flatten(1)[:, :C],
        "a double net": Net().double(),
        "a class": Net,
        "a sequence": nn.Sequential(nn.Flatten(), nn.Linear(16, C)),
        "a net on meta": Net().to("meta"),
    }
    given[f"a function that gives {what}"] = lambda images: thing()
    return draw.choice(sorted(given.items(), key=lambda pair: pair[0]))


def evaluate(draw: random.Random) -> Call:
    images = (N, 1, 4, 4)
    right: dict[str, Any] = {
        "model": NET,
        "test": plain(images, draw),
        "ood": {"far": plain(images, draw)},
        "labels": torch.arange(N) % C,
        "detectors": ["msp"],
    }
    shapes = {
        **dict.fromkeys(["test", "ood", "one", "setup", "shifted"], images),
        **dict.fromkeys(["labels", "setup_labels"], (N,)),
        **dict.fromkeys(["tasks"], (C,)),
        **dict.fromkeys(["detectors", "transform", "metrics", "batch_size", "model"], (N,)),
    }
    told, right["model"] = model(draw) if draw.random() < 0.3 else ("a net", NET)

    def call(**values: Any) -> object:
        if "one" in values:
            values["ood"] = {"far": values.pop("one")}
        if "setup" in values or "setup_labels" in values:
            values = {"setup": plain(images, draw), "setup_labels": torch.arange(N) % C, **values}
            values["detectors"] = ["klm"]
        return opencil.evaluate(**values)

    return replaced(f"evaluate of {told}", call, right, shapes, draw)


def openood(draw: random.Random) -> Call:
    images = (N, 1, 4, 4)
    pairs = [(image, i % C) for i, image in enumerate(plain(images, draw))]
    right: dict[str, Any] = {"net": NET, "id_name": "mine", "postprocessor_name": "msp"}
    names = ["net", "id_name", "data_root", "preprocessor", "postprocessor", "postprocessor_name", "head"]
    shapes = dict.fromkeys([*names, "batch_size", "dataloader_dict", "test", "near", "near_sets"], images)
    told, right["net"] = model(draw) if draw.random() < 0.3 else ("a net", NET)

    def call(**values: Any) -> object:
        sets = {"id": {"test": values.pop("test", pairs)}}
        near = values.pop("near_sets", {"zoo": values.pop("near", plain(images, draw))})
        values.setdefault("dataloader_dict", {**sets, "ood": {"near": near}})
        evaluator = opencil.Evaluator(**values)
        return evaluator.eval_ood(fsood=draw.random() < 0.2)

    return replaced(f"Evaluator of {told}", call, right, shapes, draw)


def inputs(draw: random.Random) -> Call:
    images = (N, 1, 4, 4)
    right: dict[str, Any] = {"model": NET, "images": plain(images, draw)}
    shapes = {"images": images, "transform": (N,), "indices": (N,), "batch_size": (N,)}
    return replaced("forward", opencil.forward, right, shapes, draw)


# --- what comes of them ----------------------------------------------------------------------------


def wrong(call: Call) -> str | None:
    """What is wrong with how a call ended: an error that is not ours, or an answer that is no number."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answer = call.make()
    except OpenCILError as error:
        return None if str(error).strip() else "an error without words"
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
    return None if finite(answer) else f"{answer!r} is no answer"


def finite(answer: object) -> bool:
    """Whether all numbers of an answer are finite."""
    if isinstance(answer, pd.DataFrame):
        return bool(np.isfinite(answer.select_dtypes("number").to_numpy()).all())
    if isinstance(answer, Tensor):
        return bool(torch.isfinite(answer).all())
    if isinstance(answer, np.ndarray):
        return bool(np.isfinite(answer).all())
    if isinstance(answer, opencil.OODMetrics):
        answer = vars(answer)
    if isinstance(answer, dict):
        return all(0 <= value <= 1 for value in answer.values())
    return not isinstance(answer, float) or 0 <= answer <= 1


def besiege(count: int, seed: int, tally: Tally) -> None:
    """Make so many calls."""
    for number, call in enumerate(calls(count, seed)):
        tally.note(f"{number}, {call.name} with {call.odd}", wrong(call))


def main() -> None:
    """The harness as a command; a line for the log, and 1 if a call was answered wrongly."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    tally, started = Tally(show=True), time.monotonic()
    besiege(asked.count, asked.seed, tally)
    print(
        f"{datetime.now(UTC):%Y-%m-%d} seed {asked.seed}: {tally.count - len(tally.wrong)} of {tally.count} "
        f"odd calls answered or refused with a sentence, in {time.monotonic() - started:.0f} s",
        flush=True,
    )
    sys.exit(bool(tally.wrong))


if __name__ == "__main__":
    main()
