"""OpenOOD's evaluator: its table, by a naive reference of its conventions."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import opencil
from opencil import BadInput, Evaluator
from opencil.openood import _figures

NUMBERS = torch.Generator().manual_seed(0)


def network() -> nn.Module:
    """As OpenOOD's: logits of images, the last layer is ``fc``."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 12), nn.ReLU()).append(nn.Linear(12, 4))


def loader(count: int, shift: float = 0.0) -> Any:
    images = shift + torch.randn(count, 3, 8, 8, generator=NUMBERS)
    return DataLoader(TensorDataset(images, torch.arange(count) % 4), batch_size=16)


def sets() -> dict[str, Any]:
    return {
        "id": {"train": loader(120), "test": loader(60)},
        "csid": {"dark": loader(40, -0.3)},
        "ood": {
            "near": {"close": loader(30, 0.5), "closer": loader(20, 0.2)},
            "far": {"away": loader(25, 2.0)},
        },
    }


def area(positive: list[float], negative: list[float]) -> float:
    """Under precision over recall, by its points, from precision 1 at recall 0 on; larger scores first."""
    points = [(0.0, 1.0)]
    for threshold in sorted({*positive, *negative}, reverse=True):
        found, wrong = (sum(score >= threshold for score in scores) for scores in (positive, negative))
        points.append((found / len(positive), found / (found + wrong)))
    return sum((right[0] - left[0]) * (left[1] + right[1]) / 2 for left, right in pairwise(points))


def naive(inside: list[float], outside: list[float]) -> list[float]:
    """FPR@95, AUROC, AUPR_IN and AUPR_OUT of OpenOOD v1.5: OOD is positive, its score the negative one."""
    low, ood = [-score for score in inside], [-score for score in outside]
    enough = [t for t in ood if sum(score >= t for score in ood) >= 0.95 * len(ood) - 1e-9]
    fpr = sum(score >= max(enough) for score in low) / len(low)
    wins = sum((o > i) + (o == i) / 2 for o in ood for i in low)
    return [fpr, wins / len(ood) / len(low), area(inside, outside), area(ood, low)]


scores = st.lists(st.integers(-6, 6).map(float), min_size=1, max_size=40)


@given(scores, scores)
def test_the_figures_are_openoods(inside: list[float], outside: list[float]) -> None:
    found = _figures(torch.tensor(inside), torch.tensor(outside))
    assert found == pytest.approx([100 * value for value in naive(inside, outside)], abs=1e-9)


def test_id_and_ood_have_the_roles_that_openood_gives_them() -> None:
    """Of 100 ID and 20 OOD: the one OOD that is let through sits above half of ID."""
    inside, outside = torch.arange(100.0), torch.cat([torch.full((19,), 9.5), torch.tensor([49.5])])
    fpr, auroc, aupr_in, aupr_out = _figures(inside, outside)
    assert fpr == pytest.approx(10), "ten ID are rejected with 95 % of OOD; ID positive would give 100"
    ours = opencil.ood_metrics(inside, outside)
    assert ours.fpr == 1.0
    assert fpr == 100 * ours.fpr_ood_positive
    assert auroc == 100 * ours.auc
    assert aupr_in > aupr_out


def scored(evaluator: Evaluator, net: nn.Module, place: Any) -> tuple[list[float], Tensor]:
    images, labels = place.dataset.tensors
    with torch.no_grad():
        logits = net(images)
    return evaluator.postprocessor.score(logits=logits).tolist(), logits.argmax(dim=1) == labels


@pytest.mark.parametrize("fsood", [False, True])
def test_the_table(fsood: bool) -> None:
    net, data = network(), sets()
    evaluator = Evaluator(net, "mine", dataloader_dict=data, postprocessor_name="ebo")
    table = evaluator.eval_ood(fsood=fsood)
    assert list(table.columns) == ["FPR@95", "AUROC", "AUPR_IN", "AUPR_OUT", "ACC"]
    assert list(table.index) == ["close", "closer", "nearood", "away", "farood"]
    parts = [data["id"]["test"], *([data["csid"]["dark"]] if fsood else [])]
    inside, right = zip(*(scored(evaluator, net, part) for part in parts), strict=True)
    together = [score for part in inside for score in part]
    for name, split in (("close", "near"), ("closer", "near"), ("away", "far")):
        outside, _ = scored(evaluator, net, data["ood"][split][name])
        expected = [100 * value for value in naive(together, outside)]
        assert table.loc[name].tolist()[:4] == pytest.approx(expected, abs=1e-3)
    assert table.loc["nearood"].tolist() == pytest.approx(
        ((table.loc["close"] + table.loc["closer"]) / 2).tolist()
    )
    assert table.loc["farood"].tolist() == table.loc["away"].tolist()
    accuracy = 100 * float(torch.cat(right).double().mean())
    assert table["ACC"].tolist() == pytest.approx([accuracy] * 5)
    assert evaluator.eval_acc("csid" if fsood else "id") == pytest.approx(accuracy)


def test_a_detector_of_ones_own_is_set_up_on_the_training_images() -> None:
    nnguide = opencil.create_detector("nnguide", neighbours=5)
    evaluator = Evaluator(network(), "mine", dataloader_dict=sets(), postprocessor=nnguide, head="3")
    assert evaluator.eval_acc() > 0
    assert not nnguide.ready, "accuracy needs no detector"
    table = evaluator.eval_ood()
    assert nnguide.ready
    assert np.isfinite(table.to_numpy()).all()


def test_every_set_is_read_once() -> None:
    seen: list[int] = []

    def count(images: Tensor) -> Tensor:
        seen.append(len(images))
        return images.flatten(1)[:, :4]

    evaluator = Evaluator(count, "mine", dataloader_dict=sets(), postprocessor_name="msp")
    first = evaluator.eval_ood()
    assert sum(seen) == 60 + 30 + 20 + 25
    evaluator.eval_acc()
    assert first.equals(evaluator.eval_ood())
    assert sum(seen) == 60 + 30 + 20 + 25
    evaluator.eval_ood(fsood=True)
    assert sum(seen) == 60 + 30 + 20 + 25 + 40


def test_a_benchmark_by_name() -> None:
    """The same figures as ``evaluate``, under OpenOOD's names."""
    model = opencil.Model(opencil.create_backbone("resnet8"), 8)
    data = opencil.benchmark("digits")
    table = Evaluator(model, "digits", postprocessor_name="msp").eval_ood()
    assert list(table.index) == ["digits-held-out", "nearood", "photo-patches", "noise", "farood"]
    rows = opencil.evaluate(
        model,
        data.test,
        {"noise": data.ood["noise"].images},
        detectors=["msp"],
        transform=data.transform,
        metrics=["aupr_in", "aupr_out"],
        batch_size=200,
    ).set_index("metric")["value"]
    expected = [rows[name] for name in ("fpr_ood_positive", "auc", "aupr_in", "aupr_out", "accuracy")]
    assert table.loc["noise"].tolist() == pytest.approx([100 * value for value in expected])


@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("postprocessor_name", {"postprocessor_name": None}),
        ("energy", {"postprocessor_name": "enrgy"}),
        ("postprocessor", {"postprocessor": "energy"}),
        ("react", {"postprocessor_name": "react"}),
        ("mine", {"dataloader_dict": None}),
        ("test", {"dataloader_dict": {"id": {}}}),
        ("near", {"dataloader_dict": {"id": {"test": 1}, "ood": {"near": {}}}}),
        ("preprocessor", {"preprocessor": len}),
        ("fc", {"head": "fc"}),
        ("torch module", {"net": len, "head": "fc"}),
        ("model", {"net": None}),
    ],
)
def test_invalid_arguments_are_refused(key: str, given: dict[str, Any]) -> None:
    arguments = {"net": network(), "id_name": "mine", "dataloader_dict": sets(), "postprocessor_name": "msp"}
    with pytest.raises(BadInput, match=key):
        Evaluator(**arguments | given)


def test_missing_images_and_labels_are_refused() -> None:
    data = sets()
    del data["csid"], data["id"]["train"]
    evaluator = Evaluator(network(), "mine", dataloader_dict=data, postprocessor_name="klm")
    with pytest.raises(BadInput, match="csid"):
        evaluator.eval_ood(fsood=True)
    with pytest.raises(BadInput, match="train"):
        evaluator.eval_ood()
    with pytest.raises(BadInput, match="data_name"):
        evaluator.eval_acc("ood")
    data["id"]["test"] = torch.zeros(3, 3, 8, 8)
    bare = Evaluator(network(), "mine", dataloader_dict=data, postprocessor_name="msp")
    with pytest.raises(BadInput, match="labels"):
        bare.eval_acc()
