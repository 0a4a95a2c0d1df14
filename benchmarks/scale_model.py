"""Compute what ImageNet-1k costs on 1, 8 and 64 GPUs from measured rates.

    python benchmarks/scale_model.py

Constants marked "measured" are from benchmarks/README.md; the others are assumptions: replace them by those
of your machines. Decoding, transfer and computing overlap, so the slowest decides; gradients are summed after
the computation. docs/scaling.md shows the output and explains the model.
"""

from dataclasses import dataclass

# ImageNet-1k, and the config of opencil/configs/imagenet1k.yml.
IMAGES, CLASSES, MEMORY, EPOCHS, BATCH = 1_281_167, 1000, 20_000, 170, 128
TEST_IMAGES, OOD_IMAGES = 50_000, 53_509
BYTES = 3 * 256 * 256  #: of a decoded image
WEIGHTS = 11_689_512 * 4  #: bytes of ResNet-18's gradients

STEP = 16_127.0  #: measured: training images a second of one H200, ResNet-18 at 224², augmentation included
RANK_STEP = 11_704.0  #: measured: the same by a rank, whose batch norm is over all ranks, and not compiled
DECODE = 342.0  #: measured: images a second that a core decodes, of photographs with a shorter side of 375
COPY = 4_760.0  #: measured: images a second that a core reads from prepared images, checksums compared

CORES = 16  #: processors for each GPU
DISK = 5e9  #: bytes a second of a machine's disk
PCIE = 25e9  #: bytes a second from pinned memory to a GPU
NODE, NVLINK, NETWORK = 8, 300e9, 40e9  #: GPUs of a machine; bytes a second between GPUs in it, and beyond it
#: Seconds of an iteration on a rank with few images: a graph's kernels, one after the other.
#: Measured: 25,206 images a second of ResNet-32, batch 128, a teacher; ResNet-18 has 20 layers, not 32.
KERNELS = 128 / 25_206 * 20 / 32
EXCHANGES, LATENCY = 40, (30e-6, 60e-6)  #: sums of batch norm an iteration, seconds each in a machine, beyond

#: Cost of a CIL method relative to training its network alone: a teacher adds a forward pass, a third of a
#: step. FOSTER trains beside an older backbone, then trains the compressed network.
COST = {"icarl": 4 / 3, "bic": 4 / 3, "wa": 4 / 3, "foster": 3.0}
STEP_SIZES = (50, 100, 200)


@dataclass(frozen=True)
class Store:
    """Source of images: images per second of a core, and the share of their pixels that the disk reads."""

    name: str
    of_core: float
    from_disk: float


#: Of a JPEG the disk reads 110 kB. What a step reads of a pack (148,117 images, 29 GB) stays in memory: the
#: disk reads it in one epoch of all.
FILES = Store("files, all decoded in every epoch", DECODE, 110_000 / BYTES)
PIXELS = Store("prepared images, in the system's page cache", COPY, 1 / EPOCHS)


def views(step_size: int) -> float:
    """Return the number of images that the trainings of one run see."""
    steps = CLASSES // step_size
    return EPOCHS * (IMAGES + (steps - 1) * MEMORY)


def rates(gpus: int, store: Store, cost: float = 1.0) -> dict[str, float]:
    """Return the images per second that each resource allows a run on some GPUs."""
    machines = max(1, gpus // NODE)
    compute = BATCH / STEP * cost if gpus == 1 else max(BATCH / gpus / RANK_STEP * cost, KERNELS)
    beyond = gpus > NODE
    traffic = 2 * (gpus - 1) / gpus * WEIGHTS / (NETWORK if beyond else NVLINK)
    summed = 0.0 if gpus == 1 else traffic + EXCHANGES * LATENCY[beyond]
    bytes_read = BYTES * store.from_disk
    return {
        "decode": gpus * CORES * store.of_core,
        "disk": machines * DISK / bytes_read,
        "transfer": gpus * PCIE / BYTES,
        "compute": BATCH / (compute + summed),
        "sums": BATCH / summed if summed else float("inf"),
    }


def bottleneck(gpus: int, store: Store, cost: float = 1.0) -> tuple[str, float]:
    """Return the slowest resource, and the images per second that it allows."""
    found = rates(gpus, store, cost)
    name = min(found, key=lambda key: found[key])
    if name == "compute":
        alone, summed = BATCH / gpus / RANK_STEP * cost, BATCH / found["sums"]
        if gpus > 1 and max(alone, KERNELS) < summed:
            name = "sums"
        elif gpus > 1 and alone < KERNELS:
            name = "kernels"
    return name, min(found.values())


def hours(gpus: int, store: Store, step_size: int, cost: float) -> float:
    """Return the hours of a run: training, ten epochs of tuning on two pools of views, and evaluation."""
    _, rate = bottleneck(gpus, store, cost)
    steps = CLASSES // step_size
    tuned = 10 * 2 * IMAGES
    # Half of all classes in the mean. ODIN takes three passes, Gram and RankFeat one; RankFeat's second run
    # of the last stage is left out.
    evaluated = 6 * (TEST_IMAGES + OOD_IMAGES) * (steps + 1) / 2
    inferred = min(gpus * 3 * STEP, gpus * CORES * store.of_core)
    return (views(step_size) / rate + (tuned + evaluated) / inferred) / 3600


def grid_hours(gpus: int, store: Store) -> tuple[float, int]:
    """Return the fewest hours for all methods and step sizes of one seed, and the number of GPUs per run."""
    found = []
    for each in (1, 2, 4, 8):
        if each > gpus:
            continue
        free = [0.0] * (gpus // each)
        lengths = [hours(each, store, size, cost) for size in STEP_SIZES for cost in COST.values()]
        for length in sorted(lengths, reverse=True):  # the longest first, on the GPUs that are free first
            free[free.index(min(free))] += length
        found.append((max(free), each))
    return min(found)


def main() -> None:
    print(f"one run, k = 100, iCaRL: {views(100) / 1e6:.0f} million images in {EPOCHS} epochs of 10 steps")
    print(f"{'GPUs':>4}  {'images from':49}  {'images/s':>8}  {'hours':>6}  bottleneck")
    for store in (FILES, PIXELS):
        for gpus in (1, 8, 64):
            name, rate = bottleneck(gpus, store, COST["icarl"])
            length = hours(gpus, store, 100, COST["icarl"])
            print(f"{gpus:4}  {store.name:49}  {rate:8,.0f}  {length:6.1f}  {name}")
    print()
    print(f"the paper's grid, {len(COST)} methods x {len(STEP_SIZES)} step sizes, one seed")
    print(f"{'GPUs':>4}  {'images from':49}  {'hours':>6}  GPUs a run")
    for store in (FILES, PIXELS):
        for gpus in (1, 8, 64):
            length, each = grid_hours(gpus, store)
            print(f"{gpus:4}  {store.name:49}  {length:6.1f}  {each}")
    print()
    print(f"cores that keep up with one GPU: {STEP / DECODE:.0f} to decode, {STEP / COPY:.1f} to copy")


if __name__ == "__main__":
    main()
