"""Time every detector and metric of one step, beside a loop that runs the network for each detector.

    python benchmarks/evaluate.py --device cuda --data ROOT          # CIFAR-100 and its six OOD sets
    python benchmarks/evaluate.py --device cuda --synthetic          # random images of the same sizes
    python benchmarks/evaluate.py --device cpu --synthetic --limit 6000 --threads 2

Ours: one forward pass over set-up, test and OOD images, then every detector and every metric. The peer: the
same detectors and metrics, but the outputs are computed again for each detector. ``--limit`` is the number of
images in all, the sets in proportion. Extra memory is the peak while a detector works, above the memory in
use before: allocated on a GPU, resident on a CPU.
"""

import argparse
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

import opencil
from opencil import (
    ImageSet,
    Model,
    Outputs,
    Transform,
    create_backbone,
    create_detector,
    forward,
    list_detectors,
)
from opencil.engine.device import resolve_device
from opencil.evaluation.protocol import measure

SIZES = {
    "cifar10": 10_000,
    "tin": 7_498,
    "mnist": 10_000,
    "texture": 5_640,
    "svhn": 26_032,
    "places365": 10_000,
}
CIFAR = Transform(mean=(0.5071, 0.4867, 0.4408), std=(0.2675, 0.2565, 0.2761), crop=32, padding=4)
CLASSES, PER_STEP = 100, 10


@dataclass(frozen=True)
class Data:
    """Images of the last step: set-up (all of train), test, OOD."""

    setup: ImageSet
    test: ImageSet
    ood: dict[str, ImageSet]
    transform: Transform


def synthetic(device: torch.device) -> Data:
    random = torch.Generator().manual_seed(0)

    def images(name: str, count: int) -> ImageSet:
        pixels = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=random)
        return ImageSet(name, pixels, torch.arange(count) % CLASSES).to(device)

    ood = {name: images(name, count) for name, count in SIZES.items()}
    return Data(images("train", 50_000), images("test", 10_000), ood, CIFAR)


def real(root: str, device: str) -> Data:
    data = opencil.benchmark("cifar100", data_root=root, device=device)
    stream = data.stream(PER_STEP)
    ood = {name: ood.images for name, ood in data.ood.items()}
    return Data(stream.train, stream.test, ood, data.transform)


def shortened(data: Data, limit: int) -> Data:
    """Return about ``limit`` images in all, evenly spaced in each set."""
    total = sum(map(len, (data.setup, data.test, *data.ood.values())))

    def cut(images: ImageSet) -> ImageSet:
        count = max(1, round(len(images) * limit / total))
        rows = torch.linspace(0, len(images) - 1, count).long()
        pixels = torch.cat(list(images.batches(rows, 4096)))
        return ImageSet(images.name, pixels, images.labels[rows.to(images.labels.device)])

    ood = {name: cut(images) for name, images in data.ood.items()}
    return Data(cut(data.setup), cut(data.test), ood, data.transform)


def now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def resident() -> int:
    """Return the bytes of this process in memory, on Linux."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * 4096


@contextmanager
def peak_extra(device: torch.device) -> Iterator[list[int]]:
    """Yield a list that holds, after the block, the peak of its bytes above those before."""
    found: list[int] = []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        yield found
        found.append(torch.cuda.max_memory_allocated() - before)
        return
    before, highest, done = resident(), [resident()], threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            highest[0] = max(highest[0], resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    yield found
    highest[0] = max(highest[0], resident())
    done.set()
    watcher.join()
    found.append(highest[0] - before)


class Evaluator:
    """Evaluate one model on one step's images."""

    def __init__(self, model: Model, data: Data, batch_size: int) -> None:
        self.model, self.data, self.batch_size = model, data, batch_size
        device = data.test.labels.device
        self.tasks = torch.arange(CLASSES, device=device) // PER_STEP + 1

    def outputs(self, setup: bool = True) -> tuple[Outputs | None, Outputs, dict[str, Outputs]]:
        """Return outputs of one forward pass over all images, or all but the set-up images."""

        def run(images: ImageSet) -> Outputs:
            return forward(self.model, images, self.data.transform, batch_size=self.batch_size)

        ood = {name: run(images) for name, images in self.data.ood.items()}
        return run(self.data.setup) if setup else None, run(self.data.test), ood

    def detect(self, name: str, outputs: tuple[Outputs | None, Outputs, dict[str, Outputs]]) -> None:
        """Set one detector up, score all images, compute every metric."""
        measure(create_detector(name), *outputs, self.tasks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="auto")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", metavar="ROOT", help="folder of the downloads")
    source.add_argument("--synthetic", action="store_true", help="random images of the same sizes")
    parser.add_argument(
        "--checkpoint", type=Path, help="a step's model.safetensors, of ResNet-32 and 100 classes"
    )
    parser.add_argument("--limit", type=int, help="number of images in all")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--threads", type=int, help="CPU threads")
    parser.add_argument("--no-peer", action="store_true", help="skip the slow loop")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    device = resolve_device(arguments.device)
    data = synthetic(device) if arguments.synthetic else real(arguments.data, str(device))
    if arguments.limit:
        data = shortened(data, arguments.limit)
    torch.manual_seed(0)
    model = Model(create_backbone("resnet32"), CLASSES).to(device).eval()
    if arguments.checkpoint:
        from safetensors.torch import load_file

        model.load_state_dict(load_file(arguments.checkpoint))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    scored = len(data.test) + sum(map(len, data.ood.values()))
    where = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{torch.get_num_threads()} CPU threads"
    )
    print(f"{where}, torch {torch.__version__}: {len(data.setup):,} set-up images, {scored:,} to score")

    # Warm up: libraries load and choose their kernels at first use. Fine-tuning is in finetune.py.
    names = [n for n in list_detectors() if create_detector(n).family == "post-hoc"]
    warm = Evaluator(model, shortened(data, min(2000, len(data.setup) + scored)), arguments.batch_size)
    outputs = warm.outputs()
    for name in names:
        warm.detect(name, outputs)

    evaluator = Evaluator(model, data, arguments.batch_size)
    runs_network = {name: "images" in create_detector(name).reads for name in names}
    started = now(device)
    outputs = evaluator.outputs()
    passed = now(device) - started
    print(f"one forward pass: {passed:.2f} s, {(len(data.setup) + scored) / passed:,.0f} images/s\n")
    print(f"{'detector':10}{'seconds':>9}{'images/s':>12}{'extra MiB':>11}{'peer s':>9}{'peer images/s':>15}")
    ours: dict[str, float] = {}
    peer: dict[str, float] = {}
    for name in names:
        with peak_extra(device) as extra:
            started = now(device)
            evaluator.detect(name, outputs)
            ours[name] = now(device) - started
        line = f"{name:10}{ours[name]:9.3f}{scored / ours[name]:12,.0f}{extra[0] / 2**20:11.0f}"
        if not arguments.no_peer:
            started = now(device)
            evaluator.detect(name, evaluator.outputs(setup=create_detector(name).needs_setup))
            peer[name] = now(device) - started
            line += f"{peer[name]:9.2f}{scored / peer[name]:15,.0f}"
        print(line, flush=True)
    print()
    for what, chosen in (
        (f"all {len(names)} detectors", names),
        ("detectors that do not run the network again", [name for name in names if not runs_network[name]]),
    ):
        total = passed + sum(ours[name] for name in chosen)
        line = f"{what}, with the forward pass and all metrics: {total:.2f} s"
        if peer:
            loop = sum(peer[name] for name in chosen)
            line += f"; the loop {loop:.2f} s, {loop / total:.1f} times as long"
        print(line)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    print("the model is bit-identical to what it was")


if __name__ == "__main__":
    main()
