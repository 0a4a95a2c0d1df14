"""Learn birds, tell other species and other images from them, and measure the time it takes.

``python benchmarks/open_world.py BIRDS DOWNLOADS``: BIRDS has CUB-200-2011's folders ``train`` and ``test``,
DOWNLOADS has MNIST and the textures (docs/data.md). Threads are torch's: OMP_NUM_THREADS=1 is one core.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pandas as pd
import torch

import opencil
from opencil.data.readers.image_files import find_images

EACH, OTHERS = 20, 500  # images of a class to learn, and of each set of other images


def main(birds: Path, downloads: Path) -> None:
    print(f"{torch.get_num_threads()} threads of torch")
    names = sorted(path.name for path in (birds / "train").iterdir() if path.is_dir())
    with tempfile.TemporaryDirectory() as folder:
        classifier = opencil.OpenWorldClassifier()
        for part, chosen in (("first", names[:20]), ("new", names[20:40])):
            link(birds / "train", chosen, Path(folder) / part)
            with timed(f"learn 20 classes of {EACH} images ({part})"):
                classifier.learn(Path(folder) / part)
        print(classifier.promise_)
        link(birds / "train", names[:40], Path(folder) / "all")
        at_once = opencil.OpenWorldClassifier().learn(Path(folder) / "all")
        path = Path(folder) / "birds.opencil"
        with timed("save"):
            classifier.save(path)
        with timed(f"load {path.stat().st_size / 2**20:.1f} MiB"):
            loaded = opencil.OpenWorldClassifier.load(path)
    tests = [path for name in names[:40] for path in find_images(birds / "test" / name)]
    with timed("predict test images", len(tests)):
        found = loaded.predict(tests)
    print(f"learned at once it predicts the same: {at_once.predict(tests).equals(found)}")
    right = [path.parent.name for path in tests] == found["best"].str[0]
    print(f"accuracy on 40 classes: {right.mean():.1%}")
    show("known birds", found)
    others = [path for name in names[40:] for path in find_images(birds / "test" / name)]
    sets = {
        "other species": Random(0).sample(others, OTHERS),
        "digits": opencil.create_dataset("mnist").load("test", 28, downloads).images[:OTHERS],
        "textures": Random(0).sample([*find_images(downloads / "images_classic" / "texture")], OTHERS),
    }
    for name, images in sets.items():
        show(name, loaded.predict(images))


def link(source: Path, names: list[str], target: Path) -> None:
    """Make folders with the first images of some classes."""
    for name in names:
        (target / name).mkdir(parents=True)
        for path in [*find_images(source / name)][:EACH]:
            (target / name / path.name).symlink_to(path)


@contextmanager
def timed(title: str, images: int = 0) -> Iterator[None]:
    started = time.perf_counter()
    yield
    seconds = time.perf_counter() - started
    print(f"{title}: {seconds:.1f} s" + (f", {images / seconds:.0f} images/s" if images else ""), flush=True)


def show(name: str, found: pd.DataFrame) -> None:
    share, low = (found["label"] == "unknown").mean(), (found["p_value"] <= 0.1).mean()
    print(f"{name}: {len(found)} images, {share:.1%} unknown at reject = 0.05, {low:.1%} at 0.1", flush=True)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
