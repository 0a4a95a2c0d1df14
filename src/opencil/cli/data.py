"""``opencil data``: find, check, prepare and look at datasets."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from opencil.cli.options import BENCHMARK, PLUGIN, Plugins, argument, dataset_names, option, switch
from opencil.cli.screen import print_table, problems
from opencil.errors import BadInput, OpenCILError

if TYPE_CHECKING:
    from opencil.config import Config
    from opencil.data.check import CheckResult
    from opencil.data.images import Progress as ProgressCall

app = typer.Typer(
    help="Find, check, prepare and look at the datasets in a folder of downloads.", no_args_is_help=True
)
_FOLDER: dict[str, Any] = {"envvar": "OPENCIL_DATA", "exists": True, "file_okay": False}
ROOT = argument("ROOT", "Folder of your downloads.", **_FOLDER)
OPTIONAL_ROOT = argument("ROOT", "Folder of your downloads.", None, **_FOLDER)
_COLUMNS = ("dataset", "split", "role", "found", "layout", "images", "in the paper", "checksum", "decodable")
CONFIG = option("FILE", "A YML, for datasets of your own.", None, "--config")


@app.command(epilog="Example: opencil data check ~/downloads --benchmark cifar100")
def check(
    root: Path | None = OPTIONAL_ROOT,
    benchmark: str | None = BENCHMARK,
    config: Path | None = CONFIG,
    full: bool = switch("--full", "Decode every image, not a sample of the large datasets."),
    _plugin: Plugins = PLUGIN,
) -> None:
    """Check which of a benchmark's datasets are there, and say where to get the rest.

    Exit code 0: all are there and can be decoded. 1: some are missing or damaged.

    A number of images that differs from the paper's is named, and is no failure.
    """
    from opencil.data.check import check as check_split
    from opencil.data.file_dataset import FileDataset
    from opencil.runs.loading import splits

    resolved = _config(root, benchmark, config)
    name, wanted = resolved.benchmark.name, splits(resolved)
    if root is None and any(isinstance(entry.dataset, FileDataset) for entry in wanted):
        raise BadInput(f"benchmark {name!r} reads files: name the folder of your downloads")
    size = resolved.benchmark.image_size
    with _progress() as bars:
        results = [check_split(split, root, size, full, _bar(bars, split.name)) for split in wanted]
    print_table(_table(f"{name} in {root}" if root else name, results, root))
    for line in _remarks(results, root):
        typer.echo(line)
    if bad := [r for r in results if not r.usable]:
        raise OpenCILError(f"{len(bad)} of {len(results)} cannot be used; see above")
    typer.echo(f"all {len(results)} can be used")


@app.command(epilog="Example: opencil data prepare ~/downloads --benchmark cifar100")
def prepare(
    root: Path = ROOT,
    benchmark: str | None = BENCHMARK,
    config: Path | None = CONFIG,
    cache: str | None = option(
        "DIR", "Folder of prepared images; place.cache, $OPENCIL_CACHE or ROOT/.opencil-cache."
    ),
    workers: int | None = option(None, "Threads that decode; one per processor.", min=1),
    skip_corrupt: bool = switch("--skip-corrupt", "Leave corrupt images out and count them."),
    _plugin: Plugins = PLUGIN,
) -> None:
    """Decode a benchmark's images once, so that later starts take seconds.

    A dataset that is too large for the device (place.resident_mb) is then streamed
    from its prepared images, which takes a read in place of decoding.
    """
    from opencil.data.file_dataset import FileDataset
    from opencil.data.prepared import cache_folder
    from opencil.runs.loading import access as access_of
    from opencil.runs.loading import splits

    resolved = _config(root, benchmark, config, cache=cache, workers=workers)
    access, size, total = access_of(resolved.place), resolved.benchmark.image_size, 0
    wanted = {(a.name, a.split): a.dataset for a in splits(resolved) if isinstance(a.dataset, FileDataset)}
    if not wanted:
        name = resolved.benchmark.name
        raise BadInput(f"benchmark {name!r} reads no files: its images come with installed packages")
    with _progress() as bars:
        for (name, split), dataset in wanted.items():
            done = dataset.prepare(name, split, size, access, skip_corrupt, _bar(bars, name))
            total += done.place.stat().st_size
            left_out = f", {len(done.left_out):,} corrupt images left out" if done.left_out else ""
            typer.echo(f"{name} {split}: {len(done):,} images{left_out}")
            for image in [*done.left_out.values()][:10]:
                typer.echo(f"  left out: {image}")
    typer.echo(f"{total / 2**20:,.0f} MiB in {cache_folder(access.root, access.cache)}")


@app.command(epilog="Example: opencil data show ~/downloads texture --save texture.png")
def show(
    root: Path = ROOT,
    dataset: str = argument("DATASET", "Dataset: see 'opencil list datasets'.", complete=dataset_names),
    split: str = option(None, "train or test.", "test"),
    save: Path | None = option("FILE", "The picture; DATASET-SPLIT.png."),
    count: int = option(None, "Images on it.", 60, min=1, max=1000),
    size: int | None = option(None, "Side of the images, in pixels; 128.", min=1),
    benchmark: str | None = BENCHMARK,
    config: Path | None = CONFIG,
    _plugin: Plugins = PLUGIN,
) -> None:
    """Write a contact sheet: some images of a dataset with their labels, as the benchmark sees them."""
    from opencil.data.benchmark import find_dataset
    from opencil.data.contact_sheet import contact_sheet
    from opencil.data.file_dataset import FileDataset
    from opencil.data.images import Access
    from opencil.files import write

    part: Any = split
    if split not in ("train", "test"):
        raise BadInput(f"--split {split!r} is not allowed: train and test are")
    resolved = _config(root, benchmark, config).benchmark if benchmark or config else None
    source = find_dataset(dataset, resolved.datasets if resolved else {})
    size = size or (resolved.image_size if resolved else 128 if isinstance(source, FileDataset) else 8)
    images = source.serve(dataset, part, size, Access(root, store="streamed"))
    save = save or Path(f"{dataset}-{split}.png")
    picture = contact_sheet(images, f"{dataset}, {split} images", count)
    write(save, lambda path: picture.save(path, "PNG"))
    typer.echo(f"contact sheet: {save} ({picture.width} × {picture.height} pixels)")


def _config(root: Path | None, benchmark: str | None, config: Path | None, **place: object) -> "Config":
    from opencil.config import list_benchmarks, read_yaml, resolve

    if benchmark is None and config is None:
        raise BadInput(
            f"which datasets? --benchmark names one of {', '.join(list_benchmarks())}; --config a YML"
        )
    flags = {"place": {name: value for name, value in place.items() if value}}
    flags["place"] |= {"data_root": str(root)} if root else {}
    flags |= {"benchmark": {"name": benchmark}} if benchmark else {}
    return resolve(read_yaml(config) if config else None, flags=flags)


def _table(title: str, results: "list[CheckResult]", root: Path | None) -> Table:
    """Return a table with a line for each dataset and split."""
    table = Table(*_COLUMNS, title=Text(title), title_justify="left")
    for r in results:
        place = str(r.on_disk.place).removeprefix(f"{root}/") if r.on_disk else "in a package"
        layout = r.on_disk.layout.name if r.on_disk else "–"
        images, expected = (f"{n:,}" if n is not None else "–" for n in (r.images, r.expected))
        decodable = f"{len(r.corrupt):,} corrupt" if r.corrupt else f"{r.decoded:,}"
        if r.images is None:
            place = "unusable" if r.problem else "missing"
        style = "" if r.usable else "red"
        cells = (r.entry.name, r.entry.split, r.entry.role, place, layout, images, expected)
        checksum = {"": "none known", "canonical": "as published", "differs": "differs"}[r.checksum]
        table.add_row(*(Text(cell, style) for cell in (*cells, checksum, decodable)))
    return table


def _remarks(results: "list[CheckResult]", root: Path | None) -> Iterator[str]:
    """Yield lines about differences and damage, and about where to get missing datasets."""
    from opencil.data.file_dataset import FileDataset

    for r in results:
        name, dataset = f"{r.entry.name} ({r.entry.split})", r.entry.dataset
        if r.checksum == "differs":
            yield f"differs: the files of {name} are not byte for byte the published ones; usable"
        if r.images is not None and r.expected not in (None, r.images):
            yield f"differs: {name} has {r.images:,} of {r.expected:,} images; usable"
        yield from (f"unusable: {message}" for message in [r.problem, *r.corrupt[:5]] if message)
        if len(r.corrupt) > 5:
            yield f"unusable: {len(r.corrupt) - 5:,} more of {name}"
        if r.images is None and not r.problem and root and isinstance(dataset, FileDataset):
            places = " or ".join(str(root / place) for place in dataset.places(r.entry.split)[:4])
            yield f"missing: {name}: expected at {places}{dataset.home and f'; home page {dataset.home}'}"


def _progress() -> Progress:
    """Return progress bars for datasets; they are shown on a terminal only."""
    return Progress(console=problems, transient=True, disable=not problems.is_terminal)


def _bar(progress: Progress, name: str) -> "ProgressCall":
    task = progress.add_task(name, total=None)
    return lambda done, total: progress.update(task, completed=done, total=total)
