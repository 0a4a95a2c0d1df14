"""The command line: turn flags into a config, show events as they happen, and print tables."""

import inspect
import re

import typer

from opencil._version import __version__
from opencil.cli import check, data, openworld, report, run, runs, serve, stream, submissions, tune
from opencil.cli import list as listing
from opencil.cli.flags import switch
from opencil.cli.guard import Guarded

app = typer.Typer(
    cls=Guarded,
    help="Out-of-distribution detection in class-incremental learning: train, detect, compare.",
    epilog="Start with: opencil run (iCaRL on small digits, in seconds), and opencil list for what there is",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, _command, _example in (
    ("run", run.run, "--benchmark digits --cil icarl --detector all --set cil.icarl.epochs=5"),
    ("evaluate", run.evaluate, "checkpoints --factory my_file.py:make --benchmark cifar100 --name my-method"),
    ("config", run.show_config, "--benchmark digits --cil icarl --detector msp,energy > my.yml"),
    ("tune", tune.tune, "runs --detector ash --try percentile=50,65,80,95 --try variant=s,b"),
    ("check", check.check, "my_method.py"),
    ("list", listing.list_names, "detectors '*norm*'"),
    ("doctor", check.doctor, "--data-root ~/downloads"),
    ("report", report.report, "runs --table main --compare paper --html report.html"),
    ("learn", openworld.learn, "photos --model birds.opencil"),
    ("predict", openworld.predict, "inbox --model birds.opencil --out predictions.csv"),
    ("export", serve.export, "birds.opencil birds.onnx"),
    ("serve", serve.serve, "birds.opencil --save"),
    ("open-world", stream.open_world, "--benchmark cifar100-pretrained --cil slda,ranpac --detector msp"),
    ("submit", submissions.submit, "runs --out my-submission --submitter 'Ada Lovelace'"),
):
    app.command(_name, epilog=f"Example: opencil {_name} {_example}")(_command)
app.add_typer(data.app, name="data")
app.add_typer(runs.app, name="runs")
app.add_typer(submissions.app, name="submissions")
for _group in (app, data.app, runs.app, submissions.app):
    for _info in _group.registered_commands:  # typer would keep the ends of a docstring's lines
        _info.help = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.getdoc(_info.callback) or "")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"opencil {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    _: bool = switch("--version", "Print the version and exit.", is_eager=True, callback=_print_version),
) -> None:
    pass
