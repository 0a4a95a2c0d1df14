"""What each peculiarity of the released BiC does to a trained model: its newest correction, fitted again.

    python experiments/bic_correction.py runs/cifar100/k10/bic/seed0 --data-root ROOT --csv FILE

For every stored step from the second on: the accuracy without the step's correction, with the stored one,
with ours fitted again, and with each thing that the paper's code does otherwise (``as_released.py``), alone
and all together. The model is the same each time: what a worse teacher does to later steps is not in it.
Corrections are fitted in float32. Decay is 2e-4, as in the paper's code.
"""

from typing import Any

import pandas as pd
from as_released import ReleasedBiC
from stored_steps import study_steps
from torch import nn

import opencil
from opencil.cil.bic import BiC
from opencil.engine.arithmetic import FULL
from opencil.engine.loop import train
from opencil.registry import LEARNERS

OURS = {"double_softmax": False, "batch_norm_trains": False, "decay": 0.0}
VARIANTS: dict[str, dict[str, Any]] = {
    "none": OURS,
    "ours, again": OURS,
    "with decay": OURS | {"decay": 2e-4},
    "double softmax": OURS | {"double_softmax": True},
    "batch norm trains": OURS | {"batch_norm_trains": True},
    "all three": {},
}


def accuracy(run: opencil.Run, model: opencil.Model, step: opencil.Step) -> float:
    """On the test images of the classes seen so far."""
    outputs = opencil.forward(model, run.stream.test, run.data.transform, step.test)
    assert outputs.labels is not None
    return 100 * float((outputs.logits.argmax(dim=1) == outputs.labels).double().mean())


def study(run: opencil.Run, step: opencil.Step) -> pd.DataFrame:
    """Accuracy under each correction at a step."""
    if not isinstance(run.learner, BiC):
        raise opencil.BadInput(f"{run.spec} has no corrections: a run of bic is needed")
    setting, number = run.setting, step.number

    found = {"stored": accuracy(run, run.model(number), step)}
    for name, values in VARIANTS.items():
        learner: ReleasedBiC = LEARNERS.create("bic_released", **run.spec.values, **values)
        task = learner.begin(setting, step, run.memory(number - 1), run.model(number - 1))
        task.model.load_state_dict(run.model(number).state_dict())
        nn.init.ones_(task.model.corrections[-1].alpha)
        nn.init.zeros_(task.model.corrections[-1].beta)
        for stage in learner.stages(task) if name != "none" else ():
            if stage.name == "correct":
                seed = (setting.data_seed, "step", number, stage.name)
                for _ in train(stage, setting.images, setting.transform, setting.batch_size, seed, FULL):
                    pass
        found[name] = accuracy(run, task.model, step)
    return pd.Series(found).round(3).rename_axis("correction").reset_index(name="accuracy")


if __name__ == "__main__":
    found = study_steps(__doc__, study, slice(1, None))
    means = found.pivot_table(index="correction", columns="step", values="accuracy", sort=False)
    print("accuracy, in percent:\n", means.round(2).to_string())
