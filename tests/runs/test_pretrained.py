"""A run on a frozen backbone whose weights come from a file: nothing is trained, and the file is pinned."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import opencil
from opencil.config import Config
from opencil.runs.events import Finished, Training

Tiny = Callable[..., Config]


METHODS = ["simplecil", "fecam", "ranpac"]


def test_methods_in_closed_form_on_a_frozen_backbone_with_weights_from_a_file(
    tiny: Tiny, finished: Path, tmp_path: Path
) -> None:
    source = opencil.open_run(finished / "digits/k2/icarl/seed0").model(4).backbone
    weights = tmp_path / "weights.safetensors"
    save_file(source.state_dict(), weights)

    def asked(path: Path) -> Config:
        frozen = f"benchmark.backbone={{name: resnet8, weights: {path}, freeze: true}}"
        quicker = "benchmark.classes_per_step=4", "cil.ranpac.width=200"
        return tiny(tmp_path / "runs", frozen, *quicker, cil=METHODS, detector=["msp"])

    events = list(opencil.execute(asked(weights)))
    assert isinstance(events[-1], Finished), events[-1]
    assert not [event for event in events if isinstance(event, Training)]
    rows = opencil.read_rows(tmp_path / "runs")
    accuracies = rows.loc[(rows["metric"] == "accuracy") & (rows["task"] == 0), "value"]
    assert len(accuracies) == 2 * len(METHODS)
    assert min(accuracies) > 0.6
    folder = tmp_path / "runs" / "digits/k4/simplecil/seed0"
    for number in (1, 2):
        stored = opencil.open_run(folder).model(number)
        assert not list(stored.backbone.parameters())
        for name, tensor in source.state_dict().items():
            assert torch.equal(stored.backbone.state_dict()[name], tensor)

    moved = weights.rename(tmp_path / "moved.safetensors")
    assert len(list(opencil.execute(asked(moved)))) == len(METHODS), (
        "the same file elsewhere: the runs are there"
    )
    save_file(opencil.create_backbone("resnet8").state_dict(), weights)
    with pytest.raises(opencil.OpenCILError, match=r"backbone\.sha256: '\w+' in the stored run, '\w+' now"):
        list(opencil.execute(asked(weights)))
