"""A tuned head that another detector scores by: against references, in every way to say it, and refused."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import opencil
from opencil import BadInput, create_detector
from opencil.engine.forward import Inputs, Outputs, forward

SHORT = {"schedule": {"epochs": 1, "lr": 0.1}, "batch_size": 16}
LABELS = torch.arange(48) % 4


@pytest.fixture
def outputs(toy: nn.Module, normalised: Callable[..., Tensor]) -> tuple[Outputs, Outputs]:
    """Of set-up images and of others."""
    setup, test = (forward(toy, normalised(48, seed)) for seed in (0, 1))
    return replace(setup, labels=LABELS), test


def tuned(outputs: Outputs, name: str = "logitnorm", **values: Any) -> Any:
    return create_detector(name, **SHORT, **values).fit(outputs)  # type: ignore[arg-type]


def test_nnguide_scores_by_the_head(outputs: tuple[Outputs, Outputs]) -> None:
    """Sample by sample, from the formula, with f's logits for the model's."""
    setup, test = outputs
    made = tuned(setup, scored_by={"name": "nnguide", "neighbours": 3})
    f = made._extra
    assert not torch.allclose(f(test.features), test.logits, atol=1e-3), "else it would be the model's head"
    bank = [torch.logsumexp(f(v), 0) * v / v.norm() for v in setup.features if v.norm()]
    expected = []
    for v in test.features:
        near = sorted((float(b @ F.normalize(v, dim=0)) for b in bank), reverse=True)[:3]
        expected.append(float(torch.logsumexp(f(v), 0)) * sum(near) / 3)
    assert made.score(test).tolist() == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("scored_by", ["gen", "react", "scale", "vim", "klm", "odin", "relation@stated"])
def test_any_detector_scores_as_on_a_model_with_that_head(
    scored_by: str, outputs: tuple[Outputs, Outputs], toy: Any
) -> None:
    setup, test = outputs
    made = tuned(setup, scored_by=scored_by)
    found = made.score(test).tolist()
    toy.head.load_state_dict(made._extra.head.state_dict())  # now the model has it
    assert setup.inputs is not None
    assert test.inputs is not None
    by_f = forward(toy, setup.inputs.images)
    alone = create_detector(scored_by).fit(Outputs(by_f.features, by_f.logits, LABELS, toy.classify))
    expected = alone.score(forward(toy, test.inputs.images))
    assert found == pytest.approx(expected.tolist(), rel=1e-5, abs=1e-5)


def test_outputs_by_the_head_are_those_of_a_model_that_has_it(outputs: tuple[Outputs, Outputs]) -> None:
    setup, test = outputs
    with pytest.raises(BadInput, match="LogitNorm has no head yet: call fit"):
        create_detector("logitnorm", **SHORT).by_head(test)  # type: ignore[arg-type]
    made = tuned(setup)
    found = made.by_head(test)
    assert torch.equal(found.logits, made._extra(test.features))
    assert torch.equal(found.features, test.features)
    assert found.inputs is not None
    assert torch.equal(forward(found.inputs.model, found.inputs.images).logits, found.logits)


def test_by_default_it_is_the_energy(outputs: tuple[Outputs, Outputs]) -> None:
    setup, test = outputs
    own, named = tuned(setup), tuned(setup, scored_by="energy")
    assert torch.equal(own.score(test), named.score(test))
    assert torch.equal(own.score(test), own._extra(test.features).logsumexp(dim=1))
    assert named.score(test.features).equal(named.score(test)), "features are all that it reads"


def test_by_task_of_a_composition(outputs: tuple[Outputs, Outputs]) -> None:
    """The predicted task is by the model's own head."""
    setup, test = outputs
    tasks = torch.tensor([1, 1, 2, 2])
    own = tuned(setup, scored_by="gen")
    made = create_detector("logitnorm", **SHORT, scored_by="gen", by_task=True)  # type: ignore[arg-type]
    made.fit(setup, tasks=tasks)
    by_tasks = create_detector("logitnorm", **SHORT).fit(setup, tasks=tasks)  # type: ignore[arg-type]
    own._extra = by_tasks._extra  # type: ignore[attr-defined]
    scores, expected = own.score(setup), own.score(test)
    predicted = tasks[test.logits.argmax(dim=1)]
    for task in (1, 2):
        of_task = scores[tasks[LABELS] == task]
        expected[predicted == task] = (expected[predicted == task] - of_task.mean()) / of_task.std()
    assert made.score(test).tolist() == pytest.approx(expected.tolist(), rel=1e-4, abs=1e-4)


def test_more_is_scored_by_another_too(outputs: tuple[Outputs, Outputs]) -> None:
    setup, test = outputs
    made = tuned(setup, "more", scored_by="msp")
    expected = made._extra.head.classes(test.features).softmax(dim=1).amax(dim=1)
    assert made.score(test).tolist() == pytest.approx(expected.tolist(), rel=1e-5)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        # Tuners are not among those allowed.
        (
            {"scored_by": "nngude"},
            r"detector 'nngude' is unknown: .* nnguide, odin, .*did you mean 'nnguide'",
        ),
        ({"scored_by": {"neighbours": 3}}, r"ber\.scored_by: the name of a post-hoc detector is needed"),
        (
            {"scored_by": {"name": "nnguide", "neighbors": 3}},
            r"nnguide\.neighbors = 3 is unknown: .*did you mean 'neighbours'",
        ),
        ({"scored_by": "vos"}, r"ber\.scored_by: vos has a head of its own: a post-hoc detector is needed"),
        ({"scored_by": {"name": "gen", "by_task": True}}, "by_task is a value of the tuner"),
        ({"scored_by": 3}, r"ber\.scored_by = 3 is not allowed"),
        (
            {"head_of": "vos"},
            r"ber\.head_of = 'vos' is not allowed: it should be ber, with a label or without",
        ),
    ],
)
def test_what_cannot_score_by_a_head_is_refused(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        create_detector("ber", **values)
    for name in ("augmix", "npos"):  # which have checks of their own
        with pytest.raises(BadInput, match=sentence.replace("ber", name)):
            create_detector(name, **values)


def test_what_names_a_head() -> None:
    """The random numbers follow from the label, unless the head is only scored otherwise."""

    def trained_as(name: str, **values: Any) -> str:
        made: Any = create_detector(name, **values)
        assert "scored_by" not in made.training_values
        return str(made.trained_as)

    assert trained_as("ber@mine") == "ber@mine"
    assert trained_as("ber@mine", scored_by="gen") == "ber"
    assert trained_as("ber@mine", by_task=True) == "ber"
    assert trained_as("ber@mine", scored_by="gen", head_of="ber@chosen") == "ber@chosen"
    assert trained_as("ber", head_of="ber@chosen") == "ber@chosen"


def test_evaluate_sets_up_what_scores_by_a_head(toy: nn.Module, normalised: Callable[..., Tensor]) -> None:
    table = opencil.evaluate(
        toy,
        normalised(24, 1),
        {"other": normalised(20, 2)},
        setup=normalised(48, 0),
        setup_labels=LABELS,
        detectors={
            name: create_detector("logitnorm", **SHORT, scored_by=name)  # type: ignore[arg-type]
            for name in ("energy", "react", "odin")
        },
    )
    assert set(table["detector"]) == {"energy", "react", "odin"}
    inputs = Inputs(toy, normalised(24, 1))  # type: ignore[arg-type]
    made = create_detector("logitnorm", **SHORT, scored_by="odin")  # type: ignore[arg-type]
    made.fit(replace(forward(toy, normalised(48, 0)), labels=LABELS))
    with pytest.raises(BadInput, match="LogitNorm reads the images: missing"):
        made.score(forward(toy, normalised(24, 1)).features)
    assert len(made.score(forward(toy, normalised(24, 1)).features, inputs=inputs)) == 24


def test_what_a_composition_is_set_up_on_is_what_its_scorer_needs() -> None:
    alone, composed = create_detector("logitnorm"), create_detector("logitnorm", scored_by="react")
    assert alone.reads_to_set_up == {"images", "labels"}
    assert composed.reads_to_set_up == {"images", "labels", "features"}
    assert (alone.set_up_on, composed.set_up_on) == ("train+", "memory")
    assert (alone.fewest, create_detector("logitnorm", scored_by="nnguide").fewest) == (1, 100)


def test_a_model_with_the_head_keeps_its_maps(outputs: tuple[Outputs, Outputs], toy: Any) -> None:
    setup, test = outputs
    toy.maps, toy.last_stage = (lambda images: [images]), (lambda maps: maps)
    inputs = tuned(setup).by_head(test).inputs
    assert (inputs.model.maps, inputs.model.last_stage) == (toy.maps, toy.last_stage)


@pytest.mark.parametrize("tasks", [[1, 1, 2], [1]])
def test_tasks_of_fewer_classes_than_there_are_labels_are_refused(
    tasks: list[int], outputs: tuple[Outputs, Outputs]
) -> None:
    with pytest.raises(BadInput, match=f"tasks are of {len(tasks)} classes: labels reach 3"):
        create_detector("logitnorm").fit(outputs[0], tasks=torch.tensor(tasks))
