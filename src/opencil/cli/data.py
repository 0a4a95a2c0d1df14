"""``opencil data``: find, check, prepare and look at datasets."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from opencil.cli import completion
from opencil.cli.completion import one_of
from opencil.cli.guard import guarded
from opencil.errors import BadInput, OpenCILError

if TYPE_CHECKING:
    from opencil.config import Config
    from opencil.data.check import CheckResult
    from opencil.data.images import Progress as ProgressCall
    from opencil.data.images import Split

app = typer.Typer(
    help="Find, check, prepare and look at the datasets in a folder of downloads.", no_args_is_help=True
)

_root = typer.Argument(
    help="Folder of your downloads.", envvar="OPENCIL_DATA", metavar="ROOT", exists=True, file_okay=False
)
Root = Annotated[Path, _root]
OptionalRoot = Annotated[Path | None, _root]  # some benchmarks read no files
Benchmark = Annotated[
    str | None,
    typer.Option(
        help="Benchmark: see 'opencil list benchmarks'.",
        metavar="NAME",
        autocompletion=one_of(completion.benchmarks),
    ),
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="A YML, for datasets of your own.", metavar="FILE")
]
Cache = Annotated[
    str | None,
    typer.Option(
        help="Folder of prepared images; place.cache, $OPENCIL_CACHE or ROOT/.opencil-cache.", metavar="DIR"
    ),
]
Full = Annotated[bool, typer.Option("--full", help="Decode every image, not a sample of the large datasets.")]
SkipCorrupt = Annotated[bool, typer.Option("--skip-corrupt", help="Leave corrupt images out and count them.")]
Workers = Annotated[int | None, typer.Option(help="Threads that decode; one per processor.", min=1)]


@app.command(epilog="Example: opencil data check ~/downloads --benchmark cifar100")
@guarded
def check(
    root: OptionalRoot = None, benchmark: Benchmark = None, config: ConfigFile = None, full: Full = False
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
    with _progress() as bars:
        results = [
            check_split(entry, root, resolved.benchmark.image_size, full, _bar(bars, entry.name))
            for entry in wanted
        ]
    screen = Console()
    if not screen.is_terminal:  # a pipe or a file has no width to keep to
        screen = Console(width=10_000)
    screen.print(_table(f"{name} in {root}" if root else name, results, root))
    for line in _remarks(results, root):
        typer.echo(line)
    if bad := [r for r in results if not r.usable]:
        raise OpenCILError(f"{len(bad)} of {len(results)} cannot be used; see above")
    typer.echo(f"all {len(results)} can be used")


@app.command(epilog="Example: opencil data prepare ~/downloads --benchmark cifar100")
@guarded
def prepare(
    root: Root,
    benchmark: Benchmark = None,
    config: ConfigFile = None,
    cache: Cache = None,
    workers: Workers = None,
    skip_corrupt: SkipCorrupt = False,
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
    wanted = [(a, a.dataset) for a in splits(resolved) if isinstance(a.dataset, FileDataset)]
    if not wanted:
        raise BadInput(
            f"benchmark {resolved.benchmark.name!r} reads no files: its images come with installed packages"
        )
    with _progress() as bars:
        for entry, dataset in wanted:
            bar = _bar(bars, entry.name)
            done = dataset.prepare(entry.name, entry.split, size, access, skip_corrupt, bar)
            total += done.size
            left_out = f", {len(done.left_out):,} corrupt images left out" if done.left_out else ""
            typer.echo(f"{entry.name} {entry.split}: {done.images:,} images{left_out}")
            for name in done.left_out[:10]:
                typer.echo(f"  left out: {name}")
    typer.echo(f"{total / 2**20:,.0f} MiB in {cache_folder(access.root, access.cache)}")


@app.command(epilog="Example: opencil data show ~/downloads texture --save texture.png")
@guarded
def show(
    root: Root,
    dataset: Annotated[
        str,
        typer.Argument(
            help="Dataset: see 'opencil list datasets'.",
            metavar="DATASET",
            autocompletion=one_of(completion.datasets),
        ),
    ],
    split: Annotated[str, typer.Option(help="train or test.")] = "test",
    save: Annotated[Path | None, typer.Option(help="The picture; DATASET-SPLIT.png.", metavar="FILE")] = None,
    count: Annotated[int, typer.Option(help="Images on it.", min=1, max=1000)] = 60,
    size: Annotated[int | None, typer.Option(help="Side of the images, in pixels; 128.", min=1)] = None,
    benchmark: Benchmark = None,
    config: ConfigFile = None,
) -> None:
    """Write a contact sheet: some images of a dataset with their labels, as the benchmark sees them."""
    from opencil.data.benchmark import find_dataset
    from opencil.data.contact_sheet import contact_sheet
    from opencil.data.file_dataset import FileDataset
    from opencil.data.images import Access
    from opencil.files import write

    if split not in ("train", "test"):
        raise BadInput(f"--split {split!r} is not allowed: train and test are")
    part: Split = "train" if split == "train" else "test"
    own = {}
    if benchmark or config:
        resolved = _config(root, benchmark, config).benchmark
        own, size = resolved.datasets, size or resolved.image_size
    source = find_dataset(dataset, own)
    size = size or (128 if isinstance(source, FileDataset) else 8)
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
    columns = (
        "dataset",
        "split",
        "role",
        "found",
        "layout",
        "images",
        "in the paper",
        "checksum",
        "decodable",
    )
    table = Table(*columns, title=Text(title), title_justify="left")
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
        if r.differs:
            yield f"differs: {name} has {r.images:,} of {r.expected:,} images; usable"
        yield from (f"unusable: {message}" for message in [r.problem, *r.corrupt[:5]] if message)
        if len(r.corrupt) > 5:
            yield f"unusable: {len(r.corrupt) - 5:,} more of {name}"
        if r.images is None and not r.problem and root and isinstance(dataset, FileDataset):
            places = " or ".join(str(root / place) for place in dataset.places(r.entry.split)[:4])
            yield f"missing: {name}: expected at {places}{dataset.home and f'; home page {dataset.home}'}"


def _progress() -> Progress:
    """Return progress bars for datasets; they are shown on a terminal only."""
    screen = Console(stderr=True)
    return Progress(console=screen, transient=True, disable=not screen.is_terminal)


def _bar(progress: Progress, name: str) -> "ProgressCall":
    task = progress.add_task(name, total=None)
    return lambda done, total: progress.update(task, completed=done, total=total)
