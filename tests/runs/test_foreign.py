"""Models from elsewhere: the same rows as if they had been trained here, and never taken for such."""

import copy
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import opencil
from opencil import BadInput, OpenCILError
from opencil.data.stream import class_order
from opencil.files import read_json

Evaluate = Callable[..., opencil.Results]
TRAINED, RUN = "digits/k4/icarl/seed0", "digits/k4/mine/seed0"
TABLE = ["step", "detector", "ood", "distance", "task", "metric"]
BENCHMARK = {"name": "digits", "classes_per_step": 4, "near": [], "far": ["noise"], "shifted": {}}


@pytest.fixture(scope="module")
def models(done_once: Path) -> list[opencil.Model]:
    """The models of a run that was trained here."""
    run = opencil.open_run(done_once / TRAINED)
    return [run.model(step) for step in (1, 2)]


def call(models: Any, runs: Path, **more: Any) -> opencil.Results:
    place = {"runs": str(runs), "device": "cpu"}
    asked = {"name": "mine", "benchmark": BENCHMARK, "detector": ["msp", "relation"], "place": place}
    return opencil.evaluate_steps(models, **asked | more)


@pytest.fixture
def evaluate(tmp_path: Path) -> Evaluate:
    """Evaluate models as those of ``mine``, in the test's folder of runs."""
    return lambda models, **more: call(models, tmp_path / "runs", **more)


@pytest.fixture(scope="module")
def evaluated_once(models: list[opencil.Model], tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("evaluated") / "runs"
    call(models, runs)
    return runs


@pytest.fixture
def evaluated(evaluated_once: Path, tmp_path: Path) -> Path:
    """The folder of runs of ``evaluate``, with the models' run in it."""
    return Path(shutil.copytree(evaluated_once, tmp_path / "runs"))


def values(rows: pd.DataFrame, *detectors: str) -> dict[Any, float]:
    """Return values by what they measure, without the accuracy that iCaRL alone has."""
    rows = rows[(rows["metric"] != "accuracy_nearest_mean") & rows["detector"].isin(["", *detectors])]
    return dict(zip(rows[TABLE].itertuples(index=False, name=None), rows["value"], strict=True))


# --- the same rows ---------------------------------------------------------------------------------


def test_models_that_were_trained_here_have_their_rows_and_memories_again(
    evaluated: Path, done_once: Path
) -> None:
    both = [values(opencil.read_rows(runs), "msp", "relation") for runs in (evaluated, done_once)]
    assert both[0] == both[1]
    for step in ("step01", "step02"):
        memory = Path(step) / "memory.safetensors"
        assert (evaluated / RUN / memory).read_bytes() == (done_once / TRAINED / memory).read_bytes()


def test_lists_functions_and_iterators_give_the_same(
    models: list[opencil.Model], evaluate: Evaluate, evaluated_once: Path
) -> None:
    def train_on() -> Iterator[nn.Module]:
        """Yield one module that changes from step to step, as in a training loop."""
        one = copy.deepcopy(models[0])
        for model in models:
            one.head = copy.deepcopy(model.head)
            one.load_state_dict(model.state_dict())
            yield one

    expected = values(opencil.read_rows(evaluated_once), "msp")
    by_step = lambda step: models[step.number - 1]  # noqa: E731
    for name, source in {"by-step": by_step, "loop": train_on(), "list": nn.ModuleList(models)}.items():
        assert values(evaluate(source, name=name, detector="msp").rows, "msp") == expected


def test_the_models_stay_unchanged_and_their_heads_are_tuned(
    models: list[opencil.Model], evaluate: Evaluate, evaluated: Path
) -> None:
    mine = [copy.deepcopy(model).train() for model in models]
    found = evaluate(mine, detector="logitnorm", settings=["detector.logitnorm.schedule.epochs=1"])
    assert set(found.rows.query("detector == 'logitnorm'")["step"]) == {1, 2}
    assert (evaluated / RUN / "step02/heads/logitnorm.safetensors").exists()
    assert all(module.training for model in mine for module in model.modules())
    for one, other in zip(mine, models, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    with pytest.raises(BadInput, match="trained elsewhere"):
        found.runs[0].model(2)


# --- resumed, refused ------------------------------------------------------------------------------


def test_it_is_resumed_where_it_stopped(
    models: list[opencil.Model], evaluate: Evaluate, evaluated_once: Path, tmp_path: Path
) -> None:
    def broken() -> Iterator[nn.Module]:
        yield models[0]
        raise LookupError("no second checkpoint")

    with pytest.raises(OpenCILError, match="LookupError: no second checkpoint") as raised:
        evaluate(broken())
    assert isinstance(raised.value.__cause__, LookupError)
    first = (tmp_path / "runs" / RUN / "step01/step.json").read_bytes()
    found = evaluate(iter(models)).rows
    assert values(found, "msp", "relation") == values(opencil.read_rows(evaluated_once), "msp", "relation")
    assert (tmp_path / "runs" / RUN / "step01/step.json").read_bytes() == first


def test_another_model_is_refused(models: list[opencil.Model], evaluate: Evaluate, evaluated: Path) -> None:
    """Also of the same weights in other code, and where all rows are there."""
    other = copy.deepcopy(models[1])
    with torch.no_grad():
        other.head.bias[0] += 1e-2
    for more in ({}, {"detector": "maxlogit"}):
        with pytest.raises(BadInput, match="model of step 2"):
            evaluate([models[0], other], **more)

    class Halved(nn.Module):
        def __init__(self, inner: opencil.Model) -> None:
            super().__init__()
            self.inner, self.classify = inner, inner.classify

        def features(self, images: Tensor) -> Tensor:
            return self.inner.features(images) / 2

    with pytest.raises(BadInput, match="model of step 1"):
        evaluate([Halved(model) for model in models])
    assert "maxlogit" not in set(opencil.read_rows(evaluated).query("step > 1")["detector"])


def test_the_record_says_which_models_were_given(evaluated: Path) -> None:
    assert "\nforeign: true\n" in (evaluated / RUN / "config.yml").read_text(encoding="utf-8")
    notes = [read_json(evaluated / RUN / f"step0{step}/step.json")["foreign"] for step in (1, 2)]
    assert {note["type"] for note in notes} == {"Model"}
    assert len({note["sha256"] for note in notes}) == 2
    assert (evaluated / RUN / "step02/model.safetensors").stat().st_size < 1000, "the weights are not stored"


@pytest.mark.parametrize("name", ["icarl", "icarl@theirs", "all", "Mine", "a/b", "", 5])
def test_names_that_are_taken_or_odd_are_refused(
    name: Any, models: list[opencil.Model], evaluate: Evaluate
) -> None:
    with pytest.raises(BadInput, match=r"name = "):
        evaluate(models, name=name)


def test_runs_trained_here_and_elsewhere_do_not_continue_each_other(
    models: list[opencil.Model], evaluate: Evaluate, evaluated: Path, done_once: Path
) -> None:
    shutil.copytree(done_once / TRAINED, evaluated / "digits/k4/theirs/seed0")
    with pytest.raises(BadInput, match="digits/k4/theirs/seed0"):
        evaluate(models, name="theirs")

    @opencil.register_learner("mine")
    @dataclass(frozen=True)
    class Mine(opencil.Learner):
        def stages(self, task: opencil.Task) -> None:
            """Return nothing."""

    place = {"runs": str(evaluated), "device": "cpu"}
    with pytest.raises(BadInput, match=RUN):
        opencil.run(benchmark=BENCHMARK, cil="mine", detector="msp", place=place)
    study = opencil.read_study(evaluated / RUN, done_once)
    assert [run["config"].get("foreign", False) for run in study.runs] == [True, False]


# --- counts, columns and orders --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "key"),
    [
        (lambda models: models[:1], "1 models for 2 steps"),
        (lambda models: iter(models[:1]), "for 2 steps"),
        (lambda models: iter([*models, models[0]]), "for 2 steps"),
        (lambda models: models[0], "models is a Model"),
        (lambda models: 5, "models is a int"),
        (lambda models: [1, 2], "step 1"),
        (lambda models: models[::-1], "step 1: .* 8 logits"),
        (
            lambda models: lambda step: lambda images: torch.full((len(images), step.seen), nan),
            "step 1: .*finite",
        ),
    ],
)
def test_models_that_do_not_fit_the_steps(
    given: Callable[[list[opencil.Model]], Any], key: str, models: list[opencil.Model], evaluate: Evaluate
) -> None:
    with pytest.raises(BadInput, match=key):
        evaluate(given(models), detector="msp")


class Wide(nn.Module):
    """A model with a head over all labels of the dataset, seen or not."""

    def __init__(self, model: opencil.Model) -> None:
        super().__init__()
        self.model, self.features = model, model.features

    def classify(self, features: Tensor) -> Tensor:
        logits = self.model.classify(features)
        labels = torch.tensor(class_order(8)[: logits.shape[1]])
        return torch.full((len(logits), 8), 99.0).index_copy(1, labels, logits)


def test_logits_by_the_datasets_labels(
    models: list[opencil.Model], evaluate: Evaluate, evaluated_once: Path
) -> None:
    expected = values(opencil.read_rows(evaluated_once), "msp", "relation")
    found = evaluate([Wide(model) for model in models], name="wide", outputs="labels")
    assert values(found.rows, "msp", "relation") == expected
    with pytest.raises(BadInput, match="outputs='labels'"):
        evaluate(models, name="narrow", outputs="labels")


def test_classes_in_another_order(models: list[opencil.Model], evaluate: Evaluate) -> None:
    order = class_order(8)[::-1]
    (run,) = evaluate(models, class_order=order, detector="msp").runs
    assert torch.equal(torch.tensor(order)[run.stream.train.labels], run.data.train.labels)
    with pytest.raises(BadInput, match="class_order"):
        evaluate(models, detector="msp")  # a run has one order
    for wrong in ([0, 1, 2], [0, 0, 1, 2, 3, 4, 5, 6], "abc"):
        with pytest.raises(BadInput, match="class_order"):
            evaluate(models, name="wrong", class_order=wrong, detector="msp")


# --- memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", ["none", [[]] * 2])
def test_without_a_memory_detectors_that_need_it_are_left_out(
    memory: Any, models: list[opencil.Model], evaluate: Evaluate
) -> None:
    with pytest.warns(UserWarning, match="mine goes without ber"):
        found = evaluate(models, memory=memory, detector=["msp", "relation", "ber"])
    assert set(found.rows["detector"]) == {"", "msp", "relation"}
    assert not len(found.runs[0].memory(2).indices)
    with pytest.raises(BadInput, match="mine cannot have ber"):
        evaluate(models, memory=memory, detector="ber")


@pytest.mark.parametrize(
    ("settings", "memory"), [(["benchmark.memory=45"], "herding"), ([], [[*range(50)], [*range(39)]])]
)
def test_a_memory_that_is_too_small_for_a_detector_is_refused_at_once(
    settings: list[str], memory: Any, models: list[opencil.Model], evaluate: Evaluate
) -> None:
    with pytest.raises(BadInput, match="cannot have nnguide"):
        evaluate(
            models, memory=memory, detector="nnguide", settings=[*settings, "detector.nnguide.neighbours=42"]
        )


def test_images_that_a_method_has_kept(models: list[opencil.Model], evaluate: Evaluate) -> None:
    labels = opencil.benchmark("digits").stream(4).train.labels
    kept = [[int(i) for label in range(4 * t) for i in (labels == label).nonzero()[:3]] for t in (1, 2)]
    (run,) = evaluate(models, memory=kept, detector="msp").runs
    assert [run.memory(t).indices.tolist() for t in (1, 2)] == kept
    assert len(run.train_plus(run.stream[1])) == len(run.stream[1].train) + len(kept[0])
    with pytest.raises(BadInput, match=r"cil\.mine\.memory"):
        evaluate(models, memory=[indices[1:] for indices in kept], detector="msp")


@pytest.mark.parametrize(
    "memory",
    [
        *("all", [[0]], [[10**9]] * 2, [[2**63]] * 2, [list(range(900))] * 2),
        *([["a"]] * 2, [[0.5]] * 2, [[True, False]] * 2),
    ],
)
def test_memories_that_cannot_be(memory: Any, models: list[opencil.Model], evaluate: Evaluate) -> None:
    with pytest.raises(BadInput, match="memory"):
        evaluate(models, memory=memory, detector="msp")


def test_sections_that_are_refused(models: list[opencil.Model], evaluate: Evaluate) -> None:
    several = {"name": "digits", "classes_per_step": [2, 4]}
    for more, key in (
        ({"seed": [0, 1]}, "seed"),
        ({"benchmark": several}, "k = "),
        ({"detektor": "msp"}, "detektor"),
        ({"cil": "icarl"}, "cil"),
        ({"outputs": "mine"}, "outputs"),
    ):
        with pytest.raises(BadInput, match=key):
            evaluate(models, **more)


# --- functions to logits ---------------------------------------------------------------------------


def test_functions_serve_detectors_that_read_logits(evaluate: Evaluate) -> None:
    def model(step: opencil.Step) -> Callable[[Tensor], Tensor]:
        weights = torch.randn(192, step.seen, generator=torch.Generator().manual_seed(step.number))
        return lambda images: images.flatten(1) @ weights

    with pytest.raises(BadInput, match="herding"):
        evaluate(model, detector="msp")
    found = evaluate(model, detector=["msp", "energy"], memory="none")
    assert {(d, s) for d, s in found.rows[["detector", "step"]].itertuples(index=False)} == {
        (detector, step) for detector in ("", "msp", "energy") for step in (1, 2)
    }
    of_model = set(found.rows.query("detector == ''")["metric"])
    assert "memory_bytes" in of_model
    assert "model_bytes" not in of_model, "the parts of a function are not known"
    with pytest.raises(BadInput, match="model of step 1"):
        evaluate(lambda step: lambda images: images.flatten(1)[:, : step.seen], detector="msp", memory="none")
    with pytest.raises(OpenCILError, match="relation has no rows: step 1"):
        evaluate(model, detector=["relation", "maxlogit"], memory="none")
