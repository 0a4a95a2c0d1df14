"""``opencil data``: find, check, prepare, pack and look at datasets."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from opencil.cli import completion
from opencil.cli.completion import one_of
from opencil.cli.guard import guarded
from opencil.errors import BadInput, OpenCILError, nearest

if TYPE_CHECKING:
    from opencil.config import Config
    from opencil.data.check import Checked
    from opencil.data.images import Split
    from opencil.data.packs import Form

app = typer.Typer(
    help="Find, check, prepare, pack and look at the datasets in a folder of downloads.", no_args_is_help=True
)

Root = Annotated[
    Path, typer.Argument(help="Folder of your downloads.", envvar="OPENCIL_DATA", metavar="ROOT")
]
OptionalRoot = Annotated[
    Path | None,
    typer.Argument(
        help="Folder of your downloads; not needed where a benchmark reads no files.",
        envvar="OPENCIL_DATA",
        metavar="ROOT",
    ),
]
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
    """Say what of a benchmark's datasets is there, and where to get the rest.

    Exit code 0: all are there and can be decoded. 1: some are missing or damaged.

    A number of images that differs from the paper's is named, and is no failure.
    """
    from opencil.data.check import check as check_split
    from opencil.data.file_dataset import FileDataset
    from opencil.runs.loading import splits

    resolved = _config(root, benchmark, config)
    wanted, size = splits(resolved), resolved.benchmark.image_size
    if root is None and any(isinstance(asked.dataset, FileDataset) for asked in wanted):
        raise BadInput(
            f"benchmark {resolved.benchmark.name!r} reads files: name the folder of your downloads, as in "
            f"'opencil data check ~/downloads --benchmark {resolved.benchmark.name}'"
        )
    results = []
    with _bars() as bar:
        for asked in wanted:
            with bar(f"{asked.name} {asked.split}") as progress:
                results.append(check_split(asked, root, size, full, progress))
    screen = Console()
    _print(screen, _table(resolved, results, root))
    for line in _remarks(results, root):
        screen.print(line, highlight=False, soft_wrap=True)
    bad = [r for r in results if not r.usable]
    if bad:
        raise OpenCILError(f"{len(bad)} of {len(results)} cannot be used; see above")
    screen.print(f"all {len(results)} can be used", highlight=False)


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

    A dataset that is too large for the device (place.resident_mb) is streamed from its
    pack, or from its own files: with --skip-corrupt it is decoded once to note what to
    leave out.
    """
    _prepare(_config(root, benchmark, config, cache=cache, workers=workers), skip_corrupt)


@app.command(epilog="Example: opencil data pack ~/downloads --benchmark imagenet1k")
@guarded
def pack(
    root: Root,
    benchmark: Benchmark = None,
    config: ConfigFile = None,
    cache: Cache = None,
    workers: Workers = None,
    skip_corrupt: SkipCorrupt = False,
    form: Annotated[
        str,
        typer.Option(
            help="pixels: decoded, served by a copy. files: as they are, smaller, decoded when served."
        ),
    ] = "pixels",
) -> None:
    """Pack a benchmark's images into a few large files, so that streaming them opens and decodes none.

    Datasets that fit the device (place.resident_mb) are prepared as by 'prepare'.

    Stop it, start it again: it goes on. Of a finished pack it reads every image, and
    makes damaged parts again.
    """
    from opencil.data.packs import FORMS

    chosen = next((known for known in FORMS if known == form), None)
    if chosen is None:
        raise BadInput(f"--form {form!r} is not allowed: {' and '.join(FORMS)} are{nearest(form, FORMS)}")
    _prepare(_config(root, benchmark, config, cache=cache, workers=workers), skip_corrupt, chosen)


def _prepare(resolved: "Config", skip_corrupt: bool, form: "Form | None" = None) -> None:
    from opencil.data.file_dataset import FileDataset
    from opencil.data.image_cache import cache_folder
    from opencil.data.preparing import prepare_split
    from opencil.runs.loading import access as access_of
    from opencil.runs.loading import splits

    wanted = [asked for asked in splits(resolved) if isinstance(asked.dataset, FileDataset)]
    if not wanted:
        raise BadInput(
            f"benchmark {resolved.benchmark.name!r} reads no files: its images come with installed packages"
        )
    access, size = access_of(resolved.place), resolved.benchmark.image_size
    screen = Console()
    total = 0
    with _bars() as bar:
        for asked in wanted:
            with bar(f"{asked.name} {asked.split}") as progress:
                done = prepare_split(asked, size, access, skip_corrupt, progress, form)
            total += done.size
            many = f"{done.images:,} images" + f", {done.left_out:,} corrupt ones left out" * bool(
                done.left_out
            )
            where = f", streamed from {done.streamed_from}" if done.streamed_from else ""
            _say(screen, f"{asked.name} {asked.split}: {many}{where}")
            for name in done.skipped[:10]:
                _say(screen, f"  left out: {name}")
    _say(screen, f"{total / 2**20:,.0f} MiB in {cache_folder(access.root, access.cache)}")


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
    from opencil.atomic_files import write
    from opencil.data.contact_sheet import contact_sheet
    from opencil.data.file_dataset import FileDataset
    from opencil.data.images import Access
    from opencil.registry import DATASETS

    if split not in ("train", "test"):
        raise BadInput(f"--split {split!r} is not allowed: train and test are")
    part: Split = "train" if split == "train" else "test"
    own = {}
    if benchmark or config:
        resolved = _config(root, benchmark, config).benchmark
        own, size = resolved.datasets, size or resolved.image_size
    elif not root.is_dir():
        raise BadInput(f"there is no folder {root}")
    source = own.get(dataset) or DATASETS.create(dataset)
    if isinstance(source, FileDataset):
        images = source.serve(dataset, part, size or 128, Access(root, store="streamed"))
    else:
        images = source.load(part, size or 8, root)
    save = save or Path(f"{dataset}-{split}.png")
    if save.is_dir():
        raise BadInput(f"--save {save} is a folder: name a file, such as {save / f'{dataset}-{split}.png'}")
    picture = contact_sheet(images, f"{dataset}, {split} images", count)
    write(save, lambda path: picture.save(path, "PNG"))
    typer.echo(f"contact sheet: {save} ({picture.width} × {picture.height} pixels)")


def _say(screen: Console, line: str) -> None:
    """Print a line as it is: names of files may look like markup."""
    screen.print(line, markup=False, highlight=False, soft_wrap=True)


def _config(root: Path | None, benchmark: str | None, config: Path | None, **place: object) -> "Config":
    from opencil.config import list_benchmarks, read_yaml, resolve

    if root is not None and not root.is_dir():
        raise BadInput(f"there is no folder {root}: ROOT is the folder of your downloads")
    if benchmark is None and config is None:
        raise BadInput(
            f"which datasets? --benchmark names one of {', '.join(list_benchmarks())}; --config a YML"
        )
    flags = {"place": {name: value for name, value in place.items() if value}}
    flags["place"] |= {"data_root": str(root)} if root else {}
    flags |= {"benchmark": {"name": benchmark}} if benchmark else {}
    return resolve(read_yaml(config) if config else None, flags=flags)


def _table(config: "Config", results: "list[Checked]", root: Path | None) -> Table:
    title = f"{config.benchmark.name} in {root}" if root else config.benchmark.name
    table = Table(title=escape(title), title_justify="left")
    for column in ("dataset", "split", "role", "found", "layout"):
        table.add_column(column, overflow="fold")
    table.add_column("images", justify="right")
    table.add_column("in the paper", justify="right")
    for column in ("checksum", "decodable"):
        table.add_column(column)
    for r in results:
        expected = f"{r.expected:,}" if r.expected else "–"
        if r.on_disk is None and r.images is not None:
            cells = ["in a package", "–", f"{r.images:,}", "–", "–", "all"]
        elif r.on_disk is None or r.images is None:
            state = "[red]unusable[/]" if r.problem else "[red]missing[/]"
            place = escape(_short(r.on_disk.place, root)) if r.on_disk else ""
            layout = r.on_disk.layout if r.on_disk else ""
            cells = [f"{state} {place}".strip(), layout, "–", expected, "–", "–"]
        else:
            images = f"[yellow]{r.images:,}[/]" if r.differs else f"{r.images:,}"
            if r.corrupt:
                decodable = f"[red]{len(r.corrupt):,} corrupt[/]"
            else:
                decodable = "all" if r.decoded == r.images else f"{r.decoded:,} tried"
            checksum = {
                "": "none known",
                "canonical": "[green]as published[/]",
                "differs": "[yellow]differs[/]",
            }
            place = escape(_short(r.on_disk.place, root))
            cells = [place, r.on_disk.layout, images, expected, checksum[r.checksum], decodable]
        table.add_row(escape(r.asked.name), r.asked.split, r.asked.role, *cells)
    return table


def _remarks(results: "list[Checked]", root: Path | None) -> Iterator[str]:
    """What the table has no room for: differences, damage, and where to get what is missing."""
    from opencil.data.file_dataset import FileDataset

    if other := [f"{r.asked.name} ({r.asked.split})" for r in results if r.checksum == "differs"]:
        yield (
            f"[yellow]differs:[/] the files of {escape(', '.join(other))} are not byte for byte the "
            "published ones; their images may still be"
        )
    for r in results:
        name = escape(f"{r.asked.name} ({r.asked.split})")
        if r.differs:
            yield f"[yellow]differs:[/] {name} has {r.images:,} of {r.expected:,} images; usable"
        for message in [*([r.problem] if r.problem else []), *r.corrupt[:5]]:
            yield f"[red]unusable:[/] {escape(message)}"
        if len(r.corrupt) > 5:
            yield f"[red]unusable:[/] and {len(r.corrupt) - 5:,} more of {name}"
        dataset = r.asked.dataset
        if r.images is None and not r.problem and root and isinstance(dataset, FileDataset):
            places = " or ".join(str(root / place) for place in dataset.places(r.asked.split)[:4])
            home = f"; home page {dataset.home}" if dataset.home else ""
            yield f"[red]missing:[/] {name}: expected at {escape(places)}{home}"


def _short(path: Path, root: Path | None) -> str:
    return str(path.relative_to(root)) if root and path.is_relative_to(root) else str(path)


def _print(screen: Console, table: Table) -> None:
    """A pipe or a file has no width to keep to."""
    wide = Console(width=10_000).measure(table).maximum
    (screen if screen.is_terminal else Console(width=max(wide, screen.width))).print(table)


@contextmanager
def _bars() -> Iterator[Callable[[str], "_Bar"]]:
    """Makes a progress bar per dataset, on a terminal; elsewhere they show nothing."""
    screen = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as progress:
        yield lambda name: _Bar(progress, name)


class _Bar:
    """One dataset's bar: inside the block, a function of images done and of all."""

    def __init__(self, progress: Progress, name: str) -> None:
        self.progress, self.task = progress, progress.add_task(name, total=None)

    def __enter__(self) -> Callable[[int, int], None]:
        return lambda done, total: self.progress.update(self.task, completed=done, total=total)

    def __exit__(self, *_: object) -> None:
        self.progress.remove_task(self.task)
