"""What the numbers of images do to AP: as many OOD and ID images as the paper's code takes, by weights.

    python experiments/average_precision.py runs/cifar100/k10/icarl/seed0 --data-root ROOT --csv FILE

AP with OOD positive grows with the share of OOD images. At each step 1,500 test images and 1,000 of each OOD
set stand for all of them, weighted to our numbers, then to the paper's number of OOD images (Places365 has
33,773, our stand-in 10,000), then also to the 90 % of the ID images that its code scores.
"""

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import average_precision_score
from stored_steps import study_steps

import opencil
from opencil.engine.seeding import generator
from opencil.runs.file_formats import read_json

DETECTORS = ("energy", "msp")


def study(run: opencil.Run, step: opencil.Step) -> pd.DataFrame:
    """AP of each detector under each number of images at a step, by OOD set."""
    model, transform = run.model(step.number), run.data.transform

    def outputs(images: opencil.Images, seen: torch.Tensor, name: str, most: int) -> opencil.Outputs:
        few = torch.randperm(len(seen), generator=generator(step.number, name))[:most]
        return opencil.forward(model, images, transform, seen[few])

    test, tested = outputs(run.stream.test, step.test, "id", 1_500), len(step.test)
    papers = {split["name"]: split["paper"] for split in read_json(run.folder.path / "data.json")["datasets"]}
    found = []
    for name, source in run.data.ood.items():
        seen = run.spec.ood_seen(name, len(source.images), step)
        ood = outputs(source.images, seen, name, 1_000)
        published = (papers.get(name) or len(source.images)) * step.number / step.steps
        numbers = {
            "ours": (tested, len(seen)),
            "the paper's OOD": (tested, published),
            "and 90 % of ID": (0.9 * tested, published),
        }
        for method in DETECTORS:
            detector = opencil.create_detector(method)
            known, unknown = (-detector.score(logits=o.logits).cpu().numpy() for o in (test, ood))
            is_ood = np.repeat([0, 1], [len(known), len(unknown)])
            for what, (of_id, of_ood) in numbers.items():
                weights = np.where(is_ood, of_ood / len(unknown), of_id / len(known))
                ap = average_precision_score(is_ood, np.concatenate([known, unknown]), sample_weight=weights)
                found.append((method, what, name, source.distance, ap))
    return pd.DataFrame(found, columns=["detector", "numbers", "ood", "distance", "ap"])


if __name__ == "__main__":
    found = study_steps(__doc__, study)
    means = found.pivot_table(
        index=["cil", "detector", "numbers"], columns="distance", values="ap", sort=False
    )
    print("mean AP over steps and OOD sets, in percent:\n", (100 * means).round(2).to_string())
