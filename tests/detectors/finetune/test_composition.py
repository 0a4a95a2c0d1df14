"""A tuned head that another detector scores by: against references, in every way to say it, and refused."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from opencil import BadInput, create_detector
from opencil.engine.forward import Outputs, forward

SHORT = {"schedule": {"epochs": 1, "lr": 0.1}, "batch_size": 16}
LABELS = torch.arange(48) % 4


@pytest.fixture
def outputs(toy: nn.Module, normalised: Callable[..., Tensor]) -> tuple[Outputs, Outputs]:
    """Of set-up images and of others."""
    setup, test = (forward(toy, normalised(48, seed)) for seed in (0, 1))
    return replace(setup, labels=LABELS), test


def tuned(outputs: Outputs, name: str = "logitnorm", **values: Any) -> Any:
    return create_detector(name, **SHORT, **values).fit(outputs)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "scored_by", ["gen", "react", "scale", "vim", "klm", "odin", "relation@stated", "knn"]
)
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
    made = tuned(setup)
    found = made.by_head(test)
    assert torch.equal(found.logits, made._extra(test.features))
    assert torch.equal(found.features, test.features)
    assert found.inputs is not None
    assert torch.equal(forward(found.inputs.model, found.inputs.images).logits, found.logits)


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


@pytest.mark.parametrize("name", ["ber", "augmix", "npos"])
@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("nnguide", {"scored_by": "nngude"}),
        ("scored_by", {"scored_by": {"neighbours": 3}}),
        ("neighbours", {"scored_by": {"name": "nnguide", "neighbors": 3}}),
        ("vos", {"scored_by": "vos"}),
        ("by_task", {"scored_by": {"name": "gen", "by_task": True}}),
        ("scored_by", {"scored_by": 3}),
    ],
)
def test_invalid_scorers_are_refused(name: str, key: str, values: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=key):
        create_detector(name, **values)


def test_names_of_heads() -> None:
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


def test_set_up_of_a_composition() -> None:
    alone, composed = create_detector("logitnorm"), create_detector("logitnorm", scored_by="react")
    assert alone.reads_to_set_up == {"images", "labels"}
    assert composed.reads_to_set_up == {"images", "labels", "features"}
    assert (alone.set_up_on, composed.set_up_on) == ("train+", "memory")
    assert (alone.fewest, create_detector("logitnorm", scored_by="nnguide").fewest) == (1, 100)


@pytest.mark.parametrize("tasks", [[1, 1, 2], [1]])
def test_tasks_of_fewer_classes_than_there_are_labels_are_refused(
    tasks: list[int], outputs: tuple[Outputs, Outputs]
) -> None:
    with pytest.raises(BadInput):
        create_detector("logitnorm").fit(outputs[0], tasks=torch.tensor(tasks))
