"""Models from elsewhere: the same rows as if they had been trained here, and never taken for such."""

import copy
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import opencil
from opencil import BadInput, OpenCILError
from opencil.data.stream import class_order
from opencil.report.page import page
from opencil.report.results import results

Evaluate = Callable[..., opencil.Results]
RUN = "digits/k2/mine/seed0"
TABLE = ["step", "detector", "ood", "distance", "task", "metric"]


@pytest.fixture(scope="module")
def models(_finished_once: Path) -> list[opencil.Model]:
    """The models of a run that was trained here."""
    run = opencil.open_run(_finished_once / "digits/k2/icarl/seed0")
    return [run.model(t) for t in (1, 2, 3, 4)]


@pytest.fixture
def evaluate(tmp_path: Path) -> Evaluate:
    """Evaluate models as those of ``mine``, in the test's folder of runs."""

    def call(models: Any, **more: Any) -> opencil.Results:
        place = {"runs": str(tmp_path / "runs"), "device": "cpu"}
        asked = {
            "name": "mine",
            "benchmark": "digits",
            "detector": ["energy", "msp", "relation"],
            "place": place,
        }
        return opencil.evaluate_steps(models, **asked | more)

    return call


@pytest.fixture(scope="module")
def _evaluated_once(models: list[opencil.Model], tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("evaluated") / "runs"
    place = {"runs": str(runs), "device": "cpu"}
    opencil.evaluate_steps(
        models, name="mine", benchmark="digits", detector=["energy", "msp", "relation"], place=place
    )
    return runs


@pytest.fixture
def evaluated(_evaluated_once: Path, tmp_path: Path) -> Path:
    """The test's folder of runs, with these models' run in it."""
    return Path(shutil.copytree(_evaluated_once, tmp_path / "runs"))


def values(rows: pd.DataFrame) -> dict[Any, float]:
    """Rows by what they are of, but for the method's name and what it says of itself alone."""
    rows = rows[rows["metric"] != "accuracy_nearest_mean"]
    return dict(zip(rows[TABLE].itertuples(index=False, name=None), rows["value"], strict=True))


# --- the same rows ---------------------------------------------------------------------------------


def test_models_that_were_trained_here_have_their_rows_again(evaluated: Path, finished: Path) -> None:
    assert values(opencil.read_rows(evaluated)) == values(opencil.read_rows(finished))
    for step in ("step01", "step04"):
        memory = Path(step) / "memory.safetensors"
        trained = finished / "digits/k2/icarl/seed0"
        assert (evaluated / RUN / memory).read_bytes() == (trained / memory).read_bytes()


def test_any_sequence_gives_the_same(
    models: list[opencil.Model], evaluate: Evaluate, evaluated: Path
) -> None:
    def trained_on() -> Iterator[nn.Module]:
        """One module that changes from step to step, as a training loop has it."""
        one = copy.deepcopy(models[0])
        for model in models:
            one.head = copy.deepcopy(model.head)
            one.load_state_dict(model.state_dict())
            yield one

    expected = values(opencil.read_rows(evaluated))
    sequences = {
        "by-step": lambda step: models[step.number - 1],
        "loop": trained_on(),
        "list": nn.ModuleList(models),
    }
    for name, sequence in sequences.items():
        found = evaluate(sequence, name=name, detector="msp")
        assert values(found.rows) == {key: v for key, v in expected.items() if key[1] in ("", "msp")}


def test_the_models_stay_as_they_are(models: list[opencil.Model], evaluate: Evaluate) -> None:
    mine = [copy.deepcopy(model).train() for model in models]
    evaluate(mine, detector="msp")
    assert all(module.training for model in mine for module in model.modules())
    for one, other in zip(mine, models, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_tuners_train_copies_of_the_given_heads(
    models: list[opencil.Model], evaluate: Evaluate, evaluated: Path
) -> None:
    found = evaluate(models, detector="logitnorm")
    assert set(found.rows.query("detector == 'logitnorm'")["step"]) == {1, 2, 3, 4}
    (run,) = found.runs
    assert (evaluated / RUN / "step04/heads/logitnorm.safetensors").exists()
    with pytest.raises(BadInput, match="rows of models that were trained elsewhere, and not the models"):
        run.model(4)


# --- going on --------------------------------------------------------------------------------------


def test_it_goes_on_where_it_stopped(
    models: list[opencil.Model], evaluate: Evaluate, evaluated: Path, tmp_path: Path
) -> None:
    expected = values(opencil.read_rows(evaluated))
    shutil.rmtree(evaluated)

    def broken() -> Iterator[nn.Module]:
        yield from models[:2]
        raise LookupError("no third checkpoint")

    with pytest.raises(OpenCILError, match="LookupError: no third checkpoint") as raised:
        evaluate(broken())
    assert isinstance(raised.value.__cause__, LookupError)
    assert "in broken" in (evaluated / RUN / "error.txt").read_text(encoding="utf-8")
    assert set(opencil.read_rows(evaluated)["step"]) == {1, 2}
    marks = {t: (evaluated / RUN / f"step0{t}/step.json").read_bytes() for t in (1, 2)}
    assert values(evaluate(iter(models)).rows) == expected
    assert {t: (evaluated / RUN / f"step0{t}/step.json").read_bytes() for t in (1, 2)} == marks


def test_a_detector_is_added_to_a_finished_run(
    models: list[opencil.Model], evaluate: Evaluate, evaluated: Path
) -> None:
    before = (evaluated / RUN / "step04/detectors/msp.parquet").read_bytes()
    found = evaluate(models, detector=["maxlogit"])
    assert set(found.rows["detector"]) == {"", "maxlogit"}
    assert (evaluated / RUN / "step04/detectors/msp.parquet").read_bytes() == before


def test_another_model_is_refused_wherever_it_stands(
    models: list[opencil.Model], evaluate: Evaluate, evaluated: Path
) -> None:
    other = copy.deepcopy(models[1])
    with torch.no_grad():
        other.head.bias[0] += 1e-3
    for more in ({}, {"detector": "maxlogit"}):
        with pytest.raises(
            BadInput, match="the model given for step 2 is another than the one that the run has"
        ):
            evaluate([models[0], other, *models[2:]], **more)
    assert "maxlogit" not in set(opencil.read_rows(evaluated).query("step > 1")["detector"])


def test_the_same_weights_in_other_code_are_another_model(
    models: list[opencil.Model], evaluate: Evaluate, evaluated: Path
) -> None:
    """Neither rows nor outputs that were kept of the one stand for the other."""

    class Halved(nn.Module):
        def __init__(self, inner: opencil.Model, by: float) -> None:
            super().__init__()
            self.inner, self.by = inner, by

        def features(self, images: Tensor) -> Tensor:
            features: Tensor = self.inner.features(images)
            return features * self.by * torch.linspace(0, 1, features.shape[1])

        def classify(self, features: Tensor) -> Tensor:
            return self.inner.classify(features)

    def wrapped(by: float) -> list[Halved]:
        return [Halved(model, by) for model in models]

    shutil.rmtree(evaluated / "digits")
    first = evaluate(wrapped(1.0), detector="energy").rows
    with pytest.raises(BadInput, match="the model given for step 1 is another"):
        evaluate(wrapped(0.5), detector="energy")
    shutil.rmtree(evaluated / "digits")
    second = evaluate(wrapped(0.5), detector="energy").rows
    assert values(second) != values(first)


def test_other_values_are_refused_with_what_can_be_done(
    models: list[opencil.Model], evaluate: Evaluate, evaluated: Path
) -> None:
    with pytest.raises(BadInput, match="another config: say what was said then") as told:
        evaluate(models, memory="none")
    assert "'herding' in the stored run, 'none' now" in str(told.value)
    assert "--" not in str(told.value), "no flag says it"


def test_the_record_says_that_the_models_are_foreign_and_which(evaluated: Path) -> None:
    config = (evaluated / RUN / "config.yml").read_text(encoding="utf-8")
    assert "\nforeign: true\n" in config
    notes = [
        json.loads((evaluated / RUN / f"step0{t}/step.json").read_text())["foreign"] for t in (1, 2, 3, 4)
    ]
    assert {note["type"] for note in notes} == {"Model"}
    assert len({note["sha256"] for note in notes}) == 4
    size = (evaluated / RUN / "step04/model.safetensors").stat().st_size
    assert size < 1000, "the weights stay where they are"


# --- never taken for one that was trained here -------------------------------------------------------


def test_the_name_of_a_method_is_refused(models: list[opencil.Model], evaluate: Evaluate) -> None:
    for name in ("icarl", "icarl@theirs", "all", "Mine", "a/b", "", 5):
        with pytest.raises(BadInput, match=r"name = .* is not allowed"):
            evaluate(models, name=name)


def test_runs_trained_here_and_elsewhere_do_not_go_on_as_each_other(
    models: list[opencil.Model], evaluate: Evaluate, evaluated: Path, finished: Path
) -> None:
    shutil.copytree(finished / "digits/k2/icarl/seed0", evaluated / "digits/k2/theirs/seed0")
    with pytest.raises(
        BadInput, match="digits/k2/theirs/seed0 is there, of models that were trained here: choose"
    ):
        evaluate(models, name="theirs")

    @opencil.register_learner("mine")
    @dataclass(frozen=True)
    class Mine(opencil.Learner):
        def stages(self, task: opencil.Task) -> None:
            """None."""

    with pytest.raises(BadInput, match=f"run {RUN} is there, of models that were trained elsewhere"):
        opencil.run(
            benchmark="digits", cil="mine", detector="msp", place={"runs": str(evaluated), "device": "cpu"}
        )


def test_reports_read_it_and_say_where_it_is_mixed(evaluated: Path, finished: Path) -> None:
    study = opencil.read_study(evaluated, finished)
    (outcome,) = results(study)
    assert set(outcome.cil) == {"mine", "icarl"}
    assert not outcome.mixture()
    assert "mine" in page(study)
    seed1 = json.loads(json.dumps(study.runs[1])) | {"cil": "mine", "seed": 1}
    mixed = opencil.Study(study.rows, [study.runs[0], seed1])
    assert any("mine (" in note and "foreign" in note for note in results(mixed)[0].mixture())


# --- counts, columns and orders --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda models: models[:3], "there are 3 models, and 4 steps: one for each step is needed"),
        (lambda models: iter(models[:3]), "there are 3 models, and 4 steps"),
        (lambda models: iter([*models, models[0]]), "there are more than 4 models, and 4 steps"),
        (lambda models: models[0], "models is one Model: a list with a model for each step is needed"),
        (lambda models: 5, "models is one int"),
        (lambda models: [1, 2, 3, 4], "step 1: a int is no model"),
        (lambda models: models[::-1], "step 1: the model gives 8 logits, and 2 classes are seen by then"),
    ],
)
def test_what_does_not_fit_the_steps(
    given: Callable[[list[opencil.Model]], Any], said: str, models: list[opencil.Model], evaluate: Evaluate
) -> None:
    with pytest.raises(BadInput, match=said):
        evaluate(given(models), detector="msp")


class Wide(nn.Module):
    """A model with a head over all labels of the dataset, seen or not."""

    def __init__(self, model: opencil.Model, order: list[int]) -> None:
        super().__init__()
        self.model, self.seen = model, order[: model.head.out_features]

    def features(self, images: Tensor) -> Tensor:
        return self.model.features(images)

    def classify(self, features: Tensor) -> Tensor:
        logits = self.model.classify(features)
        wide = torch.full((len(logits), 8), 99.0, device=logits.device)
        return wide.index_copy(1, torch.tensor(self.seen), logits)


def test_logits_by_the_datasets_labels(
    models: list[opencil.Model], evaluate: Evaluate, evaluated: Path
) -> None:
    expected = values(opencil.read_rows(evaluated))
    found = evaluate([Wide(m, class_order(8)) for m in models], name="wide", outputs="labels")
    assert values(found.rows) == expected
    with pytest.raises(
        BadInput, match="gives 2 logits: with outputs='labels' they are of the dataset's labels from 0 on"
    ):
        evaluate(models, name="narrow", outputs="labels")


def test_classes_in_another_order(models: list[opencil.Model], evaluate: Evaluate, tmp_path: Path) -> None:
    order = class_order(8)[::-1]
    found = evaluate(models, class_order=order, detector="msp")
    (run,) = found.runs
    assert torch.equal(torch.tensor(order)[run.stream.train.labels], run.data.train.labels)
    with pytest.raises(BadInput, match="class_order"):
        evaluate(models, detector="msp")  # a run is of one order
    for wrong in ([0, 1, 2], [0, 0, 1, 2, 3, 4, 5, 6]):
        with pytest.raises(
            BadInput, match="class_order is not allowed: each of 0 to 7 is needed in it, once"
        ):
            evaluate(models, name="wrong", class_order=wrong, detector="msp")


# --- memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", ["none", [[]] * 4])
def test_no_memory_leaves_out_what_draws_on_it(
    memory: Any, models: list[opencil.Model], evaluate: Evaluate
) -> None:
    with pytest.warns(UserWarning, match="mine goes without ber: no images of old classes are seen") as told:
        found = evaluate(models, memory=memory, detector=["msp", "relation", "ber"])
    assert len(told) == 1
    assert set(found.rows["detector"]) == {"", "msp", "relation"}
    (run,) = found.runs
    assert len(run.memory(4).indices) == 0
    with pytest.raises(BadInput, match=r"mine cannot have ber: no images of old classes"):
        evaluate(models, memory=memory, detector="ber")


@pytest.mark.parametrize(
    ("settings", "memory", "some_step_has"),
    [(["benchmark.memory=45"], "herding", 40), ([], [[*range(50)], [*range(41)], [*range(39)], []], 39)],
    ids=["by our rule", "its own"],
)
def test_a_memory_too_small_for_a_detector_is_noticed_before_anything_is_evaluated(
    settings: list[str],
    memory: Any,
    some_step_has: int,
    models: list[opencil.Model],
    evaluate: Evaluate,
) -> None:
    few = [*settings, "detector.nnguide.neighbours=42"]
    with pytest.raises(BadInput, match=f"cannot have nnguide: 42 images .* some step has {some_step_has} "):
        evaluate(models, memory=memory, detector="nnguide", settings=few)


def test_the_images_that_a_method_has_kept(models: list[opencil.Model], evaluate: Evaluate) -> None:
    labels = opencil.benchmark("digits").stream(2).train.labels
    kept = [[int(i) for label in range(2 * t) for i in (labels == label).nonzero()[:3]] for t in (1, 2, 3, 4)]
    (run,) = evaluate(models, memory=kept, detector="msp").runs
    for t in (1, 2, 3, 4):
        assert run.memory(t).indices.tolist() == kept[t - 1]
    assert len(run.train_plus(run.stream[3])) == len(run.stream[3].train) + len(kept[2])
    with pytest.raises(BadInput, match=r"choose another name(.|\n)*cil.mine.memory: 'given [0-9a-f]{16}'"):
        evaluate(models, memory=[indices[1:] for indices in kept], detector="msp")


@pytest.mark.parametrize(
    ("memory", "said"),
    [
        ("all", "memory = 'all' is not allowed: herding and none are"),
        ([[0]], "memory has 1 lists of images: one for each of 4 steps is needed"),
        ([[10**9]] * 4, "memory of step 1 has 1000000000 to 1000000000: indices of the training images"),
        ([list(range(900))] * 4, "whose class comes in a later step"),
        ([["a"]] * 4, "memory is no list of indices for each step"),
        ([[0.5]] * 4, "memory of step 1 is no list of whole numbers: they are torch.float32"),
        ([[True, False]] * 4, "memory of step 1 is no list of whole numbers: they are torch.bool"),
    ],
)
def test_memories_that_cannot_be(
    memory: Any, said: str, models: list[opencil.Model], evaluate: Evaluate
) -> None:
    with pytest.raises(BadInput, match=said):
        evaluate(models, memory=memory, detector="msp")


def test_one_k_and_one_seed_at_a_time(models: list[opencil.Model], evaluate: Evaluate) -> None:
    for more in ({"seed": [0, 1]}, {"benchmark": {"name": "digits", "classes_per_step": [2, 4]}}):
        with pytest.raises(BadInput, match="is not allowed: one is, that of the models"):
            evaluate(models, **more)
    with pytest.raises(BadInput, match="config section 'detektor' is unknown"):
        evaluate(models, detektor="msp")
    with pytest.raises(BadInput, match="cil is what is trained here"):
        evaluate(models, cil="icarl")


# --- functions to logits ---------------------------------------------------------------------------


def test_functions_serve_detectors_that_read_logits(evaluate: Evaluate) -> None:
    def model(step: opencil.Step) -> Callable[[Tensor], Tensor]:
        weights = torch.randn(192, step.seen, generator=torch.Generator().manual_seed(step.number))
        return lambda images: images.flatten(1) @ weights

    with pytest.raises(
        BadInput, match=r"gives logits alone, and herding chooses images by features: opencil.wrap"
    ):
        evaluate(model, detector="msp")
    found = evaluate(model, detector=["msp", "energy"], memory="none")
    assert set(found.rows["detector"]) == {"", "msp", "energy"}
    assert set(found.rows["step"]) == {1, 2, 3, 4}
    of_model = set(found.rows.query("detector == ''")["metric"])
    assert "memory_bytes" in of_model
    assert "model_bytes" not in of_model, "what a function is made of is not known"
    assert values(evaluate(model, detector=["msp", "energy"], memory="none").rows) == values(found.rows)
    with pytest.raises(BadInput, match="step 1 is another"):
        evaluate(lambda step: lambda images: images.flatten(1)[:, : step.seen], detector="msp", memory="none")
    with pytest.raises(OpenCILError, match=r"relation has no rows: step 1: .*features"):
        evaluate(model, detector=["relation", "maxlogit"], memory="none")
    assert set(opencil.read_rows(found.folders[0]).query("detector == 'maxlogit'")["step"]) == {1, 2, 3, 4}
