"""A CIL method of one's own on folders of images: run, interrupt, resume, draw the accuracy of each step."""

import signal
import subprocess
from pathlib import Path

import numpy as np
from PIL import Image

import opencil

METHOD = '''
from dataclasses import dataclass

import torch.nn.functional as F

import opencil
from opencil import Schedule, Stage


@opencil.register_learner("mine")
@dataclass(frozen=True)
class Mine(opencil.Learner):
    """Cross-entropy on new images and memory."""

    schedule: Schedule = Schedule(epochs=20, lr=0.1)

    def stages(self, task: opencil.Task):
        print("step", task.step.number, flush=True)

        def loss(images, labels):
            return F.cross_entropy(task.model(images), labels)

        yield Stage("train", task.model, loss, self.schedule, task.train_plus)
'''
CONFIG = """
benchmark:
  name: colours
  id: colours
  near: [others]
  far: [scans]
  datasets:
    colours: {path: colours, train: train, test: test}
    others: {path: others}
    scans: {path: scans, layout: flat}
  image_size: 8
  transform: {mean: compute, std: compute, crop: 8, padding: 0, flip: true}
  backbone: resnet8
  memory: 24
  classes_per_step: 2
cil: [mine, icarl]
detector: [msp, energy]
"""


def save_images(folder: Path, colour: "np.ndarray", count: int, draw: np.random.Generator) -> None:
    """Write images around a colour."""
    folder.mkdir(parents=True)
    for i in range(count):
        pixels = colour + draw.normal(0, 20, (8, 8, 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{i}.png")


draw = np.random.default_rng(0)
for name in ("red", "green", "blue", "grey", "pink", "teal"):
    colour = draw.uniform(0, 255, 3)
    save_images(Path("colours/train", name), colour, 24, draw)
    save_images(Path("colours/test", name), colour, 12, draw)
save_images(Path("others/brown"), draw.uniform(0, 255, 3), 24, draw)
save_images(Path("scans"), draw.uniform(0, 255, (8, 8, 3)), 24, draw)
Path("mine.py").write_text(METHOD)
Path("colours.yml").write_text(CONFIG)

words = ["opencil", "run", "colours.yml", "--plugin", "mine.py", "--data-root", ".", "--cil", "mine"]
with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
    for line in process.stdout:
        if line == "step 2\n":  # as Ctrl-C does, in the middle of the run
            process.send_signal(signal.SIGINT)
            break
assert process.returncode == 130, process.returncode
done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout
assert "step 1\n" not in done, "it resumes"
assert "step 3\n" in done
subprocess.run(["opencil", "report", "runs", "--figures", "figures"], check=True)

rows = opencil.read_study("runs").rows
whole = rows[(rows["metric"] == "accuracy") & (rows["ood"] == "") & (rows["task"] == 0)]
print(whole.pivot_table(index="step", columns="cil", values="value"))
