"""``opencil submit`` and ``opencil submissions``: submit results, check those of others, and make a board."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer
from rich.text import Text

from opencil.cli.flags import DATA_ROOT, PLUGIN, RUNS, Plugins, argument, names, option, switch
from opencil.cli.screen import print_line, problems
from opencil.errors import OpenCILError

if TYPE_CHECKING:  # imported where it is used, so that --help answers at once
    from opencil.submissions.checking import Checked

app = typer.Typer(help="Check submitted results, make a board of them, share them.", no_args_is_help=True)
SUBMISSIONS = argument("FOLDER", "Submissions, as 'opencil submit' writes them.")


def submit(
    folders: list[Path] = RUNS,
    out: Path = option("FOLDER", "Write the submission here.", ...),
    submitter: str = option("NAME", "Who submits: a name for the board.", ...),
    scores: bool = switch("--scores", "Also store all scores, so that anyone can compute the rows again."),
    only_finished: bool = switch("--only-finished", "Leave unfinished runs out, instead of refusing all."),
    other_data: str | None = option("A,B", "Sets of which you have other images than the track's."),
    data_root: str | None = DATA_ROOT,
    device: str = option("NAME", "Where to compute scores: the device that made the rows.", "cpu"),
    _plugin: Plugins = PLUGIN,
) -> None:
    """Write finished runs as a submission: rows, records, checksums and, if you like, scores.

    Runs that are unfinished, or of other data, class orders or seeds than their track asks for, are refused.
    """
    from opencil.submissions.submission import write_submission

    progress = write_submission(
        folders,
        out,
        submitter,
        only_finished=only_finished,
        other_data=names("--other-data", other_data),
        with_scores=scores,
        data_root=data_root,
        device=device,
    )
    with problems.status("reading runs") as status:
        sentence = ""
        for sentence in progress:
            status.update(Text(sentence))
    print_line(sentence)


@app.command(epilog="Example: opencil submissions check my-submission")
def check(folders: list[Path] = SUBMISSIONS, _plugin: Plugins = PLUGIN) -> None:
    """Compute again all that submissions state, and name their tier and every contradiction.

    No images are needed, and nothing in a submission is run. Exit code 0: nothing contradicts itself. 1:
    something does.
    """
    bad = sum(bool(one.problems) for one in _check(folders))
    if bad:
        raise OpenCILError(f"{bad} of {len(folders)} submissions contradict themselves")


@app.command(epilog="Example: opencil submissions board results/study my-submission --html board.html")
def board(
    folders: list[Path] = SUBMISSIONS,
    html: Path = option("FILE", "Write the page here; it needs no network.", ...),
    _plugin: Plugins = PLUGIN,
) -> None:
    """Make a leaderboard from submissions alone; those that contradict themselves are left out."""
    from opencil.report.writing import write_page
    from opencil.submissions import checking

    checked = _check(folders)
    good = [one for one in checked if not one.problems]
    if not good:
        raise OpenCILError("there is no submission that can be shown")
    study, table = checking.board(good)
    run = good[-1].study.runs[0]
    # Ranks over all submissions together would count runs that are there twice as two.
    write_page(study, html, tables=[table], opened=(run["benchmark"], run["k"]))
    print_line(f"board: {html}")
    if len(good) < len(checked):
        raise OpenCILError(f"{len(checked) - len(good)} of {len(checked)} submissions are left out")


@app.command(epilog="Example: opencil submissions export my-submission --out formats --dataset me/results")
def export(
    folder: Path = argument("FOLDER", "A submission."),
    out: Path = option("FOLDER", "Write the files here.", ...),
    dataset: str = option("OWNER/NAME", "The dataset on the Hub that has the submission.", ...),
    _plugin: Plugins = PLUGIN,
) -> None:
    """Write results for other boards: OpenOOD's CSV, the Hub's .eval_results, Every Eval Ever's JSON."""
    from opencil.submissions import formats

    (checked,) = _check([folder])
    if checked.problems or checked.description is None:
        raise OpenCILError(f"{folder} contradicts itself")
    count = formats.export(checked.study, checked.description, out, dataset)
    print_line(f"{count} files: {out}")


@app.command(epilog="Example: opencil submissions upload my-submission me/results")
def upload(
    path: Path = argument("PATH", "A folder, or the file of a model, which gets a card.", exists=True),
    repository: str = argument("OWNER/NAME", "The repository on the Hugging Face Hub."),
    kind: Literal["dataset", "model"] = option(None, "The kind of repository.", "dataset"),
    pull_request: bool = switch("--pull-request", "Open a pull request, in a repository of others."),
) -> None:
    """Upload a folder of results, or a model, to the Hugging Face Hub; log in by 'hf auth login' before."""
    from opencil.submissions import hub

    with problems.status(f"uploading {path}"):
        address = hub.upload(path, repository, kind, pull_request)
    if left_out := hub.list_files(path)[1]:
        print_line(f"no part of the submission, and not uploaded: {', '.join(left_out)}", "note")
    print_line(address)


def _check(folders: list[Path]) -> "list[Checked]":
    """Check submissions, and print what is found."""
    from opencil.submissions.checking import check_submissions

    with problems.status("checking"):
        checked = check_submissions(folders)
    for one in checked:
        who = f" by {one.description['submitter']}, {one.description['date']}" if one.description else ""
        print_line(f"{one.folder}{who}: {one.tier}", "bad" if one.problems else "good")
        for mark, lines in (("bad", one.problems), ("note", one.notes)):
            for line in lines:
                print_line(line, mark, indent=4)
    return checked
