"""The bounds: their training images, and their models."""

from opencil.cil.finetune import Finetune
from opencil.cil.joint import Joint
from opencil.cil.learner import Setting, Task
from opencil.cil.replay import Replay
from opencil.data.memory import Memory
from opencil.data.stream import Stream
from opencil.registry import LEARNERS


def labels_of(task: Task, learner: Replay) -> set[int]:
    (stage,) = list(learner.stages(task))
    return set(task.setting.images.labels[stage.indices].tolist())


def test_each_bound_sees_its_own_data(setting: Setting, stream: Stream, second: Task) -> None:
    finetune = Finetune().begin(setting, stream[1], Memory(12), second.teacher)
    joint = Joint().begin(setting, stream[1], Memory(12), second.teacher)
    assert labels_of(finetune, Finetune()) == {2, 3}
    assert labels_of(second, Replay()) == {0, 1, 2, 3}
    assert labels_of(joint, Joint()) == {0, 1, 2, 3}
    revisits = {name: LEARNERS.entry(name).make.revisits for name in ("finetune", "replay", "joint")}  # type: ignore[attr-defined]
    assert revisits == {"finetune": False, "replay": True, "joint": True}
    (stage,) = list(Joint().stages(joint))
    assert len(stage.indices) == 32  # all of them, where replay has 16 new images and 12 exemplars
