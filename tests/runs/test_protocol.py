"""The paper's protocol: the bytes that a method keeps."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import opencil
from opencil.config import Config
from opencil.data.images import ImageSet
from opencil.runs.events import Event
from opencil.runs.protocol import measure_bytes


@pytest.mark.parametrize(("cil", "kept"), [("finetune", 0), ("joint", 965)])
def test_all_images_are_kept_where_they_are_seen_again(
    tmp_path: Path,
    short: Callable[..., Config],
    run_all: Callable[[Config], list[Event]],
    cil: str,
    kept: int,
) -> None:
    run_all(short(tmp_path, "benchmark.classes_per_step=8", cil=cil, detector="msp"))
    found = opencil.read_rows(tmp_path).query("metric == 'memory_bytes'")["value"]
    assert found.tolist() == [kept * 3 * 8 * 8]


def test_a_tensor_under_two_names_is_counted_once() -> None:
    layer = nn.Linear(2, 3)
    images = ImageSet("none", torch.zeros(0, 3, 4, 4, dtype=torch.uint8), torch.zeros(0).long())
    found = measure_bytes(nn.Sequential(layer, layer), 5, images)  # type: ignore[arg-type]
    assert [measured.value for measured in found] == [4 * (2 * 3 + 3), 5 * 3 * 4 * 4]


def test_classes_of_later_steps_are_measured_as_an_ood_set_is(done_once: Path) -> None:
    run = opencil.open_run(done_once / "digits" / "k4" / "icarl" / "seed0")
    rows = opencil.read_rows(done_once)
    later = rows[rows["ood"] == "future"]
    assert set(later["step"]) == {1}, "after the last step there are none"
    assert set(later["distance"]) == {"future"}
    assert set(later["metric"]) == set(rows[rows["ood"] == "noise"].query("step == 1")["metric"])
    test, step = run.stream.test, run.stream[0]
    detector = run.detector("msp", 1)
    inside, outside = (
        detector.score(opencil.forward(run.model(1), test, run.data.transform, chosen.nonzero().flatten()))
        for chosen in (test.labels < step.seen, test.labels >= step.seen)
    )
    above = (inside[:, None] > outside).double() + 0.5 * (inside[:, None] == outside).double()
    found = later.query("detector == 'msp' and metric == 'auc'")["value"].tolist()
    assert found == [pytest.approx(float(above.mean()), abs=1e-9)]
