"""``opencil data``: find, check, prepare and look at datasets."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from opencil.cli.flags import BENCHMARK, PLUGIN, Plugins, argument, dataset_names, option, switch
from opencil.cli.screen import print_table, problems
from opencil.errors import BadInput, OpenCILError

if TYPE_CHECKING:
    from opencil.config import Config
    from opencil.data.check import CheckResult

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

    Exit code 0: all are there and can be decoded. 1: some are missing or damaged. A number of images that
    differs from the paper's is named, and is no failure.
    """
    from opencil.data.check import check as check_split
    from opencil.data.file_dataset import FileDataset
    from opencil.runs.loading import splits

    resolved = _config(benchmark, config)
    name, size, wanted = resolved.benchmark.name, resolved.benchmark.image_size, splits(resolved)
    if root is None and any(isinstance(entry.dataset, FileDataset) for entry in wanted):
        raise BadInput(f"benchmark {name!r} reads files: name the folder of your downloads")
    with _bars() as bar:
        results = [check_split(split, root, size, full, bar(split.name)) for split in wanted]
    print_table(_table(f"{name} in {root}" if root else name, results, root))
    for line in _remarks(results):
        typer.echo(line)
    if bad := [r for r in results if not r.usable]:
        raise OpenCILError(f"{len(bad)} of {len(results)} cannot be used; see above")
    typer.echo(f"all {len(results)} can be used")


@app.command(epilog="Example: opencil data prepare ~/downloads --benchmark cifar100")
def prepare(
    root: Path = ROOT,
    benchmark: str | None = BENCHMARK,
    config: Path | None = CONFIG,
    cache: str | None = option("DIR", "Folder of prepared images; $OPENCIL_CACHE or ROOT/.opencil-cache."),
    workers: int | None = option(None, "Threads that decode; one per processor.", min=1),
    skip_corrupt: bool = switch("--skip-corrupt", "Leave corrupt images out and count them."),
    _plugin: Plugins = PLUGIN,
) -> None:
    """Decode a benchmark's images once, so that later starts take seconds.

    A dataset that is too large for the device (place.resident_mb) is then streamed from its prepared images.
    """
    from opencil.data.file_dataset import FileDataset
    from opencil.data.prepared import cache_folder
    from opencil.runs.loading import access as access_of
    from opencil.runs.loading import splits

    resolved = _config(benchmark, config, data_root=root, cache=cache, workers=workers)
    access, size, total = access_of(resolved.place), resolved.benchmark.image_size, 0
    wanted = {(a.name, a.split): a.dataset for a in splits(resolved) if isinstance(a.dataset, FileDataset)}
    if not wanted:
        raise BadInput(f"benchmark {resolved.benchmark.name!r} reads no files: there is nothing to prepare")
    with _bars() as bar:
        for (name, split), dataset in wanted.items():
            done = dataset.prepare(name, split, size, access, skip_corrupt, bar(name))
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
    split: Literal["train", "test"] = option(None, "Its training or its test images.", "test"),
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

    if benchmark or config:
        resolved = _config(benchmark, config).benchmark
        source, usual = find_dataset(dataset, resolved.datasets), resolved.image_size
    else:
        source = find_dataset(dataset, {})
        usual = 128 if isinstance(source, FileDataset) else 8
    images = source.serve(dataset, split, size or usual, Access(root, store="streamed"))
    save = save or Path(f"{dataset}-{split}.png")
    picture = contact_sheet(images, f"{dataset}, {split} images", count)
    write(save, lambda path: picture.save(path, "PNG"))
    typer.echo(f"contact sheet: {save} ({picture.width} × {picture.height} pixels)")


def _config(benchmark: str | None, config: Path | None, **place: object) -> "Config":
    from opencil.config import read_yaml, resolve

    if benchmark is None and config is None:
        raise BadInput("name a benchmark with --benchmark, or a YML of your own with --config")
    flags = {"place": {name: value for name, value in place.items() if value}, "benchmark": benchmark}
    return resolve(read_yaml(config) if config else None, flags=flags)


def _table(title: str, results: "list[CheckResult]", root: Path | None) -> Table:
    """Return a table with a line for each dataset and split."""
    table = Table(*_COLUMNS, title=Text(title), title_justify="left")
    for r in results:
        place, layout = "–" if r.images is None else "in a package", "–"
        if r.on_disk:
            place, layout = str(r.on_disk.place).removeprefix(f"{root}/"), r.on_disk.layout.name
        images, expected = (f"{n:,}" if n is not None else "–" for n in (r.images, r.expected))
        checksum = {"": "none known", "canonical": "as published", "differs": "differs"}[r.checksum]
        decodable = f"{len(r.corrupt):,} corrupt" if r.corrupt else f"{r.decoded:,}"
        cells = (r.entry.name, r.entry.split, r.entry.role, place, layout, images, expected)
        style = "" if r.usable else "red"
        table.add_row(*(Text(cell, style) for cell in (*cells, checksum, decodable)))
    return table


def _remarks(results: "list[CheckResult]") -> Iterator[str]:
    """Yield lines about differences, damage and missing datasets."""
    for r in results:
        name = f"{r.entry.name} ({r.entry.split})"
        if r.checksum == "differs":
            yield f"differs: the files of {name} are not byte for byte the published ones; usable"
        if r.images is not None and r.expected not in (None, r.images):
            yield f"differs: {name} has {r.images:,} of {r.expected:,} images; usable"
        yield from (f"unusable: {message}" for message in [r.problem, *r.corrupt[:5]] if message)
        if len(r.corrupt) > 5:
            yield f"unusable: {len(r.corrupt) - 5:,} more of {name}"


@contextmanager
def _bars() -> Iterator[Callable[[str], Callable[[int, int], None]]]:
    """Yield a function to add a dataset's progress bar; bars are shown on a terminal only."""
    with Progress(console=problems, transient=True, disable=not problems.is_terminal) as bars:

        def add(name: str) -> Callable[[int, int], None]:
            task = bars.add_task(name, total=None)
            return lambda done, total: bars.update(task, completed=done, total=total)

        yield add
